"""A node that outlives its process: on disk, or in memory over a planned restart.

*On disk* its inputs go through a log (`overlay.log.file_log`). At the start the node is made again
from the latest snapshot and the inputs after it. A snapshot is taken when the broker has worked for
WORKED_S since the last one, so that a start never replays for much longer than that. It is written
by a forked child, which has the node as it was at that moment, so the broker does not stand still.

*In memory* a planned stop leaves a checkpoint, which the next start takes and removes.

An input at which the core fails would end the process at each start. It is noted in the file
FAILING when it happens first. When it happens again, it is left out for good, and its source is
expelled instead.
"""

from __future__ import annotations

import gc
import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from twisted.logger import Logger

from overlay.errors import LogDiverges, LogError, LogUnusable
from overlay.hosts.host import Host
from overlay.log.file_format import snapshot_name
from overlay.log.file_log import FileLog
from overlay.log.log import Appended, AppendOutcome, SnapshotOutcome, SnapshotStored
from overlay.log.worker import CallInLoop
from overlay.node.image import freeze_node, thaw_node
from overlay.node.inputs import Batch, encode_batch
from overlay.node.recovery import Failing, InputFails, Recovered, recover
from overlay.trace import Record

#: CPU time of the broker's thread between two snapshots. A replay reads, decodes and applies what
#: came; the broker has also read its sockets, written to them, and put a log together. For
#: publications by the hundred a replay takes up to 1.2 times as long all the same, and less for
#: everything else (`bench recover`, `bench hop`). So no start replays for more than two seconds.
WORKED_S = 1.5

#: How often the host looks whether a child has written its snapshot.
CHILD_POLL_S = 0.05

#: A new life of a broker: 128 bits of chance, in hex.
BIRTH_BYTES = 16

#: The first descriptor that is not one of the three standard streams.
FIRST_OWN = 3

FAILING = "FAILING"
FREEZING = "freezing"
CHECKPOINT = "checkpoint"


class _Deaths(msgspec.Struct):
    """What the file FAILING holds: inputs at which the core has failed, and how often."""

    deaths: dict[str, int] = {}


