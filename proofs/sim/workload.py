"""Random runs of an overlay: what happens in one, drawn choice by choice, and what came of it.

A run has a tree of brokers, clients with something to hold, and then everything at once: concurrent
transactions on few filters, so that they conflict; plain operations and publications; a stream
of numbered events that is handed from worker to worker; and faults. Its choices come from a tape
in two parts: first all that is to happen, and when (`Program`), then the delays of messages as they
are sent. It is drawn so that a failing tape shrinks well (`shrink`): 0 is always the tamest choice,
and where there are several of something, what was drawn for each of them is known (`Part`).

What has to hold afterwards is for `random_checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
import networkx as nx

from overlay.broker.engine import EngineFactory
from overlay.filters import Filter, Value
from overlay.hosts.simulator import STEP_LIMIT, Tape
from overlay.messages import client_hop
from padres_tx.client_messages import Abort, Ended, OpKind, Step, TxID
from padres_tx.protocol.validation.losses import FENCE_AFTER
from proofs.history import History
from proofs.sim.shrink import Part
from proofs.sim.simulated_overlay import DEADLINE_S, Does, IfHeld, World
from proofs.sim.simulated_sessions import SessionWorld

#: Engines whose transactions are decided by brokers; "mixed" runs them side by side.
DECIDED = ("d-tx", "d-tx-ni", "s-tx")
BL_WAIT = "bl-wait"
MIXED = "mixed"
ENGINES = (*DECIDED, BL_WAIT, MIXED)

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


class Op(NamedTuple):
    """An operation of a client: a filter for (un-)sub and (un-)adv, a point for a publication."""

    client: str
    kind: OpKind
    what: Any
    #: Whether whoever does it catches NotHeld (in a dynamic transaction).
    catches: bool = False

    def does(self) -> Does:
        return IfHeld(self.step()) if self.catches else self.step()

    def step(self, after: tuple[int, ...] = ()) -> Step:
        if self.kind == "pub":
            return Step(self.client, "pub", point=self.what, after=after)
        return Step(self.client, self.kind, self.what, after=after)


class Transaction(NamedTuple):
    """Operations of several clients, in their order, that one of them coordinates."""

    at_ms: int
    engine: str
    coordinator: str
    ops: Sequence[Op]
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


class Handovers(NamedTuple):
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


class Fault(NamedTuple):
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
        self.parts: list[Part] = []
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
        self.faults: list[Fault] = []
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
            self.parts.append(Part(counted, start, len(self._tape.choices)))
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

    def _op(self, client: str) -> Op:
        kinds: tuple[OpKind, ...] = ("sub", "pub", "usub", "sub", "pub", "usub", "adv", "uadv")
        kind = kinds[self.choose(len(kinds))]
        if kind == "pub":
            point: dict[str, Value] = {"class": "p", "x": self.choose(4), "n": self._number()}
            return Op(client, "pub", point)
        if kind in ("usub", "uadv") and self.choose(2) == 0:
            return Op(client, kind, SPACE, catches=True)  # It takes back what there is, if any.
        return Op(client, kind, self._filter())

    def _transaction(self) -> Transaction:
        at_ms = self._begins()
        engine = self._engines[self.choose(len(self._engines))]
        coordinator = self._coordinator()
        ops = self._ops(engine, coordinator)
        # One after the other, but for the static engine not always.
        loose = engine == "s-tx" and self.choose(4) == 3
        after = [
            () if not at else (self.choose(at),) if loose else (at - 1,) for at in range(len(ops))
        ]
        transaction = Transaction(at_ms, engine, coordinator, ops, after)
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

    def _ops(self, engine: str, coordinator: str) -> list[Op]:
        """What is done in a transaction, one or more."""
        ops = [self._op(self._client())]
        return ops + self._several(4, lambda: self._op(self._client()))

    def _plain(self) -> list[tuple[int, Op]]:
        """What clients do on their own, and when."""
        return self._several(8, lambda: (self._moment(), self._op(self._client())))

    def _handovers(self) -> Handovers | None:
        pauses_ms = self._several(3, lambda: self.choose(WINDOW_MS // 4))
        if not pauses_ms:
            return None
        first = self.choose(len(self.clients))
        second = (first + 1 + self.choose(len(self.clients) - 1)) % len(self.clients)
        workers = (self.clients[first], self.clients[second])
        publishers = [self._client(), self._client()]
        # Side by side with others, it is the isolated engine that has to keep its promise.
        engine = "d-tx" if "d-tx" in self._engines else self._engines[0]
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
        return Handovers(workers, publishers, coordinator, engine, pauses_ms, events, owners, takes)

    def _take(self, owners: Sequence[str]) -> tuple[int, str, str]:
        return self._moment() // 2, self._client(), owners[self.choose(len(owners))]

    def _cut(self) -> Fault:
        links = [
            *sorted(self.tree.edges),
            *((str(client_hop(client)), edge) for client, edge in self.edges.items()),
        ]
        where = links[self.choose(len(links))]
        outage_ms = OUTAGE_STEP_MS * (1 + self.choose(OUTAGE_STEPS))
        return Fault(self._moment(), "link-cut", where, outage_ms)

    def _partition(self) -> Fault:
        links = sorted(self.tree.edges)
        outage_ms = PARTITION_MS[self.choose(len(PARTITION_MS))]
        return Fault(self._moment(), "partition", links[self.choose(len(links))], outage_ms)

    def _crash(self) -> Fault:
        where = (self._client(), f"B{1 + self.choose(len(self.tree))}")
        outage_ms = OUTAGE_STEP_MS * self.choose(OUTAGE_STEPS) * self.choose(2)
        return Fault(self._moment(), "client-crash", where, outage_ms)

    def _restart(self) -> Fault:
        broker = f"B{1 + self.choose(len(self.tree))}"
        outage_ms = OUTAGE_STEP_MS * self.choose(OUTAGE_STEPS)
        return Fault(self._moment(), RESTART, (broker, broker), outage_ms)


class Crowd(Program):
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

    def _pub(self, client: str) -> Op:
        point: dict[str, Value] = {
            "class": "p",
            "x": self.choose(1 + self._busy),
            "n": self._number(),
        }
        return Op(client, "pub", point)

    def _word(self, client: str) -> Op:
        kinds: tuple[OpKind, ...] = ("sub", "usub", "sub", "usub", "adv", "uadv")
        return Op(client, kinds[self.choose(len(kinds))], self._filter())

    def _op(self, client: str) -> Op:
        return self._word(client) if self.choose(3) == 2 else self._pub(client)

    def _ops(self, engine: str, coordinator: str) -> list[Op]:
        if self.choose(4) >= 3 - self._busy:
            return super()._ops(engine, coordinator)
        if engine != "d-tx":
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

    def _plain(self) -> list[tuple[int, Op]]:
        return self._several(12 if self._busy else 5, self._aside)

    def _aside(self) -> tuple[int, Op]:
        first, last = self.ASIDE_MS
        return first + self.choose(last - first), self._word(self._client())

    def _handovers(self) -> Handovers | None:
        return None

    def _silence(self) -> Fault:
        """A link is silent for so long that much can begin and end elsewhere.

        Often it leads to a dead end, and everybody else can go on.
        """
        links = [(broker, next(iter(self.tree[broker]))) for broker in self.tree if broker != "B1"]
        where = links[-1] if self.choose(2) == 0 else links[self.choose(len(links))]
        outage_ms = OUTAGE_STEP_MS * (5 + self.choose(8))
        return Fault(self.choose(WINDOW_MS // 8), "link-cut", where, outage_ms)


# --- what happens ---


class Attempt(NamedTuple):
    """A transaction as it was sent once; `crashes` of its coordinator had been before that."""

    tx: TxID
    transaction: Transaction
    crashes: int


class Run:
    """One random run. Make it, let it `go`, and have it judged."""

    def __init__(
        self,
        shape: Shape,
        tape: Tape,
        *,
        factories: dict[str, EngineFactory] | None = None,
    ) -> None:
        self.shape = shape
        self.tape = tape
        self.program = (Crowd if shape.crowded else Program)(shape, tape)
        make = SessionWorld if shape.sessions else World
        self.world = make(self.program.tree, tape.choose, factories=factories, slice=shape.slice)
        if "partition" in shape.faults:
            self.world.sim.absent_after_s = ABSENT_AFTER_S
        self.attempts: list[Attempt] = []
        #: What the clients of a transaction without a broker's half have asked for.
        self.waited: list[list[tuple[str, int]]] = []
        #: Clients that have crashed, once for each time; and those that are in.
        self.crashed: list[str] = []
        self.present = set(self.program.clients)
        #: Where each client is, or was last; and the brokers that have lost their memory.
        self.edges = dict(self.program.edges)
        self.restarted: set[str] = set()
        #: The handovers that were tried, and how many events each publisher has sent.
        self.handovers: list[TxID] = []
        self.events: dict[str, int] = {}
        self._asked: list[list[Does] | str] = []
        self._owner = 0

    def go(self, steps: int = STEP_LIMIT) -> None:
        """Let everything happen, until the overlay is at rest.

        Raises NeverSettles after too many steps, and whatever brokers raise.
        """
        sim = self.world.sim
        # How they came together is not what is tried: no choices.
        sim.delay_steps, delay_steps = 1, sim.delay_steps
        self._gather()
        if "delay" in self.shape.faults:
            sim.delay_steps = delay_steps
        program = self.program
        for transaction in program.transactions:
            self._at(transaction.at_ms, self._begin, transaction)
        for at_ms, op in program.plain:
            self._at(at_ms, self._plain, op)
        if program.handovers is not None:
            self._at(program.handovers.pauses_ms[0], self._hand_over, program.handovers)
            for at_ms, publisher in program.handovers.events:
                self._at(at_ms, self._event, publisher)
            for at_ms, coordinator, taker in program.handovers.takes:
                self._at(at_ms, self._take, program.handovers, coordinator, taker)
        for fault in program.faults:
            self._at(fault.at_ms, self._fault, fault)
        sim.run(steps=steps)

    def history(self) -> History:
        """The run as checkers see it."""
        return History.from_simulator(self.world.sim, self.world.clients, restarted=self.restarted)

    def _at(self, delay_ms: int, act: Callable[..., Any], *arguments: Any) -> None:
        self.world.sim.at(delay_ms / 1000, partial(act, *arguments))

    def _gather(self) -> None:
        world, program = self.world, self.program
        for client, edge in program.edges.items():
            world.connect(client, edge)
            world.reactions[client] = self._react
        world.sim.run()
        for client in program.clients:
            self._settle(client)
        for client, filter in program.held:
            world.plain(client, "sub", filter)
        if program.handovers is not None:
            for publisher in dict.fromkeys(program.handovers.publishers):
                world.plain(publisher, "adv", STREAM)
                self.events[publisher] = 0
            world.plain(program.handovers.workers[0], "sub", STREAM)
        world.sim.run()

    def _settle(self, client: str) -> None:
        """What every client says first: it can be asked for something, and ask, and publish."""
        self.world.plain(client, "adv", CONTROL)
        self.world.plain(client, "sub", Filter({"class": "ctl", "to": client}))
        self.world.plain(client, "adv", SPACE)

    def _is_here(self, client: str) -> bool:
        """Whether a client can do something: brokers may have thrown it out, which is not right."""
        return client in self.present and self.world.sim.connected(client)

    # --- transactions ---

    def _begin(self, transaction: Transaction, attempt: int = 1, age: int = 0) -> None:
        if transaction.engine == BL_WAIT:
            self._wait(transaction)
            return
        if not self._is_here(transaction.coordinator):
            return
        tx = self._send(transaction, age)
        self._note(tx, transaction)
        if transaction.ending == "abort":
            self._at(transaction.patience_ms, self._abort, transaction, tx)

        def again(ended: Ended) -> None:
            if ended.code == "conflict" and attempt < transaction.attempts:
                self._begin(transaction, attempt + 1, self.world.ages.get(tx, 0))

        self.world.afterwards[tx] = again

    def _note(self, tx: TxID, transaction: Transaction) -> None:
        self.attempts.append(Attempt(tx, transaction, self.crashed.count(tx[0])))

    def _send(self, transaction: Transaction, age: int = 0) -> TxID:
        world, coordinator = self.world, transaction.coordinator
        forsaken = transaction.ending == "forsaken"
        deadline_s = FORSAKEN_S if forsaken else transaction.deadline_s
        if transaction.engine == "s-tx":
            return world.submit(coordinator, self._static(transaction), deadline_s=deadline_s)
        return world.begin(
            transaction.engine,
            coordinator,
            self._dynamic(transaction),
            commit=transaction.ending != "forsaken",
            deadline_s=deadline_s,
            age=age,
        )

    @staticmethod
    def _static(transaction: Transaction) -> list[Step]:
        return [
            op.step(after) for op, after in zip(transaction.ops, transaction.after, strict=True)
        ]

    def _dynamic(self, transaction: Transaction) -> list[Does]:
        """The coordinator's own operations, and a tcm for each of somebody else's."""
        if transaction.nested:
            return self._nested(transaction.coordinator, transaction.ops)
        steps: list[Does] = []
        for op in transaction.ops:
            refused = transaction.ending == "refused"
            answer: list[Does] | str = "not now" if refused else [op.does()]
            own = op.client == transaction.coordinator
            steps.append(op.does() if own else self._tcm(transaction.coordinator, op, answer))
        return steps

    def _nested(self, client: str, ops: Sequence[Op]) -> list[Does]:
        """What a client does itself, up to where somebody else has to; he does the rest."""
        for at, op in enumerate(ops):
            if op.client != client:
                mine = [op.does() for op in ops[:at]]
                return [*mine, self._tcm(client, op, self._nested(op.client, ops[at:]))]
        return [op.does() for op in ops]

    def _tcm(self, client: str, op: Op, answer: list[Does] | str) -> Step:
        self._asked.append(answer)
        point: dict[str, Value] = {"class": "ctl", "to": op.client, "n": len(self._asked) - 1}
        return Step(client, "tcm", point=point)

    def _react(self, point: dict[str, Value]) -> list[Does] | str:
        return self._asked[int(point["n"])]

    def _abort(self, transaction: Transaction, tx: TxID) -> None:
        if self._is_here(transaction.spoiler):
            self.world.say(transaction.engine, transaction.spoiler, Abort(tx))

    def _wait(self, transaction: Transaction) -> None:
        """BL-WAIT: one plain operation after the other, with waits between them."""
        asked: list[tuple[str, int]] = []
        self.waited.append(asked)

        def act(op: Op) -> None:
            number = self._plain(op)
            if op.kind != "pub" and number:
                asked.append((op.client, number))

        for at, op in enumerate(transaction.ops):
            self._at(at * WAIT_MS, act, op)

    # --- plain traffic ---

    def _plain(self, op: Op) -> int:
        """Let a client do something on its own; the number of its request, 0 if it is gone."""
        if not self._is_here(op.client):
            return 0
        if op.kind == "pub":
            return self.world.publish(op.client, op.what)
        assert op.kind != "tcm"
        return self.world.plain(op.client, op.kind, op.what)

    def _event(self, publisher: str) -> None:
        if self._is_here(publisher):
            self.events[publisher] += 1
            self.world.publish(publisher, {"class": "s", "n": self.events[publisher]})

    # --- the stream ---

    def _hand_over(self, handovers: Handovers) -> None:
        if not self._is_here(handovers.coordinator):
            return
        old, new = handovers.workers[self._owner], handovers.workers[self._owner ^ 1]
        ops = [Op(new, "sub", STREAM), Op(old, "usub", STREAM)]
        transaction = Transaction(0, handovers.engine, handovers.coordinator, ops, [(), (0,)])
        if handovers.engine == BL_WAIT:
            self._wait(transaction)
            return
        tx = self._send(transaction)
        self._note(tx, transaction)
        self.handovers.append(tx)

        def again(ended: Ended) -> None:
            self._owner ^= ended.committed
            if len(self.handovers) < len(handovers.pauses_ms):
                self._at(handovers.pauses_ms[len(self.handovers)], self._hand_over, handovers)

        self.world.afterwards[tx] = again

    def _take(self, handovers: Handovers, coordinator: str, taker: str) -> None:
        """Let whoever has the stream let go of it, and somebody take it."""
        if not self._is_here(coordinator) or handovers.engine != "d-tx":
            return
        ops = [Op(each, "usub", STREAM, catches=True) for each in handovers.owners]
        ops.append(Op(taker, "sub", STREAM))
        self._begin(
            Transaction(0, handovers.engine, coordinator, ops, [], nested=True, attempts=ATTEMPTS)
        )

    # --- faults ---

    def _fault(self, fault: Fault) -> None:
        sim = self.world.sim
        if fault.kind in ("link-cut", "partition"):
            sim.cut(*fault.where, fault.outage_ms / 1000)
            return
        if fault.kind == RESTART:
            broker = fault.where[0]
            self.restarted.add(broker)
            sim.restart(broker)
            for client in sorted(self.present):
                if self.edges[client] == broker:
                    self._goes(client, broker, fault.outage_ms)
            return
        client, edge = fault.where
        if self._is_here(client):
            sim.crash(client)
            self._goes(client, edge, fault.outage_ms)

    def _goes(self, client: str, edge: str, outage_ms: int) -> None:
        """A client is gone, and comes back after a while, if at all."""
        self.crashed.append(client)
        self.present.remove(client)
        if outage_ms:
            self._at(outage_ms, self._come_back, client, edge)

    def _come_back(self, client: str, edge: str) -> None:
        """Let a client join again, under its old name, as if nothing had been."""

        def joined(code: str) -> None:
            if not code:
                self.present.add(client)
                self.edges[client] = edge
                self._settle(client)

        self.world.connect(client, edge, joined)
