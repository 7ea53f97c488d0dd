"""All orders of events on durable brokers and their links, with crashes at every step.

A publisher at A says some numbers, a subscriber at B gets them. Both brokers log; each step is one
write of a connection that arrives, hellos included, one append that is committed, or a fault: a
broker dies before an append is committed, between its inputs, between its connections, or when
nothing is going on, and comes back by replay; the connection of the brokers breaks. Hosts,
journals, recovery and links are the real ones; logs are in memory, and outlive processes.

The search runs each order from the beginning, as far as it leads to states that are not known
(depth first). In every end the subscriber must have every number once and in order.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple

from overlay.broker.core import Broker
from overlay.filters import Filter
from overlay.hosts.peers import ClientPeer, Peer, Timer
from overlay.hosts.settings import Settings
from overlay.identity import Lives
from overlay.log.log import AppendOutcome, Log
from overlay.log.memory_log import MemoryLog
from overlay.log.simulated_disk import SimulatedDisk
from overlay.messages import (
    AnyMessage,
    BrokerName,
    Done,
    Hop,
    Join,
    Kind,
    Operation,
    Pub,
    client_hop,
)
from overlay.node.inputs import Batch, Trimmed, decode_batch, encode_batch
from overlay.trace import Record
from overlay.wire.link import ACK_DELAY_S, Link, LinkState
from proofs.sim.broker_processes import BrokerProcess, Death, SlowLog
from proofs.sim.client_program import NEVER_S, ClientProgram
from proofs.sim.sockets import Owner, Socket

A, B = BrokerName("A"), BrokerName("B")
PUBLISHER, SUBSCRIBER = client_hop("p"), client_hop("s")

#: A broker that dies amid an append has applied, or written to connections, less than this.
STEPS = 3


class Move(NamedTuple):
    """One step: what happens, and to which broker or connection."""

    kind: str
    whom: str = ""
    steps: int = 0


class FaultBudget(NamedTuple):
    """How many faults there may be in one order of events."""

    crashes: tuple[int, int] = (1, 1)
    breaks: int = 1


class Prepared(NamedTuple):
    """What is left of brokers and clients that have joined and subscribed: logs, and links."""

    batches: dict[BrokerName, list[bytes]]
    links: dict[Hop, LinkState]


@dataclass
class DurableSearch:
    """What came of a search."""

    states: int = 0
    ends: int = 0
    #: How often events were carried out from the beginning.
    runs: int = 0
    #: What is wrong, and the moves that lead there; empty if nothing is.
    problem: str = ""
    path: list[Move] = field(default_factory=list)


class _Never:
    """A timer that does not ring in the time that is explored."""

    def cancel(self) -> None:
        pass


class _Soon:
    """A call that is made before the next move."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act: Callable[[], None] | None = act

    def cancel(self) -> None:
        self.act = None


