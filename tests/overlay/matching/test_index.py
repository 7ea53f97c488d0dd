"""The index against a linear scan, what a search looks at, and what removing leaves behind."""

from __future__ import annotations

import itertools
import random
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import overlay.matching.index
import overlay.matching.tree
from overlay.filters import (
    INT_MAX,
    INT_MIN,
    Filter,
    Interval,
    Value,
    between,
    eq,
    ge,
    gt,
    le,
    lt,
    prefix,
    present,
)
from overlay.matching.index import Index, is_visible
from overlay.matching.tree import LEAF_SIZE, IndexRecord, TreeNode
from overlay.messages import Hop, Version


@pytest.fixture(autouse=True, scope="module")
def small_batches() -> Iterator[None]:
    """Look at a few points together, as otherwise only at many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlay.matching.index, "MANY", 3)
        yield


class Entry:
    def __init__(
        self,
        filter: Filter,
        hop: str = "B1",
        added_by: Version | None = None,
        removed_by: tuple[Version, ...] = (),
    ) -> None:
        self.filter = filter
        self.hop = Hop(hop)
        self.added_by = added_by
        self.removed_by = removed_by

    def __eq__(self, other: object) -> bool:
        raise AssertionError("entries are told apart by identity")

    __hash__ = None  # type: ignore[assignment]  # and never hashed

    def __repr__(self) -> str:
        return f"<{self.filter!r} from {self.hop}, +{self.added_by} -{self.removed_by}>"


class Versions:
    """A view: just these versions."""

    def __init__(self, *versions: Version) -> None:
        self.versions = versions

    def includes(self, version: Version) -> bool:
        return version in self.versions

    def __repr__(self) -> str:
        return f"Versions{self.versions}"


class Scan:
    """The oracle: a list."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def insert(self, entry: Entry) -> None:
        self.entries.append(entry)

    def remove(self, entry: Entry) -> None:
        self.entries = [other for other in self.entries if other is not entry]

    def matching(self, point: dict[str, Value], view: Versions | None) -> list[Entry]:
        return [e for e in self.entries if e.filter.matches(point) and self.sees(view, e)]

    def overlapping(self, filter: Filter, view: Versions | None) -> list[Entry]:
        return [e for e in self.entries if filter.overlaps(e.filter) and self.sees(view, e)]

    def covering(self, filter: Filter, view: Versions | None) -> list[Entry]:
        return [e for e in self.entries if e.filter.covers(filter) and self.sees(view, e)]

    def hops(self, point: dict[str, Value], view: Versions | None) -> tuple[str, ...]:
        return tuple(sorted({entry.hop for entry in self.matching(point, view)}))

    @staticmethod
    def sees(view: Versions | None, entry: Entry) -> bool:
        seen = () if view is None else view.versions
        added = entry.added_by is None or entry.added_by in seen
        return added and not set(entry.removed_by) & set(seen)


def same(found: list[Entry], expected: list[Entry]) -> bool:
    return [id(entry) for entry in found] == [id(entry) for entry in expected]


# --- every interval -------------------------------------------------------------------------

#: Close together, in every order of magnitude, beyond what floats tell apart, and at their limits.
NUMBERS: list[Value] = [
    *range(-3, 8),
    *(0.5, -0.5, -0.0, 2.5, 0.1 + 0.2, 0.3, 5e-324, -5e-324, 1e-9, 100, 1e6),
    *(2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, float(2**53)),
    *(INT_MAX - 1, INT_MAX, INT_MIN, INT_MIN + 1, float(2**63)),
    *(1e300, -1e300, sys.float_info.max, -sys.float_info.max),
]
STRINGS: list[Value] = ["", "a", "ab", "abc", "abd", "ac", "ac!", "b", "ab\U0010ffff", "\ud7ff"]
BOOLEANS: list[Value] = [False, True]


