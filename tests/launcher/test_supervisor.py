"""The supervisor's decisions; its life with real processes is in tests/cli."""

from __future__ import annotations

import os
import signal

from padres_tx.launcher.supervisor import HEALTHY_S, RESTARTS, CrashCount, StopSignals


def test_crashes_in_a_row_are_counted_and_a_healthy_life_is_forgiven() -> None:
    crashes = CrashCount()
    assert [crashes.add(float(at)) for at in range(RESTARTS + 1)] == [1, 2, 3, 4, 5, 6]
    assert crashes.add(RESTARTS + HEALTHY_S + 1) == 1


def test_the_first_signal_stops_and_the_second_hurries() -> None:
    before = signal.getsignal(signal.SIGTERM)
    signals = StopSignals()
    with signals.caught():
        assert not signals.stopping()
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.stopping() and not signals.hurry()
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.hurry()
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_is_to_be_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        signals = StopSignals()
        with signals.caught():
            os.kill(os.getpid(), signal.SIGHUP)
            assert not signals.stopping()
    finally:
        signal.signal(signal.SIGHUP, before)
