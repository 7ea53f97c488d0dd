"""A process is a pid and when it started: neither a corpse nor a newcomer is taken for it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from padres_tx.launcher import processes
from padres_tx.launcher.processes import ProcessIdentity

WAIT_S = 10.0


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for its standard input to end."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as process:
        yield process
        process.kill()


def identified(child: subprocess.Popen[bytes]) -> ProcessIdentity:
    found = processes.identify(child.pid)
    assert found is not None
    return found


def test_a_running_process_is_alive_and_stays_the_same(child: subprocess.Popen[bytes]) -> None:
    known = identified(child)
    assert processes.alive(known)
    assert identified(child) == known
    assert processes.alive(processes.this_process())


def test_a_dead_process_is_gone_even_before_its_parent_has_looked(
    child: subprocess.Popen[bytes],
) -> None:
    known = identified(child)
    assert processes.send(known, signal.SIGKILL)
    # Nobody has waited for it: the kernel still lists it.
    assert processes.wait_gone([known], WAIT_S) == []
    assert processes.identify(child.pid) is None
    assert not processes.send(known, signal.SIGKILL) and child.wait() == -signal.SIGKILL
    assert not processes.send(known, signal.SIGKILL)


def test_a_newcomer_with_the_same_pid_is_not_signalled(child: subprocess.Popen[bytes]) -> None:
    former = ProcessIdentity(child.pid, "another time")
    assert not processes.alive(former)
    assert not processes.send(former, signal.SIGKILL)
    assert processes.alive(identified(child))


def test_waiting_is_bounded(child: subprocess.Popen[bytes]) -> None:
    known = identified(child)
    assert processes.wait_gone([known], 0) == [known]
