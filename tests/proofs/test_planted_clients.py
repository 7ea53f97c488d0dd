"""Planted bugs in clients are found in random runs, by who looks at real sessions."""

from __future__ import annotations

from collections import Counter

import pytest

from padres_tx.holdings import Holdings
from proofs.checkers import Anomaly
from proofs.planted_clients import CountsForItself, SilencesAtCommit
from proofs.sim import play
from proofs.workload import Run, Shape


def found(engine: str, seeds: range) -> list[Anomaly]:
    anomalies: list[Anomaly] = []
    for seed in seeds:
        shape = Shape(engine, sessions=True)
        anomalies += play(Run(shape, shape.tape(seed)))
    return anomalies


@pytest.mark.parametrize(
    ("bug", "engine", "seeds", "kind", "story"),
    [
        (SilencesAtCommit, "d-tx", range(20, 30), "handover", "went to nobody"),
        (CountsForItself, "s-tx", range(5), "divergence", "and it is mistaken"),
        (CountsForItself, "s-tx", range(35, 45), "divergence", "and goes to []"),
    ],
)
def test_a_planted_bug_is_found(
    bug: type[Holdings],
    engine: str,
    seeds: range,
    kind: str,
    story: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert found(engine, seeds) == []
    monkeypatch.setattr("padres_tx.session.Holdings", bug)
    kinds = Counter(one.kind for one in found(engine, seeds) if story in one.story)
    assert kinds[kind]  # type: ignore[index]
