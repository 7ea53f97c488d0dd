"""A disk in memory that loses power, runs full and fails when it is told to. Deterministic.

Every operation is counted. A host that wants a broker to die says before which one:

    disk = SimulatedDisk()
    disk.stop_before(disk.operations + 3)
    ...                                  # the third operation from here raises PowerFailure
    disk.restart(choose)                 # choose(n) returns a number from 0 to n - 1
    FileLog(directory, ..., disk=disk)   # sees what survived

Until `restart`, every operation raises PowerFailure. What was synced survives. Of what was written
to a file and not synced, `choose` decides how many bytes survive, and whether the rest is missing
or zeros. Of the names that were created, renamed and removed without a sync of their directory, it
decides how many of the changes survive, the first ones first. `restart()` without `choose` is the
death of the process alone: all that was written is there. Both release the locks.

    disk.room = 4096                     # so many bytes can still be written; None: any number
    disk.fault = lambda operation, path: OSError(errno.EIO, "Input/output error")

`fault` is called before each operation with its name, that of the method of `Disk` or `File`, and
the path; an error that it returns is raised. What a sync that failed should have written can be
read until power fails, but never reaches the disk, even if a later sync succeeds.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

#: Chooses one of n possibilities: a number from 0 to n - 1.
Choose = Callable[[int], int]


class PowerFailure(Exception):
    """The machine, or the process, has stopped before this operation."""


class _Inode:
    """The content of a file: what is on the disk, and what the operating system would read."""

    def __init__(self) -> None:
        self.synced = bytearray()
        self.data = bytearray()
        #: It has been cut since the last sync: what is synced is not its beginning.
        self.cut = False
        #: After a sync that failed: the bytes that it should have written. The operating system
        #: takes them for written, and they can be read, but they are not on the disk.
        self.lost = range(0)

    def sync(self) -> None:
        if self.cut or self.lost:
            self.synced = bytearray(self.data)
            self.synced[self.lost.start : self.lost.stop] = bytes(len(self.lost))
            self.cut = False
        else:
            # Only what is new: a log is synced thousands of times.
            self.synced += memoryview(self.data)[len(self.synced) :]

    def fail_sync(self) -> None:
        start = self.lost.start if self.lost else len(self.synced)
        self.lost = range(start, len(self.data))

    def truncate(self, size: int) -> None:
        del self.data[size:]
        self.cut = self.cut or size < len(self.synced)
        self.lost = range(self.lost.start, min(self.lost.stop, size))

    def lose_power(self, choose: Choose) -> None:
        data, synced = bytes(self.data), bytes(self.synced)
        if data != synced and (data.startswith(synced) or choose(2)):
            # Appended since; or cut before, and that has reached the disk.
            common = next(
                (at for at, (a, b) in enumerate(zip(data, synced, strict=False)) if a != b),
                min(len(data), len(synced)),
            )
            survived = common + choose(len(data) - common + 1)
            zeros = len(data) - survived if survived < len(data) and choose(2) else 0
            synced = data[:survived] + bytes(zeros)
        self.synced, self.data = bytearray(synced), bytearray(synced)
        self.cut = False
        self.lost = range(0)


class SimulatedDisk:
    """A `Disk` in memory."""

    def __init__(self) -> None:
        #: How many operations there were.
        self.operations = 0
        #: How many bytes can still be written; None for any number.
        self.room: int | None = None
        #: Called with each operation and its path: returns the error that it raises, or None.
        self.fault: Callable[[str, Path], OSError | None] = lambda operation, path: None
        self._stop_before = -1
        self._stopped = False
        self._directories: set[Path] = set()
        self._files: dict[Path, _Inode] = {}
        #: The names as they are on the disk, and the changes since, in order.
        self._synced_files: dict[Path, _Inode] = {}
        self._changes: list[_Change] = []
        self._locks: set[Path] = set()
        #: Files and locks of an earlier run do nothing any more.
        self._run = 0

    # --- for the host ---

    def stop_before(self, operation: int) -> None:
        """Stop before the operation of this number: `disk.operations` is that of the next one."""
        self._stop_before = operation

    def restart(self, choose: Choose | None = None) -> None:
        """Come back: after a loss of power, or without `choose` after the death of the process."""
        if choose is not None:
            self._lose_power(choose)
        self._stop_before, self._stopped = -1, False
        self._locks.clear()
        self._run += 1

    def contents(self) -> dict[Path, bytes]:
        """Return what is in each file now."""
        return {path: bytes(inode.data) for path, inode in sorted(self._files.items())}

    def overwrite(self, path: Path, data: bytes) -> None:
        """Put these bytes into a file, and on the disk: damage, for tests."""
        inode = self._files[path]
        inode.synced, inode.data = bytearray(data), bytearray(data)

    # --- the disk ---

    def make_directory(self, path: Path) -> None:
        self._begin("make_directory", path)
        self._directories.update([path, *path.parents])

    def names(self, directory: Path) -> list[str]:
        self._begin("names", directory)
        if directory not in self._directories:
            raise _not_found(directory)
        return sorted(path.name for path in self._files if path.parent == directory)

    def size(self, path: Path) -> int:
        self._begin("size", path)
        return len(self._inode(path).data)

    def read(self, path: Path) -> bytes:
        self._begin("read", path)
        return bytes(self._inode(path).data)

    def create(self, path: Path) -> SimulatedFile:
        self._begin("create", path)
        inode = _Inode()
        self._change({path: inode})
        return SimulatedFile(self, path, inode, self._run)

    def open(self, path: Path) -> SimulatedFile:
        self._begin("open", path)
        return SimulatedFile(self, path, self._inode(path), self._run)

    def rename(self, old: Path, new: Path) -> None:
        self._begin("rename", old)
        inode = self._inode(old)
        self._change({old: None, new: inode})

    def remove(self, path: Path) -> None:
        self._begin("remove", path)
        self._inode(path)
        self._change({path: None})

    def sync_directory(self, path: Path) -> None:
        self._begin("sync_directory", path)
        rest = []
        for change in self._changes:
            if next(iter(change)).parent == path:
                _apply(self._synced_files, change)
            else:
                rest.append(change)
        self._changes = rest

    def lock(self, path: Path) -> SimulatedLock:
        self._begin("lock", path)
        if path in self._locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "of the simulation")
        if path not in self._files:
            self._change({path: _Inode()})
        self._locks.add(path)
        return SimulatedLock(self, path, self._run)

    # --- for its files ---

    def _begin(self, operation: str, path: Path) -> None:
        if self._stopped or self.operations == self._stop_before:
            self._stopped = True
            raise PowerFailure(f"before {operation} {path}")
        self.operations += 1
        error = self.fault(operation, path)
        if error is not None:
            raise error

    def _take_room(self, size: int) -> int:
        """Return how many bytes of `size` can be written."""
        if self.room is None:
            return size
        taken = min(size, self.room)
        if not taken and size:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= taken
        return taken

    # --- inside ---

    def _inode(self, path: Path) -> _Inode:
        if path not in self._files:
            raise _not_found(path)
        return self._files[path]

    def _change(self, change: _Change) -> None:
        _apply(self._files, change)
        self._changes.append(change)

    def _lose_power(self, choose: Choose) -> None:
        survived = choose(len(self._changes) + 1) if self._changes else 0
        for change in self._changes[:survived]:
            _apply(self._synced_files, change)
        self._changes = []
        self._files = dict(self._synced_files)
        for _, inode in sorted(self._files.items()):
            inode.lose_power(choose)


class SimulatedFile:
    """An open file of a simulated disk."""

    def __init__(self, disk: SimulatedDisk, path: Path, inode: _Inode, run: int) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._run = run

    def write(self, data: bytes) -> int:
        self._begin("write")
        written = self._disk._take_room(len(data))
        self._inode.data += data[:written]
        return written

    def sync(self) -> None:
        try:
            self._begin("sync")
        except OSError:
            self._inode.fail_sync()
            raise
        self._inode.sync()

    def truncate(self, size: int) -> None:
        self._begin("truncate")
        freed = len(self._inode.data) - size
        self._inode.truncate(size)
        if self._disk.room is not None:
            self._disk.room += freed

    def close(self) -> None:
        pass

    def _begin(self, operation: str) -> None:
        if self._run != self._disk._run:
            raise PowerFailure(f"{operation} {self._path}: opened before the restart")
        self._disk._begin(operation, self._path)


class SimulatedLock:
    """A lock of a simulated disk."""

    def __init__(self, disk: SimulatedDisk, path: Path, run: int) -> None:
        self._disk = disk
        self._path = path
        self._run = run

    def close(self) -> None:
        if self._run == self._disk._run:
            self._disk._locks.discard(self._path)


#: One step in a directory: each name is set to a file, or removed.
_Change = dict[Path, _Inode | None]


def _apply(files: dict[Path, _Inode], change: _Change) -> None:
    for path, inode in change.items():
        if inode is None:
            files.pop(path, None)
        else:
            files[path] = inode


def _not_found(path: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
