"""A reactor whose timers are finer than a millisecond, for emulated delays.

`epoll` waits whole milliseconds and rounds up, so every delay of a link during which something else
happens would come up to one late. `select` waits by the microsecond, but for a thousand connections
at most. Here `select` waits for one of them only, the epoll descriptor itself, and epoll then tells
what has happened.

A broker without emulated delays has nothing that needs this, and keeps Twisted's own reactor.
"""

from __future__ import annotations

import select
import sys
from typing import Any


def install() -> None:
    """Install it, unless the process has a reactor already or the system has no epoll."""
    if "twisted.internet.reactor" in sys.modules or not hasattr(select, "epoll"):
        return
    from twisted.internet import epollreactor
    from twisted.internet import main as twisted_main

    # Any below: Twisted gives no types.
    main: Any = twisted_main

    class FineReactor(epollreactor.EPollReactor):
        """Twisted's epoll reactor, waiting by the microsecond."""

        def doPoll(self, timeout: float | None) -> None:
            if timeout:
                select.select([self._poller.fileno()], [], [], timeout)
                timeout = 0
            poll: Any = super().doPoll
            poll(timeout)

        doIteration = doPoll

    make: Any = FineReactor
    main.installReactor(make())
