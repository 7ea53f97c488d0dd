"""Random programs: everything that will happen in a run, drawn from a tape choice by choice.

A program has a tree of brokers, clients with subscriptions, and then concurrent traffic:
transactions on a few filters, so that they conflict, plain operations and publications, a stream of
numbered events that is handed from worker to worker, and faults. The choices of a run come from a
tape with two parts: the program, then the delays of messages as they are sent. Programs are drawn
so that a failing tape shrinks well (`shrink`): 0 is always the simplest choice, and where several
things of one kind are drawn, the part of the tape that each took is known (`TapePart`).

`random_run` carries a program out; `random_checks` checks the result.
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
from proofs.sim.broker_processes import PLACES, STEPS
from proofs.sim.shrink import TapePart
from proofs.sim.simulated_overlay import DEADLINE_S, ClientStep, IfHeld

#: Engines whose transactions are decided by brokers; "mixed" runs them side by side.
DECIDED = tuple(
    name for name in registry.by_promises(own=True) if registry.load(name).broker is not None
)
MIXED = "mixed"
ENGINES = (*registry.by_promises(own=True), MIXED)

#: The faults of a run: every message has its own delay; links are silent for a while; clients crash
#: at any moment, and some come back at another broker; links are down for so long that both sides
#: go on without each other.
FAULTS = ("delay", "link-cut", "client-crash", "partition")

#: A broker that loses its state, and its clients with it. Not every engine survives it: in a run
#: with restarts only what holds without durable brokers is checked.
RESTART = "broker-restart"

#: Brokers that log on disk: one or all of them die, in the middle of anything, and come back with
#: what was on the disk; and a disk that is full for a while. In a run with these, connections break
#: and links resume (`proofs.sim.durable_simulator`), and everything is checked.
CRASH = "broker-crash"
DISK_FULL = "disk-full"
DURABLE = (CRASH, DISK_FULL)

#: All brokers, in place of the name of one.
ALL = "*"

#: Transactions begin and plain operations are sent within this time: as long as one transaction
#: takes on some brokers with the delays of the simulator, so that all of them overlap.
WINDOW_MS = 96

#: The deadline of a transaction whose coordinator never asks for the commit.
FORSAKEN_S = 0.15

#: Attempts of a transaction that loses to others, as many as the client library makes; the last
#: one has precedence (D-TX only), unless it lost to its own client.
ATTEMPTS = FENCE_AFTER + 1

#: The wait of BL-WAIT between two operations: some hops, and sometimes too short.
WAIT_MS = 10

#: Fewer than this many transactions take the stream from its owner, in addition to the handovers.
TAKES = 5

#: Outages: long enough for a whole transaction, and some short ones.
OUTAGE_STEP_MS = 10
OUTAGE_STEPS = 16

#: Where there are partitions: how soon the ends of a link go on without each other, which is in the
#: middle of the traffic; how long partitions last: about as long, longer than a short deadline, and
#: longer than the time after which brokers act on a deadline; and the short deadline, which some
#: transactions have.
ABSENT_AFTER_S = 0.02
PARTITION_MS = (20, 40, 160, 1300, 3000, 3000)
HURRY_S = 0.15

#: How long a broker that has died is away; the last is longer than its neighbours wait for it.
CRASHED_MS = (0, 5, 20, 40, 80, 160, 1300)

#: Of so many crashes one takes all brokers at once.
CRASHES_OF_ALL = 6

T = TypeVar("T")

CONTROL = Filter({"class": "ctl"})
SPACE = Filter({"class": "p", "x": (0, 3)})
STREAM = Filter({"class": "s"})


class Shape(msgspec.Struct, frozen=True):
    """The size of runs, the engine that they test, and their faults."""

    engine: str
    brokers: int = 5
    clients: int = 6
    transactions: int = 4
    faults: tuple[str, ...] = ("delay",)
    #: Whether all clients use the same filters at the same time, over slow links
    #: (`crowded_program`).
    crowded: bool = False
    #: Whether clients are real sessions, some with callbacks (`proofs.sim.simulated_sessions`).
    sessions: bool = False
    #: Units of work in one slice; 0: as many as brokers take. With 1 or 2 all work is split.
    slice: int = 0

    @property
    def durable(self) -> bool:
        """Whether brokers log on disk."""
        return not set(DURABLE).isdisjoint(self.faults)

    def of_seed(self, seed: int) -> Shape:
        """The shape of one run: every other run has sessions, or all if the shape says so."""
        return msgspec.structs.replace(self, sessions=self.sessions or seed % 2 == 1)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The first choices on the tape of a run of full size."""
        return self.brokers - 1, self.clients - 1, self.transactions

    def tape(self, seed: int) -> Tape:
        """The tape of a run of full size; all other choices come from the seed."""
        return Tape(seed=seed, choices=self.sizes)


