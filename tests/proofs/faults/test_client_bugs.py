"""Bugs injected into clients are found in random runs with real sessions."""

from __future__ import annotations

import pytest

from padres_tx.client.holdings import Holdings
from proofs.faults.client_bugs import EndsCallbacksAtCommit, NumbersByCall
from proofs.sim.many_runs import run_and_check
from proofs.sim.program import Shape
from proofs.sim.random_run import RandomRun

#: Seeds to search; a bug shows in about one run of thirty.
SEEDS = 300


def anomalies(engine: str, seed: int) -> str:
    """The anomalies of a run, as text."""
    shape = Shape(engine, sessions=True)
    return "; ".join(
        f"{one.kind}: {one.story}" for one in run_and_check(RandomRun(shape, shape.tape(seed)))
    )


@pytest.mark.parametrize(
    ("bug", "engine", "kind", "part"),
    [
        (EndsCallbacksAtCommit, "d-tx", "handover", "went to no worker"),
        (NumbersByCall, "s-tx", "divergence", "the client believes that it can"),
        (NumbersByCall, "s-tx", "divergence", "and goes to []"),
    ],
)
def test_a_bug_in_a_client_is_found(
    bug: type[Holdings], engine: str, kind: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("padres_tx.client.session.Holdings", bug)
        texts = ((seed, anomalies(engine, seed)) for seed in range(SEEDS))
        seed, text = next((seed, text) for seed, text in texts if part in text)
    assert kind in text
    assert anomalies(engine, seed) == ""
