"""Identify a process so that it can be recognised later, check whether it runs, and signal it.

A pid alone is not enough: the kernel may give it to another process once its owner has ended. So a
process is identified by its pid together with its start time. Where the system has process handles,
a signal goes through a handle that was opened before the start time was compared.

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

#: Interval at which to check whether a process has ended: shorter than a person notices.
LOOK_S = 0.02

#: `ps` takes milliseconds; it is used only where there is no /proc.
PS_TIMEOUT_S = 5.0


class ProcessIdentity(msgspec.Struct, frozen=True):
    """A pid and a start time; `started` can only be compared for equality."""

    pid: int
    started: str


def identify(pid: int) -> ProcessIdentity | None:
    """Return the process that has this pid now; None if there is none or it is a zombie."""
    started = _started_linux(pid) if sys.platform == "linux" else _started_by_ps(pid)
    return None if started is None else ProcessIdentity(pid, started)


def this_process() -> ProcessIdentity:
    """Return the identity of the calling process."""
    found = identify(os.getpid())
    assert found is not None, "a running process has an identity"
    return found


def alive(process: ProcessIdentity) -> bool:
    """Whether this process is still running."""
    return identify(process.pid) == process


def send(process: ProcessIdentity, signum: signal.Signals) -> bool:
    """Signal this process; False if it has ended, even if another process has its pid now."""
    if sys.platform == "linux":
        try:
            handle = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return False
        try:
            # In this order: the handle belongs to the process that had the pid when it was opened.
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


def wait_gone(processes: Iterable[ProcessIdentity], timeout_s: float) -> list[ProcessIdentity]:
    """Wait until all have ended; return those that are still running after the time."""
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
    # The name, in parentheses, may contain anything; the state and numbers follow it (proc(5)).
    fields = stat.rpartition(")")[2].split()
    state, started_ticks = fields[0], fields[19]
    # Ticks count from boot; a state file may survive a reboot, so the boot is part of the identity.
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
