"""What was read and written not long ago: what a new access in a log may be in conflict with.

Such a log is long, and only accesses are compared whose units were there at the same time; so each
stays for as long as its unit, and then goes.

This module knows nothing of units and of times but that a smaller one is earlier.
"""

from __future__ import annotations

import heapq
from typing import Generic

from overlay.matching.index import E, Index


class Near(Generic[E]):
    """Accesses at one broker, by table, of units that others there may still be compared to."""

    def __init__(self) -> None:
        self.reads: dict[str, Index[E]] = {"prt": Index(), "srt": Index()}
        self.writes: dict[str, Index[E]] = {"prt": Index(), "srt": Index()}
        self._until: list[tuple[int, int, Index[E], E]] = []
        self._ties = 0

    def add(self, index: Index[E], access: E, over: int) -> None:
        """Keep an access in one of the indexes until its unit is over."""
        self._ties += 1
        index.insert(access)
        heapq.heappush(self._until, (over, self._ties, index, access))

    def expire(self, begun: float) -> None:
        """Leave out what was over before any that is here now had begun."""
        while self._until and self._until[0][0] < begun:
            _, _, index, access = heapq.heappop(self._until)
            index.remove(access)
