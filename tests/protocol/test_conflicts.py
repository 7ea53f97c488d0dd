"""What conflicts: the look at a glance never says more than looking at everything does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.filters import Filter, Interval, Value
from overlay.messages import Kind, Operation, Pub
from overlay.tables.footprints import Footprint, Hull
from tests.protocol.steps import box

NAMES = st.sampled_from(["a", "b", "c"])
VALUES: st.SearchStrategy[Value] = st.sampled_from([0, 1, 1.0, True, False, "0", "x", 2])
FILTERS = st.dictionaries(
    NAMES, st.one_of(VALUES, st.just((0, 1)), st.just(...), st.just(Interval(1, None))), min_size=1
).map(Filter)
POINTS = st.dictionaries(NAMES, VALUES, min_size=1)
CLIENTS = st.sampled_from(["C", "D"])


@st.composite
def footprints(draw: st.DrawFn) -> Footprint:
    footprint = Footprint()
    for point in draw(st.lists(POINTS, max_size=2)):
        pub = Pub(draw(CLIENTS), 1, point)
        footprint.publication(pub, at_edge=draw(st.booleans()))
    for filter in draw(st.lists(FILTERS, max_size=2)):
        kind = draw(st.sampled_from(["sub", "usub", "adv", "uadv"]))
        read = draw(st.lists(FILTERS, max_size=2))
        footprint.operation(Operation(0, kind, draw(CLIENTS), 1, filter), read)  # type: ignore[arg-type]
    if draw(st.booleans()):
        few = st.lists(FILTERS, max_size=1)
        footprint.leaves(draw(CLIENTS), draw(few), draw(few))
    return footprint


@settings(max_examples=300)
@given(footprints(), footprints())
def test_a_glance_finds_only_what_looking_at_everything_finds(
    one: Footprint, other: Footprint
) -> None:
    found = one.reads_what(other)
    one._read.fixed = {}  # A hull that fixes nothing keeps nobody apart.
    other._written.fixed = {}
    assert one.reads_what(other) == found


def test_a_glance_tells_apart_what_insists_on_different_values() -> None:
    one, other = Hull(), Hull()
    one.add_filter(box(class_="p", x=(1, 9)))
    one.add_point({"class": "q", "x": 4, "y": 1})
    other.add_filter(box(class_="r", x=4))
    assert one.is_apart(other) and other.is_apart(one)
    other.add_filter(box(class_="q"))
    assert not one.is_apart(other)
    assert Hull().is_apart(one), "who touches nothing meets nobody"


# --- what does not conflict ---


def writes(kind: Kind, client: str, filter: Filter) -> Footprint:
    footprint = Footprint()
    footprint.operation(Operation(0, kind, client, 1, filter))
    return footprint


def reads(client: str, point: dict[str, Value]) -> Footprint:
    footprint = Footprint()
    footprint.publication(Pub(client, 1, point), at_edge=True)
    return footprint


P = box(class_="p")


@pytest.mark.parametrize("mine", ["sub", "usub"])
@pytest.mark.parametrize("theirs", ["sub", "usub"])
def test_two_clients_subscribe_the_same_without_a_conflict(mine: Kind, theirs: Kind) -> None:
    """Each reads its own entries only, and the other's are not among them."""
    assert writes(mine, "C", P).conflict(writes(theirs, "D", P)) is None
    assert writes(mine, "C", P).conflict(writes(theirs, "C", P)) == P


@pytest.mark.parametrize("mine", ["adv", "uadv"])
@pytest.mark.parametrize("theirs", ["adv", "uadv"])
def test_two_clients_advertise_the_same_without_a_conflict(mine: Kind, theirs: Kind) -> None:
    assert writes(mine, "C", P).conflict(writes(theirs, "D", P)) is None
    assert writes(mine, "C", P).conflict(writes(theirs, "C", P)) == P


def test_a_publication_conflicts_with_its_own_clients_advertisements_only() -> None:
    read = reads("C", {"class": "p"})
    assert read.conflict(writes("uadv", "D", P)) is None
    assert read.conflict(writes("uadv", "C", P)) == P
    assert read.conflict(writes("uadv", "C", box(class_="q"))) is None
    assert read.conflict(writes("sub", "D", P)) == P, "it has read who is subscribed"


def test_two_publications_never_conflict() -> None:
    assert reads("C", {"class": "p"}).conflict(reads("C", {"class": "p"})) is None


def test_who_leaves_conflicts_with_those_who_read_what_it_takes_back() -> None:
    left = Footprint()
    left.leaves("C", [box(class_="s")], [P])
    assert left.conflict(reads("D", {"class": "s"})) == box(class_="s")
    assert left.conflict(reads("D", {"class": "p"})) is None
    assert left.conflict(writes("sub", "D", P)) == P, "it was sent towards that advertisement"
    assert left.conflict(writes("sub", "D", box(class_="s"))) is None
    assert left.conflict(writes("adv", "D", P)) is None
