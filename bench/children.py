"""Child processes that a benchmark or an experiment starts, commands and ends.

A child's standard input is a pipe that only this process holds: the child ends when the pipe is
closed, however this process ends. Children have sessions of their own, so that Ctrl-C reaches this
process alone. They take commands as lines of standard input and reply with lines of standard
output; their standard error goes to a log, whose last lines are part of the error if a child dies.

A benchmark waits for one child at a time (`ready`, `answer`); an experiment waits for several with
a selector and calls `received` for each that has output. Which lines mean what is not known here.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import time
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Final, Self, cast

from bench.errors import CannotMeasure, ChildFailed
from padres_tx.launcher.overlay_processes import ending, last_lines

#: A process starts within a second, ten of them on two busy cores within a few; more is a hang.
START_S: Final = 30.0

#: After its pipe is closed a child ends within milliseconds, a broker after it has left (1 s).
STOP_S: Final = 5.0

#: Read from a child at a time.
READ_BYTES: Final = 1 << 16


class Child:
    """One process; leave its context, or `stop` it."""

    def __init__(self, name: str, module: str, *arguments: str, directory: Path) -> None:
        self.name = name
        self._log = directory / f"{name}.log"
        self._unread = b""
        # -P: a directory called "overlay" in the user's working directory must not be imported.
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )
        # Without a buffer they are raw files, to which `Popen` gives a wider type.
        self._stdin = cast("FileIO", self._process.stdin)
        #: For a selector; `received` reads it.
        self.stdout = cast("FileIO", self._process.stdout)
        self.pid = self._process.pid
        #: Whether it has closed its output, which it does when it ends.
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def tell(self, line: bytes) -> None:
        """Send it a command. If it has died, the next read reports that."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(line + b"\n")

    def ready(self) -> bytes:
        """Wait for its first line. Raises ChildFailed if it does not start in time."""
        readable, _, _ = select.select([self.stdout], [], [], START_S)
        if not readable:
            raise ChildFailed(f"{self.name} is not ready after {START_S:g} s")
        return self.answer()

    def answer(self) -> bytes:
        """Wait for its next line; a child bounds its own waits.

        Raises ChildFailed if it has died.
        """
        line = self.stdout.readline()
        if not line.endswith(b"\n"):
            raise ChildFailed(self.death())
        return line[:-1]

    def received(self) -> list[bytes]:
        """The complete lines that one read brings; call it when `stdout` is readable."""
        read = self.stdout.read(READ_BYTES)
        if not read:
            self.closed = True
            return []
        *lines, self._unread = (self._unread + read).split(b"\n")
        return lines

    def death(self) -> str:
        """How it ended, with the last lines of its log; stops it if it has not."""
        self.stop()
        return f"{self.name} has died, {ending(self._process.returncode)}{last_lines(self._log)}"

    def terminate(self) -> None:
        """Send it SIGTERM, and wait until it has ended."""
        self._process.terminate()
        self.stop()

    def stop(self, patience_s: float = STOP_S) -> None:
        """Close its pipes and wait until it has ended, killing it after `patience_s`.

        Stopping it again does nothing.
        """
        for pipe in (self._stdin, self.stdout):
            pipe.close()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def require_cpu_clock() -> None:
    """Raises CannotMeasure where one process cannot read another's CPU time."""
    if sys.platform != "linux":
        raise CannotMeasure("reading the CPU time of other processes requires Linux")


def cpu_s(pid: int) -> float:
    """The CPU time that a process has used, user and system, all threads, to the nanosecond."""
    # What clock_getcpuclockid(3) computes on Linux; /proc/PID/stat counts in ticks of 10 ms.
    return time.clock_gettime((~pid << 3) | 2)


def rss_mb(pid: int) -> float:
    """The resident memory of a process, on Linux. Raises ChildFailed if it has ended."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ChildFailed(f"process {pid} has ended")
