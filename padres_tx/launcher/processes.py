"""Processes of other lives: recognise one, ask whether it is still there, signal it.

A pid alone says little: the kernel gives it to somebody else as soon as its owner is gone. So a
process that is written down for later is a pid together with when it started, and is signalled only
through a handle that was opened before that was compared, where the system has such handles.

This module must not know what the processes are for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

#: Between two looks at whether a process has gone: short beside what a person notices.
LOOK_S = 0.02

#: `ps` answers in milliseconds; it is asked only where there is no /proc.
PS_TIMEOUT_S = 5.0


class Process(msgspec.Struct, frozen=True):
    """One life of a process; `started` means nothing but "the same" or "another"."""

    pid: int
    started: str


def identify(pid: int) -> Process | None:
    """The process that has this pid now; None if there is none, or it is dead and unburied."""
    started = _started_linux(pid) if sys.platform == "linux" else _started_by_ps(pid)
    return None if started is None else Process(pid, started)


def this_process() -> Process:
    """The caller's own."""
    found = identify(os.getpid())
    assert found is not None, "a process that runs is there"
    return found


def alive(process: Process) -> bool:
    """Whether this very process still runs."""
    return identify(process.pid) == process


def send(process: Process, signum: signal.Signals) -> bool:
    """Signal this very process; False if it has gone, whoever has its pid now."""
    if sys.platform == "linux":
        try:
            handle = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return False
        try:
            # In this order: the handle stays with the process that had the pid when it was opened.
            if not alive(process):
                return False
            signal.pidfd_send_signal(handle, signum)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True
    if not alive(process):
        return False
    try:
        os.kill(process.pid, signum)
    except ProcessLookupError:
        return False
    return True


def wait_gone(processes: Iterable[Process], timeout_s: float) -> list[Process]:
    """Wait until all have gone; answers those that have not within the time."""
    deadline = time.monotonic() + timeout_s
    left = list(processes)
    while left := [process for process in left if alive(process)]:
        if time.monotonic() >= deadline:
            return left
        time.sleep(LOOK_S)
    return []


def _started_linux(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold anything; behind it come the state and numbers (proc(5)).
    fields = stat.rpartition(")")[2].split()
    state, started_ticks = fields[0], fields[19]
    # Ticks count from boot, so a state file that outlives a reboot needs the boot as well.
    return None if state in "ZX" else f"{_boot()}:{started_ticks}"


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _started_by_ps(pid: int) -> str | None:
    answer = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        timeout=PS_TIMEOUT_S,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    ).stdout.split(maxsplit=1)
    return None if len(answer) < 2 or answer[0].startswith("Z") else answer[1].strip()
