"""A log that commits at once and, as a rule, keeps nothing: a broker without durability.

The owner runs the same code as on a disk. Tests and models of it let the log keep what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from overlay.errors import LogError
from overlay.log.log import (
    Appended,
    AppendOutcome,
    Refused,
    SnapshotOutcome,
    SnapshotStored,
)


class MemoryLog:
    """Calls `done` inside the calls."""

    def __init__(self, birth: str = "", *, keep: bool = False) -> None:
        """With `keep`, batches and snapshots can be read back."""
        self.birth = birth
        self.last = 0
        self._keep = keep
        #: The batches after position `_dropped`.
        self._batches: list[bytes] = []
        self._dropped = 0
        self._snapshots: list[tuple[int, bytes]] = []

    def append(
        self, expected_last: int, batch: bytes, done: Callable[[AppendOutcome], None]
    ) -> None:
        assert batch, "an empty batch"
        if expected_last != self.last:
            done(Refused(self.last))
            return
        self.last += 1
        if self._keep:
            self._batches.append(batch)
        else:
            self._dropped = self.last
        done(Appended(self.last))

    def read(self, after: int) -> Iterator[tuple[int, bytes]]:
        if after < self._dropped:
            raise LogError(f"batches up to {self._dropped} are not kept; asked for {after + 1}")
        return iter(list(enumerate(self._batches[after - self._dropped :], after + 1)))

    def snapshot(
        self, position: int, state: bytes, done: Callable[[SnapshotOutcome], None]
    ) -> None:
        newest = self._snapshots[-1][0] if self._snapshots else 1
        assert newest <= position <= self.last, (newest, position, self.last)
        if self._keep:
            others = [each for each in self._snapshots if each[0] != position]
            self._snapshots = [*others, (position, state)][-2:]
        done(SnapshotStored(position))

    def latest_snapshot(self) -> tuple[int, bytes] | None:
        return self._snapshots[-1] if self._snapshots else None

    def compact(self, position: int) -> None:
        if len(self._snapshots) == 2:
            until = max(self._dropped, min(position, self._snapshots[0][0]))
            del self._batches[: until - self._dropped]
            self._dropped = until

    def close(self) -> None:
        pass
