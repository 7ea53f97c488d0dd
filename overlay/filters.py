"""Values, intervals and filters: what a publication is, and what a subscription asks for.

A publication is a point: attribute names with values. A filter is a box: one interval for each
attribute that it names, all of which a point must lie in. Boxes are closed under intersection,
and whether one contains or meets another is decided attribute by attribute; routing rests on
just these relations (σ and ω of the paper), so a predicate that is not an interval ("not equal") is
refused.

Numbers, strings and booleans are three orders that never compare with each other: `True` is
not 1. Every `Interval` that exists is checked, not empty and in a canonical form, so that two
of them are == exactly when their ends say the same. Numbers and strings count as dense: where
nothing lies between two exclusive ends, the interval still counts as not empty (conservative:
it can cost a message, and never loses one).

This module knows neither the PADRES text form (`notation`) nor how many filters are searched
at once (`index`), nor anything of brokers, links and bytes.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import EllipsisType, MappingProxyType
from typing import Any, Final, Literal, cast

from overlay.errors import FilterError

Value = int | float | str | bool
Kind = Literal["number", "string", "boolean"]

#: The ends of an interval, and which are exclusive: 1 the lower, 2 the upper, 3 both.
Ends = tuple[Value | None, Value | None, int]

#: The order that a value belongs to, by its exact type: `check_value` lets no other type pass.
KIND_OF: Final[Mapping[type, Kind]] = {
    int: "number",
    float: "number",
    str: "string",
    bool: "boolean",
}

#: What every codec and every language on the other side can hold exactly.
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1

#: Matching cost grows with the attributes; a message that needs more wants a payload.
MAX_ATTRIBUTES: Final = 64

#: Names stand in every table, trace and message, so they stay readable.
MAX_NAME_LENGTH: Final = 128

#: Values route, payloads carry. With the two limits above it also bounds a filter's text.
MAX_STRING_LENGTH: Final = 4096

#: Characters that PADRES text cannot carry unquoted: its own punctuation, controls, line ends,
#: surrogates.
_BAD_IN_NAME = re.compile(r"[\[\],'\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

#: A name that can be written as a Python keyword argument. ASCII only: Python folds others (NFKC).
_KEYWORD_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")

#: Longest excerpt of the input that an error message repeats.
_SHOWN_LENGTH = 60


_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def check_value(attribute: str | None, value: object) -> Value:
    """The value, checked; a subclass (an enum member, say) becomes the plain type.

    Raises FilterError, for that attribute, with the reason.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        if len(value) > MAX_STRING_LENGTH:
            raise FilterError(
                attribute, f"string of {len(value)} characters: at most {MAX_STRING_LENGTH}"
            )
        if not value.isascii() and _SURROGATE.search(value):
            raise FilterError(attribute, f"{_shown(value)} contains a lone surrogate")
        return value if type(value) is str else str.__str__(value)
    if isinstance(value, int):
        if not INT_MIN <= value <= INT_MAX:
            raise FilterError(attribute, "integer beyond 64 bits")
        return value if type(value) is int else int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise FilterError(attribute, f"expected a finite number, got {float(value)!r}")
        return value if type(value) is float else float(value)
    raise FilterError(
        attribute, f"expected a number, string or boolean, got {type(value).__name__}"
    )


def check_point(attributes: object) -> dict[str, Value]:
    """A publication's attributes as a new dict, checked.

    Raises FilterError for a bad name or value, for no attribute at all and for too many.
    """
    # A dict first: the check for a Mapping takes longer than checking a value.
    if not isinstance(attributes, dict) and not isinstance(attributes, Mapping):
        raise FilterError(
            None, f"expected a mapping of names to values, got {type(attributes).__name__}"
        )
    _check_count("publication", len(attributes))
    point: dict[str, Value] = {}
    for name, value in attributes.items():
        checked = check_name(name)
        point[checked] = check_value(checked, value)
    return point


def is_evidently_right(point: dict[str, Value]) -> bool:
    """A fast pre-check: True means that `check_point` accepts the point, False means unknown.

    For points that come by the hundred thousand, which are dicts already.
    """
    if not (0 < len(point) <= MAX_ATTRIBUTES and _right_names.issuperset(point)):
        return False
    values: Iterable[Any] = point.values()
    for value in values:
        kind = value.__class__
        if kind is str:
            if len(value) > MAX_STRING_LENGTH:
                return False
            if not value.isascii() and _SURROGATE.search(value):
                return False
        elif kind is float:
            if value - value != 0.0:  # Infinite, or not a number; without a call.
                return False
        elif kind is int:
            if not INT_MIN <= value <= INT_MAX:
                return False
        elif kind is not bool:
            return False
    return True