def every_interval() -> list[Interval]:
    found = [present(), between(False, True), *map(eq, NUMBERS + STRINGS + BOOLEANS)]
    found += [make(value) for make in (ge, gt, le) for value in NUMBERS + STRINGS]
    found += [lt(value) for value in NUMBERS + STRINGS if value != ""]
    found += [prefix(value) for value in STRINGS if isinstance(value, str)]
    for pool in NUMBERS, STRINGS:
        for lo, hi in itertools.combinations(sorted(pool, key=lambda value: (value,)), 2):
            for lo_open, hi_open in itertools.product([False, True], repeat=2):
                if lo != hi:
                    found.append(between(lo, hi, lo_open=lo_open, hi_open=hi_open))
    return found


def test_every_interval_is_found_by_every_value_and_interval(monkeypatch: Any) -> None:
    monkeypatch.setattr(overlay.matching.tree, "LEAF_SIZE", 0)
    index: Index[Entry] = Index()
    scan = Scan()
    intervals = every_interval()
    random.Random(0).shuffle(intervals)
    for number, interval in enumerate(intervals):
        insert(index, scan, Entry(Filter(a=interval), f"B{number % 50}"))
    check_tree(index)
    for value in NUMBERS + STRINGS + BOOLEANS:
        ask(index, scan, {"a": value}, Filter(a=value), None)
    for interval in intervals[::40]:
        ask(index, scan, {}, Filter(a=interval), None)
        ask(index, scan, {}, Filter(a=interval, b=1), None)


def test_true_is_not_one_even_where_both_are_hashed() -> None:
    for values in itertools.permutations([True, 1, 1.0]):
        index: Index[Entry] = Index()
        scan = Scan()
        for value in values:
            for _ in range(LEAF_SIZE + 1):
                insert(index, scan, Entry(Filter(a=value)))
        for interval in eq(True), eq(1), between(0, 2), between(False, True), present():
            ask(index, scan, {"a": values[0]}, Filter(a=interval), None)


def test_nor_where_points_go_together() -> None:
    for values in itertools.permutations([True, 1, 0, False]):
        for wanted in values:
            index: Index[Entry] = Index()
            scan = Scan()
            for number in range(LEAF_SIZE + 1):
                insert(index, scan, Entry(Filter(a=wanted, b=number)))
            ask_all(index, scan, [{"a": value, "b": 3} for value in values])
            for value in values:
                ask_all(index, scan, [{"a": value, "b": 3}] * 2 + [{"a": wanted, "b": 3}])


# --- random operations ----------------------------------------------------------------------

#: Few, so that filters and points meet.
SOME_NUMBERS: list[Value] = [-1, 0, 0.5, 1, 2, 7, 2**53 + 1, 1e300]
SOME_STRINGS: list[Value] = ["", "a", "ab", "ac", "b"]
NAMES = ["a", "b", "c"]
VERSIONS: list[Version] = [("t", 0, 1), ("t", 0, 2), ("u", 0, 1)]
T1, T2 = VERSIONS[:2]

values = st.one_of(*map(st.sampled_from, (SOME_NUMBERS, SOME_STRINGS, BOOLEANS)))
hops = st.sampled_from(["B1", "B2", "@c"])
versions = st.sampled_from(VERSIONS)
intervals = st.sampled_from(
    [
        interval
        for interval in every_interval()
        if {interval.lo, interval.hi} <= {None, *SOME_NUMBERS, *SOME_STRINGS, *BOOLEANS}
    ]
)
filters = st.dictionaries(st.sampled_from(NAMES), intervals, min_size=1).map(Filter)
points = st.dictionaries(st.sampled_from([*NAMES, "d"]), values)
views = st.one_of(st.none(), st.lists(versions, unique=True).map(lambda some: Versions(*some)))
removers = st.lists(versions, unique=True, max_size=2).map(tuple)

#: Points as they come one after the other: nearly the same.
batches = st.builds(
    lambda point, name, some, lacking: (
        [{**point, name: value} for value in [some[0], *some]] + lacking
    ),
    points,
    st.sampled_from(NAMES),
    st.lists(values, min_size=1, max_size=5),
    st.lists(points, max_size=1),
)

operations = st.lists(
    st.one_of(
        # Several of one filter, so that whole groups cannot be told apart.
        st.tuples(st.just("insert"), filters, st.lists(hops, min_size=1, max_size=4)),
        st.tuples(st.just("mark"), filters, hops, st.none() | versions, removers),
        st.tuples(st.just("remark"), st.integers(0), st.none() | versions, removers),
        st.tuples(st.just("remove"), st.integers(0)),
        st.tuples(st.just("ask"), points, filters, views),
        st.tuples(st.just("ask all"), batches),
    ),
    # Hypothesis draws few above the minimum; sorting takes more than a few.
    min_size=20,
    max_size=60,
)