class PlannedOperation(NamedTuple):
    """An operation of a client: a filter for (un-)sub and (un-)adv, a point for a publication."""

    client: str
    kind: OpKind
    what: Any
    #: Whether the client catches NotHeld (in a dynamic transaction).
    catches: bool = False

    def does(self) -> ClientStep:
        return IfHeld(self.step()) if self.catches else self.step()

    def step(self, after: tuple[int, ...] = ()) -> Step:
        if self.kind == "pub":
            return Step(self.client, "pub", point=self.what, after=after)
        return Step(self.client, self.kind, self.what, after=after)


class RandomTransaction(NamedTuple):
    """Operations of several clients, in order, that one of them coordinates."""

    at_ms: int
    engine: str
    coordinator: str
    ops: Sequence[PlannedOperation]
    #: For the static engine: the operations that each one comes after.
    after: Sequence[tuple[int, ...]]
    #: Whether each client asks the next one to act, instead of the coordinator asking all of them.
    nested: bool = False
    #: How it ends, if the brokers agree: "commit"; "abort", by the client `spoiler` after
    #: `patience_ms`; "forsaken", the coordinator sends no commit; "refused", a client that is asked
    #: to act refuses.
    ending: str = "commit"
    patience_ms: int = 0
    spoiler: str = ""
    attempts: int = 1
    deadline_s: float = DEADLINE_S


class PlannedHandovers(NamedTuple):
    """A stream of numbered events that two workers hand to each other repeatedly."""

    workers: tuple[str, str]
    publishers: Sequence[str]
    coordinator: str
    engine: str
    #: When the first handover begins, and the pause before each of the others.
    pauses_ms: Sequence[int]
    #: When each event is published, and by which client.
    events: Sequence[tuple[int, str]]
    #: All clients that may own the stream: the workers and, if there are enough, one more.
    owners: Sequence[str]
    #: Transactions that take the stream from its owner: when, the coordinator, the new owner.
    takes: Sequence[tuple[int, str, str]]


class PlannedFault(NamedTuple):
    at_ms: int
    kind: str
    #: The ends of a link; a client and the broker to which it comes back; a broker, twice; or a
    #: broker, or ALL, and where in its work it dies.
    where: tuple[str, str]
    #: How long it lasts; a client with 0 does not come back.
    outage_ms: int
    #: Of a death: after how many steps of the kind, and whether power is lost with the process.
    steps: int = 0
    power: bool = False