def check_name(name: object) -> str:
    """The attribute name, checked.

    A name is 1 to `MAX_NAME_LENGTH` characters, without blanks around it and without
    ``[ ] , '``, control characters, line separators and lone surrogates.

    Raises FilterError.
    """
    if type(name) is str and name in _right_names:
        return name
    if not isinstance(name, str):
        raise FilterError(None, f"expected an attribute name, a string, got {type(name).__name__}")
    if len(name) > MAX_NAME_LENGTH:
        raise FilterError(
            name[:_SHOWN_LENGTH] + "…",
            f"name of {len(name)} characters: at most {MAX_NAME_LENGTH}",
        )
    if (reason := _fault_of_name(name)) is not None:
        raise FilterError(name, reason)
    checked = name if type(name) is str else str.__str__(name)
    if len(_right_names) >= _RIGHT_NAMES_LIMIT:
        _right_names.clear()
    _right_names.add(checked)
    return checked


#: Names that have passed, because the same few come with every publication; some 100 KB at most.
_right_names: Final[set[str]] = set()
_RIGHT_NAMES_LIMIT: Final = 1024


def _fault_of_name(name: str) -> str | None:
    if not name:
        return "a name must not be empty"
    if name != name.strip():
        return "a name must not begin or end with a blank"
    if bad := _BAD_IN_NAME.search(name):
        return f"a name must not contain {bad.group()!r}"
    return None


def _check_count(what: str, count: int) -> None:
    if count == 0:
        raise FilterError(None, f"a {what} must name at least one attribute")
    if count > MAX_ATTRIBUTES:
        raise FilterError(None, f"{what} of {count} attributes: at most {MAX_ATTRIBUTES}")


def _shown(value: Value | None) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_LENGTH else text[:_SHOWN_LENGTH] + "…"