def play(index: Index[Entry], scan: Scan, steps: list[Any]) -> None:
    for kind, *rest in steps:
        if kind == "ask":
            ask(index, scan, *rest)
        elif kind == "ask all":
            ask_all(index, scan, *rest)
        elif kind == "insert":
            for hop in rest[1]:
                insert(index, scan, Entry(rest[0], hop))
        elif kind == "mark":
            insert(index, scan, Entry(*rest))
        elif scan.entries:
            entry = scan.entries[rest[0] % len(scan.entries)]
            if kind == "remark":
                index.remark(entry, added_by=rest[1], removed_by=rest[2])
            else:
                index.remove(entry)
                scan.remove(entry)


def insert(index: Index[Entry], scan: Scan, entry: Entry) -> None:
    index.insert(entry)
    scan.insert(entry)


def ask(
    index: Index[Entry],
    scan: Scan,
    point: dict[str, Value],
    filter: Filter,
    view: Versions | None,
) -> None:
    assert same(index.matching(point, view), scan.matching(point, view))
    assert same(index.overlapping(filter, view), scan.overlapping(filter, view))
    assert same(index.covering(filter, view), scan.covering(filter, view))
    assert index.hops(point, view) == scan.hops(point, view)


def ask_all(index: Index[Entry], scan: Scan, batch: list[dict[str, Value]]) -> None:
    """Ask for the points at once."""
    answers = [hops for hops, count in index.runs(batch) for _ in range(count)]
    assert answers == [scan.hops(point, None) for point in batch]


@pytest.mark.parametrize("leaf_size", [0, 2, LEAF_SIZE])
@settings(max_examples=60, deadline=None)
@given(
    operations,
    st.lists(st.tuples(points, filters, views), min_size=3, max_size=10),
    st.lists(batches, min_size=3, max_size=10),
)
def test_answers_as_a_linear_scan_does(
    leaf_size: int, steps: Any, questions: Any, more_questions: Any
) -> None:
    index: Index[Entry] = Index()
    scan = Scan()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlay.matching.tree, "LEAF_SIZE", leaf_size)
        play(index, scan, steps)
        for question in questions:
            ask(index, scan, *question)
        for batch in more_questions:
            ask_all(index, scan, batch)
        assert same(list(index), scan.entries)
        assert len(index) == len(scan.entries)
        check_tree(index)
        for entry in scan.entries:
            index.remove(entry)
        assert_as_new(index)


#: One sort of interval at a time, so that a node has nothing but that; and values for it.
QUARTERS: list[Value] = [number / 4 for number in range(-8, 48)]
SORTS: dict[str, tuple[list[Interval], list[Value]]] = {
    "equal": ([eq(value) for value in SOME_NUMBERS + SOME_STRINGS], SOME_NUMBERS + SOME_STRINGS),
    "boolean": ([eq(True), eq(False), eq(1), eq(0)], [True, False, 1, 0]),
    "cells": ([between(lo, lo + width) for lo in (0, 0.5, 3) for width in (0.25, 1, 7)], QUARTERS),
    "prefixes": ([prefix("a"), prefix("abc"), prefix("ac")], ["", "a", "ab", "abcd", "acd", "b"]),
    "present": ([present()], SOME_NUMBERS + BOOLEANS),
    "ladder": ([ge(0), ge(1), le(1), ge("a"), lt("ac")], SOME_NUMBERS + SOME_STRINGS),
    "present or equal": ([present(), eq(7), eq("a")], SOME_NUMBERS + SOME_STRINGS),
    "one end or equal": ([ge(1), le(0), eq(7), eq("a")], SOME_NUMBERS + SOME_STRINGS),
}


