"""The trial of crashes, small; and its judge, on records with known faults."""

from __future__ import annotations

import asyncio

import pytest

from tests.trials.crashes import disordered, play
from tests.trials.handovers import Event


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_nothing_is_lost_when_brokers_are_killed_one_by_one_and_all_at_once() -> None:
    findings = asyncio.run(play(seconds=3, seed=2))
    assert findings.is_fine, str(findings)
    assert findings.kills >= 6
    assert findings.events > 200 and findings.moves >= 1


def test_an_event_after_a_later_one_is_found() -> None:
    first, second = Event("P1", "k0", 1), Event("P1", "k0", 2)
    other = Event("P2", "k0", 1)
    assert disordered({"A1": [first, other, second], "A2": []}) == []
    assert disordered({"A1": [second], "A2": [first]}) == []
    assert disordered({"A1": [second, other, first], "A2": []}) == [first]
