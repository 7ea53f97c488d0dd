"""Tests of records: compiled or interpreted, they say what the filter says; and the witnesses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.filters import Filter, Value, check_point, ge, present
from overlay.matching import compiled_tests
from overlay.matching.compiled_tests import (
    SHAPES_LIMIT,
    FilterShape,
    compiled,
    interpreted,
    shape_of,
)
from overlay.matching.index import Index
from overlay.messages import Hop, Version
from tests.overlay.strategies import GRID, Model, filters, models, names, points, values


@dataclass(eq=False)
class Entry:
    filter: Filter
    hop: Hop
    added_by: Version | None = None
    removed_by: tuple[Version, ...] = ()


def agree(filter: Filter, point: dict[str, Value]) -> None:
    expected = filter.matches(point)
    form, ends = shape_of(filter)
    parts = tuple(compiled_tests._part(*item) for item in filter.predicates.items())
    assert form.test(point.get, ends) == expected
    assert compiled(parts)(point.get, ends) == expected
    assert interpreted(parts)(point.get, ends) == expected
    for name in filter.predicates:
        rest = {other: i for other, i in filter.predicates.items() if other != name}
        expected = all(i.contains(point.get(other)) for other, i in rest.items())
        assert form.without(name).test(point.get, ends) == expected
        assert interpreted(parts, frozenset([name]))(point.get, ends) == expected


def admits_only_what_is_right(filter: Filter, point: dict[str, Any]) -> bool:
    form, ends = shape_of(filter)
    admitted = form.admission(ends)(point)
    if admitted:
        check_point(point)
        assert filter.matches(point)
    return admitted


#: What is no value of a point, among those that are.
ANYTHING = st.sampled_from(
    [*GRID, math.nan, math.inf, -math.inf, 2**63, -(2**63) - 1, 2**64, "x" * 4097, "\ud800", "é"]
)


@given(st.dictionaries(names(), models(), min_size=1, max_size=3), st.data())
def test_what_is_admitted_is_right_and_matches(
    named: dict[str, Model], data: st.DataObject
) -> None:
    filter = Filter({name: model.interval for name, model in named.items()})
    point: dict[str, Any] = {name: data.draw(ANYTHING) for name in named}
    admits_only_what_is_right(filter, point)
    admits_only_what_is_right(filter, {**point, "another": 1})
    admits_only_what_is_right(filter, {"another": 1})


def test_what_evidently_is_right_is_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests in this process may have invented more forms than are compiled.
    monkeypatch.setattr(compiled_tests, "_shapes", {})
    filter = Filter({"class": "order", "instance": present(), "price": ge(0)})
    right: dict[str, Any] = {"class": "order", "instance": "x1", "price": 0.5}
    assert admits_only_what_is_right(filter, right)
    assert admits_only_what_is_right(filter, {**right, "instance": True, "price": 3})
    for wrong in (
        {"class": "other"},
        {"price": -1},
        {"price": math.inf},
        {"price": 2**63},
        {"price": True},
        {"instance": "\ud800"},
        {"instance": math.nan},
        {"instance": None},
        {"more": 1},
    ):
        assert not admits_only_what_is_right(filter, {**right, **wrong}), wrong


@given(filters(), points(), st.data())
def test_any_filter_and_any_point(
    filter: Filter, point: dict[str, Value], data: st.DataObject
) -> None:
    near = {name: data.draw(values()) for name in filter.predicates}
    agree(filter, point)
    agree(filter, near)
    agree(filter, {**near, **point})


@given(st.dictionaries(names(), models(), min_size=1, max_size=3), st.data())
def test_values_at_and_around_the_ends(named: dict[str, Model], data: st.DataObject) -> None:
    filter = Filter({name: model.interval for name, model in named.items()})
    agree(filter, {name: data.draw(st.sampled_from(GRID)) for name in named})


def test_filters_that_differ_in_values_only_share_a_form_and_forms_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Other tests shall not have to do with the forms of this one.
    monkeypatch.setattr(compiled_tests, "_shapes", {})
    one, _ = shape_of(Filter(cls="a", x=(1, 2)))
    other, _ = shape_of(Filter(cls="b", x=(3, 9.5)))
    assert one is other
    assert one.without("cls") is other.without("cls")
    many = [shape_of(Filter({f"name{number}": 1})) for number in range(SHAPES_LIMIT + 5)]
    assert len(compiled_tests._shapes) <= SHAPES_LIMIT
    for number, (form, ends) in enumerate(many):
        assert isinstance(form, FilterShape)
        assert form.test({f"name{number}": 1}.get, ends)
        assert not form.test({f"name{number}": 2}.get, ends)


def test_a_witness_is_asked_first_and_leaves_with_its_entry() -> None:
    index: Index[Entry] = Index()
    low, high = Entry(Filter(x=(0, 5)), Hop("B1")), Entry(Filter(x=(4, 9)), Hop("B1"))
    other = Entry(Filter(x=(4, 9)), Hop("B2"))
    for entry in (low, high, other):
        index.insert(entry)
    assert list(index.hops({"x": 1})) == ["B1"]
    assert list(index.hops({"x": 4})) == ["B1", "B2"]
    assert list(index.hops({"x": 8})) == ["B1", "B2"]
    index.remove(high)
    assert list(index.hops({"x": 8})) == ["B2"]
    index.remark(other, removed_by=(("t", 1),))

    class All:
        def includes(self, version: Version) -> bool:
            return True

    assert list(index.hops({"x": 8}, All())) == []
    assert list(index.hops({"x": 8})) == ["B2"]
    index.remove(other)
    assert list(index.hops({"x": 8})) == []
    assert list(index.hops({"x": 5})) == ["B1"]
