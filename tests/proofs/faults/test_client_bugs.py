"""Planted bugs in clients are found in random runs, by who looks at real sessions."""

from __future__ import annotations

import pytest

from padres_tx.client.holdings import Holdings
from proofs.faults.client_bugs import EndsCallbacksAtCommit, NumbersByCall
from proofs.sim.many_runs import run_and_check
from proofs.sim.program import Shape
from proofs.sim.random_run import RandomRun

#: Seeds to look in; a bug shows itself in one run in thirty or so.
SEEDS = 300


def story(engine: str, seed: int) -> str:
    """All that is wrong with a run."""
    shape = Shape(engine, sessions=True)
    return "; ".join(
        f"{one.kind}: {one.story}" for one in run_and_check(RandomRun(shape, shape.tape(seed)))
    )


@pytest.mark.parametrize(
    ("bug", "engine", "kind", "says"),
    [
        (EndsCallbacksAtCommit, "d-tx", "handover", "went to nobody"),
        (NumbersByCall, "s-tx", "divergence", "and it is mistaken"),
        (NumbersByCall, "s-tx", "divergence", "and goes to []"),
    ],
)
def test_a_planted_bug_is_found(
    bug: type[Holdings], engine: str, kind: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("padres_tx.client.session.Holdings", bug)
        stories = ((seed, story(engine, seed)) for seed in range(SEEDS))
        seed, told = next((s, told) for s, told in stories if says in told)
    assert kind in told
    assert story(engine, seed) == ""
