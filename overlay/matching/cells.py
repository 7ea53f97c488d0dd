"""Where an interval belongs in the search tree: the cell of a child, or the bound that orders it.

Both follow from the interval alone, so that inserting and searching agree without shared state.
This module knows nothing of the tree (`tree`).
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, Final, NamedTuple

from overlay.filters import Interval, Kind


class CellKind(Enum):
    """How a child is found under an attribute."""

    EQUAL = 0
    CELL = 1
    PREFIX = 2
    PRESENT = 3


class Cell(NamedTuple):
    """The key of a child under an attribute."""

    kind: CellKind
    #: The width of the numeric cell, or the length of the prefix.
    size: Any
    key: Any


class Bound(NamedTuple):
    """What the records of a ladder are ordered by: lower or upper ends of an attribute."""

    name: str
    kind: Kind
    lower: bool


PRESENT: Final = Cell(CellKind.PRESENT, None, None)

#: In Python True == 1 and False == 0; as keys of a hash they must differ.
BOOLEAN_KEYS: Final = {False: (False,), True: (True,)}

#: A quarter of the float range, so that the cells, up to twice as wide, still have a width.
_MAX_WIDTH: Final = 2.0**1022


def cell_of(interval: Interval) -> Cell | None:
    """The cell in which a value finds the interval; None if only its ends order it."""
    lo: Any = interval.lo
    hi: Any = interval.hi
    if interval.kind is None or (lo == "" and hi is None):
        return PRESENT
    if interval.kind == "boolean":
        return Cell(CellKind.EQUAL, None, BOOLEAN_KEYS[lo]) if lo == hi else PRESENT
    if lo is None or hi is None:
        return None
    if lo == hi:
        return Cell(CellKind.EQUAL, None, lo)
    if interval.kind == "string":
        common = _common_prefix(interval)
        return Cell(CellKind.PREFIX, len(common), common) if common else None
    size = _cell_size(float(lo), float(hi))
    return Cell(CellKind.CELL, size, lo // size) if size is not None else None


def _cell_size(lo: float, hi: float) -> float | None:
    """The power of two above the interval's width; None if floats do not reach so far.

    Numbers are put into cells as floats; rounding keeps their order, so what lies inside still
    does. frexp makes the size greater than the width, so an interval touches two cells at most.
    Dividing by a power of two is exact. And the size is not below the distance of neighbouring
    floats here, so the numbers of the cells stay below 2**53, where floats still count by one.
    """
    width = (hi - lo) or math.ulp(lo)  # Large integers that differ can be the same float.
    return math.ldexp(1.0, math.frexp(width)[1]) if width < _MAX_WIDTH else None


def _common_prefix(interval: Interval) -> str:
    """The common prefix of all strings in an interval with two ends."""
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


def bound_of(name: str, interval: Interval) -> Bound | None:
    """The bound to order the interval by; None if it has no useful one."""
    if interval.kind is None or interval.kind == "boolean" or interval.is_point:
        return None
    if interval.lo is not None and interval.lo != "":
        return Bound(name, interval.kind, True)
    return Bound(name, interval.kind, False) if interval.hi is not None else None
