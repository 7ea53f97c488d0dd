"""The last word decides: what a client holds after a sequence of operations.

A client's operations are numbered. Each covers a box of the event space, with yes (sub, adv) or no
(usub, uadv); of those that contain a point, the one with the highest number decides. So `sub(p1,*)`
and then `usub(p1,x1)` leave everything of p1 but x1, as set difference would, and what is held
never depends on how operations of different clients interleave.

Two kinds of entries are never asked again and go: one that a later one of the same client covers,
and a no that carves nothing (no earlier yes of the client overlaps it). Only the client's edge
broker holds all operations of the client, so only that broker can find such entries; it computes
the change (`settle`) and sends the result. The rules here are pure, over entries and a search for
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from overlay.filters import Filter


class NumberedFilter(Protocol):
    """One operation that a client holds: its number, its box, and whether it says yes."""

    @property
    def seq(self) -> int: ...
    @property
    def filter(self) -> Filter: ...
    @property
    def positive(self) -> bool: ...


W = TypeVar("W", bound=NumberedFilter)
W_co = TypeVar("W_co", bound=NumberedFilter, covariant=True)


class Settled(NamedTuple):
    """What a new operation changes: whether it is kept, and the numbers of those that go."""

    store: bool
    drop: tuple[int, ...]


class Around(Protocol[W_co]):
    """What a client holds around a filter; how it is found is not known here."""

    def covered_by(self, filter: Filter) -> Sequence[W_co]:
        """The entries that lie inside the filter."""

    def yes(self, filter: Filter) -> Iterable[W_co]:
        """The entries that say yes and overlap the filter; mostly the first few are enough."""

    def holes(self, filter: Filter) -> Sequence[W_co]:
        """The entries that say no and overlap the filter."""


class Overlapping(Generic[W]):
    """The same by one search for all that overlaps, where there is not much."""

    def __init__(self, overlapping: Callable[[Filter], Iterable[W]]) -> None:
        self._overlapping = overlapping

    def covered_by(self, filter: Filter) -> list[W]:
        return [entry for entry in self._overlapping(filter) if filter.covers(entry.filter)]

    def yes(self, filter: Filter) -> list[W]:
        return [entry for entry in self._overlapping(filter) if entry.positive]

    def holes(self, filter: Filter) -> list[W]:
        return [entry for entry in self._overlapping(filter) if not entry.positive]


def settle(held: Around[W], filter: Filter, positive: bool) -> Settled:
    """What a client's new operation, with a number above all others, makes of its entries."""
    covered = held.covered_by(filter)
    gone = {entry.seq for entry in covered}
    store = positive or any(entry.seq not in gone for entry in held.yes(filter))
    lost = [entry for entry in covered if entry.positive]
    # What is lost lies inside the filter, so a hole in it overlaps the filter, too.
    holes = [hole for hole in held.holes(filter) if hole.seq not in gone] if lost else []
    empty = [
        hole.seq
        for hole in holes
        if any(hole.filter.overlaps(entry.filter) for entry in lost)
        and not any(yes.seq < hole.seq and yes.seq not in gone for yes in held.yes(hole.filter))
    ]
    return Settled(store, tuple(sorted([*gone, *empty])))


def reaches(yes: NumberedFilter, filter: Filter, holes: Iterable[NumberedFilter]) -> bool:
    """Whether a yes still holds some part of a filter, with one client's holes around.

    Conservative: several holes that only together fill the common part are not added up. That can
    cost a message and never loses one.
    """
    common = yes.filter.meet(filter)
    return common is not None and not any(
        hole.seq > yes.seq and hole.filter.covers(common) for hole in holes
    )
