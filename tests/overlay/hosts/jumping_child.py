"""A broker process whose wall clock jumps: SIGUSR1 sets it an hour forward, SIGUSR2 an hour back.

Monotonic time goes on evenly, as it does when somebody sets the clock of a machine.
"""

from __future__ import annotations

import signal
import time
from types import FrameType

JUMP_S = 3600.0

_real = time.time
_offset_s = 0.0


def _jumping() -> float:
    return _real() + _offset_s


def _jump(signum: int, frame: FrameType | None) -> None:
    global _offset_s
    _offset_s += JUMP_S if signum == signal.SIGUSR1 else -JUMP_S


if __name__ == "__main__":
    # Before Twisted is imported, which takes hold of the function.
    time.time = _jumping
    for each in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(each, _jump)
    from tests.overlay.broker_child import main

    main()
