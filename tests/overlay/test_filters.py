"""Intervals and filters: every relation against a brute-force oracle, and every refusal."""

from __future__ import annotations

import copy
import enum
import itertools
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import overlay.filters
from overlay.errors import FilterError
from overlay.filters import (
    INT_MAX,
    INT_MIN,
    MAX_ATTRIBUTES,
    MAX_NAME_LENGTH,
    MAX_STRING_LENGTH,
    Filter,
    Interval,
    Value,
    between,
    check_name,
    check_point,
    check_value,
    eq,
    ge,
    gt,
    le,
    lt,
    prefix,
    present,
)
from tests.overlay.strategies import (
    BOOLEANS,
    ENDS,
    GRID,
    JUNK,
    MODELS,
    NUMBERS,
    STRINGS,
    Model,
    filters,
    intervals,
    models,
    names,
    points,
    strings,
    values,
)

#: The names that eval(repr(...)) may use.
NOTATION = vars(overlay.filters)

# --- intervals against the oracle -----------------------------------------------------------


PAIRS = list(itertools.product(MODELS, repeat=2))


def test_contains_is_the_meaning() -> None:
    for model, value in itertools.product(MODELS, GRID):
        assert model.interval.contains(value) == model.means(value), (model, value)


def test_covers_is_containment() -> None:
    for a, b in PAIRS:
        inside = all(a.means(v) for v in GRID if b.means(v))
        assert a.interval.covers(b.interval) == inside, (a, b)


def test_overlaps_is_a_common_value() -> None:
    for a, b in PAIRS:
        common = any(a.means(v) and b.means(v) for v in GRID)
        assert a.interval.overlaps(b.interval) == common, (a, b)


def test_meet_is_the_intersection() -> None:
    for a, b in PAIRS:
        meet = a.interval.meet(b.interval)
        inside = [v for v in GRID if meet is not None and meet.contains(v)]
        assert inside == [v for v in GRID if a.means(v) and b.means(v)], (a, b)


def test_equal_is_the_same_values() -> None:
    for a, b in PAIRS:
        same = all(a.means(v) == b.means(v) for v in GRID)
        assert (a.interval == b.interval) == same, (a, b)
        assert not same or hash(a.interval) == hash(b.interval), (a, b)


def test_is_point_is_equality_with_one_value() -> None:
    points = [eq(end) for end in NUMBERS + STRINGS + BOOLEANS]
    for model in MODELS:
        assert model.interval.is_point == (model.interval in points), model


@pytest.mark.parametrize("ends", ENDS)
def test_refused_as_empty_is_empty(ends: list[Value]) -> None:
    for lo, hi in itertools.product([None, *ends], repeat=2):
        for lo_open, hi_open in itertools.product([False, True], repeat=2):
            inside = [
                v
                for v in GRID
                if eq(v).kind == eq(ends[0]).kind
                and (lo is None or (lo < v if lo_open else lo <= v))
                and (hi is None or (v < hi if hi_open else v <= hi))
            ]
            if inside:
                found = between(lo, hi, lo_open=lo_open, hi_open=hi_open)
                assert all(found.contains(v) for v in inside)
            else:
                with pytest.raises(FilterError, match="is empty"):
                    between(lo, hi, lo_open=lo_open, hi_open=hi_open)


# --- laws, over all values ------------------------------------------------------------------


@given(intervals(), intervals(), values())
def test_interval_laws(a: Interval, b: Interval, value: Value) -> None:
    meet = a.meet(b)
    assert meet == b.meet(a)
    assert (meet is not None) == a.overlaps(b) == b.overlaps(a)
    assert a.covers(a)
    assert a.meet(a) == a
    assert (a.covers(b) and b.covers(a)) == (a == b)
    if meet is not None:
        assert a.covers(meet)
        assert b.covers(meet)
        assert meet.contains(value) == (a.contains(value) and b.contains(value))
    if a.covers(b):
        assert a.overlaps(b)
        assert meet == b
        assert a.contains(value) or not b.contains(value)


@given(intervals())
def test_an_interval_contains_its_closed_ends(interval: Interval) -> None:
    for end, is_open in ((interval.lo, interval.lo_open), (interval.hi, interval.hi_open)):
        assert end is None or interval.contains(end) == (not is_open)


@given(strings(), strings())
def test_prefix_is_startswith(start: str, rest: str) -> None:
    assert prefix(start).contains(start + rest)
    assert prefix(start).contains(rest) == rest.startswith(start)


@pytest.mark.parametrize(
    ("start", "hi"),
    [
        ("ab", "ac"),
        ("a\ud7ff", "a\ue000"),
        ("a\U0010ffff", "b"),
        ("\U0010ffff\U0010ffff", None),
        ("", None),
    ],
)
def test_prefix_ends_before_the_next_that_is_none(start: str, hi: str | None) -> None:
    assert prefix(start) == between(start, hi, hi_open=True)


