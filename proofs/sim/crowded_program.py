"""Random programs in which many operations have to wait at some brokers and not at others.

Usual programs seldom reach the rules about operations that are held for a decision; these consist
of little else.
"""

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
    """A program in which operations wait at one broker and not at the next.

    All filters are about one point, or two. First some transactions read there and stay undecided
    for long, because a link is silent; B1 is in the middle of the tree, and one of their
    coordinators is often there. Meanwhile clients, two at each broker, issue the same few
    operations over and over, alone and in transactions, and D-TX reads them in two places at once.
    In a busy program there are so many operations that hardly one has an effect of its own; in a
    quiet one it matters which brokers have learned of a single operation.
    """

    #: How many transactions begin early, and the times in which these, the others and the plain
    #: operations begin.
    EARLY = 2
    EARLY_MS = 6
    LATER_MS = (10, 40)
    PLAIN_MS = (5, 30)

    def __init__(self, shape: Shape, tape: Tape) -> None:
        self._busy, self._begun = False, 0
        super().__init__(shape, tape)
        if len(self.tree) > 1:
            self.faults.append(self._silent_link())
        self.length = len(tape.choices)

    def _add_broker(self) -> None:
        size = len(self.tree)
        far = self.choose(3) == 2
        self.tree.add_edge(f"B{size + 1}", f"B{1 + (self.choose(size) if far else 0)}")

    def _add_client(self) -> None:
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

    def _routing_operation(self, client: str) -> PlannedOperation:
        kinds: tuple[OpKind, ...] = ("sub", "usub", "sub", "usub", "adv", "uadv")
        return PlannedOperation(client, kinds[self.choose(len(kinds))], self._filter())

    def _op(self, client: str) -> PlannedOperation:
        return self._routing_operation(client) if self.choose(3) == 2 else self._pub(client)

    def _ops(self, engine: str, coordinator: str) -> list[PlannedOperation]:
        if self.choose(4) >= 3 - self._busy:
            return super()._ops(engine, coordinator)
        if not registry.load(engine).isolated:
            others = self._several(2, lambda: self._routing_operation(self._client()))
            return [self._routing_operation(coordinator), *others]
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
        return self._several(12 if self._busy else 5, self._plain_operation)

    def _plain_operation(self) -> tuple[int, PlannedOperation]:
        first, last = self.PLAIN_MS
        return first + self.choose(last - first), self._routing_operation(self._client())

    def _handovers(self) -> PlannedHandovers | None:
        return None

    def _silent_link(self) -> PlannedFault:
        """A link that is silent for so long that much can begin and end elsewhere.

        Often it leads to a leaf of the tree, and all other brokers can go on.
        """
        links = [(broker, next(iter(self.tree[broker]))) for broker in self.tree if broker != "B1"]
        where = links[-1] if self.choose(2) == 0 else links[self.choose(len(links))]
        outage_ms = OUTAGE_STEP_MS * (5 + self.choose(8))
        return PlannedFault(self.choose(WINDOW_MS // 8), "link-cut", where, outage_ms)
