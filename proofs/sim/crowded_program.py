"""Random programs in which much has to wait."""

from __future__ import annotations

from overlay.filters import Filter, Value
from overlay.hosts.simulator import Tape
from padres_tx import registry
from padres_tx.client_messages import OpKind
from proofs.sim.program import (
    OUTAGE_STEP_MS,
    WINDOW_MS,
    PlannedFault,
    PlannedHandovers,
    PlannedOperation,
    Program,
    Shape,
)


class CrowdedProgram(Program):
    """A program in which much has to wait, at one broker and not at the next.

    All is about one point, or two. First some transactions read there and stay undecided for
    long, since a link is silent; B1 is in the middle, and so is one of their coordinators, often.
    Meanwhile clients, two at each broker, say the same few things over and over, alone and in
    transactions, and D-TX reads them in two places at once. A busy crowd says so much that hardly
    anything stands alone; in a quiet one it matters who hears of a single word, and who does not.
    """

    #: How many transactions begin at once, and by when the others and the plain operations have.
    EARLY = 2
    EARLY_MS = 6
    LATER_MS = (10, 40)
    ASIDE_MS = (5, 30)

    def __init__(self, shape: Shape, tape: Tape) -> None:
        self._busy, self._begun = False, 0
        super().__init__(shape, tape)
        if len(self.tree) > 1:
            self.faults.append(self._silence())
        self.length = len(tape.choices)

    def _grow(self) -> None:
        size = len(self.tree)
        far = self.choose(3) == 2
        self.tree.add_edge(f"B{size + 1}", f"B{1 + (self.choose(size) if far else 0)}")

    def _come(self) -> None:
        if not self.edges:
            self._busy = self.choose(2) == 1
        count, size = len(self.edges), len(self.tree)
        at = self.choose(size) if self.choose(4) == 3 else (count + 1) // 2 % size
        client = f"C{count}"
        self.edges[client] = f"B{1 + at}"
        if self._busy:
            self.held += [(client, filter) for filter in self._several(2, self._filter)]

    def _filter(self) -> Filter:
        points = 1 + self._busy
        low = self.choose(points)
        return Filter({"class": "p", "x": (low, low + self.choose(points - low))})

    def _pub(self, client: str) -> PlannedOperation:
        point: dict[str, Value] = {
            "class": "p",
            "x": self.choose(1 + self._busy),
            "n": self._number(),
        }
        return PlannedOperation(client, "pub", point)

    def _word(self, client: str) -> PlannedOperation:
        kinds: tuple[OpKind, ...] = ("sub", "usub", "sub", "usub", "adv", "uadv")
        return PlannedOperation(client, kinds[self.choose(len(kinds))], self._filter())

    def _op(self, client: str) -> PlannedOperation:
        return self._word(client) if self.choose(3) == 2 else self._pub(client)

    def _ops(self, engine: str, coordinator: str) -> list[PlannedOperation]:
        if self.choose(4) >= 3 - self._busy:
            return super()._ops(engine, coordinator)
        if not registry.load(engine).isolated:
            words = self._several(2, lambda: self._word(self._client()))
            return [self._word(coordinator), *words]
        pubs = [self._pub(coordinator)]
        return pubs if self._begun <= self.EARLY else [*pubs, self._pub(self._client())]

    def _begins(self) -> int:
        self._begun += 1
        if self._begun <= self.EARLY:
            return self.choose(self.EARLY_MS)
        first, last = self.LATER_MS
        return first + self.choose(last - first)

    def _coordinator(self) -> str:
        early = self._begun <= self.EARLY
        return self.clients[0] if early and self.choose(2) == 0 else self._client()

    def _plain(self) -> list[tuple[int, PlannedOperation]]:
        return self._several(12 if self._busy else 5, self._aside)

    def _aside(self) -> tuple[int, PlannedOperation]:
        first, last = self.ASIDE_MS
        return first + self.choose(last - first), self._word(self._client())

    def _handovers(self) -> PlannedHandovers | None:
        return None

    def _silence(self) -> PlannedFault:
        """A link is silent for so long that much can begin and end elsewhere.

        Often it leads to a dead end, and everybody else can go on.
        """
        links = [(broker, next(iter(self.tree[broker]))) for broker in self.tree if broker != "B1"]
        where = links[-1] if self.choose(2) == 0 else links[self.choose(len(links))]
        outage_ms = OUTAGE_STEP_MS * (5 + self.choose(8))
        return PlannedFault(self.choose(WINDOW_MS // 8), "link-cut", where, outage_ms)