# --- the three types ------------------------------------------------------------------------


def test_true_is_not_one() -> None:
    assert eq(True) != eq(1)
    assert not eq(1).contains(True)
    assert not eq(True).contains(1)
    assert not ge(0).contains(True)
    assert not eq(True).overlaps(eq(1))
    assert Filter(x=True) != Filter(x=1)


def test_one_is_one_point_zero() -> None:
    assert eq(1) == eq(1.0)
    assert hash(eq(1)) == hash(eq(1.0))
    assert Filter(x=(0, 1)) == Filter(x=(-0.0, 1.0))
    assert eq(1).contains(1.0)


def test_int_and_float_compare_exactly() -> None:
    big = 2**53
    assert not eq(big + 1).contains(float(big))
    assert eq(big).contains(float(big))
    assert gt(float(big)).covers(ge(big + 1))
    assert not gt(float(big)).contains(big)
    assert lt(1e300).covers(le(INT_MAX))


def test_booleans_have_both_ends() -> None:
    assert gt(False) == eq(True)
    assert lt(True) == eq(False)
    assert ge(False) == le(True) == between(False, True)
    assert not ge(False).is_point


def test_strings_have_a_first() -> None:
    assert lt("b") == between("", "b", hi_open=True)
    assert le("") == eq("")
    assert ge("").contains("\U0010ffff")
    assert ge("").covers(prefix(""))


def test_present_is_any_value_of_any_type() -> None:
    assert present() == between(None, None) == Interval(lo_open=True)
    assert all(present().contains(value) for value in GRID)
    assert not present().contains(None)
    assert not present().contains(b"bytes")
    assert present().covers(eq("a"))
    assert not ge("").covers(present())


def test_nothing_between_two_exclusive_ends_still_overlaps() -> None:
    # ω is conservative: no string lies between "a" and "a\0", and nobody is asked to know.
    assert gt("a").overlaps(lt("a\0"))
    assert gt("a").meet(lt("a\0")) is not None


# --- filters against the oracle -------------------------------------------------------------

ABSENT = object()


def grid_points() -> list[dict[str, Any]]:
    """Every point over two attributes, each with every value of the grid or not there at all."""
    pairs = itertools.product([ABSENT, *GRID], repeat=2)
    return [{n: v for n, v in zip("ab", pair, strict=True) if v is not ABSENT} for pair in pairs]


POINTS = grid_points()
boxes = st.dictionaries(st.sampled_from("ab"), models(), min_size=1)


def box(parts: dict[str, Model]) -> Filter:
    return Filter({name: model.interval for name, model in parts.items()})


def oracle(parts: dict[str, Model]) -> list[bool]:
    """For each point of the grid, whether it should match."""
    return [all(n in p and m.means(p[n]) for n, m in parts.items()) for p in POINTS]


@given(boxes)
def test_matches_is_every_named_attribute_present_and_inside(parts: dict[str, Model]) -> None:
    assert [box(parts).matches(p) for p in POINTS] == oracle(parts)


@settings(max_examples=200)
@given(boxes, boxes)
def test_filter_relations_agree_with_the_oracle(f: dict[str, Model], g: dict[str, Model]) -> None:
    in_f, in_g = oracle(f), oracle(g)
    both = [x and y for x, y in zip(in_f, in_g, strict=True)]
    assert box(f).covers(box(g)) == (both == in_g)
    assert box(f).overlaps(box(g)) == any(both)
    assert (box(f) == box(g)) == (in_f == in_g)
    meet = box(f).meet(box(g))
    assert [meet is not None and meet.matches(p) for p in POINTS] == both


@given(filters(), filters())
def test_filter_laws(f: Filter, g: Filter) -> None:
    meet = f.meet(g)
    assert meet == g.meet(f)
    assert (meet is not None) == f.overlaps(g) == g.overlaps(f)
    assert f.covers(f)
    if meet is not None:
        assert f.covers(meet)
        assert g.covers(meet)
        assert set(meet.predicates) == set(f.predicates) | set(g.predicates)
        assert hash(meet) == hash(Filter(meet.predicates))
    if f.covers(g):
        assert f.overlaps(g)
        assert meet == g


def test_overlap_is_for_all_attributes_not_for_some() -> None:
    # Definition 2.1 says "exists": then these two would overlap, though no point is in both.
    f, g = Filter(class_="p1", x=(1, 3)), Filter(class_="p1", x=(4, 6))
    assert not f.overlaps(g)
    assert f.meet(g) is None


