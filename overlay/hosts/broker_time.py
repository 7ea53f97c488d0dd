"""The time of a broker: it passes evenly, whatever happens to the wall clock.

The wall clock of a machine can be set, by a person or by NTP. A timer that follows it fires hours
late or at once, and a broker then aborts open transactions, drops clients or never notices that a
peer is dead. So timers follow the monotonic clock (`use_monotonic`), and what a core calls `now` is
a start value plus the monotonic time elapsed since (`BrokerTime`).

The start value of a new broker is the wall time, so that traces of several machines can be laid
side by side. A broker that continues an earlier run passes the last value that the run has logged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class BrokerTime:
    """Seconds that begin at `start_s` and pass as `monotonic` does."""

    __slots__ = ("_monotonic", "_offset_s")

    def __init__(self, start_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset_s = start_s - monotonic()

    def now(self) -> float:
        return self._monotonic() + self._offset_s


def use_monotonic(reactor: Any) -> None:
    """Let the timers of a Twisted reactor follow the monotonic clock, not the wall clock.

    Call it before the first timer is set: the times of those that are set stay what they are.
    """
    assert not reactor.getDelayedCalls(), "timers have been set by the wall clock"
    reactor.seconds = time.monotonic
