"""Tests whether a record matches a point, compiled once for each shape of filter.

Thousands of subscriptions differ in their values only: `class = c and lo <= price < hi`. Such a
shape becomes one function, which takes a point's `get` and a record's values. It calls nothing
but `get`, so it is much faster than a loop over predicates, and a record stores its values only.

The compiled text is made here. Of a filter it contains attribute names only, as string literals.
Shapes beyond SHAPES_LIMIT, which only an attacker would invent, are interpreted.

This module knows nothing of the tree (`tree`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from overlay.filters import (
    INT_MAX,
    INT_MIN,
    KIND_OF,
    MAX_STRING_LENGTH,
    Filter,
    Interval,
    Kind,
    Value,
)

Get: TypeAlias = Callable[[str], Any]

#: Called with the `get` of a point and the values of a record.
Test: TypeAlias = Callable[[Get, tuple[Any, ...]], bool]

#: Called with a point.
Admission: TypeAlias = Callable[[dict[str, Value]], bool]

#: Shapes that are compiled; real overlays have a handful. Each takes about 2 kB and 0.1 ms.
SHAPES_LIMIT: Final = 1000


class PredicateShape(NamedTuple):
    """The shape of one predicate: everything except its values."""

    name: str
    kind: Kind | None
    #: Whether both ends are one value.
    equal: bool
    #: How a value must relate to each end, "" where there is none.
    lower: str
    upper: str


class FilterShape:
    """What filters that differ in their values only have in common.

    The test skips `known` attributes: the caller has established that they match.
    """

    __slots__ = ("_admission", "_is_compiled", "_known", "_parts", "_without", "test")

    def __init__(
        self, parts: tuple[PredicateShape, ...], known: frozenset[str], *, is_compiled: bool
    ) -> None:
        self._parts = parts
        self._known = known
        self._without: dict[str, FilterShape] = {}
        self.test = (compiled if is_compiled else interpreted)(parts, known)
        self._is_compiled = is_compiled
        self._admission: Callable[[tuple[Any, ...]], Admission] | None = None

    def admission(self, values: tuple[Any, ...]) -> Admission:
        """A fast pre-check for a record with these values: True means that the point is valid, has
        exactly the attributes of the filter, and matches; False means unknown. It is for what
        a client publishes in the space that it advertised."""
        if self._admission is None:
            if not self._is_compiled:
                return never
            self._admission = compiled_admission(self._parts)
        return self._admission(values)

    def without(self, name: str) -> FilterShape:
        """This shape with one more known attribute."""
        shape = self._without.get(name)
        if shape is None:
            shape = self._without[name] = _shape(self._parts, self._known | {name})
        return shape


_NONE: Final[frozenset[str]] = frozenset()

_shapes: Final[dict[tuple[tuple[PredicateShape, ...], frozenset[str]], FilterShape]] = {}


def shape_of(filter: Filter) -> tuple[FilterShape, tuple[Any, ...]]:
    """A filter's shape and its values: the two ends of each predicate in turn."""
    predicates = filter.predicates
    values: list[Any] = []
    for interval in predicates.values():
        values += interval.lo, interval.hi
    parts = tuple([_part(name, interval) for name, interval in predicates.items()])
    return _shape(parts), tuple(values)


def _shape(parts: tuple[PredicateShape, ...], known: frozenset[str] = _NONE) -> FilterShape:
    shape = _shapes.get((parts, known))
    if shape is None:
        if len(_shapes) >= SHAPES_LIMIT:
            return FilterShape(parts, known, is_compiled=False)
        shape = _shapes[parts, known] = FilterShape(parts, known, is_compiled=True)
    return shape


def _part(name: str, interval: Interval) -> PredicateShape:
    return PredicateShape(
        name,
        interval.kind,
        interval.is_point,
        "" if interval.lo is None else ">" if interval.lo_open else ">=",
        "" if interval.hi is None else "<" if interval.hi_open else "<=",
    )


