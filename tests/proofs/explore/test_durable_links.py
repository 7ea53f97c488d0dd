"""Durable brokers and their links, in all orders of events of small cases."""

from __future__ import annotations

import pytest

from proofs.explore.durable_links import DurableWorld, FaultBudget, Move, describe, search
from proofs.explore.link_cases import BROKEN, CASES, LinkCase, try_case

#: The whole table takes some minutes: `padres-tx explore --links`.
QUICK = [case for case in CASES if case.is_wrong]


def test_without_faults_every_order_is_right() -> None:
    found = search(2, FaultBudget((0, 0), 0))
    assert not found.problem
    assert found.ends >= 1 and found.states > 50


@pytest.mark.slow
def test_a_broken_connection_loses_nothing_in_any_order() -> None:
    found = search(1, BROKEN)
    assert not found.problem
    assert found.ends >= 1 and found.states > 500


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_an_injected_bug_is_found(case: LinkCase) -> None:
    found = try_case(case)
    assert found.problem
    assert any(line.startswith(("dies", "inputs", "connections")) for line in describe(found.path))


def test_the_same_moves_lead_to_the_same_state() -> None:
    moves, keys = list[Move](), set[bytes]()
    first = DurableWorld(1, FaultBudget())
    for kind in ("says", "arrives", "commits", "dies", "arrives", "arrives"):
        moves.append(next(move for move in first.moves() if move.kind == kind))
        first.make(moves[-1])
    for _ in range(2):
        again = DurableWorld(1, FaultBudget())
        for move in moves:
            again.make(move)
        keys.add(again.key)
    assert keys == {first.key}
