"""What a client holds, and which callbacks a publication is for. Callbacks are strings here."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.filters import Filter
from overlay.messages import Kind, Version, client_hop
from overlay.tables.last_word import Overlapping, settle
from padres_tx.client.holdings import CALLS_LIMIT, HoldingChange, Holdings

P1 = Filter(class_="p1")
X1 = Filter(class_="p1", x="x1")
AT_X1 = {"class": "p1", "x": "x1"}
AT_X2 = {"class": "p1", "x": "x2"}


def holdings() -> Holdings:
    return Holdings("A1", client_hop("A1"))


def said(*operations: tuple[Kind, Filter, Any]) -> Holdings:
    """What is held after these calls, each carried out before the next."""
    held = holdings()
    for call, (kind, filter, callback) in enumerate(operations, 1):
        held.ask(call, kind, filter, callback)
        held.settle(call, call)
    return held


def lines(held: Holdings) -> list[tuple[int, bool, Filter]]:
    return [(entry.number, entry.positive, entry.filter) for entry in held.entries()]


# --- callbacks ---


def test_each_callback_whose_filter_matches_in_the_order_of_subscribing() -> None:
    held = said(("sub", X1, "narrow"), ("sub", P1, "wide"))
    assert held.callbacks(AT_X1) == ["narrow", "wide"]
    assert held.callbacks(AT_X2) == ["wide"]
    assert held.callbacks({"class": "p2"}) == []


def test_a_callback_that_came_twice_is_called_once_and_kept_once() -> None:
    held = said(("sub", P1, "a"), ("sub", X1, "a"), ("sub", P1, "a"))
    assert held.callbacks(AT_X1) == ["a"]
    assert lines(held) == [(3, True, P1)]


def test_unsubscribing_silences_the_part_that_it_names() -> None:
    held = said(("sub", P1, "a"), ("usub", X1, None))
    assert held.callbacks(AT_X1) == []
    assert held.callbacks(AT_X2) == ["a"]


def test_a_later_subscription_does_not_bring_a_silenced_callback_back() -> None:
    held = said(("sub", P1, "old"), ("usub", X1, None), ("sub", P1, "new"))
    assert held.callbacks(AT_X1) == ["new"]
    assert held.callbacks(AT_X2) == ["old", "new"]


def test_an_unsubscription_silences_when_it_is_answered_and_only_what_was_before_it() -> None:
    held = said(("sub", P1, "old"))
    held.ask(2, "usub", P1)
    held.ask(3, "sub", P1, "new")
    assert held.callbacks(AT_X1) == ["old", "new"]
    held.settle(3, 3)
    assert held.callbacks(AT_X1) == ["old", "new"]
    held.settle(2, 2)
    assert held.callbacks(AT_X1) == ["new"]


def test_a_refused_subscription_has_no_callback_and_leaves_others() -> None:
    held = said(("sub", P1, "a"))
    held.ask(2, "sub", P1, "a")
    held.ask(3, "sub", P1, "b")
    held.refuse(2)
    held.refuse(3)
    assert held.callbacks(AT_X1) == ["a"]


# --- order ---


def test_an_earlier_call_comes_before_a_later_one_that_is_answered_first() -> None:
    """Not above it: it would hide what the client has taken again."""
    held = said(("adv", P1, None))
    held.ask(2, "uadv", X1)
    held.ask(3, "adv", P1)
    assert held.contains(AT_X1)
    held.settle(3, 9)
    assert held.contains(AT_X1)
    held.settle(2, 8)
    assert held.contains(AT_X1)
    assert lines(held) == [(9, True, P1)]


@pytest.mark.slow
def test_as_many_calls_as_may_be_under_way_keep_their_order() -> None:
    held = holdings()
    for call in range(1, CALLS_LIMIT + 1):
        held.ask(call, "adv" if call % 2 else "uadv", X1)
    for call in range(CALLS_LIMIT, 0, -1):
        assert not held.contains(AT_X1)
        held.settle(call, call)
    assert lines(held) == []


def test_an_unsubscription_of_another_counts_for_a_call_that_is_answered_later() -> None:
    """Though it seemed to take nothing from anything when it came."""
    held = holdings()
    held.ask(1, "sub", X1, "a")
    held.commit(("D", 0, 1), [HoldingChange("usub", P1, 6)], drains=False)
    assert held.callbacks(AT_X1) == ["a"]
    held.settle(1, 5)
    assert held.callbacks(AT_X1) == [] and lines(held) == []


# --- against what an edge broker does ---

BOXES = st.builds(
    Filter,
    st.fixed_dictionaries(
        {"class": st.just("p1")},
        optional={"x": st.sampled_from([0, 1, 2, (0, 1), (1, 2)]), "y": st.integers(0, 1)},
    ),
)
POINTS = [{"class": "p1", "x": x, "y": y} for x in range(3) for y in range(2)]


class Line:
    """An entry of the edge broker's table."""

    def __init__(self, seq: int, filter: Filter, positive: bool) -> None:
        self.seq, self.filter, self.positive = seq, filter, positive


