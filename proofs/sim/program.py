"""Random runs of an overlay: what happens in one, drawn choice by choice, and what came of it.

A run has a tree of brokers, clients with something to hold, and then everything at once: concurrent
transactions on few filters, so that they conflict; plain operations and publications; a stream
of numbered events that is handed from worker to worker; and faults. Its choices come from a tape
in two parts: first all that is to happen, and when (`Program`), then the delays of messages as they
are sent. It is drawn so that a failing tape shrinks well (`shrink`): 0 is always the tamest choice,
and where there are several of something, what was drawn for each of them is known (`TapePart`).

What has to hold afterwards is for `random_checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import networkx as nx

from overlay.filters import Filter, Value
from overlay.hosts.simulator import Tape
from overlay.messages import client_hop
from padres_tx import registry
from padres_tx.client_messages import OpKind, Step
from padres_tx.protocol.validation.losses import FENCE_AFTER
from proofs.sim.shrink import TapePart
from proofs.sim.simulated_overlay import DEADLINE_S, ClientStep, IfHeld

#: Engines whose transactions are decided by brokers; "mixed" runs them side by side.
DECIDED = tuple(
    name for name in registry.by_promises(own=True) if registry.load(name).broker is not None
)
MIXED = "mixed"
ENGINES = (*registry.by_promises(own=True), MIXED)

#: What may go wrong in a run: every message has its own delay; links fall silent for a while;
#: clients end in the middle of whatever they do, and some come back, at another broker; links are
#: down for so long that both sides go on without each other.
FAULTS = ("delay", "link-cut", "client-crash", "partition")

#: A broker that loses its memory, and its clients with it. Not among the faults that every engine
#: survives: of a run with restarts only that is judged which holds without durable brokers.
RESTART = "broker-restart"

#: Transactions begin, and plain things are said, within so many milliseconds: as long as one
#: transaction takes on some brokers with the delays of the simulator, so that all of them meet.
WINDOW_MS = 96

#: A transaction whose coordinator never asks for the commit is over after this time.
FORSAKEN_S = 0.15

#: A client that loses to others tries again so often, as the client library does; the last time it
#: has precedence (D-TX only), unless it has lost to itself.
ATTEMPTS = FENCE_AFTER + 1

#: What BL-WAIT waits between two operations: some hops, and sometimes not enough.
WAIT_MS = 10

#: Fewer than so many transactions take the stream from whoever has it, beside the handovers.
TAKES = 5

#: Outages: long enough for a whole transaction to pass by, and some short ones.
OUTAGE_STEP_MS = 10
OUTAGE_STEPS = 16

#: Where there are partitions: how soon the ends of a link go on without each other, in the midst of
#: what happens; how long partitions last, around that, past a short deadline, and past the time
#: after which brokers act on one; and that deadline, which some transactions have.
ABSENT_AFTER_S = 0.02
PARTITION_MS = (20, 40, 160, 1300, 3000, 3000)
HURRY_S = 0.15

T = TypeVar("T")

CONTROL = Filter({"class": "ctl"})
SPACE = Filter({"class": "p", "x": (0, 3)})
STREAM = Filter({"class": "s"})


class Shape(msgspec.Struct, frozen=True):
    """How large runs are, which engine they try, and what may go wrong in them."""

    engine: str
    brokers: int = 5
    clients: int = 6
    transactions: int = 4
    faults: tuple[str, ...] = ("delay",)
    #: Whether everybody wants the same at the same time, over slow links (`Crowd`).
    crowded: bool = False
    #: Whether clients are real sessions, some with callbacks (`proofs.sim.simulated_sessions`).
    sessions: bool = False
    #: Units of work in one slice; 0: as many as brokers take. With 1 or 2 all work is cut.
    slice: int = 0

    def of_seed(self, seed: int) -> Shape:
        """The shape of a run: with sessions every other time, unless it has them anyway."""
        return msgspec.structs.replace(self, sessions=self.sessions or seed % 2 == 1)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How the tape of a run of full size begins."""
        return self.brokers - 1, self.clients - 1, self.transactions

    def tape(self, seed: int) -> Tape:
        """The tape of a run of full size, all else from the seed."""
        return Tape(seed=seed, choices=self.sizes)


# --- what is to happen ---


class PlannedOperation(NamedTuple):
    """An operation of a client: a filter for (un-)sub and (un-)adv, a point for a publication."""

    client: str
    kind: OpKind
    what: Any
    #: Whether whoever does it catches NotHeld (in a dynamic transaction).
    catches: bool = False

    def does(self) -> ClientStep:
        return IfHeld(self.step()) if self.catches else self.step()

    def step(self, after: tuple[int, ...] = ()) -> Step:
        if self.kind == "pub":
            return Step(self.client, "pub", point=self.what, after=after)
        return Step(self.client, self.kind, self.what, after=after)


