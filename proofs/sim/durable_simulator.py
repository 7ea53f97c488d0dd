"""The simulator with whole brokers: hosts with connections, over logs on simulated disks.

What `overlay.hosts.simulator` leaves to imagination happens here: connections break and links
resume, hellos cross, acknowledgements are lost, disks are slow or full, and a broker dies in the
middle of what it does and comes back by `overlay.node.recovery`. The code is that of a broker
process, but for sockets (`sockets`), the disk (`overlay.log.simulated_disk`), the clock, and what
starts a process (`broker_processes`). Clients have the link that the library has.

So a broker that crashes is only slow here, and every promise is checked as if nothing had happened.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from twisted.python.failure import Failure

from overlay.hosts.peers import ClientPeer
from overlay.hosts.settings import ABSENT_AFTER_S, Settings
from overlay.hosts.simulator import (
    DELAY_STEP_S,
    DELAY_STEPS,
    SAME_MOMENT_S,
    STEP_LIMIT,
    BrokerFactory,
    Choose,
    Client,
    NeverSettles,
    Simulator,
)
from overlay.hosts.tcp import Connection
from overlay.identity import Lives
from overlay.log.simulated_disk import PowerFailure, SimulatedDisk
from overlay.messages import AnyMessage, BrokerName, Hop, client_hop
from overlay.trace import Record
from proofs.sim.broker_processes import BrokerProcess, Death
from proofs.sim.client_program import NEVER_S, ClientProgram
from proofs.sim.sockets import Owner, Socket, connect

#: How long the dialling end waits before it dials again.
RETRY_S = 0.002

#: A client whose name is taken dials again so often: longer than brokers take to notice that its
#: former program is gone.
REFUSALS = 20

#: Longer than any link is cut in a run.
GRACE_S = 5.0

#: Bytes that a full disk still takes.
LAST_ROOM = 40


class _Event:
    """Something that is going to happen."""

    __slots__ = ("_act", "_sim", "background", "over")

    def __init__(self, sim: DurableSimulator, act: Callable[[], None], background: bool) -> None:
        self._sim = sim
        self._act = act
        self.background = background
        self.over = False

    def cancel(self) -> None:
        if not self.over:
            self.over = True
            self._sim.awaited -= not self.background

    def __call__(self) -> None:
        if not self.over:
            self.cancel()
            self._act()


class DurableSimulator(Simulator):
    """Brokers that log, die and come back, and clients at them."""

    def __init__(
        self,
        neighbours: Mapping[str, Iterable[str]],
        choose: Choose,
        *,
        broker: BrokerFactory,
        delay_steps: int = DELAY_STEPS,
        absent_after_s: float = ABSENT_AFTER_S,
        process: type[BrokerProcess] = BrokerProcess,
    ) -> None:
        self._make_process = process
        #: How many events are to come that a run waits for.
        self.awaited = 0
        self.processes: dict[BrokerName, BrokerProcess] = {}
        super().__init__(neighbours, choose, broker=broker, delay_steps=delay_steps)
        self.absent_after_s = absent_after_s
        #: How many processes have died, by the place where they were to die.
        self.deaths: dict[str, int] = {}
        self.snapshots = 0
        self._disks = {name: SimulatedDisk() for name in self._tree}
        self._outages_s: dict[BrokerName, float] = {}
        self._starts = 0
        self._recorded: dict[str, list[Record]] = {name: [] for name in self._tree}
        self._programs: dict[tuple[Hop, BrokerName], ClientProgram] = {}
        self._sockets: dict[tuple[Hop, Hop], Socket] = {}
        self._silent_until: dict[frozenset[Hop], float] = {}
        for name in self._tree:
            self._start(name)
        # Setting up is not part of a run: it takes no choices.
        self.delay_steps, steps = 1, self.delay_steps
        self.run()
        self.delay_steps = steps

    # --- what a test does ---

    def connect(self, client: str, at: str, receive: Client) -> None:
        hop, edge = client_hop(client), BrokerName(at)
        self._clients[hop, edge] = receive
        self._starts += 1
        program = ClientProgram(
            hop,
            edge,
            f"{client}-{self._starts}",
            receive,
            lambda: self.now,
            self._closed_on,
            self._lost_connection,
        )
        self._programs[hop, edge] = program
        self._dial_client(program)

    def send(self, client: str, message: AnyMessage, at: str | None = None) -> None:
        hop = client_hop(client)
        place = self._place(hop, at)
        assert place is not None, f"{client} is not connected"
        self._programs[hop, place].send(message)

    def crash(self, client: str, at: str | None = None, *, lost: bool = False) -> None:
        """End a client's program; what is on its way arrives, or not."""
        hop = client_hop(client)
        place = self._place(hop, at)
        assert place is not None, f"{client} is not connected"
        self._end_program(self._programs[hop, place])

    def leave(self, client: str, at: str | None = None) -> None:
        hop = client_hop(client)
        place = self._place(hop, at)
        assert place is not None, f"{client} is not connected"
        self._programs[hop, place].leave()

    def cut(self, one: str, other: str, outage_s: float, *, reset: bool = False) -> None:
        """Break the connection of two neighbours, or of a client and its broker, for a while."""
        assert not reset, "links go on where they were"
        ends = frozenset((Hop(one), Hop(other)))
        back = max(self.now + outage_s, self._silent_until.get(ends, 0.0))
        self._silent_until[ends] = back
        for key in ((Hop(one), Hop(other)), (Hop(other), Hop(one))):
            socket = self._sockets.get(key)
            if socket is not None:
                socket.break_off()
        self._schedule(back, self._dial_all)

    def restart(self, name: str, outage_s: float = 0.0) -> None:
        raise AssertionError("a broker does not lose its disk here")

    def reset(self, one: str, other: str) -> None:
        raise AssertionError("links go on where they were")

    def kill(self, name: str, death: Death, outage_s: float) -> None:
        """Let a broker die when it comes to a place, or at once, and be started again later."""
        broker = BrokerName(name)
        process = self.processes[broker]
        if process.alive:
            process.death = death
            self._outages_s[broker] = outage_s
            if death.place in ("now", "recovery"):
                process.die()

    def fill_disk(self, name: str, outage_s: float) -> None:
        """Let a broker's disk be full for a while."""
        disk = self._disks[BrokerName(name)]
        if disk.room is None:
            disk.room = self._choose(LAST_ROOM)

            def free() -> None:
                disk.room = None

            self._schedule(self.now + outage_s, free)

    # --- the run ---

    def run(self, *, until: float | None = None, steps: int = STEP_LIMIT) -> None:
        events, last = self._events, self.steps + steps
        while events and (self.awaited if until is None else events[0][0] <= until):
            if self.steps == last:
                raise NeverSettles(f"{self.awaited} events to come after {steps} steps")
            self.now, _, event = heapq.heappop(events)
            assert isinstance(event, _Event)
            if not event.over:
                self.steps += 1
                event()
        self.now = max(self.now, until or 0.0)

    def _schedule(self, at: float, action: Callable[[], None]) -> None:
        self.happen(at, action)

    def happen(self, at: float, act: Callable[[], None], *, background: bool = False) -> _Event:
        event = _Event(self, act, background)
        self.awaited += not background
        super()._schedule(at, event)
        return event

    # --- what connections and processes ask ---

    def note(self, source: Hop, dest: Hop, data: bytes) -> None:
        self._hash.update(f"{source}>{dest}:".encode() + data)

    def chosen_delay_s(self) -> float:
        chosen = self._choose(self.delay_steps) if self.delay_steps > 1 else 0
        return DELAY_STEP_S * (1 + chosen)

    def chosen_wait_s(self) -> float:
        return DELAY_STEP_S * self._choose(4) / 2 if self.delay_steps > 1 else 0.0

    def choose_whether(self, one_in: int = 2) -> bool:
        return self.delay_steps > 1 and self._choose(one_in) == one_in - 1

    def is_gone(self, client: ClientPeer, broker: BrokerName) -> bool:
        program = self._programs.get((client.hop, broker))
        return program is None or program.link.incarnation != client.link.peer

    # --- processes ---

    def _start(self, name: BrokerName) -> None:
        """Start a broker's process, which may die before it is there."""
        self._starts += 1
        process = self._make_process(self, name, self._disks[name])
        before = self.processes.get(name)
        if before is not None and before.death is not None and before.death.place == "recovery":
            disk = self._disks[name]
            disk.stop_before(disk.operations + 2 * before.death.steps)
        self.processes[name] = process
        core = self._make_broker(name, self._tree[name])
        core.lives = Lives(list(self._tree).index(name) + 1)  # The salt belongs to the birth.
        settings = Settings(
            client_grace_s=GRACE_S,
            takeover_s=0.0,
            heartbeat_s=NEVER_S,
            idle_s=NEVER_S,
            hello_timeout_s=NEVER_S,
            absent_after_s=self.absent_after_s,
        )
        try:
            process.begin(
                core,
                birth=f"{name}b",
                incarnation=f"{name}p{self._starts}",
                settings=settings,
                record=partial(self._record, name),
            )
        except PowerFailure:
            process.die()
            return
        self.brokers[name] = core
        process.step(process.host.start)
        self._dial_all()

    def died(self, process: BrokerProcess) -> None:
        name, death = process.name, process.death
        place = death.place if death is not None else "start"
        self.deaths[place] = self.deaths.get(place, 0) + 1
        power = death is not None and death.power
        self._disks[name].restart(self._choose if power else None)
        self._schedule(self.now + self._outages_s.get(name, 0.0), partial(self._start, name))

    def _record(self, name: BrokerName, record: Record) -> None:
        """Take a trace record, which a replay writes again: then it must be the same."""
        there = self._recorded[name]
        if record.seq <= len(there):
            assert there[record.seq - 1] == record, f"{record} after {there[record.seq - 1]}"
            return
        assert record.seq == len(there) + 1, f"{name} has skipped records before {record}"
        there.append(record)
        self.records.append(record)

    @property
    def absent_after_s(self) -> float:
        return self._absent_after_s

    @absent_after_s.setter
    def absent_after_s(self, value: float) -> None:
        self._absent_after_s = value
        for process in self.processes.values():
            process.host.settings = replace(process.host.settings, absent_after_s=value)

    # --- connections ---

    def _can_connect(self, one: Hop, other: Hop) -> bool:
        socket = self._sockets.get((one, other))
        if socket is not None and not socket.ended:
            return False
        return self.now + SAME_MOMENT_S >= self._silent_until.get(frozenset((one, other)), 0.0)

    def _dial_all(self) -> None:
        """Dial wherever a connection is missing and can be made."""
        for name, others in self._tree.items():
            for other in others:
                if name < other:
                    self._dial_neighbour(name, other)
        for program in list(self._programs.values()):
            self._dial_client(program)

    def _dial_neighbour(self, name: BrokerName, other: BrokerName) -> None:
        one, two = self.processes.get(name), self.processes.get(other)
        if one is None or two is None or not (one.alive and two.alive):
            return
        if self._can_connect(Hop(name), Hop(other)):
            socket = self._connect(one, Hop(name), two)
            socket.open(_Dialling(one.connection(other), partial(self._dial_again, name, other)))

    def _dial_again(self, name: BrokerName, other: BrokerName) -> None:
        self._schedule(self.now + RETRY_S, partial(self._dial_neighbour, name, other))

    def _dial_client(self, program: ClientProgram) -> None:
        process = self.processes[program.edge]
        if not (program.alive and process.alive):
            return
        if self._can_connect(program.hop, Hop(program.edge)):
            self._connect(program, program.hop, process).open(program)

    def _connect(self, owner: Owner, hop: Hop, process: BrokerProcess) -> Socket:
        other = Hop(process.name)
        socket = connect(self, (owner, hop), (process, other))
        self._sockets[hop, other] = socket
        process.sockets.append(socket.peer)
        if isinstance(owner, BrokerProcess):
            owner.sockets.append(socket)
        socket.offer(process.connection)
        return socket

    # --- clients ---

    def _lost_connection(self, program: ClientProgram) -> None:
        if program.refusals > REFUSALS:
            self._closed_on(program, "refused", "the broker does not let the client in")
        self._schedule(self.now + RETRY_S, partial(self._dial_client, program))

    def _closed_on(self, program: ClientProgram, code: str, reason: str) -> None:
        if program.alive:
            self.closed.append((program.edge, program.hop, code, reason))
            self._end_program(program)

    def _end_program(self, program: ClientProgram) -> None:
        program.alive = False
        if self._programs.get((program.hop, program.edge)) is program:
            del self._programs[program.hop, program.edge]
            del self._clients[program.hop, program.edge]
        if program.socket is not None:
            program.socket.die()


class _Dialling:
    """The protocol of a connection that was dialled, which is dialled again when it is lost."""

    def __init__(self, protocol: Connection, again: Callable[[], None]) -> None:
        self._protocol = protocol
        self._again = again
        self.dataReceived = protocol.dataReceived
        self.makeConnection = protocol.makeConnection

    def connectionLost(self, reason: Failure) -> None:
        self._protocol.connectionLost(reason)
        self._again()
