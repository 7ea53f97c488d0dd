"""The entries that a filter covers, against a look at all of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.filters import Filter, Interval, between, eq, ge, gt, le, lt, prefix, present
from overlay.messages import Hop, Kind, Operation
from overlay.tables.covered_entries import CoveredEntries
from overlay.tables.routing import Home, Routing
from overlay.tables.space import FEW, Entry

INTERVALS = st.sampled_from(
    [
        *(eq(n) for n in (0, 1, 2.5, "a", "b", True, False)),
        *(make(n) for make in (ge, gt, le, lt) for n in (0, 1, 2.5, "b")),
        *(between(lo, hi) for lo in range(3) for hi in range(lo + 1, 4)),
        between(0, 3, lo_open=True, hi_open=True),
        *map(prefix, ("", "a", "ab")),
        between(False, True),
        present(),
    ]
)


def filters() -> st.SearchStrategy[Filter]:
    named: st.SearchStrategy[dict[str, Interval]] = st.dictionaries(
        st.sampled_from("xyz"), INTERVALS, min_size=1, max_size=3
    )
    return named.map(Filter)


def entry(number: int, filter: Filter, kind: Kind = "sub") -> Entry:
    return Entry(Operation(0, kind, "C", number, filter), Hop("@C"))


@settings(max_examples=300)
@given(st.lists(st.tuples(filters(), st.booleans()), max_size=30), filters())
def test_what_a_filter_covers_is_found(said: list[tuple[Filter, bool]], filter: Filter) -> None:
    entries = [entry(number, box) for number, (box, _) in enumerate(said)]
    covered = CoveredEntries(entries)
    left = []
    for one, (_, goes) in zip(entries, said, strict=True):
        if goes:
            covered.remove(one)
        else:
            left.append(one)
    found = list(covered.covered_by(filter))
    expected = [one for one in left if filter.covers(one.filter)]
    assert sorted(one.seq for one in found) == [one.seq for one in expected]
    assert len(expected) <= covered.count_near(filter) <= len(left)


@given(st.lists(st.tuples(st.booleans(), filters()), max_size=12), st.lists(filters(), max_size=3))
def test_a_client_with_many_entries_says_what_one_with_few_would(
    said: list[tuple[bool, Filter]], more: list[Filter]
) -> None:
    """What goes is the same, however it is looked for."""
    drops = []
    for many in (False, True):
        routing = Routing("B", [])  # type: ignore[arg-type]
        routing.crt["C"] = Home("B", Hop("@C"))  # type: ignore[index, arg-type]
        number = 0
        for box in [Filter(w="far", x=n) for n in range(FEW * 5)] if many else ():
            number -= 1
            routing.prt.add(entry(number, box))
        dropped = []
        for positive, near in [*said, *((False, box) for box in more)]:
            box = Filter({**near.predicates, "w": "near"})
            kind: Kind = "sub" if positive else "usub"
            if not positive and not routing.prt.reaches(box, client="C"):
                dropped.append(None)
                continue
            number = len(dropped) + 1
            operation = routing.admit(Hop("@C"), Operation(0, kind, "C", number, box))
            routing.apply(Hop("@C"), operation)
            dropped.append([seq for seq in operation.drop if seq > 0])
        drops.append(dropped)
    assert drops[0] == drops[1]
