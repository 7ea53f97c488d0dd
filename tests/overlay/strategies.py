"""What Hypothesis draws for filters: two families, for two kinds of test.

`models()` draws an interval together with what it means, as a plain Python predicate. Its ends
are of a few values only, so that `MODELS` is all there are. `GRID` has a value below, at,
between and above all of those ends: what is claimed of the intervals can be checked on the
grid, value by value.

`values()`, `points()`, `intervals()` and `filters()` draw from all there is: any text, any
number, names that are awkward in one notation or the other.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from overlay.errors import FilterError
from overlay.filters import (
    INT_MAX,
    INT_MIN,
    Filter,
    Interval,
    Value,
    between,
    eq,
    ge,
    gt,
    le,
    lt,
    prefix,
    present,
)

# A busy machine is not a failed test.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

NUMBERS: list[Value] = [0, 1, 2.5]
STRINGS: list[Value] = ["", "a", "ab", "b"]
BOOLEANS: list[Value] = [False, True]
ENDS = [NUMBERS, STRINGS, BOOLEANS]

#: The ends of prefixes, "ac" and "c", count as ends too.
GRID: list[Value] = [
    *(-1.5, 0, 0.5, 1, 2, 2.5, 9),
    *("", "A", "a", "aa", "ab", "abz", "ac", "az", "b", "bz", "c", "z"),
    *(False, True),
]


class Model(NamedTuple):
    """An interval, and what it should contain."""

    interval: Interval
    means: Callable[[Any], bool]


def _models() -> Iterator[Model]:
    """All intervals with those ends, the empty ones left out."""
    yield Model(present(), lambda v: True)
    for start in STRINGS:
        yield Model(prefix(str(start)), lambda v, s=str(start): type(v) is str and v.startswith(s))
    for ends in ENDS:
        types = {int, float} if ends is NUMBERS else {type(ends[0])}
        relations = [(eq, operator.eq), (gt, operator.gt), (ge, operator.ge)]
        relations += [(lt, operator.lt), (le, operator.le)]
        for (make, relation), end in itertools.product(relations, ends):
            with suppress(FilterError):
                yield Model(
                    make(end),
                    lambda v, t=types, r=relation, e=end: type(v) in t and r(v, e),
                )
        flags = [(False, operator.le), (True, operator.lt)]
        for lo, hi, (lo_open, after), (hi_open, before) in itertools.product(
            ends, ends, flags, flags
        ):
            with suppress(FilterError):
                yield Model(
                    between(lo, hi, lo_open=lo_open, hi_open=hi_open),
                    lambda v, t=types, x=lo, y=hi, a=after, b=before: (
                        type(v) in t and a(x, v) and b(v, y)
                    ),
                )


MODELS = list(_models())


def models() -> st.SearchStrategy[Model]:
    """An interval with ends from a few values, and its meaning."""
    return st.sampled_from(MODELS)


#: Reserved words, names that keyword arguments fold or mangle, blanks, and signs of the notation.
AWKWARD_NAMES = ["class", "None", "self", "mapping", "_", "x_", "__debug_", "ﬁ", "a b", ">=", "\\"]


def names() -> st.SearchStrategy[str]:
    """Attribute names, some of which are awkward to write down."""
    letters = st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters="[],'")
    wild = st.text(letters, min_size=1, max_size=8).map(str.strip).filter(bool)
    return st.sampled_from("abcxyz") | st.sampled_from(AWKWARD_NAMES) | wild


def numbers() -> st.SearchStrategy[Value]:
    """Any number."""
    return st.integers(INT_MIN, INT_MAX) | st.floats(allow_nan=False, allow_infinity=False)


def strings() -> st.SearchStrategy[str]:
    """Any string, with a taste for what must be escaped and for the edges of the code points."""
    edges = st.sampled_from("\x00'\\\n\x7f\u2028\ud7ff\ue000\U0010ffff")
    return st.text(edges | st.characters(exclude_categories=("Cs",)), max_size=8)


def values() -> st.SearchStrategy[Value]:
    """Any value of the three types."""
    return numbers() | strings() | st.booleans()


def points() -> st.SearchStrategy[dict[str, Value]]:
    """Any publication's attributes."""
    return st.dictionaries(names(), values(), min_size=1, max_size=4)


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    """Any interval."""
    family = draw(st.sampled_from([numbers(), strings(), st.booleans()]))
    lo = draw(st.none() | family)
    hi = draw(st.none() | family)
    try:
        return between(lo, hi, lo_open=draw(st.booleans()), hi_open=draw(st.booleans()))
    except FilterError:  # An empty one.
        return present() if lo is None else prefix(lo) if isinstance(lo, str) else eq(lo)


def filters() -> st.SearchStrategy[Filter]:
    """Any filter of a few attributes."""
    return st.dictionaries(names(), intervals(), min_size=1, max_size=4).map(Filter)


#: What a codec may hand over, and what no codec should.
JUNK: st.SearchStrategy[object] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**20000, max_value=2**20001)
    | st.floats()
    | st.binary(max_size=4)
    | st.text(st.characters(), max_size=4)
    | st.text(st.sampled_from("\ud800[],'a"), max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.none(), inner, max_size=4)
    ),
    max_leaves=8,
)
