"""Each injected bug of durable brokers is found in random runs with crashes.

`tests/proofs/sim/test_replays.py` has the one that only another process finds.
"""

from __future__ import annotations

import pytest

from proofs.faults.durability_bugs import BUGS, is_found, shape_of
from proofs.sim import many_runs
from proofs.sim.many_runs import run_and_check
from proofs.sim.random_run import RandomRun

#: Seeds, found by search, of runs in which the bug shows.
SEEDS = {
    "send-before-sync": 3,
    "acknowledge-before-sync": 0,
    "lives-unlogged": 0,
    "outbox-lost": 0,
    "replayed-twice": 0,
    "snapshot-without-counts": 0,
    "timers-lost": 0,
    "wall-clock": 0,
    "trimmed-unacknowledged": 4,
    "torn-batch": 3,
}

#: Runs change when the engines' messages do, so a few more seeds are searched.
NEAR = 12


def test_there_is_a_seed_for_every_bug() -> None:
    assert SEEDS.keys() == BUGS.keys()


@pytest.mark.parametrize("name", BUGS)
def test_an_injected_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Links that never agree again would go on for long.
    monkeypatch.setattr(many_runs, "STEP_LIMIT", 20_000)
    for seed in range(SEEDS[name], SEEDS[name] + NEAR):
        if is_found(name, seed):
            shape = shape_of(name)
            assert run_and_check(RandomRun(shape.of_seed(seed), shape.tape(seed))) == []
            return
    raise AssertionError(f"no run shows {name}")