@pytest.mark.parametrize("sort", SORTS)
def test_points_that_part_are_told_apart(sort: str) -> None:
    """Many points go one way, and some of them to somebody else besides."""
    intervals, values = SORTS[sort]
    near: dict[str, Value] = {"c": "x", "d": "y"}
    for seed in range(300):
        choose = random.Random(seed)
        index: Index[Entry] = Index()
        scan = Scan()
        insert(index, scan, Entry(Filter(d="y"), "everything"))
        names = choose.choice([["a"], ["a", "b"]])
        for number in range(choose.choice([3, 2 * LEAF_SIZE])):
            chosen = choose.sample(names, choose.randint(1, len(names)))
            filter = Filter({"c": "x", **{name: choose.choice(intervals) for name in chosen}})
            insert(index, scan, Entry(filter, f"B{number}", choose.choice([None, T1])))
        far: dict[str, Value] = {**near, "a": "far", "b": "far"}
        further: dict[str, Value] = {**near, "a": 1e9, "b": 1e9}
        somewhere = {**near, "a": choose.choice(values), "b": choose.choice(values)}
        for beside in (near, far, further, somewhere, {"d": "y"}):
            point = {**beside, choose.choice(names): choose.choice(values)}
            ask_all(index, scan, [beside, beside, point])
            ask_all(index, scan, [point, point, beside])
            ask_all(index, scan, [point, point, point])


def random_filter(choose: random.Random) -> Filter:
    """Boxes of very different widths, with equalities, half-lines and strings among them."""

    def interval() -> Interval:
        sort = choose.randrange(10)
        lo = choose.uniform(-100, 100)
        if sort < 5:
            return between(lo, lo + 10 ** choose.uniform(-4, 3))
        if sort < 7:
            return eq(choose.randrange(10))
        if sort < 8:
            return choose.choice([ge, gt, le, lt])(lo)
        text = "".join(choose.choices("abc", k=choose.randrange(1, 6)))
        return choose.choice([eq, prefix, ge])(text)

    return Filter({name: interval() for name in choose.sample(NAMES, choose.randrange(1, 4))})


def random_point(choose: random.Random) -> dict[str, Value]:
    def value() -> Value:
        sort = choose.randrange(10)
        if sort < 5:
            return choose.uniform(-110, 110)
        return choose.randrange(10) if sort < 8 else "".join(choose.choices("abc", k=4))

    return {name: value() for name in choose.sample(NAMES, 3)}


@pytest.mark.parametrize("seed", range(3))
def test_a_table_of_thousands_grows_and_shrinks(seed: int) -> None:
    choose = random.Random(seed)
    index: Index[Entry] = Index()
    scan = Scan()
    for round in range(2):
        for _ in range(2000):
            insert(index, scan, Entry(random_filter(choose), f"B{choose.randrange(5)}"))
        leaving = choose.sample(scan.entries, 1000 if round == 0 else 2500)
        for entry in leaving:
            index.remove(entry)
        gone = set(map(id, leaving))
        scan.entries = [entry for entry in scan.entries if id(entry) not in gone]
        check_tree(index)
        for _ in range(50):
            ask(index, scan, random_point(choose), random_filter(choose), None)
            point = random_point(choose)
            ask_all(index, scan, [{**point, "a": random_point(choose)["a"]} for _ in range(5)])
            ask_all(index, scan, [point, point, {**point, "a": random_point(choose)["a"]}])
    for entry in scan.entries:
        index.remove(entry)
    assert_as_new(index)


def records_below(node: TreeNode[Entry]) -> list[IndexRecord[Entry]]:
    """All records of a node and below it, having checked how they are kept."""
    found = list(node.records)
    branches = node.branches
    if branches is not None:
        children: list[TreeNode[Entry]] = []
        for part in branches.parts.values():
            before = len(children)
            part.cross(present(), children)
            assert len(children) > before, "an attribute without children"
        groups = [list(group) for group in branches.cross({}, [])]
        assert all(groups), "an empty group"
        found += [record for group in groups for record in group]
        for child in children:
            below = records_below(child)
            assert below, "an empty child"
            found += below
        assert branches.hops == Counter(record.hop for record in found)
        assert children or groups, "branches without anything"
    return found


def check_tree(index: Index[Entry]) -> None:
    """Every entry is there once, hops are counted rightly, and nothing empty is kept."""
    found = [id(record.entry) for record in records_below(index._root)]
    assert sorted(found) == sorted(map(id, index))


