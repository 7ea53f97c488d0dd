"""One operation of a transaction that concerns very many entries: short turns, or a clear refusal.

A dynamic operation, and a static plan of a few steps, is carried out in one turn at each broker. So
what it may concern is limited (`overlay.broker.limits`), and at the limit no turn is longer than
twice that of all else, some 20 ms.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from overlay.broker.limits import DROPS_PER_OPERATION, MOVED_PER_OPERATION
from overlay.errors import LimitReached
from padres_tx.client_messages import Abort, Ended, Step
from proofs.sim.turn_lengths import TURN_STEPS
from tests.proofs.sim.test_turn_lengths import CountedOverlay, P, box

ENGINES = ["d-tx", "d-tx-ni", "s-tx"]
DYNAMIC = ENGINES[:2]


class Case(NamedTuple):
    """What clients hold, the step that concerns all of it, and how much may be concerned."""

    holder: str
    held: str
    step: Step
    limit: int


CASES = {
    "usub": Case("E", "sub", Step("E", "usub", P), DROPS_PER_OPERATION),
    "sub": Case("E", "sub", Step("E", "sub", P), DROPS_PER_OPERATION),
    "uadv": Case("A", "adv", Step("A", "uadv", P), DROPS_PER_OPERATION),
    "adv": Case("A", "adv", Step("A", "adv", P), DROPS_PER_OPERATION),
}
#: Subscriptions of A, which follow what E advertises.
MOVING = {
    "adv": Case("A", "sub", Step("E", "adv", P), MOVED_PER_OPERATION),
    "uadv": Case("A", "sub", Step("E", "uadv", P), MOVED_PER_OPERATION),
}


def overlay_with(case: Case, size: int) -> CountedOverlay:
    counted = CountedOverlay()
    if case.held == "sub" and case.holder == "A":
        counted.hold("M", "uadv", P)  # What E advertises alone attracts.
        if case.step.kind == "adv":
            counted.hold("E", "uadv", P)
    counted.hold(case.holder, case.held, *(box(2 * at) for at in range(size)))
    return counted


def done(counted: CountedOverlay, engine: str, *steps: Step, abort: bool = False) -> Ended:
    world, client = counted.world, steps[0].client
    tables = [broker.routing.as_data() for broker in world.sim.brokers.values()]
    if engine == "s-tx":
        ended = counted.go(lambda: world.submit(client, steps))
    elif abort:
        tx = world.begin(engine, client, steps, commit=False)
        world.sim.run()

        def end() -> tuple[str, int, int]:
            world.send(engine, client, Abort(tx))
            return tx

        ended = counted.go(end)
    else:
        ended = counted.go(lambda: world.begin(engine, client, steps))
    if not ended.committed:
        assert [broker.routing.as_data() for broker in world.sim.brokers.values()] == tables
    assert all(broker.at_rest for broker in world.sim.brokers.values())
    return ended


def check_turns(counted: CountedOverlay) -> None:
    assert counted.turns.longest.steps <= 2 * TURN_STEPS, counted.turns.longest


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_an_operation_that_drops_as_much_as_it_may_takes_short_turns(
    case: Case, engine: str
) -> None:
    counted = overlay_with(case, case.limit)
    assert done(counted, engine, case.step).committed
    check_turns(counted)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", [CASES["usub"], CASES["adv"]], ids=["usub", "adv"])
def test_an_operation_that_drops_more_is_refused_before_it_takes_effect(
    case: Case, engine: str
) -> None:
    counted = overlay_with(case, case.limit + 1)
    ended = done(counted, engine, case.step)
    assert (ended.committed, ended.code) == (False, LimitReached.code)
    assert str(DROPS_PER_OPERATION) in ended.reason
    check_turns(counted)


@pytest.mark.slow
@pytest.mark.parametrize("engine", DYNAMIC)
@pytest.mark.parametrize("case", MOVING.values(), ids=list(MOVING))
def test_an_advertisement_that_moves_as_much_as_it_may_takes_short_turns(
    case: Case, engine: str
) -> None:
    counted = overlay_with(case, case.limit)
    assert done(counted, engine, case.step).committed
    check_turns(counted)


@pytest.mark.slow
@pytest.mark.parametrize("engine", DYNAMIC)
@pytest.mark.parametrize("case", MOVING.values(), ids=list(MOVING))
def test_an_advertisement_that_moves_more_is_refused_and_changes_nothing(
    case: Case, engine: str
) -> None:
    counted = overlay_with(case, MOVED_PER_OPERATION + 1)
    ended = done(counted, engine, case.step)
    assert (ended.committed, ended.code) == (False, LimitReached.code)
    assert str(MOVED_PER_OPERATION) in ended.reason
    check_turns(counted)


@pytest.mark.parametrize("engine", DYNAMIC)
def test_the_abort_of_a_large_operation_takes_short_turns(engine: str) -> None:
    case = CASES["usub"]
    counted = overlay_with(case, case.limit)
    assert not done(counted, engine, case.step, abort=True).committed
    check_turns(counted)


def parts(count: int, size: int) -> list[Step]:
    """Un-subscriptions from so many parts of what a client holds, of so many entries each."""
    return [Step("E", "usub", box(2 * size * at, 2 * size - 2)) for at in range(count)]


@pytest.mark.parametrize("engine", ENGINES)
def test_large_operations_of_one_frame_or_plan_take_turns(engine: str) -> None:
    size = DROPS_PER_OPERATION // 5 if engine == "s-tx" else DROPS_PER_OPERATION // 2
    counted = overlay_with(CASES["usub"], 5 * size)
    assert done(counted, engine, *parts(5, size)).committed
    check_turns(counted)


def test_a_short_plan_that_drops_more_in_all_is_refused() -> None:
    size = DROPS_PER_OPERATION // 5 + 1
    counted = overlay_with(CASES["usub"], 5 * size)
    ended = done(counted, "s-tx", *parts(5, size))
    assert (ended.committed, ended.code) == (False, LimitReached.code)
    check_turns(counted)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_small_operation_of_a_client_that_holds_very_much_is_carried_out(engine: str) -> None:
    counted = overlay_with(CASES["usub"], 10 * DROPS_PER_OPERATION)
    assert done(counted, engine, Step("E", "usub", box(100, 50))).committed
    check_turns(counted)