def test_a_meet_of_more_attributes_than_a_publication_has_is_empty() -> None:
    left = Filter({f"l{i}": 1 for i in range(MAX_ATTRIBUTES)})
    right = Filter({f"r{i}": 1 for i in range(MAX_ATTRIBUTES)})
    assert left.meet(right) is None
    assert left.meet(left) == left


# --- the Python notation --------------------------------------------------------------------


def test_python_notation() -> None:
    f = Filter({"a b": 1, "x_": 2}, class_="p1", x=(3, 9), lo=(3, None), hi=(None, 9), any=...)
    assert dict(f.predicates) == {
        "a b": eq(1),
        "any": present(),
        "class": eq("p1"),
        "hi": le(9),
        "lo": ge(3),
        "x": between(3, 9),
        "x_": eq(2),
    }
    assert Filter(x__=1, y=gt(3)) == Filter({"x_": 1, "y": gt(3)})


def test_repr_reads_like_what_one_writes() -> None:
    f = Filter(class_="p1", x=(3, 9), note=..., price=gt(100), color=prefix("re"), s=(None, "b"))
    assert repr(f) == (
        "Filter(class_='p1', color=prefix('re'), note=..., price=gt(100), s=le('b'), x=(3, 9))"
    )
    assert repr(Filter({"a b": 1, "c": lt(2)})) == "Filter({'a b': 1, 'c': lt(2)})"
    assert repr(between(1, 2, lo_open=True)) == "between(1, 2, lo_open=True)"
    assert repr(present()) == "present()"


@given(filters())
def test_repr_evaluates_to_an_equal_filter(f: Filter) -> None:
    assert eval(repr(f), dict(NOTATION)) == f
    for interval in f.predicates.values():
        assert eval(repr(interval), dict(NOTATION)) == interval


@given(filters())
def test_predicates_are_in_the_order_of_names(f: Filter) -> None:
    assert list(f.predicates) == sorted(f.predicates)
    backwards = Filter(dict(reversed(f.predicates.items())))
    assert backwards == f
    assert repr(backwards) == repr(f)
    assert hash(backwards) == hash(f)


def test_filters_and_intervals_do_not_change() -> None:
    f = Filter(x=1)
    with pytest.raises(AttributeError):
        f.predicates = {}  # type: ignore[misc]
    with pytest.raises(AttributeError):
        f.predicates["x"].lo = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        f.predicates["y"] = eq(1)  # type: ignore[index]


@given(filters())
def test_copies_and_pickles_are_equal(f: Filter) -> None:
    for other in (copy.deepcopy(f), pickle.loads(pickle.dumps(f))):
        assert other == f
        assert hash(other) == hash(f)
        assert other.covers(f)
        assert f.covers(other)


class Color(str, enum.Enum):  # noqa: UP042 - whose str() is not its value, unlike a StrEnum's
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


def test_an_enum_member_is_its_plain_value() -> None:
    f = Filter(color=Color.RED, level=(Level.HIGH, None))
    assert f == Filter(color="red", level=ge(3))
    assert type(f.predicates["color"].lo) is str
    assert repr(f) == "Filter(color='red', level=ge(3))"
    point = check_point({"color": Color.RED, "level": Level.HIGH})
    assert [type(value) for value in point.values()] == [str, int]
    assert f.matches(point)


# --- the wire -------------------------------------------------------------------------------


@given(filters())
def test_wire_round_trip(f: Filter) -> None:
    data = msgspec.msgpack.decode(msgspec.msgpack.encode(f.to_wire()))
    assert Filter.from_wire(data) == f


def test_wire_form() -> None:
    f = Filter(a=..., b=True, c=(1, 2), d=between(1, 2, lo_open=True, hi_open=True), e=lt(2.5))
    assert f.to_wire() == {
        "a": [],
        "b": [True],
        "c": [1, 2],
        "d": [1, 2, 3],
        "e": [None, 2.5, 2],
    }


@given(JUNK | st.dictionaries(names(), st.lists(JUNK, max_size=4), max_size=3))
def test_from_wire_reads_a_filter_or_raises_filter_error(data: object) -> None:
    try:
        f = Filter.from_wire(data)
    except FilterError as error:
        str(error).encode()
    else:
        assert Filter.from_wire(f.to_wire()) == f


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "expected a filter, got list"),
        ({}, "a filter must name at least one attribute"),
        ({1: []}, "expected an attribute name, a string, got int"),
        ({"x": 3}, "attribute 'x': invalid interval"),
        ({"x": [1, 2, 3, 4]}, "attribute 'x': invalid interval"),
        ({"x": [1, 2, 4]}, "attribute 'x': invalid interval"),
        ({"x": [1, 2, True]}, "attribute 'x': invalid interval"),
        ({"x": [None]}, "attribute 'x': expected a number, string or boolean, got NoneType"),
        ({"x": [2, 1]}, "attribute 'x': the interval [2, 1] is empty"),
        ({"x": [2**63]}, "attribute 'x': integer beyond 64 bits"),
    ],
)
def test_from_wire_says_why(data: object, message: str) -> None:
    with pytest.raises(FilterError) as caught:
        Filter.from_wire(data)
    assert str(caught.value) == message


