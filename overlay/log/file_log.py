"""A log in a directory of its own: it survives the death of its process and the loss of power.

    LOCK                       locked while a process uses the log; has its process id
    log-<first position>       segments: batches in order, each with a checksum and a chain
    snap-<position>            the newest two snapshots

A batch is one write and one sync. With a loop to return to, they happen in a thread, and the owner
goes on while the disk works.

- What is not as it was written is an error when the log is opened, and no file is changed. Only a
  torn tail, which the last append of a process that died may leave, is cut off.
- A full disk is an outcome: what was written of the batch is taken back, and the owner tries again.
- After an error of a sync nothing more is accepted: the disk may have dropped what was written.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from overlay.errors import LogDamaged, LogError, LogUnusable
from overlay.log import file_format as form
from overlay.log.disk import Disk
from overlay.log.file_format import SnapshotHeader
from overlay.log.log import (
    Appended,
    AppendOutcome,
    Failed,
    Full,
    Refused,
    SnapshotOutcome,
    SnapshotStored,
)
from overlay.log.opening import open_directory
from overlay.log.os_disk import OsDisk
from overlay.log.segment_writer import NO_ROOM, SegmentWriter, make_file
from overlay.log.survey import problem_of
from overlay.log.worker import CallInLoop, Inline, Runner, WorkerThread

#: A new segment begins when one has reached this size: old batches go in such pieces, and a piece
#: is read as a whole.
SEGMENT_BYTES: Final = 64 << 20

#: The older one is there in case the newest is damaged.
SNAPSHOTS_KEPT: Final = 2


class FileLog:
    """A `Log` on disk."""

    def __init__(
        self,
        directory: Path,
        *,
        broker: str,
        version: str,
        birth: str,
        disk: Disk | None = None,
        call_in_loop: CallInLoop | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Open the log in a directory, or begin one there.

        `broker` is the owner's name, and `version` names its code, which never continues a segment
        of other code. `birth` is the token of a log that is begun here; if there is one, its own
        counts. With `call_in_loop`, such as the reactor's `callFromThread`, the disk works in
        threads, and `done` is called by it; without, inside the calls.

        Raises LogError, whose subclass and text say why; then no file was changed.
        """
        self._disk: Disk = OsDisk() if disk is None else disk
        self._directory = directory
        self._broker = broker
        self._version = version
        opened = open_directory(self._disk, directory, broker=broker, version=version, birth=birth)
        self._lock = opened.lock
        #: What was repaired when it was opened, for the owner's log.
        self.notes = opened.notes
        newest = opened.survey.segments[-1]
        self.birth = newest.header.birth
        self.last = opened.survey.last
        #: First position -> version of the code that has written the segment, in order.
        self._segments = {each.header.first: each.header.version for each in opened.survey.segments}
        #: Positions of the intact snapshots, in order.
        self._snapshots = [each.position for each in opened.survey.snapshots if not each.problem]
        try:
            self._writer = SegmentWriter(
                self._disk,
                directory,
                newest,
                version=version,
                segment_bytes=segment_bytes,
                began=self._note_segment,
            )
        except OSError as error:
            self._lock.close()
            raise LogUnusable(f"cannot write {directory}: {problem_of(error)}") from None
        self._appending = False
        self._snapshotting = False
        self._appends = _runner("log", call_in_loop)
        #: Of its own: a large snapshot must not hold appends up.
        self._tidying = _runner("log-snapshots", call_in_loop)

    # --- every log ---

    def append(
        self, expected_last: int, batch: bytes, done: Callable[[AppendOutcome], None]
    ) -> None:
        assert not self._appending, "the last append is not done"
        assert 0 < len(batch) <= form.BATCH_LIMIT_BYTES, len(batch)
        if expected_last != self.last:
            done(Refused(self.last))
            return
        self._appending = True

        def appended(outcome: AppendOutcome) -> None:
            self._appending = False
            if type(outcome) is Appended:
                self.last = outcome.position
            done(outcome)

        self._appends.run(lambda: self._writer.append(batch), appended)

    def read(self, after: int) -> Iterator[tuple[int, bytes]]:
        first = next(iter(self._segments))
        if after + 1 < first:
            raise LogError(
                f"{self._directory}: batches up to {first - 1} are gone; asked for {after + 1}"
            )
        return self._read(after, self.last)

    def snapshot(
        self, position: int, state: bytes, done: Callable[[SnapshotOutcome], None]
    ) -> None:
        assert not self._snapshotting, "the last snapshot is not done"
        newest = self._snapshots[-1] if self._snapshots else 1
        assert newest <= position <= self.last, (newest, position, self.last)
        self._snapshotting = True

        def stored(outcome: SnapshotOutcome) -> None:
            self._snapshotting = False
            done(outcome)

        self._tidying.run(lambda: self._store(position, state), stored)

    def latest_snapshot(self) -> tuple[int, bytes] | None:
        if not self._snapshots:
            return None
        position = self._snapshots[-1]
        path = self._directory / form.snapshot_name(position)
        return position, form.state_in(self._content(path), str(path))

    def compact(self, position: int) -> None:
        """Allow the log to drop batches up to `position`, in whole segments."""
        self._tidying.run(lambda: self._remove_segments(position), lambda _: None)

    def close(self) -> None:
        """Let go of the log. Waits for the append and the snapshot under way."""
        self._appends.close()
        self._tidying.close()
        self._writer.close()
        self._lock.close()

    # --- this one only ---

    def written_by(self, position: int) -> str:
        """Return the version of the code that has appended the batch at a position."""
        return [code for first, code in self._segments.items() if first <= position][-1]

    def report(self) -> dict[str, Any]:
        """For a broker's status."""
        size = 0
        with contextlib.suppress(OSError):
            for first in list(self._segments):
                size += self._disk.size(self._directory / form.segment_name(first))
        return {
            "directory": str(self._directory),
            "position": self.last,
            "segments": len(self._segments),
            "bytes": size,
            "snapshot": self._snapshots[-1] if self._snapshots else 0,
        }

    # --- in the threads ---

    def _note_segment(self, first: int) -> None:
        self._segments[first] = self._version

    def _store(self, position: int, state: bytes) -> SnapshotOutcome:
        header = SnapshotHeader(
            self._broker, self.birth, self._version, position, len(state), crc32(state)
        )
        path = self._directory / form.snapshot_name(position)
        try:
            make_file(self._disk, path, form.seal_snapshot(header), state)
        except OSError as error:
            kind = Full if error.errno in NO_ROOM else Failed
            return kind(f"cannot store a snapshot: {problem_of(error)}")
        others = [each for each in self._snapshots if each != position]
        self._snapshots = [*others, position][-SNAPSHOTS_KEPT:]
        self._remove_snapshots({form.snapshot_name(each) for each in self._snapshots})
        return SnapshotStored(position)

    def _remove_snapshots(self, kept: set[str]) -> None:
        # What cannot be removed now goes with the next snapshot.
        with contextlib.suppress(OSError):
            for name in self._disk.names(self._directory):
                if form.SNAPSHOT_NAME.fullmatch(name) and name not in kept:
                    self._disk.remove(self._directory / name)

    def _remove_segments(self, position: int) -> None:
        """Remove whole segments up to a position, except those that the older snapshot needs."""
        if len(self._snapshots) < SNAPSHOTS_KEPT:
            return
        until = min(position, self._snapshots[0])
        # What cannot be removed now goes the next time.
        with contextlib.suppress(OSError):
            for first, following in itertools.pairwise(list(self._segments)):
                if following > until + 1:
                    break
                # One after the other: no crash leaves a hole between segments.
                self._disk.remove(self._directory / form.segment_name(first))
                self._disk.sync_directory(self._directory)
                del self._segments[first]

    # --- reading ---

    def _read(self, after: int, until: int) -> Iterator[tuple[int, bytes]]:
        firsts = list(self._segments)
        position = after
        for first, following in zip(firsts, [*firsts[1:], until + 1], strict=True):
            if following <= after + 1:
                continue
            path = self._directory / form.segment_name(first)
            data = self._content(path)
            header, begin = form.open_segment(data, str(path))
            for batch in form.batches_in(data, begin, header):
                if after < batch.position <= until:
                    position = batch.position
                    yield position, data[batch.begin : batch.end]
        if position < until:
            raise LogDamaged(
                f"{self._directory}: read up to batch {position}, but {until} are committed"
            )

    def _content(self, path: Path) -> bytes:
        try:
            return self._disk.read(path)
        except OSError as error:
            raise LogUnusable(f"cannot read {path}: {problem_of(error)}") from None


def _runner(name: str, call_in_loop: CallInLoop | None) -> Runner:
    return Inline() if call_in_loop is None else WorkerThread(name, call_in_loop)