def assert_as_new(index: Index[Entry]) -> None:
    assert len(index) == 0
    assert not index._marked
    assert not index._root.records
    assert index._root.branches is None


# --- versions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("added_by", "removed_by", "view", "visible"),
    [
        (None, (), None, True),
        (None, (), Versions(T1), True),
        (T1, (), None, False),
        (T1, (), Versions(T1), True),
        (T1, (), Versions(T2), False),
        (None, (T1,), None, True),
        (None, (T1,), Versions(T1), False),
        (None, (T1, T2), Versions(T2), False),
        (T1, (T2,), Versions(T1), True),
        (T1, (T2,), Versions(T1, T2), False),
    ],
)
def test_visible_from_one_version_to_another(
    added_by: Version | None,
    removed_by: tuple[Version, ...],
    view: Versions | None,
    visible: bool,
) -> None:
    entry = Entry(Filter(a=1), "B1", added_by, removed_by)
    index: Index[Entry] = Index()
    index.insert(entry)
    assert is_visible(entry, view) is visible
    assert bool(index.matching({"a": 1}, view)) is visible
    assert bool(index.overlapping(Filter(b=2), view)) is visible
    assert bool(index.hops({"a": 1}, view)) is visible


def test_a_version_that_is_decided_costs_nothing_any_more() -> None:
    class NeverAsked(Versions):
        def includes(self, version: Version) -> bool:
            raise AssertionError("no entry is marked")

    index: Index[Entry] = Index()
    old, new = Entry(Filter(a=1), "B1"), Entry(Filter(a=1), "B2", added_by=T1)
    index.insert(old)
    index.insert(new)
    index.remark(old, removed_by=(T1,))
    assert index.hops({"a": 1}) == ("B1",)
    assert index.hops({"a": 1}, Versions(T1)) == ("B2",)
    index.remark(new, added_by=None)
    index.remove(old)
    assert index.hops({"a": 1}, NeverAsked()) == ("B2",)


def test_a_hop_is_found_behind_entries_that_the_view_does_not_see() -> None:
    index: Index[Entry] = Index()
    for number in range(50):
        index.insert(Entry(Filter(a=1), "B1", added_by=None if number == 49 else T1))
    assert index.hops({"a": 1}) == ("B1",)
    assert index.hops({"a": 1}, Versions(T2)) == ("B1",)


# --- misuse is our bug ----------------------------------------------------------------------


def test_an_entry_goes_in_once_and_out_once() -> None:
    index: Index[Entry] = Index()
    entry = Entry(Filter(a=1))
    index.insert(entry)
    with pytest.raises(AssertionError, match="already"):
        index.insert(entry)
    with pytest.raises(AssertionError, match="not in the index"):
        index.remove(Entry(Filter(a=1)))
    index.remove(entry)
    with pytest.raises(AssertionError, match="not in the index"):
        index.remove(entry)
    with pytest.raises(AssertionError, match="not in the index"):
        index.remark(entry, added_by=T1)


# --- what a search looks at -----------------------------------------------------------------


def table(*filters: Filter, hop: str = "B1") -> Index[Entry]:
    index: Index[Entry] = Index()
    for filter in filters:
        index.insert(Entry(filter, hop))
    return index


def test_points_that_go_together_are_not_searched_for_one_by_one(monkeypatch: Any) -> None:
    others = [Filter(c="x", a=f"a{n}") for n in range(50)]
    others += [Filter(c="x", b=between(n, n + 1)) for n in range(50)]
    index = table(*others, hop="B2")
    index.insert(Entry(Filter(c="x"), "B1"))
    batch: list[dict[str, Value]] = [{"c": "x", "a": f"z{n}", "b": n + 99.5} for n in range(50)]
    assert index.hops(batch[0]) == ("B1",)
    searches = []
    monkeypatch.setattr(index, "_search", lambda point, view: searches.append(point))
    assert index.runs(batch) == [(("B1",), 50)]
    assert searches == batch[:2]