# --- tests ---

#: The types that compare with the ends, and what a test calls them.
_TYPES_OF: Final = {
    kind: frozenset(type_ for type_ in KIND_OF if kind in (None, KIND_OF[type_]))
    for kind in (None, *KIND_OF.values())
}
_NAMES: Final = {kind: kind or "anything" for kind in _TYPES_OF}
_GLOBALS: Final[dict[str, Any]] = {_NAMES[kind]: types for kind, types in _TYPES_OF.items()}


_FINITE: Final = "value.__class__ is float and value - value == 0.0"
_WITHIN: Final = f"value.__class__ is int and {INT_MIN} <= value <= {INT_MAX}"
_SHORT: Final = f"value.__class__ is str and value.isascii() and len(value) <= {MAX_STRING_LENGTH}"
#: `filters.is_evidently_right` for a value whose type is known to be one of the kind's.
_WELL_FORMED: Final[Mapping[Kind | None, str]] = {
    "number": f"({_FINITE} or {_WITHIN})",
    "string": f"({_SHORT})",
    "boolean": "True",
    None: f"({_SHORT} or {_FINITE} or {_WITHIN} or value.__class__ is bool)",
}


def compiled(parts: tuple[PredicateShape, ...], known: frozenset[str] = _NONE) -> Test:
    """The compiled test of a shape."""
    terms = _terms(parts, known)
    test: Test = eval(f"lambda get, values: {' and '.join(terms) or 'True'}", _GLOBALS)
    return test


def compiled_admission(parts: tuple[PredicateShape, ...]) -> Callable[[tuple[Any, ...]], Admission]:
    """The same test, which also checks each value and that there are no other attributes."""
    # The counts are equal and the test finds each of its own, so there are no others.
    terms = [f"len(point) == {len(parts)}", "(get := point.get)", *_terms(parts, admitting=True)]
    text = f"lambda values: lambda point: {' and '.join(terms)}"
    admission: Callable[[tuple[Any, ...]], Admission] = eval(text, _GLOBALS)
    return admission


def never(point: dict[str, Value]) -> bool:
    return False


def _terms(
    parts: tuple[PredicateShape, ...], known: frozenset[str] = _NONE, *, admitting: bool = False
) -> list[str]:
    terms = []
    for number, part in enumerate(parts):
        if part.name in known:
            continue
        value, lo, hi = f"get({part.name!r})", f"values[{2 * number}]", f"values[{2 * number + 1}]"
        if part.equal and part.kind == "string":
            terms.append(f"{value} == {lo}")  # Nothing of another type is equal to a string.
            continue
        terms.append(f"(value := {value}).__class__ in {_NAMES[part.kind]}")
        if admitting:
            terms.append(_WELL_FORMED[part.kind])
        if part.equal:
            terms.append(f"value == {lo}")
            continue
        if part.lower:
            terms.append(f"value {part.lower} {lo}")
        if part.upper:
            terms.append(f"value {part.upper} {hi}")
    return terms


def interpreted(parts: tuple[PredicateShape, ...], known: frozenset[str] = _NONE) -> Test:
    """The same test, interpreted."""
    asked = [(number, part) for number, part in enumerate(parts) if part.name not in known]

    def test(get: Get, values: tuple[Any, ...]) -> bool:
        return all(
            _holds(part, get(part.name), values[2 * number], values[2 * number + 1])
            for number, part in asked
        )

    return test


_RELATIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "": lambda value, end: True,
    ">": lambda value, end: value > end,
    ">=": lambda value, end: value >= end,
    "<": lambda value, end: value < end,
    "<=": lambda value, end: value <= end,
}


def _holds(part: PredicateShape, value: Any, lo: Any, hi: Any) -> bool:
    return bool(
        value.__class__ in _TYPES_OF[part.kind]
        and _RELATIONS[part.lower](value, lo)
        and _RELATIONS[part.upper](value, hi)
    )
