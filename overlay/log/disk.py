"""What a log asks of a file system: the operations, and what each one promises.

`os_disk.OsDisk` is the real one, `simulated_disk.SimulatedDisk` one in memory that loses power when
it is told to. Every operation raises OSError if it fails.

What is written is kept only once it is synced: a file's bytes by `File.sync`, a new, renamed or
removed name by `Disk.sync_directory`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class File(Protocol):
    """A file that is open for appending."""

    def write(self, data: bytes) -> int:
        """Append a part of the data, as much as fits, and return how many bytes that was."""

    def sync(self) -> None:
        """Return when all that was written is on the disk.

        After an error nothing is known of what was written before, and trying again does not help:
        the operating system may have dropped it.
        """

    def truncate(self, size: int) -> None:
        """Cut the file to this size; what is written next is appended there."""

    def close(self) -> None: ...


class Held(Protocol):
    """A lock that is held."""

    def close(self) -> None:
        """Release it."""


class Disk(Protocol):
    """A file system."""

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents where they are missing, and sync them."""

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted."""

    def size(self, path: Path) -> int:
        """Return how many bytes a file has."""

    def read(self, path: Path) -> bytes:
        """Return what is in a file."""

    def create(self, path: Path) -> File:
        """Open a new, empty file; a file of that name is emptied."""

    def open(self, path: Path) -> File:
        """Open a file that exists, to append to it."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file; a file of the new name is replaced in one step."""

    def remove(self, path: Path) -> None:
        """Remove a file."""

    def sync_directory(self, path: Path) -> None:
        """Return when the names in the directory are on the disk."""

    def lock(self, path: Path) -> Held:
        """Lock a file, which is created if it is missing, for this process.

        The lock ends with the process. Raises BlockingIOError, with what the holder has written
        into the file as its text, if it is locked.
        """
