"""Where an interval belongs in the search tree: the child that a value finds it in, or the end that
it is ordered by.

It is worked out from the interval alone, so that inserting and searching come to the same place
without asking each other. This module knows nothing of the tree (`index_tree`).
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, Final, NamedTuple

from overlay.filters import Interval, Kind


class Sort(Enum):
    """How a child is found under an attribute."""

    EQUAL = 0
    CELL = 1
    PREFIX = 2
    PRESENT = 3


class Place(NamedTuple):
    """The place of a child under an attribute."""

    sort: Sort
    #: The width of the cells, or the length of the prefixes, among which it is.
    size: Any
    key: Any


class End(NamedTuple):
    """What records are ordered by on a ladder: the lower or the upper ends of an attribute."""

    name: str
    kind: Kind
    lower: bool


PRESENT: Final = Place(Sort.PRESENT, None, None)

#: Python takes True for 1 and False for 0; a hash must not.
BOOLEAN_KEYS: Final = {False: (False,), True: (True,)}

#: A quarter of the float range, so that the cells, up to twice as wide, still have a width.
_MAX_WIDTH: Final = 2.0**1022


def place_of(interval: Interval) -> Place | None:
    """Where a value finds the interval; None if it has to be found by its ends."""
    lo: Any = interval.lo
    hi: Any = interval.hi
    if interval.kind is None or (lo == "" and hi is None):
        return PRESENT
    if interval.kind == "boolean":
        return Place(Sort.EQUAL, None, BOOLEAN_KEYS[lo]) if lo == hi else PRESENT
    if lo is None or hi is None:
        return None
    if lo == hi:
        return Place(Sort.EQUAL, None, lo)
    if interval.kind == "string":
        common = _common_prefix(interval)
        return Place(Sort.PREFIX, len(common), common) if common else None
    size = _cell_size(float(lo), float(hi))
    return Place(Sort.CELL, size, lo // size) if size is not None else None


def _cell_size(lo: float, hi: float) -> float | None:
    """The power of two above the interval's width; None if floats do not reach so far.

    Numbers are put into cells as floats; rounding keeps their order, so what lies inside still
    does. frexp makes the size greater than the width, so an interval touches two cells at most.
    Dividing by a power of two is exact. And the size is not below the distance of neighbouring
    floats here, so the numbers of the cells stay below 2**53, where floats still count by one.
    """
    width = (hi - lo) or math.ulp(lo)  # Great integers can differ and become the same float.
    return math.ldexp(1.0, math.frexp(width)[1]) if width < _MAX_WIDTH else None


def _common_prefix(interval: Interval) -> str:
    """What all strings of an interval with two ends begin with."""
    lo: Any = interval.lo
    hi: Any = interval.hi
    length = 0
    for left, right in zip(lo, hi, strict=False):
        if left != right:
            # From ab up to ac, without ac itself, everything begins with ab.
            if interval.hi_open and len(hi) == length + 1 and ord(left) + 1 == ord(right):
                length += 1
            break
        length += 1
    return str(lo[:length])


def end_of(name: str, interval: Interval) -> End | None:
    """The end to order the interval by; None if it has none that tells it from others."""
    if interval.kind is None or interval.kind == "boolean" or interval.is_point:
        return None
    if interval.lo is not None and interval.lo != "":
        return End(name, interval.kind, True)
    return End(name, interval.kind, False) if interval.hi is not None else None
