"""One run of an experiment: an overlay of broker processes, processes with clients, and a watch.

The brokers are `padres_tx.launcher`'s, the clients are in processes of `client_process`. All is
watched by one loop: what the client processes say, whether one or a broker has died, whether
anything moves, and whether somebody wants it to end. However a run ends, none of its processes is
left; if this process is killed, they see it by the pipes that are their standard input.

Answers `Done`, or raises `RunFailed` with a reason of one line. Where the run stands in a sweep,
and what its records mean, must not be known here.
"""

from __future__ import annotations

import contextlib
import selectors
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench.children import cpu_s
from bench.experiments.client_process import (
    GO,
    LEAVE,
    Broken,
    Cast,
    Going,
    Group,
    Played,
    Ready,
    said_decoder,
)
from bench.experiments.roles import Scene, Workload
from bench.records import BROKERS, CLIENTS, Done, epoch_ns
from padres_tx import launcher
from padres_tx.client.transactions import DEADLINE_S
from padres_tx.launcher.overlay_processes import (
    LOOK_S,
    Cancelled,
    LaunchError,
    Running,
    ending,
    last_lines,
)
from topologies import BrokerSpec, Topology

#: How long nothing may move. An engine ends what hangs after its deadline, and that is a result;
#: what takes longer than twice that hangs for good.
STALL_S: Final = 2 * DEADLINE_S

#: Client processes for several instances of a scenario: as many as the cores of a small machine.
PROCESSES: Final = 2

#: What clients may take to start, connect and prepare, at least.
PREPARE_S: Final = 60.0

#: What clients may take to say their goodbyes.
LEAVE_S: Final = 20.0

#: And to end after that.
END_S: Final = 5.0

#: Of a client process, read at a time.
READ_BYTES: Final = 1 << 16


class RunFailed(Exception):
    """A run has come to nothing; the message says why, in a line and perhaps the end of a log."""


class Interrupted(Exception):
    """Somebody wants it to end."""


class Play(NamedTuple):
    """What is to be played, and where."""

    run_id: str
    topology: Topology
    workload: str
    workload_class: type[Workload]
    scenes: Sequence[Scene]
    #: Client -> broker.
    placement: dict[str, str]
    trace: bool
    directory: Path


class Watch(NamedTuple):
    """Who looks on: told how far it is, and asked whether to go on, and with how much patience."""

    moved: Callable[[int], None] = lambda done: None
    stopping: Callable[[], bool] = lambda: False
    hurry: Callable[[], bool] = lambda: False
    stall_s: float = STALL_S


def perform(play: Play, watch: Watch) -> Done:
    """Run it, and leave its records in its directory.

    Raises RunFailed, Interrupted.
    """
    (play.directory / CLIENTS).mkdir(parents=True)
    try:
        running = launcher.launch(
            launcher.with_free_ports(play.topology),
            play.directory / BROKERS,
            trace=play.trace,
            run=play.run_id,
            cancelled=watch.stopping,
        )
    except Cancelled:
        raise Interrupted from None
    except LaunchError as error:
        raise RunFailed(str(error)) from None
    try:
        with ExitStack() as stack:
            troupe = Troupe(play, running, watch, stack)
            done = troupe.perform()
    finally:
        running.stop(hurry=watch.hurry)
    traces = [running.trace(broker.name) for broker in play.topology.brokers] if play.trace else []
    return msgspec.structs.replace(done, broker_records=sum(map(_lines, traces)))


