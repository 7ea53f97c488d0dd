"""Processes that a benchmark starts, asks and ends: brokers, relays, publishers and subscribers.

Each is on a leash: its standard input is a pipe that only this process holds, and it ends when that
is closed, however this process ends. They are in sessions of their own, so that Ctrl-C reaches this
process alone. The first line of a child's standard output says that it is ready, and where it
listens; some then take orders by the line and answer each with a line. What it writes to standard
error is shown if it dies.

This module must not know what the children do.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from padres_tx.cli.common import CheckFailed, WrongInput
from padres_tx.launcher.overlay_processes import ending, last_lines

#: A process starts within a second, ten of them on two busy cores within a few; more is a hang.
START_S: Final = 30.0

#: Closing the leash ends a child in milliseconds, a broker after its goodbyes (1 s).
STOP_S: Final = 5.0


class Child:
    """One process; leave its context, or `stop` it."""

    def __init__(self, name: str, module: str, *arguments: str, directory: Path) -> None:
        self.name = name
        self._log = directory / f"{name}.log"
        # -P: a directory called "overlay" where the user happens to be must not be taken for ours.
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def ready(self) -> bytes:
        """Wait for its first line. Raises CheckFailed if it does not start."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], START_S)
        if not readable:
            raise CheckFailed(f"{self.name} is not ready after {START_S:g} s")
        return self.answer()

    def tell(self, line: bytes) -> None:
        """Give it an order; one at a time."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `answer` says why.
            self._process.stdin.write(line + b"\n")

    def answer(self) -> bytes:
        """Wait for its next line; a child bounds its own waits.

        Raises CheckFailed if it has died.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            self.stop()
            code = self._process.returncode
            raise CheckFailed(f"{self.name} has died, {ending(code)}{last_lines(self._log)}")
        return line[:-1]

    def stop(self) -> None:
        """End it, and wait until it has; twice is fine."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def require_cpu_clock() -> None:
    """Raises WrongInput where one process cannot read another's CPU time."""
    if sys.platform != "linux":
        raise WrongInput("this benchmark reads the CPU time of other processes; that needs Linux")


def cpu_s(pid: int) -> float:
    """The CPU time that a process has used, user and system, all threads, to the nanosecond."""
    # What clock_getcpuclockid(3) computes on Linux; /proc/PID/stat counts in ticks of 10 ms.
    return time.clock_gettime((~pid << 3) | 2)


def rss_mb(pid: int) -> float:
    """The resident memory of a process; on Linux."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise CheckFailed(f"process {pid} has ended")