# --- intervals ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Interval:
    """All values of one type between two ends, each closed, exclusive or missing.

    Without any end (`kind` None) it is PADRES's isPresent: any value of any type. An end is
    missing only where the type has no first or last value: the lower end of strings is always
    there, "" at the least, and booleans always have two closed ends.

    Raises FilterError (without an attribute, which an interval does not know) for an invalid end,
    ends of two types, or an empty interval.
    """

    kind: Kind | None
    lo: Value | None
    hi: Value | None
    lo_open: bool
    hi_open: bool

    def __init__(
        self,
        lo: Value | None = None,
        hi: Value | None = None,
        *,
        lo_open: bool = False,
        hi_open: bool = False,
    ) -> None:
        kind: Kind | None = None
        if lo is not None:
            lo = check_value(None, lo)
            kind = KIND_OF[type(lo)]
        if hi is not None:
            hi = check_value(None, hi)
            if kind is not None and kind != KIND_OF[type(hi)]:
                raise FilterError(
                    None,
                    f"invalid interval from {_shown(lo)} to {_shown(hi)}: "
                    f"a {kind} and a {KIND_OF[type(hi)]} do not compare",
                )
            kind = KIND_OF[type(hi)]
        lo_open = lo is not None and bool(lo_open)
        hi_open = hi is not None and bool(hi_open)
        if kind == "string" and lo is None:
            lo = ""
        elif kind == "boolean":
            # A missing end is the type's own, an exclusive one the other value where there is one.
            if lo is None or (lo is False and lo_open):
                lo, lo_open = lo_open, False
            if hi is None or (hi is True and hi_open):
                hi, hi_open = not hi_open, False
        if _is_empty(lo, hi, lo_open=lo_open, hi_open=hi_open):
            left, right = "(" if lo_open else "[", ")" if hi_open else "]"
            raise FilterError(
                None, f"the interval {left}{_shown(lo)}, {_shown(hi)}{right} is empty"
            )
        self._fill(kind, lo, hi, lo_open, hi_open)

    def _fill(
        self, kind: Kind | None, lo: Value | None, hi: Value | None, lo_open: bool, hi_open: bool
    ) -> None:
        write = object.__setattr__
        write(self, "kind", kind)
        write(self, "lo", lo)
        write(self, "hi", hi)
        write(self, "lo_open", lo_open)
        write(self, "hi_open", hi_open)

    @property
    def ends(self) -> Ends:
        """All that an interval is, as plain data."""
        return self.lo, self.hi, self.lo_open + 2 * self.hi_open

    @staticmethod
    def of_checked(lo: Value | None, hi: Value | None, exclusive: int) -> Interval:
        """The interval with these `ends`, which are known to be those of one."""
        made = object.__new__(Interval)
        kind = KIND_OF.get(type(hi) if lo is None else type(lo))
        made._fill(kind, lo, hi, bool(exclusive & 1), bool(exclusive & 2))
        return made

    @property
    def is_point(self) -> bool:
        """Whether exactly one value lies inside (1 and 1.0 being one)."""
        return self.lo is not None and self.lo == self.hi

    def contains(self, value: object) -> bool:
        """Whether the value lies inside; False for anything that is not a value."""
        kind = KIND_OF.get(type(value))
        if kind is None or kind != self.kind:
            return kind is not None and self.kind is None
        # The kinds agree, so the ends compare with the value; the checker cannot see that.
        probe: Any = value
        lo: Any = self.lo
        hi: Any = self.hi
        if lo is not None and (probe < lo or (self.lo_open and probe == lo)):
            return False
        return hi is None or probe < hi or (probe == hi and not self.hi_open)

    def covers(self, other: Interval) -> bool:
        """Whether every value inside the other lies inside this one too."""
        if self.kind is None:
            return True
        return self.kind == other.kind and self._starts_by(other) and self._ends_after(other)

    def overlaps(self, other: Interval) -> bool:
        """Whether some value lies inside both, numbers and strings counting as dense."""
        if self.kind is None or other.kind is None:
            return True
        return self.kind == other.kind and not self._below(other) and not other._below(self)

    def meet(self, other: Interval) -> Interval | None:
        """The interval inside both, or None when they do not overlap."""
        if self.kind is None or other.kind is None:
            return other if self.kind is None else self
        if not self.overlaps(other):
            return None
        first = other if self._starts_by(other) else self
        last = other if self._ends_after(other) else self
        if first is last:
            return first
        return Interval(first.lo, last.hi, lo_open=first.lo_open, hi_open=last.hi_open)

    def _starts_by(self, other: Interval) -> bool:
        """The lower end here excludes nothing that the other's lets in."""
        mine: Any = self.lo
        theirs: Any = other.lo
        if mine is None or theirs is None:
            return mine is None
        return mine < theirs or (mine == theirs and (other.lo_open or not self.lo_open))

    def _ends_after(self, other: Interval) -> bool:
        """The upper end here excludes nothing that the other's lets in."""
        mine: Any = self.hi
        theirs: Any = other.hi
        if mine is None or theirs is None:
            return mine is None
        return theirs < mine or (mine == theirs and (other.hi_open or not self.hi_open))

    def _below(self, other: Interval) -> bool:
        """Nothing here reaches up to where the other begins."""
        return _is_empty(other.lo, self.hi, lo_open=other.lo_open, hi_open=self.hi_open)

    def __repr__(self) -> str:
        if self.kind is None:
            return "present()"
        if self.is_point:
            return f"eq({self.lo!r})"
        if self.hi is None:
            return f"{'gt' if self.lo_open else 'ge'}({self.lo!r})"
        if self.lo is None or (self.lo == "" and not self.lo_open):
            return f"{'lt' if self.hi_open else 'le'}({self.hi!r})"
        if (start := prefix_of(self)) is not None:
            return f"prefix({start!r})"
        flags = ", lo_open=True" * self.lo_open + ", hi_open=True" * self.hi_open
        return f"between({self.lo!r}, {self.hi!r}{flags})"


def _is_empty(lo: Any, hi: Any, *, lo_open: bool, hi_open: bool) -> bool:
    """Nothing lies from lo to hi, which are of one type; a missing end excludes nothing."""
    if lo is None or hi is None:
        return False
    return bool(hi < lo or (hi == lo and (lo_open or hi_open)))


def eq(value: Value) -> Interval:
    """Just this value."""
    checked = check_value(None, value)
    return Interval(checked, checked)


def gt(value: Value) -> Interval:
    """Greater than the value, of its type."""
    return Interval(check_value(None, value), None, lo_open=True)