class ExploredSocket(Socket):
    """One end of a connection; what it sends waits until a move lets it arrive."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sent: deque[tuple[str | bytes, Callable[[], None], bool]] = deque()

    def _send(self, act: Callable[[], None], *, is_data: bool = False) -> None:
        label = act.args[0] if isinstance(act, partial) else act.__qualname__
        self.sent.append((label, act, is_data))

    def arrive(self) -> None:
        """The first of what was sent arrives."""
        _, act, is_data = self.sent.popleft()
        if not (is_data and self._dropped):
            act()

    @property
    def key(self) -> tuple[Any, ...]:
        labels = [None if is_data and self._dropped else label for label, _, is_data in self.sent]
        flags = (self.ended, self._closed, self._dropped, self._paused, self._end_waits)
        return (self.hop, *flags, tuple(labels), tuple(self._waiting))


class ExploredLog(SlowLog):
    """A log whose append waits until a move commits it."""

    waiting: tuple[int, bytes, Callable[[AppendOutcome], None]] | None = None

    def append(
        self, expected_last: int, batch: bytes, done: Callable[[AppendOutcome], None]
    ) -> None:
        self.waiting = (expected_last, batch, done)
        world = self.process.world
        assert isinstance(world, DurableWorld)
        world.appending[self.process.name] = self

    def commit(self) -> None:
        assert self.waiting is not None
        (expected_last, batch, done), self.waiting = self.waiting, None
        self.write(expected_last, batch, done)


class ExploredProcess(BrokerProcess):
    """A process whose log is in memory, and outlives it."""

    log_type = ExploredLog

    def open_log(self, birth: str) -> Log:
        assert isinstance(self.world, DurableWorld)
        return self.world.logs.setdefault(self.name, MemoryLog(birth, keep=True))


class DurableWorld:
    """Two brokers and two clients, in one state; `moves` says what can happen, `make` does it."""

    def __init__(
        self,
        numbers: int,
        faults: FaultBudget,
        process_type: type[BrokerProcess] = ExploredProcess,
        prepared: Prepared | None = None,
    ) -> None:
        """With `prepared` everybody was there before: brokers begin with their logs, and clients'
        links resume."""
        self.now = 0.0
        self.logs: dict[BrokerName, MemoryLog] = {}
        self.appending: dict[BrokerName, ExploredLog] = {}
        self.processes: dict[BrokerName, BrokerProcess] = {}
        self.received: list[int] = []
        self._process_type = process_type
        self._said = 0
        self.numbers = 0
        self._crashes = {A: 0, B: 0}
        self._breaks = 0
        self._starts = {A: 0, B: 0}
        self._soon: deque[_Soon] = deque()
        self._sockets: dict[tuple[Hop, Hop], ExploredSocket] = {}
        self._open: list[ExploredSocket] = []
        self._lingers = True
        self._answers = 0
        for name in (A, B):
            if prepared is not None:
                self.logs[name] = MemoryLog(f"{name}b", keep=True)
                for batch in prepared.batches[name]:
                    self.logs[name].append(self.logs[name].last, batch, lambda outcome: None)
            self._start(name)
        self.clients = {
            hop: ClientProgram(
                hop,
                at,
                f"{hop[1:]}-1",
                self._receive,
                lambda: 0.0,
                self._closed_on,
                self._lost_connection,
            )
            for hop, at in ((PUBLISHER, A), (SUBSCRIBER, B))
        }
        self._settle()
        if prepared is None:
            self._set_up()
        else:
            for hop, program in self.clients.items():
                program.link.restore(prepared.links[hop])
                self._dial_client(program)
            self._go_on()
        self.numbers, self._crashes = numbers, dict(zip((A, B), faults.crashes, strict=True))
        self._breaks = faults.breaks

    def _set_up(self) -> None:
        """One plain order of events, up to where the publisher may begin."""
        for program in self.clients.values():
            self._dial_client(program)
        roles: tuple[tuple[Hop, Kind], ...] = ((PUBLISHER, "adv"), (SUBSCRIBER, "sub"))
        for hop, kind in roles:
            program = self.clients[hop]
            program.send(Join(1, hop[1:], ""))
            self._go_on()
            program.send(Operation(2, kind, hop[1:], 2, Filter(cls="n")))
            self._go_on()
        assert self._answers == 4, "a request was not answered"

    def prepared(self) -> Prepared:
        """How everybody can be made again as they are; no link may have anything under way."""
        return Prepared(
            {name: [data for _, data in log.read(0)] for name, log in self.logs.items()},
            {hop: program.link.state for hop, program in self.clients.items()},
        )

    def _go_on(self) -> None:
        self._settle()
        while moves := [move for move in self.moves() if move.kind in ("arrives", "commits")]:
            self.make(moves[0])

    # --- moves ---

    def moves(self) -> list[Move]:
        """What can happen next."""
        found = [Move("arrives", str(at)) for at, end in enumerate(self._open) if end.sent]
        if self._said < self.numbers:
            found.append(Move("says"))
        for name in self.appending:
            found.append(Move("commits", name))
            if self._crashes[name]:
                found += [Move("inputs", name, steps) for steps in range(STEPS)]
                found += [Move("connections", name, steps) for steps in range(STEPS)]
        for name in (A, B):
            if self._crashes[name]:
                found += [Move("dies", name), Move("dies and is cut off", name)]
        line = self._sockets.get((Hop(A), Hop(B)))
        if self._breaks and line is not None and not (line.ended or line._dropped):
            found.append(Move("breaks"))
        return found

    def make(self, move: Move) -> None:
        """Let a move happen, and what follows from it at once."""
        name = BrokerName(move.whom)
        if move.kind == "arrives":
            self._open[int(move.whom)].arrive()
        elif move.kind == "says":
            self._said += 1
            self.clients[PUBLISHER].send(Pub("p", 2 + self._said, {"cls": "n", "n": self._said}))
        elif move.kind == "commits":
            self._commit(name, None)
        elif move.kind in ("inputs", "connections"):
            self._crashes[name] -= 1
            self._commit(name, Death(move.kind, move.steps, False))
        elif move.kind == "breaks":
            self._breaks -= 1
            self._sockets[Hop(A), Hop(B)].break_off()
        else:
            self._crashes[name] -= 1
            self._lingers = move.kind == "dies"
            self.processes[name].die()
        self._settle()

    def _commit(self, name: BrokerName, death: Death | None) -> None:
        log, process = self.appending.pop(name), self.processes[name]
        process.death = death
        process.step(log.commit)
        if death is not None and process.alive:
            process.die()  # It has done less than that.
        process.death = None

    def _settle(self) -> None:
        while self._soon:
            act = self._soon.popleft().act
            if act is not None:
                act()
        self._open = [end for end in self._open if end.sent or not (end.ended and end.peer.ended)]

    # --- what is asked of surroundings and networks ---

    def happen(self, at: float, act: Callable[[], None], *, background: bool = False) -> Timer:
        return self._after(act) if at <= ACK_DELAY_S else _Never()

    def _after(self, act: Callable[[], None]) -> _Soon:
        soon = _Soon(act)
        self._soon.append(soon)
        return soon

    def chosen_delay_s(self) -> float:
        return 0.0

    def chosen_wait_s(self) -> float:
        return 0.0

    def choose_whether(self, one_in: int = 2) -> bool:
        return one_in == 2 and not self._lingers  # No snapshots.

    def note(self, source: Hop, dest: Hop, data: bytes) -> None:
        pass

    def is_gone(self, client: ClientPeer, broker: BrokerName) -> bool:
        return False

    def died(self, process: BrokerProcess) -> None:
        self.appending.pop(process.name, None)
        self._after(partial(self._start, process.name))

    # --- processes, connections, clients ---

    def _start(self, name: BrokerName) -> None:
        other = B if name == A else A
        core = Broker(name, [other])
        core.lives = Lives((A, B).index(name))
        self._starts[name] += 1
        process = self.processes[name] = self._process_type(self, name, SimulatedDisk())
        settings = Settings(
            client_grace_s=NEVER_S,
            heartbeat_s=NEVER_S,
            idle_s=NEVER_S,
            hello_timeout_s=NEVER_S,
            absent_after_s=NEVER_S,
        )
        process.begin(
            core,
            birth=f"{name}b",
            incarnation=f"{name}p{self._starts[name]}",
            settings=settings,
            record=_ignore,
        )
        process.step(process.host.start)
        self._lingers = True
        self._dial_brokers()
        for program in self.clients.values() if hasattr(self, "clients") else ():
            self._dial_client(program)

    def _dial_brokers(self) -> None:
        if len(self.processes) == 2 and self._is_free(Hop(A), Hop(B)):
            one, two = self.processes[A], self.processes[B]
            if one.alive and two.alive:
                socket = self._connect(one, Hop(A), two)
                protocol = one.connection(B)
                lost: Any = protocol.connectionLost

                def connection_lost(reason: Any) -> None:
                    lost(reason)
                    self._after(self._dial_brokers)

                dialling: Any = protocol
                dialling.connectionLost = connection_lost
                socket.open(protocol)

    def _dial_client(self, program: ClientProgram) -> None:
        process = self.processes[program.edge]
        if program.alive and process.alive and self._is_free(program.hop, Hop(program.edge)):
            self._connect(program, program.hop, process).open(program)

    def _is_free(self, one: Hop, other: Hop) -> bool:
        socket = self._sockets.get((one, other))
        return socket is None or socket.ended

    def _connect(self, owner: Owner, hop: Hop, process: BrokerProcess) -> ExploredSocket:
        one = ExploredSocket(self, owner, hop)
        other = ExploredSocket(self, process, Hop(process.name))
        one.peer, other.peer = other, one
        self._sockets[hop, Hop(process.name)] = one
        self._open += [one, other]
        process.sockets.append(other)
        if isinstance(owner, BrokerProcess):
            owner.sockets.append(one)
        one.offer(process.connection)
        return one

    def _receive(self, message: AnyMessage, now: float) -> list[AnyMessage]:
        if isinstance(message, Done):
            assert not message.code, message
            self._answers += 1
        elif isinstance(message, Pub):
            self.received.append(int(message.point["n"]))
        return []

    def _lost_connection(self, program: ClientProgram) -> None:
        self._after(partial(self._dial_client, program))

    def _closed_on(self, program: ClientProgram, code: str, reason: str) -> None:
        raise AssertionError(f"{program.edge} has closed on {program.hop}: {code}: {reason}")

    # --- states ---

    @property
    def key(self) -> bytes:
        """A name for the state: two that have it go on in the same ways."""
        parts: list[Any] = [self.received, self._said, self._crashes, self._breaks]
        for name, process in self.processes.items():
            parts.append(self._starts[name])
            parts += [_inputs(data) for _, data in self.logs[name].read(0)]
            if name in self.appending and (waiting := self.appending[name].waiting) is not None:
                parts.append(_inputs(waiting[1]))
            journal: Any = process.host.journal
            parts.append([staged.input for staged in journal._staged])
            for hop, end in process.host.node.ends.items():
                assert isinstance(end, Peer)
                parts.append((hop, _link_key(end.link), end.staged, end.greeting is None))
        parts += [_link_key(program.link) for program in self.clients.values()]
        parts += sorted((end.key for end in self._open), key=repr)
        return hashlib.sha256(repr(parts).encode()).digest()


def _ignore(record: Record) -> None:
    pass


@lru_cache(maxsize=4096)
def _inputs(batch: bytes) -> list[bytes]:
    """The inputs of a batch, without what makes no difference: hints, and the digest."""
    inputs = [each for each in decode_batch(batch).inputs if type(each) is not Trimmed]
    return [encode_batch(Batch(0.0, [each])) for each in inputs]


def _link_key(link: Link) -> tuple[Any, ...]:
    counts = (link.handed_over, link.acknowledged, len(link.unacked), len(link.outbox), link._told)
    return (link.incarnation, link.peer, link.connected, link._said_hello, len(link.inbox), *counts)


def search(
    numbers: int,
    faults: FaultBudget,
    *,
    process_type: type[BrokerProcess] = ExploredProcess,
    watch: Callable[[DurableSearch], None] = lambda found: None,
) -> DurableSearch:
    """Try all orders of events, until one is wrong."""
    found = DurableSearch()
    # What is wrong may be wrong from the beginning: then everything is done each time.
    right = process_type is ExploredProcess
    prepared = DurableWorld(0, FaultBudget((0, 0), 0)).prepared() if right else None
    make = partial(DurableWorld, numbers, faults, process_type, prepared)
    known: set[bytes] = set()
    ahead: list[list[Move]] = [[]]
    while ahead:
        path = ahead.pop()
        found.runs += 1
        watch(found)
        try:
            problem = _run(make, path, known, ahead, found)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            found.problem, found.path = problem, path
            break
    found.states = len(known)
    return found


def _run(
    make: Callable[[], DurableWorld],
    path: list[Move],
    known: set[bytes],
    ahead: list[list[Move]],
    found: DurableSearch,
) -> str:
    """Follow a path, and go on from its end as long as states are new; returns what is wrong."""
    world = make()
    for move in path:
        world.make(move)
    while (key := world.key) not in known:
        known.add(key)
        moves = world.moves()
        if not [move for move in moves if move.kind in ("arrives", "says", "commits")]:
            found.ends += 1
            if world.received != list(range(1, world.numbers + 1)):
                return f"the subscriber has {world.received}"
        if not moves:
            return ""
        ahead += [[*path, move] for move in moves[1:]]
        path.append(moves[0])
        world.make(moves[0])
    return ""


def describe(path: list[Move]) -> Iterator[str]:
    """The moves of a path, in words."""
    for move in path:
        yield " ".join(str(part) for part in move if part != "")
