"""The trial of the rude guest, small and without a look at the clock; and its judge."""

from __future__ import annotations

import pytest

from tests.trials.rude_guest import judge, play


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_a_stream_beside_a_rude_guest_loses_nothing() -> None:
    findings = play(size=500, acts=["flood", "half-open", "garbage", "fences"])
    assert findings.crashes == []
    assert findings.missing == 0
    assert findings.alone.events > 100
    assert {phase.name for phase in findings.acts} == {
        *("flood", "half-open sockets", "garbage", "fences")
    }


def test_the_judge_tells_the_acts_from_the_pauses() -> None:
    notes = [(n, n * 10, 1_000_000) for n in range(10)] + [(n, n * 10, 5_000_000) for n in (10, 11)]
    acts = [{"act": "flood", "from": 95, "to": 105}, {"act": "fences", "from": 106, "to": 120}]
    alone, flood, fences, everything = judge(notes, acts)
    assert (alone.events, alone.p99_ms) == (10, 1.0)
    assert (flood.name, flood.events, flood.p99_ms) == ("flood", 1, 5.0)
    assert (fences.events, everything.events) == (1, 2)
