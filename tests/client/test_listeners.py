"""Which callbacks a notification is for. Callbacks are strings here: nobody calls them."""

from __future__ import annotations

from overlay.filters import Filter
from overlay.messages import Kind, Operation
from padres_tx.listeners import Listeners

P1 = Filter(class_="p1")
X1 = Filter(class_="p1", x="x1")
AT_X1 = {"class": "p1", "x": "x1"}
AT_X2 = {"class": "p1", "x": "x2"}


def op(seq: int, kind: Kind, filter: Filter) -> Operation:
    return Operation(seq, kind, "A1", seq, filter)


def test_each_callback_whose_filter_matches_in_the_order_of_subscribing() -> None:
    listeners: Listeners[str] = Listeners()
    listeners.listen(op(1, "sub", X1), "narrow")
    listeners.listen(op(2, "sub", P1), "wide")
    assert listeners.of(AT_X1) == ["narrow", "wide"]
    assert listeners.of(AT_X2) == ["wide"]
    assert listeners.of({"class": "p2"}) == []


def test_a_callback_that_came_twice_is_called_once() -> None:
    listeners: Listeners[str] = Listeners()
    listeners.listen(op(1, "sub", P1), "a")
    listeners.listen(op(2, "sub", X1), "a")
    listeners.listen(op(3, "sub", P1), "a")
    assert listeners.of(AT_X1) == ["a"]


def test_unsubscribing_silences_the_part_that_it_names() -> None:
    listeners: Listeners[str] = Listeners()
    listeners.listen(op(1, "sub", P1), "a")
    listeners.unsubscribed(op(2, "usub", X1))
    assert listeners.of(AT_X1) == []
    assert listeners.of(AT_X2) == ["a"]


def test_a_later_subscription_does_not_bring_a_silenced_callback_back() -> None:
    listeners: Listeners[str] = Listeners()
    listeners.listen(op(1, "sub", P1), "old")
    listeners.unsubscribed(op(2, "usub", X1))
    listeners.listen(op(3, "sub", P1), "new")
    assert listeners.of(AT_X1) == ["new"]
    assert listeners.of(AT_X2) == ["old", "new"]


def test_an_answer_that_comes_late_silences_only_what_was_before_it() -> None:
    listeners: Listeners[str] = Listeners()
    listeners.listen(op(1, "sub", P1), "old")
    listeners.listen(op(3, "sub", P1), "new")
    listeners.unsubscribed(op(2, "usub", P1))
    assert listeners.of(AT_X1) == ["new"]


def test_a_refused_subscription_has_no_callback() -> None:
    listeners: Listeners[str] = Listeners()
    subscription = op(1, "sub", P1)
    listeners.listen(subscription, "a")
    listeners.refused(subscription)
    listeners.refused(subscription)
    assert listeners.of(AT_X1) == []
