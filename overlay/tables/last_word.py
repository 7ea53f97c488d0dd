"""The last word decides: what a client holds after it has said a sequence of yes and no.

A client's operations are numbered by the client. Each covers a box of the event space, with yes
(sub, adv) or no (usub, uadv); of those that contain a point, the one with the highest number
decides. So `sub(p1,*)` and then `usub(p1,x1)` leave everything of p1 but x1, as set difference
would, and what is held never depends on how operations of different clients interleave.

Two kinds of entries are never asked again and go: one that a later one of the same client covers,
and a no that carves nothing (no earlier yes of the client overlaps it). Only the client's edge
broker holds all that the client has said, so only there can one tell; it works the change out
(`settle`) and sends the result. The rules here are pure, over entries and a search for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar

from overlay.filters import Filter


class Word(Protocol):
    """One operation that a client holds: its number, its box, and whether it says yes."""

    @property
    def seq(self) -> int: ...
    @property
    def filter(self) -> Filter: ...
    @property
    def positive(self) -> bool: ...


W = TypeVar("W", bound=Word)


class Settled(NamedTuple):
    """What a new word changes: whether it is kept, and the numbers of those that go."""

    store: bool
    drop: tuple[int, ...]


def settle(overlapping: Callable[[Filter], Iterable[W]], filter: Filter, positive: bool) -> Settled:
    """What becomes of a client's words when it says one more, with a number above all others.

    `overlapping` finds the client's present words that overlap a filter.
    """
    near = list(overlapping(filter))
    gone = {word.seq for word in near if filter.covers(word.filter)}
    store = positive or any(word.positive and word.seq not in gone for word in near)
    lost = [word for word in near if word.positive and word.seq in gone]
    # What is lost lies inside the filter, so a hole in it overlaps the filter, too.
    holes = [word for word in near if not word.positive and word.seq not in gone] if lost else []
    empty = [
        hole.seq
        for hole in holes
        if not any(
            word.positive and word.seq < hole.seq and word.seq not in gone
            for word in overlapping(hole.filter)
        )
        and any(hole.filter.overlaps(word.filter) for word in lost)
    ]
    return Settled(store, tuple(sorted([*gone, *empty])))


def reaches(yes: Word, filter: Filter, holes: Iterable[Word]) -> bool:
    """Whether a yes still holds some part of a filter, with one client's holes around.

    Conservative: several holes that only together fill the common part are not added up. That can
    cost a message and never loses one.
    """
    common = yes.filter.meet(filter)
    return common is not None and not any(
        hole.seq > yes.seq and hole.filter.covers(common) for hole in holes
    )
