"""Appends batches to the segments of a log, one at a time, each synced before the next.

Runs in the log's writing thread and knows no callbacks: each call returns its outcome.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path

from overlay.log import file_format as form
from overlay.log.disk import Disk, File
from overlay.log.file_format import SegmentHeader
from overlay.log.log import Appended, AppendOutcome, Failed, Full
from overlay.log.survey import FoundSegment, problem_of

#: Errors that mean "no room", after which the same write may succeed later. EFBIG is a limit for
#: the process (`ulimit -f`).
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class SegmentWriter:
    """The newest segment, open for appending."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        newest: FoundSegment,
        *,
        version: str,
        segment_bytes: int,
        began: Callable[[int], None],
    ) -> None:
        """Raises OSError.

        `began` is called with the first position of each segment that is begun.
        """
        self._disk = disk
        self._directory = directory
        self._version = version
        self._segment_bytes = segment_bytes
        self._began = began
        self._header = newest.header
        self._seed = form.seed_of(newest.header.birth)
        self._last, self._chain = newest.tail.last, newest.tail.chain
        #: The size of the file without what is being appended.
        self._size = newest.tail.end
        #: Why nothing is written any more.
        self._failed = ""
        self._file = disk.open(directory / newest.name)

    def append(self, body: bytes) -> AppendOutcome:
        """Write one batch, and return when it is on the disk."""
        if self._failed:
            return Failed(self._failed)
        try:
            if self._is_over():
                self._begin_segment()
            batch, checksum = form.seal_batch(self._last + 1, self._chain, self._seed, body)
            write_all(self._file, batch)
        except OSError as error:
            return self._take_back(error)
        try:
            self._file.sync()
        except OSError as error:
            # The batch can be read now, but may be gone when power fails: a process that opens the
            # log must not see it.
            with contextlib.suppress(OSError):
                self._file.truncate(self._size)
            return self._fail(f"cannot sync the log: {problem_of(error)}")
        self._last += 1
        self._chain = checksum
        self._size += len(batch)
        return Appended(self._last)

    def close(self) -> None:
        self._file.close()

    def _is_over(self) -> bool:
        """Whether the next batch goes to a new segment: code does not continue that of others."""
        full = self._size >= self._segment_bytes and self._last >= self._header.first
        return full or self._header.version != self._version

    def _begin_segment(self) -> None:
        """Go on in a new segment. Raises OSError; then nothing has changed."""
        header = SegmentHeader(
            self._header.broker, self._header.birth, self._version, self._last + 1, self._chain
        )
        # Of an empty segment of other code, it takes the place.
        path, size = make_segment(self._disk, self._directory, header)
        file = self._disk.open(path)
        self._file.close()
        self._file, self._header, self._size = file, header, size
        self._began(header.first)

    def _take_back(self, error: OSError) -> AppendOutcome:
        """Cut off what was written of a batch that could not be written as a whole."""
        reason = f"cannot write the log: {problem_of(error)}"
        if error.errno not in NO_ROOM:
            return self._fail(reason)
        try:
            self._file.truncate(self._size)
        except OSError as second:
            return self._fail(f"{reason}; then cannot cut it: {problem_of(second)}")
        return Full(reason)

    def _fail(self, reason: str) -> Failed:
        self._failed = reason
        return Failed(reason)


def write_all(file: File, data: bytes) -> None:
    """Write all of the data. Raises OSError; then a part of it may be in the file."""
    written = file.write(data)
    if written < len(data):
        view = memoryview(data)
        while written < len(data):
            written += file.write(bytes(view[written:]))


def make_file(disk: Disk, path: Path, *parts: bytes) -> None:
    """Create a file with this content, or replace one: it is there as a whole, or not at all.

    Raises OSError; then there is no trace of it, as far as the disk allows.
    """
    unfinished = path.with_name(path.name + form.UNFINISHED)
    try:
        file = disk.create(unfinished)
        try:
            for part in parts:
                write_all(file, part)
            file.sync()
        finally:
            file.close()
        disk.rename(unfinished, path)
    except OSError:
        with contextlib.suppress(OSError):
            disk.remove(unfinished)
        raise
    disk.sync_directory(path.parent)


def make_segment(disk: Disk, directory: Path, header: SegmentHeader) -> tuple[Path, int]:
    """Create an empty segment, and return its path and size. Raises OSError."""
    path = directory / form.segment_name(header.first)
    data = form.seal_segment(header)
    make_file(disk, path, data)
    return path, len(data)
