"""The trace of one broker, as a file of JSON lines.

Records are collected and written in blocks. A block that cannot be written (the disk is full)
switches the trace off: the broker goes on without it, its log and its status say why, and a line in
the file, as soon as one can be written, says that records are missing. That line has no `kind`, so
readers count it as unreadable. `reopen` switches the trace on again.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec
from twisted.logger import Logger

from overlay.files.line_file import LineFile
from overlay.trace import Record, encode

#: A block is written when it has so many bytes, or by the caller's timer.
BLOCK_BYTES = 1 << 20


class TraceFile:
    """Appends records; `flush` it every now and then, and `close` it."""

    def __init__(self, path: Path, node: str, run: str) -> None:
        """Raises OSError if the file cannot be opened."""
        self._file = LineFile(path)
        self._path = path
        self._node = node
        self._run = run
        self._lines: list[bytes] = []
        self._bytes = 0
        #: Why the trace is off; "" while it is on.
        self._problem = ""
        self._missing = 0
        #: The last record that earlier processes have written; None before anybody asked.
        self._last_seq: int | None = None
        #: How many missing records the last mark in the file reported, and whether a mark is due.
        self._marked = 0
        self._mark_due = False
        self._log = Logger(namespace="overlay.files.trace_file")

    def write(self, record: Record) -> None:
        if self._problem:
            self._missing += 1
            return
        line = encode(msgspec.structs.replace(record, run=self._run))
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes >= BLOCK_BYTES:
            self.flush()

    def write_missing(self, record: Record) -> None:
        """Write a record that an earlier process has made, unless it is in the file already."""
        if self._last_seq is None:
            self._last_seq = _last_seq(self._path)
        if record.seq > self._last_seq:
            self.write(record)

    def flush(self) -> None:
        """Write what has been collected; while the trace is off, try to mark that in the file."""
        if self._mark_due:
            self._mark()
        lines, self._lines, self._bytes = self._lines, [], 0
        if not lines:
            return
        try:
            self._file.append(b"".join(lines))
        except OSError as error:
            self._missing += len(lines)
            self._problem = error.strerror or str(error)
            self._log.error(
                "trace switched off",
                file=str(self._path),
                reason=self._problem,
                missing=self._missing,
            )
            self._mark_due = True
            self._mark()

    def reopen(self) -> None:
        """Go on with the file that has the path now; a trace that was off is on again, if the file
        can be written.

        Raises OSError; then nothing has changed.
        """
        self.flush()
        self._file.reopen()
        if self._problem:
            self._mark()
            if self._marked == self._missing:
                self._log.info("trace switched on again", file=str(self._path))
                self._problem = ""

    def close(self) -> None:
        self.flush()
        if self._missing > self._marked:
            self._mark()
        self._file.close()

    def report(self) -> dict[str, Any]:
        """For a broker's status."""
        return {"file": str(self._path), "missing": self._missing, "problem": self._problem}

    def _mark(self) -> None:
        """Note in the file that records are missing, if it can be written."""
        mark = {
            "node": self._node,
            "run": self._run,
            "missing": self._missing,
            "reason": self._problem,
        }
        with contextlib.suppress(OSError):
            self._file.append(msgspec.json.encode(mark) + b"\n")
            self._marked = self._missing
            self._mark_due = False


def _last_seq(path: Path) -> int:
    """The number of the last record in a file, 0 if there is none."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            begin = max(end - BLOCK_BYTES, 0)
            file.seek(begin)
            lines = file.read(end - begin).split(b"\n")
            for line in reversed(lines if not begin else lines[1:]):
                with contextlib.suppress(msgspec.DecodeError):
                    return msgspec.json.decode(line, type=_Numbered).seq
            end = begin
    return 0


class _Numbered(msgspec.Struct):
    """What of a record says where it stands."""

    seq: int
