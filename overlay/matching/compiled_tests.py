"""Whether a record matches a point, as code that is compiled once for each form of filter.

Thousands of subscriptions differ in their values only: `class = c and lo <= price < hi`. Such a
form becomes one function, which takes a point's `get` and a record's values. It makes no call but
`get`, so that it is much faster than going through a list of predicates, and a record keeps no more
than its values.

The text that is compiled is made here; of a filter only attribute names come into it, as string
literals. Forms beyond FORMS_LIMIT, which somebody would have to invent, are interpreted.

This module knows nothing of the tree (`index_tree`).
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

#: Asked with the `get` of a point, and the values of a record.
Test: TypeAlias = Callable[[Get, tuple[Any, ...]], bool]

#: Asked with a point.
Admission: TypeAlias = Callable[[dict[str, Value]], bool]

#: Forms that are compiled; real overlays have a handful. Each takes about 2 kB and 0.1 ms.
FORMS_LIMIT: Final = 1000


class Part(NamedTuple):
    """The form of one predicate: everything but its values."""

    name: str
    kind: Kind | None
    #: Whether both ends are one value.
    equal: bool
    #: How a value must relate to each end, "" where there is none.
    lower: str
    upper: str


class Form:
    """What filters have in common that differ in their values only.

    Of `known` attributes the test asks nothing, for whoever has come so far knows that they match.
    """

    __slots__ = ("_admission", "_is_compiled", "_known", "_parts", "_without", "test")

    def __init__(
        self, parts: tuple[Part, ...], known: frozenset[str], *, is_compiled: bool
    ) -> None:
        self._parts = parts
        self._known = known
        self._without: dict[str, Form] = {}
        self.test = (compiled if is_compiled else interpreted)(parts, known)
        self._is_compiled = is_compiled
        self._admission: Callable[[tuple[Any, ...]], Admission] | None = None

    def admission(self, values: tuple[Any, ...]) -> Admission:
        """A test for a record with these values: whether a point is well-formed, has just the
        attributes of the filter, and matches. A quick yes to what a client publishes in the space
        that it advertised; a no may be mistaken."""
        if self._admission is None:
            if not self._is_compiled:
                return never
            self._admission = compiled_admission(self._parts)
        return self._admission(values)

    def without(self, name: str) -> Form:
        """The same with one more known attribute."""
        form = self._without.get(name)
        if form is None:
            form = self._without[name] = _form(self._parts, self._known | {name})
        return form


_NONE: Final[frozenset[str]] = frozenset()

_forms: Final[dict[tuple[tuple[Part, ...], frozenset[str]], Form]] = {}


def form_of(filter: Filter) -> tuple[Form, tuple[Any, ...]]:
    """A filter's form and its values: the two ends of each predicate in turn."""
    predicates = filter.predicates
    values: list[Any] = []
    for interval in predicates.values():
        values += interval.lo, interval.hi
    parts = tuple([_part(name, interval) for name, interval in predicates.items()])
    return _form(parts), tuple(values)


def _form(parts: tuple[Part, ...], known: frozenset[str] = _NONE) -> Form:
    form = _forms.get((parts, known))
    if form is None:
        if len(_forms) >= FORMS_LIMIT:
            return Form(parts, known, is_compiled=False)
        form = _forms[parts, known] = Form(parts, known, is_compiled=True)
    return form


def _part(name: str, interval: Interval) -> Part:
    return Part(
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


def compiled(parts: tuple[Part, ...], known: frozenset[str] = _NONE) -> Test:
    """The test of a form."""
    terms = _terms(parts, known)
    test: Test = eval(f"lambda get, values: {' and '.join(terms) or 'True'}", _GLOBALS)
    return test


def compiled_admission(parts: tuple[Part, ...]) -> Callable[[tuple[Any, ...]], Admission]:
    """The same that asks of each value, too, whether it is one, and for no other attributes."""
    # As many attributes, and the test finds each of its own: then there are no others.
    terms = [f"len(point) == {len(parts)}", "(get := point.get)", *_terms(parts, admitting=True)]
    text = f"lambda values: lambda point: {' and '.join(terms)}"
    admission: Callable[[tuple[Any, ...]], Admission] = eval(text, _GLOBALS)
    return admission


def never(point: dict[str, Value]) -> bool:
    return False


def _terms(
    parts: tuple[Part, ...], known: frozenset[str] = _NONE, *, admitting: bool = False
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


def interpreted(parts: tuple[Part, ...], known: frozenset[str] = _NONE) -> Test:
    """The same without a compiler."""
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


def _holds(part: Part, value: Any, lo: Any, hi: Any) -> bool:
    return bool(
        value.__class__ in _TYPES_OF[part.kind]
        and _RELATIONS[part.lower](value, lo)
        and _RELATIONS[part.upper](value, hi)
    )