# --- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ((9, 3), "the interval [9, 3] is empty"),
        ((1, "a"), "invalid interval from 1 to 'a': a number and a string do not compare"),
        ((1, True), "invalid interval from 1 to True: a number and a boolean do not compare"),
        ((1, 2, 3), "tuple of 3: expected (lo, hi)"),
        (None, "expected a number, string or boolean, got NoneType"),
        ([1, 2], "expected a number, string or boolean, got list"),
        (b"ab", "expected a number, string or boolean, got bytes"),
        (2**63, "integer beyond 64 bits"),
        (INT_MIN - 1, "integer beyond 64 bits"),
        pytest.param(10**5000, "integer beyond 64 bits", id="too long for str()"),
        (float("nan"), "expected a finite number, got nan"),
        ((None, float("inf")), "expected a finite number, got inf"),
        ("a\ud800", "'a\\ud800' contains a lone surrogate"),
        pytest.param(
            "a" * 5000,
            f"string of 5000 characters: at most {MAX_STRING_LENGTH}",
            id="a long string",
        ),
        (("b" * 99, "a"), f"the interval ['{'b' * 59}…, 'a'] is empty"),
    ],
)
def test_a_bad_predicate_names_the_attribute_and_the_reason(what: object, reason: str) -> None:
    with pytest.raises(FilterError) as caught:
        Filter(class_="p1", x=what)
    assert (caught.value.attribute, caught.value.reason) == ("x", reason)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "a name must not be empty"),
        (" x", "a name must not begin or end with a blank"),
        ("x\u00a0", "a name must not begin or end with a blank"),
        ("a,b", "a name must not contain ','"),
        ("a[0]", "a name must not contain '['"),
        ("it's", 'a name must not contain "\'"'),
        ("a\x00b", "a name must not contain '\\x00'"),
        ("a\u2028b", "a name must not contain '\\u2028'"),
        ("a\udfffb", "a name must not contain '\\udfff'"),
    ],
)
def test_a_bad_name_is_refused(name: str, reason: str) -> None:
    for make in (lambda: Filter({name: 1}), lambda: check_point({name: 1})):
        with pytest.raises(FilterError) as caught:
            make()
        assert (caught.value.attribute, caught.value.reason) == (name, reason)


def test_limits() -> None:
    assert check_value("x", INT_MAX) == INT_MAX
    assert check_value("x", "a" * MAX_STRING_LENGTH)
    assert check_name("n" * MAX_NAME_LENGTH)
    with pytest.raises(FilterError, match="name of 129 characters: at most 128"):
        check_name("n" * (MAX_NAME_LENGTH + 1))
    with pytest.raises(FilterError, match="expected an attribute name"):
        check_name(3)
    most = {f"a{i}": i for i in range(MAX_ATTRIBUTES)}
    assert Filter(most).matches(check_point(most))
    with pytest.raises(FilterError, match="filter of 65 attributes: at most 64"):
        Filter(most, one_more=1)
    with pytest.raises(FilterError, match="publication of 65 attributes: at most 64"):
        check_point({**most, "one_more": 1})


def test_nothing_and_no_mapping_are_refused() -> None:
    with pytest.raises(FilterError, match="a filter must name at least one attribute"):
        Filter()
    with pytest.raises(FilterError, match="a publication must name at least one attribute"):
        check_point({})
    with pytest.raises(FilterError, match="expected a mapping of names to values, got str"):
        check_point("[x,3]")
    with pytest.raises(FilterError, match="expected a mapping of names to intervals, got str"):
        Filter("[x,=,3]")  # type: ignore[arg-type]


def test_an_attribute_is_named_once() -> None:
    with pytest.raises(FilterError, match="attribute 'class': named twice"):
        Filter({"class": 1}, class_=2)


@pytest.mark.parametrize("make", [eq, gt, ge, lt, le, prefix])
def test_an_end_that_is_asked_for_is_not_missing(make: Any) -> None:
    with pytest.raises(FilterError, match="got NoneType"):
        make(None)


@given(points())
def test_check_point_gives_a_new_equal_dict(point: dict[str, Value]) -> None:
    checked = check_point(point)
    assert checked == point
    assert checked is not point
    assert Filter(checked).matches(point)


@given(JUNK)
def test_check_point_accepts_or_raises_filter_error(data: object) -> None:
    try:
        check_point(data)
    except FilterError as error:
        str(error).encode()
