"""The text fields of trace records, parsed; `overlay.trace` documents them.

Texts repeat (filters always do, and a publication is matched at several brokers), so the results
are cached.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from overlay.filters import Filter, Value
from overlay.notation import parse_filter, parse_publication

CACHED_TEXTS: Final = 65_536

#: `overlay.trace.EVENTS`: executors have no msgspec and cannot import it. A test compares the two.
EVENTS: Final = "events"


class TableChange(NamedTuple):
    """What an operation did to the tables: the `outcome` of its record."""

    kept: bool
    dropped: tuple[int, ...]
    #: The entries of others that moved in consequence: client, number, and the neighbour told.
    moved: tuple[tuple[str, int, str], ...]
    #: Whether the kept entry is for events only.
    events_only: bool = False


NO_CHANGE: Final = TableChange(False, (), ())


@lru_cache(CACHED_TEXTS)
def filter_of(text: str) -> Filter:
    """A record's `filter`, of a routing operation."""
    return parse_filter(text)


@lru_cache(CACHED_TEXTS)
def point_of(text: str) -> Mapping[str, Value]:
    """A record's `filter`, of a publication."""
    return parse_publication(text)


@lru_cache(CACHED_TEXTS)
def change_of(outcome: str) -> TableChange:
    """A record's `outcome`, of a routing operation or a client's end."""
    dropped: list[int] = []
    moved: list[tuple[str, int, str]] = []
    parts = outcome.split()
    for part in parts:
        if part.startswith("-"):
            dropped.append(int(part[1:]))
        elif part not in ("+", EVENTS):
            name, _, hop = part.partition(">")
            client, _, number = name.rpartition("#")
            moved.append((client, int(number), hop))
    return TableChange("+" in parts, tuple(dropped), tuple(moved), EVENTS in parts)


@lru_cache(CACHED_TEXTS)
def versions_of(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """A record's `version`: the versions that its view sees, and those that it hides."""
    parts = [part for part in text.split(",") if part]
    hidden = frozenset(part[1:] for part in parts if part.startswith("-"))
    return frozenset(part for part in parts if not part.startswith("-")), hidden


def table_of(op_kind: str) -> str:
    """The table that a routing operation changes."""
    return "prt" if op_kind in ("sub", "usub") else "srt"


def is_positive(op_kind: str) -> bool:
    return op_kind in ("sub", "adv")
