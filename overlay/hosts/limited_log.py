"""Log lines of events that strangers can cause as often as they like.

The first lines of each period are written as they come. The rest are counted, and one line at the
end of the period says how many there were, by their code.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from twisted.logger import Logger, LogLevel

from overlay.hosts.peers import Clock

#: Enough to see who does what; 21 lines a minute are a few MB a day.
LINES_PER_PERIOD = 20
PERIOD_S = 60.0

#: A code may come from a peer; what is beyond these many different ones is counted together.
CODES = 16


class LimitedLog:
    """Writes an event at most LINES_PER_PERIOD times in PERIOD_S; every line has a code."""

    def __init__(self, log: Logger, clock: Clock, event: str, level: str = "warn") -> None:
        self._log = log
        self._clock = clock
        self._event = event
        self._level = LogLevel.levelWithName(level)
        self._began_at = float("-inf")
        self._lines = 0
        self._left_out: Counter[str] = Counter()

    def write(self, *, code: str, **fields: Any) -> None:
        """Write the line now, or count it."""
        now = self._clock.seconds()
        if now - self._began_at >= PERIOD_S and not self._left_out:
            self._began_at, self._lines = now, 0
        if self._lines < LINES_PER_PERIOD:
            self._lines += 1
            self._log.emit(self._level, self._event, code=code, **fields)
            return
        if not self._left_out:
            self._clock.callLater(max(0.0, self._began_at + PERIOD_S - now), self._summarise)
        known = code in self._left_out or len(self._left_out) < CODES
        self._left_out[code if known else "other"] += 1

    def _summarise(self) -> None:
        left_out, self._left_out = self._left_out, Counter()
        self._began_at, self._lines = self._clock.seconds(), 0
        self._log.emit(
            self._level,
            f"{self._event}, more often than is logged",
            count=left_out.total(),
            codes=dict(sorted(left_out.items())),
        )