def test_a_batch_is_not_asked_for_attributes_that_it_does_not_have(monkeypatch: Any) -> None:
    """Somebody who subscribes to very many attributes must not slow others down."""
    index = table(*[Filter({f"a{n}": 1}) for n in range(100)], hop="B2")
    while index._root.records:
        index.insert(Entry(Filter({f"a{len(index)}": 1}), "B2"))
    index.insert(Entry(Filter(a0=2), "B1"))
    asked = []
    part = type(next(iter(index._root.branches.parts.values())))  # type: ignore[union-attr]
    monkeypatch.setattr(part, "misses_all", lambda self, values: bool(asked.append(self.name)) or 1)
    batch: list[dict[str, Value]] = [{"a0": 2, "a1": n / 10} for n in range(2, 99)]
    assert index.runs(batch) == [(("B1",), len(batch))]
    assert asked == ["a1"]


def visited(index: Index[Entry], point: dict[str, Value]) -> int:
    """How many entries a search for a point tests."""
    count = 0
    stack = [index._root]
    while stack:
        node = stack.pop()
        count += len(node.records)
        if node.branches is not None:
            count += sum(len(list(group)) for _, group in node.branches.reach(point, stack))
    return count


def compared(index: Index[Entry], filter: Filter) -> int:
    """How many entries a search for overlaps compares."""
    count = 0
    stack = [index._root]
    while stack:
        node = stack.pop()
        count += len(node.records)
        if node.branches is not None:
            groups = node.branches.cross(filter.predicates, stack)
            count += sum(len(list(group)) for group in groups)
    return count


class Counted(dict[str, Value]):
    """A point that counts how often it is asked for a value."""

    asked = 0

    def get(self, name: str, default: Any = None) -> Any:
        self.asked += 1
        return super().get(name, default)


def boxes(count: int) -> list[Filter]:
    choose = random.Random(0)
    width = 20 * (10_000 / count) ** (1 / 3)
    corners = [{name: choose.uniform(0, 1000 - width) for name in "xyz"} for _ in range(count)]
    return [Filter({name: (lo, lo + width) for name, lo in box.items()}) for box in corners]


@pytest.mark.parametrize("count", [1000, 10_000])
def test_of_boxes_only_those_around_the_point_are_tested(count: int) -> None:
    index = table(*boxes(count))
    choose = random.Random(1)
    tests = [visited(index, {name: choose.uniform(0, 1000) for name in "xyz"}) for _ in range(100)]
    assert sum(tests) / len(tests) < 16


def test_of_equalities_only_the_equal_ones_are_tested() -> None:
    index = table(*(Filter(class_=f"p{n % 20}", instance=f"x{n}") for n in range(2000)))
    assert visited(index, {"class": "p7", "instance": "x7"}) <= LEAF_SIZE
    assert visited(index, {"class": "p7", "instance": "x8"}) <= LEAF_SIZE
    assert compared(index, Filter(class_="p7", instance="x7")) <= LEAF_SIZE
    # The class alone finds its own hundred in one place.
    assert compared(index, Filter(class_="p7")) == 100
    assert compared(index, Filter(class_="p7", instance=present())) == 100


def test_equalities_take_the_same_steps_whatever_the_size() -> None:
    asked = []
    for count in 1000, 10_000:
        index = table(*(Filter(class_=f"p{n % 20}", instance=f"x{n}") for n in range(count)))
        point = Counted({"class": "p7", "instance": "x7", "step": 1})
        assert len(index.matching(point)) == 1
        asked.append((point.asked, visited(index, dict(point))))
    assert asked[0] == asked[1]


def test_a_wrong_value_leaves_out_all_that_have_another() -> None:
    index = table(*[Filter(class_="stock", price=gt(0))] * 1000)
    assert visited(index, {"class": "news", "price": 1}) == 0
    assert visited(index, {"price": 1}) == 0


def test_of_thresholds_only_those_passed_are_tested() -> None:
    above = table(*(Filter(price=gt(n)) for n in range(1000)))
    below = table(*(Filter(price=lt(n)) for n in range(1000)))
    assert visited(above, {"price": 10}) <= 11 + LEAF_SIZE
    assert visited(below, {"price": 990}) <= 10 + LEAF_SIZE
    assert compared(above, Filter(price=lt(10))) <= 11 + LEAF_SIZE
    assert compared(below, Filter(price=gt(990))) <= 10 + LEAF_SIZE


