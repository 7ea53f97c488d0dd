"""Files to which whole lines are appended, by a process that survives a full disk.

A line that cannot be written as a whole is taken back, so that the file never ends in the middle of
one. A file can be limited: when it is full it is renamed to NAME.1, what was NAME.1 to NAME.2, and
so on, and the oldest goes. `reopen` is for programs such as logrotate, which move files away.

The caller decides what to do with lines that could not be written.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


class LineFile:
    """A file that is appended to; without a path, an open descriptor that is left open."""

    def __init__(
        self,
        path: Path | None,
        *,
        descriptor: int = -1,
        limit_bytes: int = 0,
        keep: int = 0,
    ) -> None:
        """Open the file. Raises OSError.

        With `limit_bytes`, it is renamed before it grows larger, and `keep` older ones are kept.
        """
        self.path = path
        self._limit_bytes = limit_bytes
        self._keep = keep
        self._fd = descriptor if path is None else _open(path)

    def append(self, lines: bytes) -> None:
        """Write whole lines, now.

        Raises OSError; then nothing of them is in the file, if it is an ordinary one.
        """
        status = os.fstat(self._fd)
        if self._limit_bytes and 0 < status.st_size > self._limit_bytes - len(lines):
            self._rotate()
            status = os.fstat(self._fd)
        written, view = 0, memoryview(lines)
        try:
            while written < len(lines):
                written += os.write(self._fd, view[written:])
        except OSError:
            size = status.st_size + written
            # What another process has appended meanwhile must stay.
            if written and stat.S_ISREG(status.st_mode) and os.fstat(self._fd).st_size == size:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, status.st_size)
            raise

    def reopen(self) -> None:
        """Continue with the file that has the path now, or create it.

        Raises OSError; then it goes on with the old one.
        """
        if self.path is not None:
            fd = _open(self.path)
            os.close(self._fd)
            self._fd = fd

    def close(self) -> None:
        if self.path is not None and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _rotate(self) -> None:
        assert self.path is not None, "only a file with a name has a limit"
        # Where files cannot be renamed, writing goes on: a full disk is an error then.
        with contextlib.suppress(OSError):
            for number in range(self._keep, 0, -1):
                older = self._numbered(number - 1)
                if older.exists():
                    older.replace(self._numbered(number))
            if not self._keep:
                self.path.unlink(missing_ok=True)
            self.reopen()

    def _numbered(self, number: int) -> Path:
        assert self.path is not None
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
