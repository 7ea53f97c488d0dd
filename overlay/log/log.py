"""What every log is to its owner: batches of bytes at positions 1, 2, 3 and so on, and snapshots.

The owner collects its inputs into a batch, appends it, and acts on it when it is told `Appended`.
Meanwhile it collects the next batch: at most one append is under way. At the start it thaws the
latest snapshot and reads the batches after it.

    log.append(log.last, batch, done)       # done(Appended(position)), now or later

A log calls `done` exactly once, in the owner's thread, either inside `append` or later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

import msgspec


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The batch is committed at this position: it survives what the log promises to survive."""

    position: int


class Refused(msgspec.Struct, frozen=True, gc=False):
    """The log does not end where the caller expected: nothing was appended.

    `last` is the position where it ends. Another writer has appended; read what it was.
    """

    last: int


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """Whether the batch was appended is not known: read the log, and look again."""

    reason: str


class Full(msgspec.Struct, frozen=True, gc=False):
    """There is no room: nothing was appended, and the same call may succeed later."""

    reason: str


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The log cannot be written any more. The batch is either there or not, when it is read again.

    Every later append fails as well; the owner ends.
    """

    reason: str


class SnapshotStored(msgspec.Struct, frozen=True, gc=False):
    """The snapshot is kept, and what was appended up to this position may be compacted."""

    position: int


AppendOutcome: TypeAlias = Appended | Refused | Unknown | Full | Failed

#: A snapshot that is `Full` or `Failed` has changed nothing: the older ones are still there.
SnapshotOutcome: TypeAlias = SnapshotStored | Full | Failed


class Log(Protocol):
    """An ordered log of batches, and the newest two snapshots of what they led to."""

    @property
    def last(self) -> int:
        """The position of the last batch that is known to be committed; 0 if there is none."""

    @property
    def birth(self) -> str:
        """The token that was drawn when this log began: a log that was lost has another."""

    def append(
        self, expected_last: int, batch: bytes, done: Callable[[AppendOutcome], None]
    ) -> None:
        """Append a batch behind position `expected_last`, and call `done` when that is decided.

        The batch must not be empty. The next append comes after `done` was called.
        """

    def read(self, after: int) -> Iterator[tuple[int, bytes]]:
        """Return the committed batches after a position, in order, each with its position.

        Raises LogError if batches after that position were compacted, or cannot be read.
        """

    def snapshot(
        self, position: int, state: bytes, done: Callable[[SnapshotOutcome], None]
    ) -> None:
        """Keep the state that the batches up to `position` led to; the newest two are kept.

        Positions never decrease. The next snapshot comes after `done` was called.
        """

    def latest_snapshot(self) -> tuple[int, bytes] | None:
        """Return the newest snapshot that is intact, and its position.

        Raises LogError if it cannot be read.
        """

    def compact(self, position: int) -> None:
        """Allow the log to drop batches up to `position`.

        It keeps what the older of its two snapshots needs, whatever the position.
        """

    def close(self) -> None:
        """Let go of the log, after the append under way; no call but this is allowed afterwards."""
