"""A broker's process in a simulation: the real host over a log on a simulated disk, and its end.

A process is told where it will die (`Death`), and does so in the middle of what it is doing: the
simulator's exceptions unwind it as a kill would, and nothing of it goes on but its disk. The next
process of the broker begins with what is on the disk (`BrokerProcess.begin`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from overlay.broker.core import Broker
from overlay.hosts.broker_time import BrokerTime
from overlay.hosts.host import Host
from overlay.hosts.inputs import Inputs
from overlay.hosts.peers import ClientPeer, Peer, Timer
from overlay.hosts.settings import Settings
from overlay.hosts.tcp import Connection, Tcp
from overlay.log.file_log import FileLog
from overlay.log.log import Appended, AppendOutcome, Log, SnapshotOutcome
from overlay.log.simulated_disk import PowerFailure, SimulatedDisk
from overlay.messages import BrokerName
from overlay.node.image import freeze_node
from overlay.node.journal import Journal
from overlay.node.recovery import Failing, recover
from overlay.trace import Record
from proofs.sim.sockets import Socket

#: Segments of some batches, so that a run has several.
SEGMENT_BYTES = 4096

DIRECTORY = Path("/state")

#: How soon a broker notices that the program of a client is gone for good. (In reality the grace
#: period is the same for all who lose their connection.)
GONE_S = 0.004

#: Where in its work a process can die: before it writes a batch to its log; in between the write
#: and the sync of a batch, and the steps of beginning a segment; when the batch is on disk and
#: nothing has come of it; between the inputs of a committed batch; between its connections, when
#: it has written to some of them; in a snapshot; while it recovers; or at once.
PLACES = ("write", "sync", "synced", "inputs", "connections", "snapshot", "recovery", "now")

#: After one in so many turns a broker takes a snapshot.
SNAPSHOT_ONE_IN = 40

#: A process dies at one of the first so many steps of the kind.
STEPS = 4


class Dies(BaseException):
    """The process ends here. No error that anybody handles."""


class Death(NamedTuple):
    """Where a process will die."""

    place: str
    #: How many steps of the kind it lives through.
    steps: int
    #: Whether the machine loses power, and with it what was not synced.
    power: bool


class Surroundings(Protocol):
    """What a process needs of the simulator."""

    now: float

    def happen(self, at: float, act: Callable[[], None], *, background: bool = False) -> Timer:
        """Let something happen at a time; in the background, if nobody waits for it."""

    def chosen_wait_s(self) -> float:
        """How long the disk, or long work, takes."""

    def choose_whether(self, one_in: int = 2) -> bool:
        """Once in so many times."""

    def died(self, process: BrokerProcess) -> None:
        """A process has died."""

    def is_gone(self, client: ClientPeer, broker: BrokerName) -> bool:
        """Whether there is no such program any more."""


class MortalInputs(Inputs):
    """The way of inputs, on which the process may die."""

    def __init__(self, process: BrokerProcess, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.process = process

    def apply_next(self, journal: Journal[Peer]) -> None:
        self.process.pass_by("inputs")
        super().apply_next(journal)


class MortalHost(Host):
    """The host, which knows what happens to the programs of clients."""

    def __init__(self, process: BrokerProcess, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.process = process
        self.inputs = process.inputs_type(process, self, self.node, more["record"])

    def await_return(self, client: ClientPeer) -> None:
        super().await_return(client)
        if self.process.world.is_gone(client, self.process.name) and client.grace is not None:
            client.grace.cancel()
            client.grace = self._clock.callLater(GONE_S, self.guarded, self._grace_over, client)


class SlowLog:
    """A log whose appends take time, and in which the process may die."""

    def __init__(self, log: Log, process: BrokerProcess) -> None:
        self.inner = log
        self.process = process

    @property
    def last(self) -> int:
        return self.inner.last

    @property
    def birth(self) -> str:
        return self.inner.birth

    def append(
        self, expected_last: int, batch: bytes, done: Callable[[AppendOutcome], None]
    ) -> None:
        wait_s = self.process.world.chosen_wait_s()
        self.process.callLater(wait_s, self.write, expected_last, batch, done)

    def write(
        self, expected_last: int, batch: bytes, done: Callable[[AppendOutcome], None]
    ) -> None:
        """The disk has time for a batch."""
        process = self.process
        process.pass_by("write")
        if process.dies_at("sync"):
            process.disk.stop_before(process.disk.operations + 1)
        outcomes: list[AppendOutcome] = []
        self.inner.append(expected_last, batch, outcomes.append)
        if isinstance(outcomes[0], Appended):
            process.pass_by("synced")
        done(outcomes[0])

    def snapshot(
        self, position: int, state: bytes, done: Callable[[SnapshotOutcome], None]
    ) -> None:
        process = self.process
        death = process.death
        if death is not None and death.place == "snapshot":
            process.disk.stop_before(process.disk.operations + 2 * death.steps)
        self.inner.snapshot(position, state, done)
        self.inner.compact(position)

    def read(self, after: int) -> Iterator[tuple[int, bytes]]:
        return self.inner.read(after)

    def latest_snapshot(self) -> tuple[int, bytes] | None:
        return self.inner.latest_snapshot()

    def compact(self, position: int) -> None:
        self.inner.compact(position)

    def close(self) -> None:
        self.inner.close()


class Keeping:
    """Takes snapshots, at moments that are chosen."""

    def __init__(self, process: BrokerProcess, log: SlowLog) -> None:
        self.process = process
        self._log = log
        self._last = log.last
        self._writing = False

    def failed_at(self, where: Failing) -> None:
        pass

    def freeze(self) -> bytes:
        """The node as it is."""
        return freeze_node(self.process.host.node, self.process.host.now())

    def consider_snapshot(self) -> None:
        process = self.process
        journal = process.host.journal
        assert journal is not None
        position = journal.applied
        due = process.death is not None and process.death.place == "snapshot"
        if self._writing or position == self._last:
            return
        if not (due or process.world.choose_whether(SNAPSHOT_ONE_IN)):
            return
        self._last, self._writing = position, True
        state = self.freeze()

        def write() -> None:
            self._writing = False
            self._log.snapshot(position, state, lambda outcome: None)

        process.callLater(process.world.chosen_wait_s(), write)


class BrokerProcess:
    """One process of a broker: owns its clock, its connections, and a host.

    Its parts can be replaced by wrong ones (`proofs.faults.durability_bugs`).
    """

    inputs_type: type[MortalInputs] = MortalInputs
    log_type: type[SlowLog] = SlowLog
    keeping_type: type[Keeping] = Keeping

    def __init__(self, world: Surroundings, name: BrokerName, disk: SimulatedDisk) -> None:
        self.world = world
        self.name = name
        self.disk = disk
        self.alive = True
        self.death: Death | None = None
        self.sockets: list[Socket] = []
        self.host: MortalHost
        self.tcp: Tcp
        self._timers: dict[Timer, None] = {}

    # Its life.

    def begin(
        self,
        core: Broker,
        *,
        birth: str,
        incarnation: str,
        settings: Settings,
        record: Callable[[Record], None],
    ) -> None:
        """Begin with what is on the disk.

        Raises PowerFailure if it dies meanwhile, and what a log raises that cannot be read.
        """
        log = self.log_type(self.open_log(birth), self)
        host = MortalHost(
            self,
            core,
            dict.fromkeys(core.routing.neighbours, 0.0),
            self,
            _crash,
            settings=settings,
            record=record,
            own_time=BrokerTime(self.world.now, self.seconds),
            birth=log.birth,
        )
        # The names of clients' links are random in reality.
        host._greetings._handshake._life = incarnation
        self.host = host
        recovered = recover(host.node, log, record=record)
        self.recovered()
        host.use_log(log, recovered.position, self.keeping_type(self, log))
        host.go_on(max(recovered.now, self.world.now))
        self.tcp = Tcp(host, self)

    def open_log(self, birth: str) -> Log:
        """The log on the disk."""
        return FileLog(
            DIRECTORY,
            broker=self.name,
            version="simulated",
            birth=birth,
            disk=self.disk,
            segment_bytes=SEGMENT_BYTES,
        )

    def recovered(self) -> None:
        """The node is made again, and not connected yet."""

    def step(self, act: Callable[..., object], *arguments: Any) -> None:
        """Let something happen in the process, which may be its death."""
        if not self.alive:
            return
        try:
            act(*arguments)
        except (Dies, PowerFailure):
            self.die()

    def dies_at(self, place: str) -> bool:
        """Whether the process has come to where it dies."""
        death = self.death
        if death is None or death.place != place:
            return False
        if death.steps:
            self.death = death._replace(steps=death.steps - 1)
            return False
        return True

    def pass_by(self, place: str) -> None:
        """The process comes to a place. Raises Dies if it is its end."""
        if self.dies_at(place):
            raise Dies

    def before_write(self) -> None:
        self.pass_by("connections")

    def die(self) -> None:
        if self.alive:
            self.alive = False
            for timer in self._timers:
                timer.cancel()
            for socket in self.sockets:
                socket.die()
            self.world.died(self)

    # Its clock: Twisted's IReactorTime.

    def seconds(self) -> float:
        return self.world.now

    def callLater(self, delay: float, callable: Callable[..., Any], *args: Any) -> Timer:
        def ring() -> None:
            del self._timers[timer]
            self.step(callable, *args)

        if not delay:
            delay = self.world.chosen_wait_s()
        ticks = args[:1] == (self.host._tick,) if hasattr(self, "host") else False
        timer = self.world.happen(self.world.now + delay, ring, background=ticks)
        self._timers[timer] = None
        return timer

    def connection(self, dialled: BrokerName | None = None) -> Connection:
        """The protocol of a new connection."""
        return Connection(self.tcp, self.host.neighbours[dialled] if dialled else None)


def _crash() -> None:
    raise  # A host calls it while it handles the exception.
