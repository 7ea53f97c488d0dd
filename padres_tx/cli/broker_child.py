"""`padres-tx broker` on a leash: it ends when whoever started it has gone.

Standard input is a pipe that the launcher holds open and never writes to. However the launcher
ends, SIGKILL included, the kernel closes the pipe, and the broker ends as after SIGTERM. (Linux
can signal a child at its parent's death, but means the parent's thread by it, which in a notebook
may be a short-lived one.)

A thread and not the reactor watches the pipe, so that a reactor that is stuck ends as well.
"""

from __future__ import annotations

import os
import signal
import threading
import time

#: What a broker may take to say its goodbyes, once nobody waits for it any more.
GOODBYE_S = 3.0

STDIN = 0

ABANDONED = 1


def main() -> None:
    """Run the broker that the arguments name."""
    from padres_tx.cli.broker import broker

    threading.Thread(target=_end_with_launcher, name="leash", daemon=True).start()
    broker(prog_name="padres-tx broker")


def _end_with_launcher() -> None:
    while os.read(STDIN, 1):
        pass  # Nobody writes; if somebody did, it would mean nothing.
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GOODBYE_S)
    os._exit(ABANDONED)


if __name__ == "__main__":
    main()