def ge(value: Value) -> Interval:
    """The value or greater, of its type."""
    return Interval(check_value(None, value), None)


def lt(value: Value) -> Interval:
    """Less than the value, of its type."""
    return Interval(None, check_value(None, value), hi_open=True)


def le(value: Value) -> Interval:
    """The value or less, of its type."""
    return Interval(None, check_value(None, value))


def between(
    lo: Value | None, hi: Value | None, *, lo_open: bool = False, hi_open: bool = False
) -> Interval:
    """From lo to hi, both included unless said otherwise; None is a missing end."""
    return Interval(lo, hi, lo_open=lo_open, hi_open=hi_open)


def prefix(text: str) -> Interval:
    """The strings that begin with the text."""
    if not isinstance(text, str):
        raise FilterError(None, f"expected a prefix, a string, got {type(text).__name__}")
    return Interval(text, _after_prefix(text), hi_open=True)


def prefix_of(interval: Interval) -> str | None:
    """The text of which the interval is the `prefix`, or None when there is none."""
    lo = interval.lo
    if not isinstance(lo, str) or interval.lo_open or not interval.hi_open:
        return None
    return lo if interval.hi == _after_prefix(lo) else None


def present() -> Interval:
    """Any value of any type."""
    return Interval()


def _after_prefix(text: str) -> str | None:
    """The first string after all that begin with the text; None when there is none.

    The last character that has a successor is replaced by it, skipping the surrogates,
    which are not characters.
    """
    stem = text.rstrip("\U0010ffff")
    if not stem:
        return None
    last = stem[-1]
    return stem[:-1] + ("\ue000" if last == "\ud7ff" else chr(ord(last) + 1))


# --- filters --------------------------------------------------------------------------------


class Filter:
    """A box of points: one interval for each attribute that it names, in the order of names.

        Filter(class_="p1", x=(3, 9), price=gt(100), note=..., color=prefix("re"))

    A plain value is equality; a tuple (lo, hi) a closed interval, None a missing end; `...`
    any value; an `Interval` is itself. One trailing underscore of a keyword is dropped, for
    Python's reserved words; a mapping, whose names are taken as they are, can come first.
    An attribute that is not named is not constrained; a filter names at least one.

    Raises FilterError with the attribute and the reason.
    """

    # No dataclass: msgspec would encode its fields, where `to_wire` is meant.
    __slots__ = ("_hash", "_items", "predicates")

    _items: tuple[tuple[str, Interval], ...]
    predicates: Mapping[str, Interval]
    _hash: int

    def __init__(self, mapping: Mapping[str, Any] | None = None, /, **attributes: Any) -> None:
        if mapping is not None and not isinstance(mapping, Mapping):
            raise FilterError(
                None, f"expected a mapping of names to intervals, got {type(mapping).__name__}"
            )
        given: dict[str, Interval] = {}
        for name, what in (mapping or {}).items():
            checked = check_name(name)
            given[checked] = _interval(checked, what)
        for name, what in attributes.items():
            checked = check_name(name.removesuffix("_"))
            if checked in given:
                raise FilterError(checked, "named twice")
            given[checked] = _interval(checked, what)
        _check_count("filter", len(given))
        self._fill(sorted(given.items()))

    def _fill(self, items: Iterable[tuple[str, Interval]]) -> None:
        """Write the fields, once; the items are checked and sorted by name."""
        fixed = tuple(items)
        write = object.__setattr__
        write(self, "_items", fixed)
        write(self, "predicates", MappingProxyType(dict(fixed)))
        # Filters are keys of the brokers' tables: hashed far more often than made.
        write(self, "_hash", hash(fixed))

    def matches(self, point: Mapping[str, Value]) -> bool:
        """Whether every attribute named here is in the point, with a value inside."""
        for name, interval in self._items:  # noqa: SIM110 - any() over a generator is slower
            if not interval.contains(point.get(name)):
                return False
        return True

    def covers(self, other: Filter) -> bool:
        """σ: whether every point that matches the other matches this one too."""
        theirs = other.predicates
        for name, interval in self._items:
            inner = theirs.get(name)
            if inner is None or not interval.covers(inner):
                return False
        return True

    def overlaps(self, other: Filter) -> bool:
        """ω: whether for all attributes named by both the intervals overlap."""
        theirs = other.predicates
        for name, interval in self._items:
            opposite = theirs.get(name)
            if opposite is not None and not interval.overlaps(opposite):
                return False
        return True

    def meet(self, other: Filter) -> Filter | None:
        """The box inside both, which names what either names, or None when no point is inside.

        No publication has more than `MAX_ATTRIBUTES`, so a box that names more is empty.
        """
        both = dict(self._items)
        for name, interval in other._items:
            mine = both.get(name)
            common = interval if mine is None else mine.meet(interval)
            if common is None:
                return None
            both[name] = common
        if len(both) > MAX_ATTRIBUTES:
            return None
        return Filter.of_checked(sorted(both.items()))

    @staticmethod
    def of_checked(items: Iterable[tuple[str, Interval]]) -> Filter:
        """The filter of names and intervals that are known to be valid, in the order of names."""
        box = object.__new__(Filter)
        box._fill(items)
        return box

    def to_wire(self) -> dict[str, list[Value | None]]:
        """Plain data for a codec: by name [] any value, [v] equal, [lo, hi] or [lo, hi, open].

        `open` is 1 for an exclusive lower end, 2 for an exclusive upper one, 3 for both.
        """
        return {name: _interval_to_wire(interval) for name, interval in self._items}

    @staticmethod
    def from_wire(data: object) -> Filter:
        """The filter that `to_wire` gave; any other data raises FilterError."""
        if not isinstance(data, Mapping):
            raise FilterError(None, f"expected a filter, got {type(data).__name__}")
        _check_count("filter", len(data))
        return Filter({name: _interval_from_wire(name, ends) for name, ends in data.items()})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a filter is immutable: {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a filter is immutable: {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return self._items == other._items if isinstance(other, Filter) else NotImplemented

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Filter], tuple[dict[str, Interval]]]:
        # Neither the read-only view nor the hash of strings outlives the process.
        return Filter, (dict(self._items),)

    def __repr__(self) -> str:
        shown = [(name, _python(interval)) for name, interval in self._items]
        if all(_KEYWORD_NAME.fullmatch(name) for name, _ in shown):
            inside = ", ".join(f"{_keyword(name)}={text}" for name, text in shown)
        else:
            inside = "{" + ", ".join(f"{name!r}: {text}" for name, text in shown) + "}"
        return f"Filter({inside})"


