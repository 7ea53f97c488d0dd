"""One client's entries, so that those which a filter covers are found without a look at the others.

A filter covers an entry only if the entry names each attribute that the filter names, and there
begins inside the filter's interval. So the entries are kept by the lower bounds of their intervals,
attribute by attribute, and a search looks at those of one attribute: the one with the fewest. What
an entry says of other attributes does not matter; in the tree of the index, which finds what
overlaps, all entries that do not name an attribute would be near.

A broker searches here for each new operation of a client with many entries. Versions are not known
here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sortedcontainers import SortedList

from overlay.filters import Filter, Interval, Kind
from overlay.stored import Plain, Several, stored

if TYPE_CHECKING:
    from overlay.tables.space import Entry

#: The lowest bound of an interval without one, by its type; others have theirs.
_LOWEST: dict[Kind | None, Any] = {None: 0, "number": -math.inf}


@stored(
    "covered-entries",
    fields=("_added", "_number_of", "_entries"),
    derived=("_by_bound",),
)
class CoveredEntries:
    """Entries by attribute, type and lower bound."""

    __slots__ = ("_added", "_by_bound", "_entries", "_number_of")

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._added = 0
        self._entries: dict[int, Entry] = {}
        self._number_of: dict[int, int] = {}
        #: By attribute and type, (bound, number); numbers differ, and name the entry.
        self._by_bound: dict[str, dict[Kind | None, SortedList]] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        self._added += 1
        self._entries[self._added] = entry
        self._number_of[id(entry)] = self._added
        for name, interval in entry.filter.predicates.items():
            runs = self._by_bound.setdefault(name, {})
            run = runs.get(interval.kind)
            if run is None:
                run = runs[interval.kind] = SortedList()
            run.add((_lower(interval), self._added))

    def remove(self, entry: Entry) -> None:
        number = self._number_of.pop(id(entry))
        del self._entries[number]
        for name, interval in entry.filter.predicates.items():
            runs = self._by_bound[name]
            runs[interval.kind].remove((_lower(interval), number))
            if not runs[interval.kind]:
                del runs[interval.kind]
                if not runs:
                    del self._by_bound[name]

    def count_near(self, filter: Filter) -> int:
        """How many entries a search for those that the filter covers looks at."""
        return sum(stop - start for _, start, stop in self._fewest(filter))

    def near(self, filter: Filter) -> list[int]:
        """The numbers here of the entries that such a search looks at."""
        return [
            number
            for run, start, stop in self._fewest(filter)
            for _, number in run.islice(start, stop)
        ]

    def get(self, number: int) -> Entry | None:
        """The entry that has the number here, if it has not gone."""
        return self._entries.get(number)

    def covered_by(self, filter: Filter) -> list[Entry]:
        """The entries that the filter covers, in an order that follows from the entries."""
        entries = [self._entries[number] for number in self.near(filter)]
        return [entry for entry in entries if filter.covers(entry.filter)]

    def _freeze(self) -> tuple[Any, ...]:
        return self._added, Plain(list(self._entries)), Several(self._entries.values())

    def _thaw(self, added: int, numbers: list[int], entries: list[Entry]) -> None:
        self._added = added
        self._entries = dict(zip(numbers, entries, strict=True))
        self._number_of = {id(entry): number for number, entry in self._entries.items()}
        bounds: dict[str, dict[Kind | None, list[tuple[Any, int]]]] = {}
        for number, entry in self._entries.items():
            for name, interval in entry.filter.predicates.items():
                run = bounds.setdefault(name, {}).setdefault(interval.kind, [])
                run.append((_lower(interval), number))
        self._by_bound = {
            name: {kind: SortedList(run) for kind, run in runs.items()}
            for name, runs in bounds.items()
        }

    def _fewest(self, filter: Filter) -> list[tuple[SortedList, int, int]]:
        """Where to look: at the attribute that leaves the fewest."""
        near = (self._near(name, interval) for name, interval in filter.predicates.items())
        return min(near, key=lambda runs: sum(stop - start for _, start, stop in runs))

    def _near(self, name: str, interval: Interval) -> list[tuple[SortedList, int, int]]:
        """Where the entries are whose interval can lie inside this one."""
        runs = self._by_bound.get(name, {})
        if interval.kind is None:
            # Sorted: their order is that of first entries, which may be gone.
            return [(runs[kind], 0, len(runs[kind])) for kind in sorted(runs, key=str)]
        run = runs.get(interval.kind)
        if run is None:
            return []
        stop = len(run) if interval.hi is None else run.bisect_right((interval.hi, math.inf))
        return [(run, run.bisect_left((_lower(interval),)), stop)]


def _lower(interval: Interval) -> Any:
    return _LOWEST[interval.kind] if interval.lo is None else interval.lo
