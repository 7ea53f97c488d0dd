"""The trial of handovers, small; and its judge, on records with known faults."""

from __future__ import annotations

import asyncio

import pytest

from tests.trials.handovers import Event, Move, judge, play


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_streams_change_hands_while_connections_break_and_a_worker_and_a_broker_die() -> None:
    findings = asyncio.run(play(brokers=5, moves=16, seed=3))
    assert findings.is_fine, str(findings)
    assert findings.events > 500
    assert findings.moves >= 10


STREAM = [Event("P1", "k0", number) for number in range(1, 5)]
MOVES = [Move("C1:1", "k0", "W2")]
OWNER = {"k0": "W1"}


def judged(w1: list[Event], w2: list[Event]) -> tuple[int, int, int]:
    published = {("P1", "k0"): 4}
    received = {"W1": w1, "W2": w2}
    lost, _, doubled, misrouted = judge(published, received, OWNER, MOVES, published)
    return len(lost), len(doubled), len(misrouted)


def test_a_clean_handover_has_no_faults() -> None:
    assert judged(STREAM[:2], STREAM[2:]) == (0, 0, 0)


def test_the_judge_finds_what_is_lost_doubled_and_misrouted() -> None:
    assert judged(STREAM[:2], STREAM[3:]) == (1, 0, 0)
    assert judged(STREAM[:3], STREAM[2:]) == (0, 1, 0)
    assert judged([*STREAM[:2], STREAM[3]], STREAM[2:3]) == (0, 0, 1)
