"""The last word decides: what is kept means the same as all that was said, and nothing too much."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from overlay.filters import Filter, Value, between
from overlay.tables.last_word import Overlapping, reaches, settle


class Said(NamedTuple):
    seq: int
    filter: Filter
    positive: bool


#: Points below, at, between and above all ends that are drawn.
GRID = [x / 2 for x in range(-1, 10)]
POINTS: list[dict[str, Value]] = [
    *({"x": x, "y": y} for x, y in itertools.product(GRID, GRID)),
    *({"x": x} for x in GRID),
]


@st.composite
def boxes(draw: st.DrawFn) -> Filter:
    """A box of one or two attributes, with ends from a few values, closed or not."""
    intervals = {}
    for name in draw(st.sampled_from(["x", "y", "xy", "xy"])):
        lo = draw(st.integers(0, 3))
        hi = draw(st.integers(lo + 1, 4))
        intervals[name] = between(lo, hi, lo_open=draw(st.booleans()), hi_open=draw(st.booleans()))
    return Filter(intervals)


def line(lo: int, hi: int) -> Filter:
    return Filter(x=(lo, hi))


SAID = st.lists(st.tuples(st.booleans(), boxes()), max_size=8)


def decided(words: list[Said], point: dict[str, Value]) -> bool:
    """The rule itself: of all that contain the point, the latest decides."""
    return next((w.positive for w in reversed(words) if w.filter.matches(point)), False)


def least(said: list[Said]) -> list[Said]:
    """What has to be kept: neither covered by a later one, nor a no that carves no earlier yes."""
    kept = [w for w in said if not any(v.seq > w.seq and v.filter.covers(w.filter) for v in said)]
    return [
        w
        for w in kept
        if w.positive
        or any(v.positive and v.seq < w.seq and v.filter.overlaps(w.filter) for v in kept)
    ]


@settings(max_examples=500)
@given(SAID)
# A no inside a yes that was carved again: its seq is lower than that of what goes.
@example([(True, line(0, 10)), (False, line(3, 5)), (True, line(4, 6)), (False, line(4, 6))])
# Two that go together leave a no that lay in both.
@example([(True, line(0, 2)), (True, line(2, 4)), (False, line(1, 3)), (False, line(0, 4))])
# The no outlives the yes that it has carved, if there is another.
@example([(True, line(0, 9)), (True, line(2, 4)), (False, line(3, 6)), (True, line(1, 5))])
def test_what_is_kept_means_the_same_and_is_the_least(said: list[tuple[bool, Filter]]) -> None:
    words: list[Said] = []
    held: list[Said] = []
    for seq, (positive, filter) in enumerate(said, 1):
        change = settle(
            Overlapping(lambda box: [w for w in held if w.filter.overlaps(box)]),  # noqa: B023
            filter,
            positive,
        )
        assert list(change.drop) == sorted(set(change.drop)), "in order, each once"
        assert {w.seq for w in held} >= set(change.drop), "only what is held goes"
        held = [w for w in held if w.seq not in change.drop]
        word = Said(seq, filter, positive)
        words.append(word)
        if change.store:
            held.append(word)
        assert held == least(words)
    for point in POINTS:
        assert decided(held, point) == decided(words, point), point


@settings(max_examples=300)
@given(SAID, boxes())
def test_a_yes_reaches_what_no_single_later_hole_covers(
    said: list[tuple[bool, Filter]], filter: Filter
) -> None:
    words = [Said(seq, box, positive) for seq, (positive, box) in enumerate(said)]
    holes = [w for w in words if not w.positive]
    for yes in words:
        if not yes.positive:
            continue
        common = [p for p in POINTS if yes.filter.matches(p) and filter.matches(p)]
        later = [hole for hole in holes if hole.seq > yes.seq]
        left = [p for p in common if not any(hole.filter.matches(p) for hole in later)]
        if left:
            assert reaches(yes, filter, holes), "what is still held is never missed"
        if not yes.filter.overlaps(filter):
            assert not reaches(yes, filter, holes)
        if any(hole.filter.covers(yes.filter) or hole.filter.covers(filter) for hole in later):
            assert not reaches(yes, filter, holes), "a hole around it leaves nothing"


def test_a_hole_from_before_carves_nothing() -> None:
    yes = Said(2, line(0, 4), True)
    assert reaches(yes, line(1, 2), [Said(1, line(0, 4), False)])
    assert not reaches(yes, line(1, 2), [Said(3, line(0, 4), False)])
    assert not reaches(yes, line(1, 2), [Said(3, line(1, 2), False)])
    assert reaches(yes, line(1, 2), [Said(3, line(1, 1), False), Said(4, line(0, 1), False)])