class PlannedTransaction(NamedTuple):
    """Operations of several clients, in their order, that one of them coordinates."""

    at_ms: int
    engine: str
    coordinator: str
    ops: Sequence[PlannedOperation]
    #: For the static engine: which operations come before each.
    after: Sequence[tuple[int, ...]]
    #: Whether each client that acts asks the next one to, instead of the coordinator all of them.
    nested: bool = False
    #: What becomes of it, if the brokers are willing: "commit"; "abort", by somebody who takes
    #: part, after `patience_ms`; "forsaken", its coordinator says no more; "refused", who is asked
    #: to act does not want to.
    ending: str = "commit"
    patience_ms: int = 0
    spoiler: str = ""
    attempts: int = 1
    deadline_s: float = DEADLINE_S


class PlannedHandovers(NamedTuple):
    """A stream of numbered events, whose two workers hand it to each other again and again."""

    workers: tuple[str, str]
    publishers: Sequence[str]
    coordinator: str
    engine: str
    #: When the first handover begins, and how long after the end of one the next does.
    pauses_ms: Sequence[int]
    #: Who publishes when.
    events: Sequence[tuple[int, str]]
    #: All who may have the stream: the workers and, if there are enough clients, somebody else.
    owners: Sequence[str]
    #: When somebody lets one of them take the stream from whoever has it: when, who, and for whom.
    takes: Sequence[tuple[int, str, str]]


class PlannedFault(NamedTuple):
    at_ms: int
    kind: str
    #: The ends of a link; a client, and the broker to which it comes back; or a broker, twice.
    where: tuple[str, str]
    #: For how long; a client with 0 does not come back.
    outage_ms: int