def test_wide_intervals_with_nothing_else_to_tell_them_apart_are_ordered() -> None:
    index = table(*(Filter(price=(n, 10**9)) for n in range(1000)))
    assert visited(index, {"price": 10}) <= 11 + LEAF_SIZE


def test_intervals_of_all_widths_do_not_hide_the_narrow_ones() -> None:
    filters = [Filter(x=(n, n + 2.0**-k)) for n in range(100) for k in range(0, 30, 2)]
    assert visited(table(*filters), {"x": 50.9}) <= 4 * 15


def test_of_prefixes_only_those_that_fit_are_tested() -> None:
    index = table(*(Filter(topic=prefix(f"orders/{n:04}/")) for n in range(1000)))
    assert visited(index, {"topic": "orders/0123/new"}) <= LEAF_SIZE
    assert visited(index, {"topic": "orders/"}) <= LEAF_SIZE


def test_filters_with_attributes_of_their_own_do_not_meet() -> None:
    index = table(*(Filter({f"a{n}": n, f"b{n}": present()}) for n in range(500)))
    assert visited(index, {"a7": 7, "b7": ""}) <= LEAF_SIZE + 1
    present_only = table(*(Filter({f"b{n}": present()}) for n in range(500)))
    assert visited(present_only, {"b7": ""}) <= LEAF_SIZE + 1


@pytest.mark.parametrize(
    "filters",
    [
        [Filter(class_="stock")] * 1000,
        [Filter(class_="stock", price=gt(n / 1000)) for n in range(1000)],
        [Filter(price=(n / 1000, n + 10), size=(0, 1000 + n)) for n in range(1000)],
        [Filter(price=present(), size=present())] * 1000,
    ],
    ids=["equal", "thresholds", "boxes", "present"],
)
def test_a_thousand_that_match_behind_one_hop_cost_as_few(filters: list[Filter]) -> None:
    point = Counted({"class": "stock", "price": 5, "size": 100})
    # All of them sorted: none waits in a node for others, and is found first.
    filters = filters[: len(filters) // (LEAF_SIZE + 1) * (LEAF_SIZE + 1)]
    index = table(*filters)
    # Another hop, whose entries do not match, keeps the search going.
    index.insert(Entry(Filter(class_="news"), "B2"))
    assert index.hops(point) == ("B1",)
    assert point.asked < 50
    assert len(index.matching(point)) == len(filters)


def test_an_only_way_is_forgotten_when_there_is_another() -> None:
    index = table(*[Filter(class_="stock", name=f"n{n}") for n in range(100)])
    index.insert(Entry(Filter(class_="news"), "B2"))
    point: dict[str, Value] = {"class": "stock", "name": "n7", "price": 5, "held": True}
    assert index.hops(point) == ("B1",)
    others = [
        Entry(filter, f"C{number}")
        for number, filter in enumerate(
            [
                Filter(price=5),
                Filter(price=(4, 6)),
                Filter(name=prefix("n")),
                Filter(held=present()),
                Filter(class_="stock", price=gt(1)),
                Filter(held=True),
            ]
        )
    ]
    for entry in others:
        for _ in range(2):
            # Enough of them, so that they are sorted.
            extra = [Entry(entry.filter, entry.hop) for _ in range(LEAF_SIZE + 1)]
            for one in extra:
                index.insert(one)
            assert index.hops(point) == ("B1", entry.hop)
            for one in extra:
                index.remove(one)
            assert index.hops(point) == ("B1",)


def test_an_only_way_does_not_take_true_for_one() -> None:
    index = table(*[Filter(a=n) for n in range(20)])
    index.insert(Entry(Filter(b=1), "B2"))
    assert index.hops({"a": 1}) == ("B1",)
    assert index.hops({"a": True}) == ()
    flags = table(*[Filter(a=bool(n % 2), b=n) for n in range(40)])
    flags.insert(Entry(Filter(c=1), "B2"))
    assert flags.hops({"a": True, "b": 1}) == ("B1",)
    assert flags.hops({"a": 1, "b": 1}) == ()