def table_of(operations: list[tuple[bool, Filter]]) -> list[tuple[int, bool, Filter]]:
    """What an edge broker has in its table after operations, one after the other."""
    table: dict[int, Line] = {}
    for number, (positive, box) in enumerate(operations, 1):
        held = Overlapping(lambda f: [e for e in table.values() if e.filter.overlaps(f)])
        settled = settle(held, box, positive)
        for gone in settled.drop:
            del table[gone]
        if settled.store:
            table[number] = Line(number, box, positive)
    return [(line.seq, line.positive, line.filter) for line in table.values()]


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.booleans(),
            BOXES,
            st.sampled_from(["call", "plan", "tx"]),
            st.sampled_from([None, "a", "b"]),
        ),
        max_size=12,
    ),
    st.randoms(use_true_random=False),
)
def test_at_rest_it_is_the_edge_brokers_table_in_whatever_order_it_is_told(
    operations: list[tuple[bool, Filter, str, Any]], random: Any
) -> None:
    """Calls may be answered late, and in any order; some are refused. A transaction's end is told
    before what its client's edge broker carries out after it, since that waits for it."""
    held = holdings()
    calls = [(number, *op) for number, op in enumerate(operations, 1) if op[2] == "call"]
    asked = 0
    late: list[Callable[[], None]] = []

    def ask() -> None:
        nonlocal asked
        number, positive, box, _, callback = calls[asked]
        asked += 1
        held.ask(2 * asked, "sub" if positive else "usub", box, callback if positive else None)
        late.append(partial(held.settle, 2 * asked, number))
        held.ask(2 * asked + 1, "usub" if positive else "sub", box, "refused")
        refusals.append(partial(held.refuse, 2 * asked + 1))

    refusals: list[Callable[[], None]] = []
    answers: list[Callable[[], None]] = []
    for number, (positive, box, whose, _) in enumerate(operations, 1):
        if asked < len(calls) and (calls[asked][0] == number or random.random() < 0.3):
            ask()
        if whose == "call":
            answers.append(late.pop(0))
        else:
            tx = (whose, number)
            change = HoldingChange("sub" if positive else "usub", box, number)
            held.commit(tx, [change], drains=whose == "tx")
            if whose == "tx":
                answers.append(partial(held.drained, tx))
        for waiting in (answers, refusals):
            random.shuffle(waiting)
            while waiting and random.random() < 0.5:
                waiting.pop()()
    for answer in (*answers, *refusals):
        answer()
    table = table_of([operation[:2] for operation in operations])
    if not any(callback for positive, _, whose, callback in operations if positive):
        assert lines(held) == table
    for point in POINTS:
        last = [line for line in table if line[2].matches(point)][-1:]
        assert held.contains(point) == any(positive for _, positive, _ in last)
        # By brute force: each callback whose subscription no later operation has ended there.
        meant = [
            callback if whose == "call" else None
            for at, (positive, box, whose, callback) in enumerate(operations)
            if positive
            and box.matches(point)
            and not any(not yes and no.matches(point) for yes, no, _, _ in operations[at:])
        ]
        assert set(held.callbacks(point)) == {callback for callback in meant if callback}
    for filter in {box: None for _, box, _, _ in operations}:
        reached = any(positive and box.overlaps(filter) for _, positive, box in table)
        assert not held.reaches(filter) or reached
    if not held.entries():
        assert not held._marked and not held._suspects and not held._unanswered


def test_nothing_is_kept_of_what_has_passed() -> None:
    """A client that subscribes and un-subscribes for years holds no more in the end."""
    held = holdings()
    for call in range(1, 400, 2):
        held.ask(call, "sub", X1, f"callback {call}")
        held.settle(call, call)
        tx = ("T", 0, call)
        held.listen(tx, call, P1, "another")
        held.commit(tx, [HoldingChange("usub", P1, call + 1)], drains=True)
        assert held.callbacks(AT_X1, [tx]) == [f"callback {call}"]
        held.drained(tx)
    assert lines(held) == [] and held._with_callback == 0
    assert not held._marked and not held._suspects and len(held._hiders) <= 1


# --- what is let go ---


class Callback:
    """What can be referred to weakly."""


@pytest.mark.parametrize("ending", ["unsubscribed", "refused", "aborted", "withdrawn", "drained"])
def test_a_callback_that_is_not_called_any_more_is_let_go(ending: str) -> None:
    held = holdings()
    callback = Callback()
    known = weakref.ref(callback)
    tx: Version = ("A1", 0, 9)
    if ending == "refused":
        held.ask(1, "sub", X1, callback)
        held.refuse(1)
    elif ending in ("aborted", "withdrawn"):
        held.listen(tx, 1, X1, callback)
        held.withdraw(tx, 1) if ending == "withdrawn" else held.abort(tx)
    else:
        held.ask(1, "sub", X1, callback)
        held.settle(1, 1)
        if ending == "unsubscribed":
            held.ask(2, "usub", P1)
            held.settle(2, 2)
        else:
            held.commit(tx, [HoldingChange("usub", P1, 2)], drains=True)
            assert held.callbacks(AT_X1, [tx]) == [callback], "for what is still to come"
            held.drained(tx)
    del callback
    gc.collect()
    assert known() is None
    assert held.entries() == []


def test_a_client_that_hands_over_often_does_not_grow() -> None:
    held = holdings()
    number = 0
    for call in range(1, 21, 2):
        held.ask(call, "sub", X1, "a")
        held.settle(call, number + 1)
        held.ask(call + 1, "usub", X1)
        held.settle(call + 1, number + 2)
        tx: Version = ("D", 0, number)
        held.listen(tx, 100 + call, X1, "b")
        held.commit(tx, [HoldingChange("sub", X1, number + 3, 100 + call)], drains=True)
        held.drained(tx)
        held.commit(("E", 0, number), [HoldingChange("usub", P1, number + 4)], drains=True)
        held.drained(("E", 0, number))
        number += 4
    kept = (held._unanswered, held._undecided, held._undrained, held._marked, held._suspects)
    assert not any(kept) and len(held._hiders) <= 2
    assert held.entries() == [] and held._with_callback == held._holes == 0