def _interval(attribute: str, what: object) -> Interval:
    """What the Python notation means by a value, a tuple, `...` or an interval."""
    if isinstance(what, Interval):
        return what
    if isinstance(what, EllipsisType):
        return present()
    try:
        if not isinstance(what, tuple):
            return eq(cast(Value, what))  # Which `eq` checks.
        if len(what) != 2:
            raise FilterError(None, f"tuple of {len(what)}: expected (lo, hi)")
        return Interval(what[0], what[1])
    except FilterError as error:
        raise FilterError(attribute, error.reason) from None


def _interval_to_wire(interval: Interval) -> list[Value | None]:
    if interval.kind is None:
        return []
    if interval.is_point:
        return [interval.lo]
    exclusive = interval.lo_open + 2 * interval.hi_open
    return [interval.lo, interval.hi, exclusive] if exclusive else [interval.lo, interval.hi]


def _interval_from_wire(name: object, ends: object) -> Interval:
    attribute = check_name(name)
    if not isinstance(ends, list | tuple) or len(ends) > 3:
        raise FilterError(attribute, "invalid interval")
    if not ends:
        return present()
    exclusive = ends[2] if len(ends) == 3 else 0
    if type(exclusive) is not int or not 0 <= exclusive <= 3:
        raise FilterError(attribute, "invalid interval")
    try:
        if len(ends) == 1:
            return eq(ends[0])
        return Interval(ends[0], ends[1], lo_open=bool(exclusive & 1), hi_open=bool(exclusive & 2))
    except FilterError as error:
        raise FilterError(attribute, error.reason) from None


def _python(interval: Interval) -> str:
    """The shortest Python notation of an interval inside a filter."""
    if interval.kind is None:
        return "..."
    if interval.is_point:
        return repr(interval.lo)
    closed = not (interval.lo_open or interval.hi_open)
    if closed and interval.hi is not None and interval.lo not in (None, ""):
        return f"({interval.lo!r}, {interval.hi!r})"
    return repr(interval)


def _keyword(name: str) -> str:
    """The keyword argument that names the attribute: the underscore is dropped again."""
    return name + "_" if name.endswith("_") or keyword.iskeyword(name) else name