class Program:
    """Everything that will happen in a run, drawn from a tape."""

    def __init__(self, shape: Shape, tape: Tape) -> None:
        self._tape = tape
        self.choose = tape.choose
        #: The parts that shrinking can leave out, in the order of the tape.
        self.parts: list[TapePart] = []
        self._numbers = 0
        self._engines = DECIDED if shape.engine == MIXED else (shape.engine,)
        brokers = self.choose(shape.brokers)
        clients = self.choose(shape.clients)
        transactions = self.choose(shape.transactions + 1)
        self.tree: nx.Graph[str] = nx.Graph()
        self.tree.add_node("B1")
        self._draw(0, brokers, self._add_broker)
        self.edges: dict[str, str] = {}
        self.held: list[tuple[str, Filter]] = []
        self._add_client()
        self._draw(1, clients, self._add_client)
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
        if CRASH in shape.faults:
            self.faults += self._several(6, self._broker_crash)
        if DISK_FULL in shape.faults:
            self.faults += self._several(3, self._full_disk)
        #: How many choices it took; the choices after them are delays.
        self.length = len(tape.choices)

    def _draw(self, counted: int, count: int, draw: Callable[[], T]) -> list[T]:
        drawn: list[T] = []
        for _ in range(count):
            start = len(self._tape.choices)
            drawn.append(draw())
            self.parts.append(TapePart(counted, start, len(self._tape.choices)))
        return drawn

    def _several(self, below: int, draw: Callable[[], T]) -> list[T]:
        """Draw fewer than `below` things."""
        counted = len(self._tape.choices)
        return self._draw(counted, self.choose(below), draw)

    def _add_broker(self) -> None:
        size = len(self.tree)
        self.tree.add_edge(f"B{size + 1}", f"B{1 + self.choose(size)}")

    def _add_client(self) -> None:
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
            return PlannedOperation(client, kind, SPACE, catches=True)
        return PlannedOperation(client, kind, self._filter())

    def _transaction(self) -> RandomTransaction:
        at_ms = self._begins()
        engine = self._engines[self.choose(len(self._engines))]
        coordinator = self._coordinator()
        ops = self._ops(engine, coordinator)
        # In sequence; for the static engine sometimes in a partial order.
        loose = registry.load(engine).is_static and self.choose(4) == 3
        after = [
            () if not at else (self.choose(at),) if loose else (at - 1,) for at in range(len(ops))
        ]
        transaction = RandomTransaction(at_ms, engine, coordinator, ops, after)
        unusual = self.choose(12)
        if unusual == 11:
            spoiler = (coordinator, *(op.client for op in ops))[self.choose(1 + len(ops))]
            return transaction._replace(ending="abort", spoiler=spoiler, patience_ms=self._moment())
        ending = {9: "refused", 10: "forsaken"}.get(unusual, "commit")
        return transaction._replace(
            ending=ending, nested=unusual in (6, 7, 8), attempts=1 + self.choose(ATTEMPTS)
        )

    def _begins(self) -> int:
        """The moment at which a transaction begins."""
        return self._moment() // 2

    def _coordinator(self) -> str:
        return self._client()

    def _ops(self, engine: str, coordinator: str) -> list[PlannedOperation]:
        """The operations of a transaction, at least one."""
        ops = [self._op(self._client())]
        return ops + self._several(4, lambda: self._op(self._client()))

    def _plain(self) -> list[tuple[int, PlannedOperation]]:
        """Operations outside transactions, and when they are sent."""
        return self._several(8, lambda: (self._moment(), self._op(self._client())))

    def _handovers(self) -> PlannedHandovers | None:
        pauses_ms = self._several(3, lambda: self.choose(WINDOW_MS // 4))
        if not pauses_ms:
            return None
        first = self.choose(len(self.clients))
        second = (first + 1 + self.choose(len(self.clients) - 1)) % len(self.clients)
        workers = (self.clients[first], self.clients[second])
        publishers = [self._client(), self._client()]
        # Among several engines, the isolated one has to keep its promise.
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

    def _broker_crash(self) -> PlannedFault:
        at_ms, outage_ms = self._moment(), CRASHED_MS[self.choose(len(CRASHED_MS))]
        if self.choose(CRASHES_OF_ALL) == CRASHES_OF_ALL - 1:
            where = (ALL, "now")
        else:
            where = (f"B{1 + self.choose(len(self.tree))}", PLACES[self.choose(len(PLACES))])
        steps, power = self.choose(STEPS), self.choose(2) == 1
        return PlannedFault(at_ms, CRASH, where, outage_ms, steps, power)

    def _full_disk(self) -> PlannedFault:
        broker = f"B{1 + self.choose(len(self.tree))}"
        outage_ms = OUTAGE_STEP_MS * (1 + self.choose(OUTAGE_STEPS))
        return PlannedFault(self._moment(), DISK_FULL, (broker, broker), outage_ms)