class Program:
    """All that is to happen in a run, drawn from a tape."""

    def __init__(self, shape: Shape, tape: Tape) -> None:
        self._tape = tape
        self.choose = tape.choose
        #: What can be left out, in the order of the tape.
        self.parts: list[TapePart] = []
        self._numbers = 0
        self._engines = DECIDED if shape.engine == MIXED else (shape.engine,)
        brokers = self.choose(shape.brokers)
        clients = self.choose(shape.clients)
        transactions = self.choose(shape.transactions + 1)
        self.tree: nx.Graph[str] = nx.Graph()
        self.tree.add_node("B1")
        self._draw(0, brokers, self._grow)
        self.edges: dict[str, str] = {}
        self.held: list[tuple[str, Filter]] = []
        self._come()
        self._draw(1, clients, self._come)
        self.clients = list(self.edges)
        self.transactions = self._draw(2, transactions, self._transaction)
        self.plain = self._plain()
        self.handovers = self._handovers() if clients else None
        self.faults: list[PlannedFault] = []
        if "link-cut" in shape.faults:
            self.faults += self._several(4, self._cut)
        if "client-crash" in shape.faults:
            self.faults += self._several(3, self._crash)
        if RESTART in shape.faults:
            self.faults += self._several(3, self._restart)
        if "partition" in shape.faults and len(self.tree) > 1:
            self.faults += self._several(4, self._partition)
            for at, transaction in enumerate(self.transactions):
                if self.choose(2):
                    self.transactions[at] = transaction._replace(deadline_s=HURRY_S)
        #: How many choices it took; those behind them are delays.
        self.length = len(tape.choices)

    def _draw(self, counted: int, count: int, draw: Callable[[], T]) -> list[T]:
        drawn: list[T] = []
        for _ in range(count):
            start = len(self._tape.choices)
            drawn.append(draw())
            self.parts.append(TapePart(counted, start, len(self._tape.choices)))
        return drawn

    def _several(self, below: int, draw: Callable[[], T]) -> list[T]:
        """Fewer than `below` of something."""
        counted = len(self._tape.choices)
        return self._draw(counted, self.choose(below), draw)

    def _grow(self) -> None:
        size = len(self.tree)
        self.tree.add_edge(f"B{size + 1}", f"B{1 + self.choose(size)}")

    def _come(self) -> None:
        client = f"C{len(self.edges)}"
        self.edges[client] = f"B{1 + self.choose(len(self.tree))}"
        self.held += [(client, filter) for filter in self._several(3, self._filter)]

    def _client(self) -> str:
        return self.clients[self.choose(len(self.clients))]

    def _moment(self) -> int:
        return self.choose(WINDOW_MS)

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _filter(self) -> Filter:
        low = self.choose(4)
        return Filter({"class": "p", "x": (low, low + self.choose(4 - low))})

    def _op(self, client: str) -> PlannedOperation:
        kinds: tuple[OpKind, ...] = ("sub", "pub", "usub", "sub", "pub", "usub", "adv", "uadv")
        kind = kinds[self.choose(len(kinds))]
        if kind == "pub":
            point: dict[str, Value] = {"class": "p", "x": self.choose(4), "n": self._number()}
            return PlannedOperation(client, "pub", point)
        if kind in ("usub", "uadv") and self.choose(2) == 0:
            return PlannedOperation(
                client, kind, SPACE, catches=True
            )  # It takes back what there is, if any.
        return PlannedOperation(client, kind, self._filter())

    def _transaction(self) -> PlannedTransaction:
        at_ms = self._begins()
        engine = self._engines[self.choose(len(self._engines))]
        coordinator = self._coordinator()
        ops = self._ops(engine, coordinator)
        # One after the other, but for the static engine not always.
        loose = registry.load(engine).is_static and self.choose(4) == 3
        after = [
            () if not at else (self.choose(at),) if loose else (at - 1,) for at in range(len(ops))
        ]
        transaction = PlannedTransaction(at_ms, engine, coordinator, ops, after)
        unusual = self.choose(12)
        if unusual == 11:
            spoiler = (coordinator, *(op.client for op in ops))[self.choose(1 + len(ops))]
            return transaction._replace(ending="abort", spoiler=spoiler, patience_ms=self._moment())
        ending = {9: "refused", 10: "forsaken"}.get(unusual, "commit")
        return transaction._replace(
            ending=ending, nested=unusual in (6, 7, 8), attempts=1 + self.choose(ATTEMPTS)
        )

    def _begins(self) -> int:
        """When a transaction begins."""
        return self._moment() // 2

    def _coordinator(self) -> str:
        return self._client()

    def _ops(self, engine: str, coordinator: str) -> list[PlannedOperation]:
        """What is done in a transaction, one or more."""
        ops = [self._op(self._client())]
        return ops + self._several(4, lambda: self._op(self._client()))

    def _plain(self) -> list[tuple[int, PlannedOperation]]:
        """What clients do on their own, and when."""
        return self._several(8, lambda: (self._moment(), self._op(self._client())))

    def _handovers(self) -> PlannedHandovers | None:
        pauses_ms = self._several(3, lambda: self.choose(WINDOW_MS // 4))
        if not pauses_ms:
            return None
        first = self.choose(len(self.clients))
        second = (first + 1 + self.choose(len(self.clients) - 1)) % len(self.clients)
        workers = (self.clients[first], self.clients[second])
        publishers = [self._client(), self._client()]
        # Side by side with others, it is the isolated engine that has to keep its promise.
        engine = max(self._engines, key=lambda name: registry.load(name).isolated)
        coordinator = self._client()
        gaps = self._several(16, lambda: (self.choose(WINDOW_MS // 4), publishers[self.choose(2)]))
        events: list[tuple[int, str]] = []
        at_ms = 0
        for gap_ms, publisher in gaps:
            at_ms += gap_ms
            events.append((at_ms, publisher))
        others = [client for client in self.clients if client not in workers]
        owners = [*workers, *(others[at] for at in (self.choose(len(others) or 1),) if others)]
        takes = self._several(TAKES, lambda: self._take(owners))
        return PlannedHandovers(
            workers, publishers, coordinator, engine, pauses_ms, events, owners, takes
        )

    def _take(self, owners: Sequence[str]) -> tuple[int, str, str]:
        return self._moment() // 2, self._client(), owners[self.choose(len(owners))]

    def _cut(self) -> PlannedFault:
        links = [
            *sorted(self.tree.edges),
            *((str(client_hop(client)), edge) for client, edge in self.edges.items()),
        ]
        where = links[self.choose(len(links))]
        outage_ms = OUTAGE_STEP_MS * (1 + self.choose(OUTAGE_STEPS))
        return PlannedFault(self._moment(), "link-cut", where, outage_ms)

    def _partition(self) -> PlannedFault:
        links = sorted(self.tree.edges)
        outage_ms = PARTITION_MS[self.choose(len(PARTITION_MS))]
        return PlannedFault(self._moment(), "partition", links[self.choose(len(links))], outage_ms)

    def _crash(self) -> PlannedFault:
        where = (self._client(), f"B{1 + self.choose(len(self.tree))}")
        outage_ms = OUTAGE_STEP_MS * self.choose(OUTAGE_STEPS) * self.choose(2)
        return PlannedFault(self._moment(), "client-crash", where, outage_ms)

    def _restart(self) -> PlannedFault:
        broker = f"B{1 + self.choose(len(self.tree))}"
        outage_ms = OUTAGE_STEP_MS * self.choose(OUTAGE_STEPS)
        return PlannedFault(self._moment(), RESTART, (broker, broker), outage_ms)
