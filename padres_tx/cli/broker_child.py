"""`padres-tx broker` with a parent pipe: the broker ends when its parent process ends.

Standard input is a pipe that the parent holds open and never writes to. When the parent ends, even
by SIGKILL, the kernel closes the pipe, and the broker ends as after SIGINT: for good, since nobody
will start it again. (Linux can signal a child when its parent ends, but at the end of the parent's
thread, which in a notebook may be short-lived.)

A thread watches the pipe, not the reactor, so that a broker with a stuck reactor ends as well.
"""

from __future__ import annotations

import os
import signal
import threading
import time

#: The time for a clean shutdown after the parent has ended; then the process exits at once.
SHUTDOWN_LIMIT_S = 3.0

STDIN = 0

ABANDONED = 1


def main() -> None:
    """Run the broker that the arguments name."""
    from padres_tx.cli.broker import broker

    threading.Thread(target=_end_with_parent, name="parent pipe", daemon=True).start()
    broker(prog_name="padres-tx broker")


def _end_with_parent() -> None:
    while os.read(STDIN, 1):
        pass  # The parent writes nothing; input from elsewhere has no meaning.
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(SHUTDOWN_LIMIT_S)
    os._exit(ABANDONED)


if __name__ == "__main__":
    main()
