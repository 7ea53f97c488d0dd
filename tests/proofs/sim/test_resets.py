"""Streams over brokers that are restarted: nothing twice, in order, and no loss without a gap."""

from __future__ import annotations

import os

import pytest

from overlay.hosts.simulator import Tape
from proofs.checkers.gaps import BrokenPromise, check
from proofs.faults.reset_bugs import RESET_BUGS
from proofs.sim.reset_run import SUBSCRIBERS, ResetRun

#: Runs of brokers without a bug; PADRES_TX_SEEDS gives more.
RUNS = max(60, int(os.environ.get("PADRES_TX_SEEDS", "500")) // 5)

#: Runs in which an injected bug has to show.
BUG_RUNS = 60


def test_restarts_double_nothing_and_no_loss_is_silent() -> None:
    lost = 0
    for seed in range(RUNS):
        run = ResetRun(Tape(seed=seed))
        history = run.history()
        assert list(check(history)) == [], f"seed {seed}"
        assert run.at_rest, f"seed {seed}"
        for name in SUBSCRIBERS:
            client = history.clients[name]
            owed = {sent[:2] for sent in history.sent if sent.publisher in client.subscribed}
            lost += len(owed - set(client.received)) if client.stayed else 0
    assert lost, "runs in which nothing can be lost show nothing"


@pytest.mark.parametrize("name", RESET_BUGS)
def test_the_checker_finds_injected_bugs(name: str) -> None:
    bug = RESET_BUGS[name]
    found: set[str] = set()
    for seed in range(BUG_RUNS):
        run = ResetRun(Tape(seed=seed), broker=bug.broker, simulator=bug.simulator)
        found |= {broken.kind for broken in _broken(run)}
        if bug.kind in found:
            return
    raise AssertionError(f"{name} should show as {bug.kind}; found {found}")


def _broken(run: ResetRun) -> list[BrokenPromise]:
    return list(check(run.history()))
