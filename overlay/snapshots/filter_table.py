"""The filters of a snapshot, and their intervals, each written once.

Most of what a broker keeps are filters, and thousands of them name the same class. So intervals
stand in a table of their own, and thawing checks nothing: the checksum of a snapshot says that
these are the filters that were frozen.
"""

from __future__ import annotations

from typing import Any

from overlay.filters import Filter, Interval


class FilterWriter:
    """The filters that were met so far, by number."""

    def __init__(self) -> None:
        #: For each filter its names, each with the number of its interval.
        self.filters: list[list[Any]] = []
        #: The ends of each interval, one after the other.
        self.intervals: list[Any] = []
        #: By identity. Equal filters can differ in what they say: 1 and 1.0.
        self._numbers: dict[int, int] = {}
        self._interval_numbers: dict[Any, int] = {}

    def number(self, filter: Filter) -> int:
        number = self._numbers.get(id(filter))
        if number is None:
            number = self._numbers[id(filter)] = len(self.filters)
            row: list[Any] = []
            for name, interval in filter.predicates.items():
                row += name, self._interval(interval)
            self.filters.append(row)
        return number

    def _interval(self, interval: Interval) -> int:
        lo, hi, exclusive = ends = interval.ends
        key: Any = lo.__class__, hi.__class__, ends
        if lo.__class__ is float or hi.__class__ is float:
            key = id(interval)  # 0.0 and -0.0 are equal.
        number = self._interval_numbers.get(key)
        if number is None:
            number = self._interval_numbers[key] = len(self._interval_numbers)
            self.intervals += lo, hi, exclusive
        return number


def read_filters(filters: list[list[Any]], intervals: list[Any]) -> list[Filter]:
    """The filters that a `FilterWriter` has numbered."""
    ends = iter(intervals)
    made = [Interval.of_checked(*each) for each in zip(ends, ends, ends, strict=True)]
    return [
        Filter.of_checked([(row[at], made[row[at + 1]]) for at in range(0, len(row), 2)])
        for row in filters
    ]