class Troupe:
    """The client processes of a run."""

    def __init__(self, play: Play, running: Running, watch: Watch, stack: ExitStack) -> None:
        self._play = play
        self._running = running
        self._watch = watch
        self._selector = stack.enter_context(selectors.DefaultSelector())
        self._children: list[Child] = []
        self._moved_at = time.monotonic()
        epoch = epoch_ns()
        addresses = {name: running.address(at) for name, at in play.placement.items()}
        for number, groups in enumerate(_processes(play), 1):
            cast = Cast(
                play.run_id,
                epoch,
                play.workload,
                groups,
                addresses,
                str((play.directory / CLIENTS).absolute()),
            )
            child = Child(f"clients-{number}", cast, play.directory)
            stack.callback(child.end)
            self._children.append(child)
            self._selector.register(child.stdout, selectors.EVENT_READ, child)

    def perform(self) -> Done:
        """From the first look to the last goodbye."""
        self._until(lambda child: child.ready, "prepare", max(PREPARE_S, self._watch.stall_s))
        pids = {broker.name: self._running.process(broker.name).pid for broker in self._brokers}
        pids |= {child.name: child.popen.pid for child in self._children}
        before = _cpu(pids)
        for child in self._children:
            child.tell(GO)
        began_at = time.monotonic()
        self._until(lambda child: child.played is not None, "play")
        took_s = time.monotonic() - began_at
        used_s = {
            name: round(s - before[name], 3) for name, s in _cpu(pids).items() if name in before
        }
        for child in self._children:
            child.tell(LEAVE)
        self._until(lambda child: child.gone, "leave", LEAVE_S)
        written, statuses = Counter[str](), Counter[str]()
        for child in self._children:
            assert child.played is not None
            written.update(child.played.records)
            statuses.update(child.played.statuses)
        return Done(
            run_id=self._play.run_id,
            transactions=written["tx"],
            statuses=dict(sorted(statuses.items())),
            sent=written["sent"],
            events=written["event"],
            took_s=round(took_s, 6),
            cpu_s=used_s,
            client_records=written.total(),
            broker_records=0,
        )

    @property
    def _brokers(self) -> Iterator[BrokerSpec]:
        return iter(self._play.topology.brokers)

    def _until(
        self, reached: Callable[[Child], bool], doing: str, stall_s: float | None = None
    ) -> None:
        """Listen until all children are so far. Raises RunFailed, Interrupted."""
        stall_s = self._watch.stall_s if stall_s is None else stall_s
        self._moved_at = time.monotonic()
        while not all(map(reached, self._children)):
            for key, _ in self._selector.select(LOOK_S):
                self._listen(key.data)
            if self._watch.stopping():
                raise Interrupted
            for crash in self._running.crashes():
                raise RunFailed(str(crash))
            for child in self._children:
                if child.broken or (child.gone and not reached(child)):
                    raise RunFailed(child.fate())
            if time.monotonic() - self._moved_at > stall_s:
                done = sum(child.going.done for child in self._children)
                raise RunFailed(
                    f"nothing has moved for {stall_s:g} s while clients were to {doing}; "
                    f"{done} steps were done"
                )

    def _listen(self, child: Child) -> None:
        if child.listen():
            self._moved_at = time.monotonic()
            self._watch.moved(sum(each.going.done for each in self._children))
        if child.gone:
            self._selector.unregister(child.stdout)


class Child:
    """One process with clients."""

    def __init__(self, name: str, cast: Cast, directory: Path) -> None:
        self.name = name
        self.ready = False
        self.going = Going(0, 0)
        self.played: Played | None = None
        #: It has said its last word.
        self.gone = False
        #: Why it cannot go on.
        self.broken = ""
        self._heard = b""
        self._log = directory / f"{name}.log"
        file = directory / f"{name}.json"
        file.write_bytes(msgspec.json.encode(cast))
        with self._log.open("ab") as log:
            # -P: a directory called "overlay" where the user happens to be must not be ours.
            self.popen = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    Cast.__module__,
                    str(file.absolute()),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )
        assert self.popen.stdin is not None and self.popen.stdout is not None
        self.stdin, self.stdout = self.popen.stdin, self.popen.stdout

    def tell(self, word: bytes) -> None:
        """Give it an order. If it has died, `listen` finds out."""
        try:
            self.stdin.write(word)
        except BrokenPipeError:
            return

    def listen(self) -> bool:
        """Take what it says; answers whether that is news. Call it when there is something."""
        heard = self.stdout.read(READ_BYTES)
        if not heard:
            self.gone = True
            return True
        news = False
        *lines, self._heard = (self._heard + heard).split(b"\n")
        for line in lines:
            match said_decoder.decode(line):
                case Ready():
                    self.ready = news = True
                case Going() as going:
                    news = news or going != self.going
                    self.going = going
                case Played() as played:
                    self.played, news = played, True
                    self.going = Going(played.done, sum(played.records.values()))
                case Broken(reason):
                    self.broken, news = reason, True
        return news

    def fate(self) -> str:
        """Why it has ended, now that it has."""
        if self.broken:
            return f"{self.name}: {self.broken}"
        return f"{self.name} has died, {ending(self.popen.wait())}{last_lines(self._log)}"

    def end(self) -> None:
        """See to it that it is gone; twice is fine."""
        try:
            # Who has said its last word is about to end.
            self.popen.wait(END_S if self.gone else 0)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        for pipe in (self.stdin, self.stdout):
            pipe.close()


def _processes(play: Play) -> list[tuple[Group, ...]]:
    """Who is in which process: instances in turn, or roles that must not be together."""
    apart = play.workload_class.apart
    if apart:
        return [tuple(Group(scene, roles) for scene in play.scenes) for roles in apart]
    roles = tuple(play.workload_class.roles)
    shares: list[list[Group]] = [[] for _ in range(min(PROCESSES, len(play.scenes)))]
    for number, scene in enumerate(play.scenes):
        shares[number % len(shares)].append(Group(scene, roles))
    return [tuple(share) for share in shares]


def _cpu(pids: dict[str, int]) -> dict[str, float]:
    """What each process has used so far, where the system tells."""
    if sys.platform != "linux":
        return {}
    used = {}
    for name, pid in pids.items():
        with contextlib.suppress(OSError):  # It has just died; that is told elsewhere.
            used[name] = cpu_s(pid)
    return used


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def clear(directory: Path) -> None:
    """Remove what an earlier attempt has left."""
    if directory.exists():
        shutil.rmtree(directory)