class FailingInputs:
    """The inputs of one log at which the core fails."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FAILING
        try:
            self._file = msgspec.json.decode(self._path.read_bytes(), type=_Deaths)
        except FileNotFoundError:
            self._file = _Deaths()
        except (OSError, msgspec.DecodeError) as error:
            raise LogUnusable(f"cannot read {self._path}: {error}") from None

    def note(self, where: Failing) -> bool:
        """The core has failed there; returns whether that was so before."""
        key = f"{where.position}/{where.place}"
        times = self._file.deaths[key] = self._file.deaths.get(key, 0) + 1
        new = self._path.with_name(FAILING + ".tmp")
        with new.open("wb") as file:
            file.write(msgspec.json.encode(self._file))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        return times > 1

    @property
    def left_out(self) -> set[Failing]:
        """The inputs that are not applied any more."""
        found = set()
        for key, times in self._file.deaths.items():
            position, _, place = key.partition("/")
            if times > 1:
                found.add(Failing(int(position), int(place)))
        return found


class _Replay:
    """When a replay began, in CPU time of the thread; 0 if nothing was replayed."""

    def __init__(self) -> None:
        self.began_s = 0.0

    def passed(self, position: int) -> None:
        """A batch was replayed."""
        self.began_s = self.began_s or time.thread_time()


class DurableNode:
    """The log and the snapshots of one host.

    Make it with `open`; then the host goes on where the broker was. `stop` leaves a snapshot.
    """

    def __init__(
        self, directory: Path, log: FileLog, host: Host, recovered: Recovered, began_s: float
    ) -> None:
        """`began_s` is the thread's CPU time when the replay began, 0 if there was none."""
        self.host = host
        self.recovered = recovered
        self._directory = directory
        self._log = log
        self._failing = FailingInputs(directory)
        self._logger = Logger(namespace="overlay.hosts.durable")
        self._child = 0
        self._child_position = 0
        #: The thread's CPU time at which a snapshot is due. What was replayed counts, or a broker
        #: that dies again and again would have ever more to replay.
        self._due_s = (began_s or time.thread_time()) + WORKED_S
        self._snapshot_position: int = log.report()["snapshot"]
        #: By the wall clock, since an older process may have taken it.
        self._snapshot_at = _taken_at(directory, self._snapshot_position)
        #: Called before a snapshot is taken: what an older process has left is not replayed then.
        self.before_snapshot: Callable[[], None] = lambda: None

    @classmethod
    def open(
        cls,
        directory: Path,
        make_host: Callable[[str], Host],
        *,
        broker: str,
        version: str,
        birth: str,
        call_in_loop: CallInLoop | None = None,
        record: Callable[[Record], None] | None = None,
    ) -> DurableNode:
        """Open the log of a broker, or begin it, and make its node again.

        `make_host` makes a host with a fresh node, for the life that it is given: `birth`, or that
        of the log. `record` gets the records of inputs that are replayed.

        Raises LogError, or InputFails when the core fails at an input for the first time.
        """
        log = FileLog(
            directory, broker=broker, version=version, birth=birth, call_in_loop=call_in_loop
        )
        logger = Logger(namespace="overlay.hosts.durable")
        try:
            for note in log.notes:
                logger.warn("log repaired", note=note)
            failing = FailingInputs(directory)
            while True:
                host = make_host(log.birth)
                replay = _Replay()
                try:
                    recovered = recover(
                        host.node, log, record=record, skip=failing.left_out, progress=replay.passed
                    )
                    break
                except InputFails as error:
                    if not failing.note(error.where):
                        raise
                    logger.failure("an input makes the broker fail; it is left out")
                except LogDiverges as error:
                    writer = log.written_by(log.last)
                    if writer == version:
                        raise
                    raise LogDiverges(
                        f"{directory} was written by version {writer}, and this version "
                        f"({version}) would go on in another way: {error}. Start the broker with "
                        "the old version and --checkpoint once"
                    ) from None
        except BaseException:
            log.close()
            raise
        durable = cls(directory, log, host, recovered, replay.began_s)
        durable._remove_frozen()
        if recovered.position:
            host.go_on(recovered.now)
        host.use_log(log, recovered.position, durable)
        host.reports["durability"] = durable.report
        return durable

    # --- what the host calls ---

    def failed_at(self, where: Failing) -> None:
        """The core has failed at an input; the process is about to end."""
        self._failing.note(where)

    def consider_snapshot(self) -> None:
        """Take a snapshot if it is time for one; no batch is applied in part."""
        journal = self.host.journal
        assert journal is not None
        if self._child or time.thread_time() < self._due_s:
            return
        if journal.applied == self._snapshot_position:
            return
        self.before_snapshot()
        self._fork(journal.applied)

    # --- snapshots by a child ---

    def _fork(self, position: int) -> None:
        self._due_s = time.thread_time() + WORKED_S
        # A child that has outlived its parent may still write to its own.
        path = self._directory / f"{FREEZING}-{os.getpid()}-{position}"
        parent = os.getpid()
        try:
            child = os.fork()
        except OSError as error:
            self._logger.error("cannot fork for a snapshot", reason=error.strerror)
            return
        if not child:
            self._write_and_exit(path, parent)
        self._child, self._child_position = child, position
        self.host.call_later(CHILD_POLL_S, self._look_at_child, path)

    def _write_and_exit(self, path: Path, parent: int) -> None:
        """In the child: write the node as it is."""
        status = 1
        try:
            # When the parent is killed its port is free, and its peers notice.
            os.closerange(FIRST_OWN, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
            gc.disable()
            state = freeze_node(self.host.node, self.host.now())
            if os.getppid() == parent:
                path.write_bytes(state)
                status = 0
        finally:
            os._exit(status)

    def _look_at_child(self, path: Path) -> None:
        child, status = os.waitpid(self._child, os.WNOHANG)
        if not child:
            self.host.call_later(CHILD_POLL_S, self._look_at_child, path)
            return
        self._child = 0
        if status:
            self._logger.error("the snapshot could not be written", status=status)
            return
        self._store(self._child_position, path.read_bytes())
        path.unlink(missing_ok=True)

    def _store(self, position: int, state: bytes) -> None:
        def stored(outcome: SnapshotOutcome) -> None:
            if isinstance(outcome, SnapshotStored):
                self._snapshot_position, self._snapshot_at = position, time.time()
                self._log.compact(position)
                self._logger.info("snapshot", position=position, size=len(state))
            else:
                self._logger.error("snapshot refused", reason=outcome.reason)

        self._log.snapshot(position, state, stored)

    # --- the end ---

    def stop(self) -> None:
        """Leave a snapshot of all that was committed, and close the log; the host has stopped."""
        journal = self.host.journal
        assert journal is not None
        if self._child:
            os.waitpid(self._child, 0)
            self._child = 0
            self._remove_frozen()
        if journal.is_idle and journal.applied > self._snapshot_position:
            self.before_snapshot()
            self._store(journal.applied, freeze_node(self.host.node, self.host.now()))
        self._log.close()

    def _remove_frozen(self) -> None:
        """Remove what children have written for processes that have ended."""
        for path in self._directory.glob(f"{FREEZING}-*"):
            path.unlink(missing_ok=True)

    def report(self) -> dict[str, Any]:
        """For a broker's status."""
        journal = self.host.journal
        assert journal is not None
        log = self._log.report()
        age_s = None if self._snapshot_at is None else max(time.time() - self._snapshot_at, 0.0)
        return {
            "mode": "disk",
            "directory": str(self._directory),
            "position": journal.applied,
            "snapshot_position": self._snapshot_position,
            "snapshot_age_s": None if age_s is None else round(age_s, 1),
            "log_bytes": log["bytes"],
            "staged": journal.staged,
            "unsynced_age_s": round(journal.unsynced_s(self.host.now()), 3),
            "problem": journal.problem,
        }


class Checkpoint:
    """A node in memory that was stopped as planned, on disk until it is started again."""

    def __init__(self, directory: Path, *, broker: str, version: str) -> None:
        self._directory = directory / CHECKPOINT
        self._broker = broker
        self._version = version

    def save(self, host: Host) -> None:
        """Keep the node of a host that has stopped.

        Raises LogError.
        """
        now = host.now()
        self.discard()
        log = self._open(os.urandom(BIRTH_BYTES).hex())
        outcomes: list[AppendOutcome | SnapshotOutcome] = []
        log.append(0, encode_batch(Batch(now, [])), outcomes.append)
        if isinstance(outcomes[-1], Appended):
            log.snapshot(1, freeze_node(host.node, now), outcomes.append)
        log.close()
        if not isinstance(outcomes[-1], SnapshotStored):
            raise LogUnusable(f"cannot write {self._directory}: {outcomes[-1]}")

    def take(self, host: Host) -> bool:
        """Let a fresh host go on from the checkpoint, if there is one.

        `discard` it before the host takes anything in.

        Raises LogError.
        """
        if not self._directory.exists():
            return False
        log = self._open("")
        try:
            snapshot = log.latest_snapshot()
        finally:
            log.close()
        if snapshot is None:
            return False
        now = thaw_node(host.node, snapshot[1])
        for end in host.node.ends.values():
            end.link.suspect()
        host.go_on(now)
        return True

    def discard(self) -> None:
        """Forget the checkpoint: it would be about another life."""
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._directory.exists():
            raise LogError(f"cannot remove {self._directory}")

    def _open(self, birth: str) -> FileLog:
        return FileLog(self._directory, broker=self._broker, version=self._version, birth=birth)


def _taken_at(directory: Path, position: int) -> float | None:
    """When the snapshot at a position was stored; None if there is none."""
    try:
        return (directory / snapshot_name(position)).stat().st_mtime
    except FileNotFoundError:
        return None
