"""The file system of the operating system: the only module of this room that calls it."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import weakref
from pathlib import Path

#: A lock file holds a process id, filled up to this size.
LOCK_BYTES = 32

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC


class OsFile:
    """An open file."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor

    def write(self, data: bytes) -> int:
        return os.write(self._fd, data)

    def sync(self) -> None:
        if sys.platform == "darwin":
            # There fsync returns before the disk has written.
            fcntl.fcntl(self._fd, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsDisk:
    """Files and directories as they are."""

    def make_directory(self, path: Path) -> None:
        missing = []
        while not path.exists():
            missing.append(path)
            path = path.parent
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            self.sync_directory(each.parent)

    def names(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory))  # noqa: PTH208 - names, not paths

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def create(self, path: Path) -> OsFile:
        return OsFile(os.open(path, _APPEND | os.O_CREAT | os.O_TRUNC, 0o666))

    def open(self, path: Path) -> OsFile:
        return OsFile(os.open(path, _APPEND))

    def rename(self, old: Path, new: Path) -> None:
        old.replace(new)

    def remove(self, path: Path) -> None:
        path.unlink()

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> OsFile:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(descriptor, LOCK_BYTES).decode(errors="replace").strip()
                raise BlockingIOError(errno.EWOULDBLOCK, holder) from None
            # Always as long, and never truncated: a full disk has room for it from the second time.
            os.write(descriptor, f"{os.getpid():<{LOCK_BYTES - 1}}\n".encode())
        except BaseException:
            os.close(descriptor)
            raise
        lock = OsFile(descriptor)
        _locks.add(lock)
        return lock


#: The locks of this process.
_locks: weakref.WeakSet[OsFile] = weakref.WeakSet()


def _leave_locks_to_parent() -> None:
    for lock in list(_locks):
        lock.close()


# A forked child, such as one that writes a snapshot, would hold the lock on when its parent is
# killed, and the next process could not start.
os.register_at_fork(after_in_child=_leave_locks_to_parent)
