"""Recent accesses of a log: those that a new access may conflict with.

Only accesses whose units were at the broker at the same time are compared, so an access is kept
until its unit is over and no unit that was present then is left; the log may be long.

Of a unit this module knows only the number of its last step.
"""

from __future__ import annotations

import heapq
from typing import Generic

from overlay.matching.index import E, Index


class RecentAccesses(Generic[E]):
    """The reads and writes at one broker, by table, that later accesses may conflict with."""

    def __init__(self) -> None:
        self.reads: dict[str, Index[E]] = {"prt": Index(), "srt": Index()}
        self.writes: dict[str, Index[E]] = {"prt": Index(), "srt": Index()}
        self._until: list[tuple[int, int, Index[E], E]] = []
        self._ties = 0

    def add(self, index: Index[E], access: E, last_at: int) -> None:
        """Keep an access in one of the indexes; `last_at` is the last step of its unit."""
        self._ties += 1
        index.insert(access)
        heapq.heappush(self._until, (last_at, self._ties, index, access))

    def expire(self, first_at: float) -> None:
        """Drop the accesses of units that were over before step `first_at`."""
        while self._until and self._until[0][0] < first_at:
            _, _, index, access = heapq.heappop(self._until)
            index.remove(access)
