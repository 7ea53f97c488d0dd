"""PADRES text, both ways: what people write on a command line and read in a table.

    [class,eq,'order'],[price,>,100],[color,str-prefix,'re']        a filter
    [class,'order'],[price,150]                                     a publication

A filter is a list of predicates [attribute,operator,value]; several on one attribute mean all
of them. Operators: eq and = (the same), > < >= <=, str-prefix, and isPresent, whose value can be
anything or left out. Blanks may stand between any two parts. An attribute is written as it is
(`filters.check_name` keeps the punctuation out of names).

A value is a string in single quotes, a number, true or false. Inside quotes a backslash
escapes: \\' \\\\ \\n \\r \\t and \\uXXXX; control characters come no other way. A bare word (a
letter or underscore, then letters, digits and _ . -) is a string too, as PADRES has it, unless
it reads like a boolean or a number (true, NaN, ...).

Printing gives one text for equal filters, and parsing that gives an equal filter. Any other text
raises FilterError, with the attribute as soon as it is known, the reason and the place.

The text is for people and their logs: brokers exchange `Filter.to_wire`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from overlay.errors import FilterError
from overlay.filters import (
    MAX_ATTRIBUTES,
    MAX_NAME_LENGTH,
    MAX_STRING_LENGTH,
    Filter,
    Interval,
    Value,
    check_name,
    check_point,
    check_value,
    eq,
    ge,
    gt,
    le,
    lt,
    prefix,
    prefix_of,
    present,
)

#: What a printed filter has at most: a lower and an upper end for each attribute.
MAX_PREDICATES: Final = 2 * MAX_ATTRIBUTES

#: No printed filter is longer: every character of its strings escaped, 32 for the punctuation.
MAX_TEXT_LENGTH: Final = MAX_PREDICATES * (MAX_NAME_LENGTH + 6 * MAX_STRING_LENGTH + 32)

#: A printed float takes 24 characters; the rest is for people who write more digits.
MAX_NUMBER_LENGTH: Final = 64

_MEANING: Final[Mapping[str, Callable[..., Interval]]] = {
    "eq": eq,
    "=": eq,
    ">": gt,
    "<": lt,
    ">=": ge,
    "<=": le,
    "str-prefix": prefix,
}

#: Operators that PADRES has or people try, and that leave a hole or have no order.
_NO_INTERVAL: Final = ("neq", "<>", "!=", "str-suffix", "str-postfix", "str-contains")

#: Bare words that look like another type than a string.
_DECEPTIVE: Final = ("true", "false", "nan", "inf", "infinity")

_BLANKS = re.compile(r"\s*")
_BARE_FIELD = re.compile(r"[^\[\],']*")
_QUOTED_FIELD = re.compile(r"'([^'\\]*+(?:\\.[^'\\]*+)*+)'", re.DOTALL)
_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")

_CONTROL = r"\x00-\x1f\x7f-\x9f\u2028\u2029"
_RAW_CONTROL = re.compile(f"[{_CONTROL}]")
_TO_ESCAPE = re.compile(rf"[{_CONTROL}'\\]")
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_BY_LETTER: Final = {"'": "'", "\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
_LETTER_OF: Final = {character: letter for letter, character in _BY_LETTER.items()}

#: Longest excerpt of the text that an error message repeats.
_SHOWN_LENGTH = 60


def parse_filter(text: str) -> Filter:
    """The filter that the text describes.

    Raises FilterError for invalid text, with the reason, the position in the text and, if known,
    the attribute.
    """
    predicates: dict[str, Interval] = {}
    for fields in _brackets(text):
        attribute = fields[0].text
        with _blame(attribute, fields[0].start):
            check_name(attribute)
        interval = _predicate(attribute, fields)
        before = predicates.get(attribute)
        both = interval if before is None else before.meet(interval)
        if both is None:
            assert before is not None
            raise FilterError(
                attribute,
                f"no value satisfies {_cut(_format_interval(attribute, before))} and also "
                f"{_cut(_format_interval(attribute, interval))}{_place(fields[0].start)}",
            )
        predicates[attribute] = both
    return Filter(predicates)


def parse_publication(text: str) -> dict[str, Value]:
    """The point that the text describes, in the order of the text.

    Raises FilterError as `parse_filter` does, and for an attribute that is named twice.
    """
    point: dict[str, Value] = {}
    for fields in _brackets(text):
        attribute = fields[0].text
        with _blame(attribute, fields[0].start):
            check_name(attribute)
            if attribute in point:
                raise FilterError(attribute, "named twice")
            if len(fields) != 2:
                raise FilterError(
                    attribute, f"expected [attribute,value], got {len(fields)} fields"
                )
        point[attribute] = _value(attribute, fields[1])
    return check_point(point)


def format_filter(box: Filter) -> str:
    """The filter as text, attributes in the order of their names."""
    return ",".join(_format_interval(name, interval) for name, interval in box.predicates.items())


def format_publication(point: Mapping[str, Value]) -> str:
    """The point as text, attributes in their given order.

    Raises FilterError for an invalid name or value.
    """
    return ",".join(f"[{name},{format_value(v)}]" for name, v in check_point(point).items())


def format_value(value: Value) -> str:
    """One value as text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{_TO_ESCAPE.sub(_escape, value)}'"
    return repr(value)


# --- printing -------------------------------------------------------------------------------


def _format_interval(name: str, interval: Interval) -> str:
    lo, hi = interval.lo, interval.hi
    if interval.kind is None:
        return f"[{name},isPresent,any]"
    if interval.is_point and lo is not None:
        return f"[{name},{'=' if interval.kind == 'number' else 'eq'},{format_value(lo)}]"
    if (start := prefix_of(interval)) is not None:
        return f"[{name},str-prefix,{format_value(start)}]"
    ends = []
    # Every string is at least "": said only where it is all there is to say.
    if lo is not None and (lo != "" or interval.lo_open or hi is None):
        ends.append(f"[{name},{'>' if interval.lo_open else '>='},{format_value(lo)}]")
    if hi is not None:
        ends.append(f"[{name},{'<' if interval.hi_open else '<='},{format_value(hi)}]")
    return ",".join(ends)


def _escape(found: re.Match[str]) -> str:
    character = found.group()
    letter = _LETTER_OF.get(character)
    return f"\\u{ord(character):04x}" if letter is None else "\\" + letter


# --- parsing --------------------------------------------------------------------------------


class _Field(NamedTuple):
    """One part of a bracket: its text without quotes and blanks, and where it stands."""

    text: str
    quoted: bool
    start: int


def _brackets(text: object) -> Iterator[list[_Field]]:
    """The fields of each bracket in turn, at least one each; the first is not quoted."""
    if not isinstance(text, str):
        raise FilterError(None, f"expected text in PADRES notation, got {type(text).__name__}")
    if len(text) > MAX_TEXT_LENGTH:
        raise FilterError(None, f"text of {len(text)} characters: at most {MAX_TEXT_LENGTH}")
    at = _skip_blanks(text, 0)
    for _ in range(MAX_PREDICATES):
        if not text.startswith("[", at):
            raise FilterError(None, f"expected '['{_found(text, at)}")
        fields, at = _bracket(text, at + 1)
        yield fields
        at = _skip_blanks(text, at)
        if at == len(text):
            return
        if text[at] != ",":
            raise FilterError(None, f"expected ',' or the end{_found(text, at)}")
        at = _skip_blanks(text, at + 1)
    raise FilterError(None, f"more than {MAX_PREDICATES} brackets{_place(at)}")


def _bracket(text: str, at: int) -> tuple[list[_Field], int]:
    """The fields from behind a '[' to its ']', and the place behind that."""
    fields: list[_Field] = []
    while True:
        attribute = _cut(fields[0].text) if fields else None
        at = _skip_blanks(text, at)
        field, at = _field(text, at, attribute)
        if not fields and field.quoted:
            raise FilterError(None, f"an attribute must not be quoted{_place(field.start)}")
        fields.append(field)
        at = _skip_blanks(text, at)
        if text.startswith("]", at):
            return fields, at + 1
        # Three is the longest bracket there is: more would only be collected to be refused.
        if not text.startswith(",", at) or len(fields) == 3:
            raise FilterError(
                _cut(fields[0].text),
                f"expected {'' if len(fields) == 3 else repr(',') + ' or '}']'{_found(text, at)}",
            )
        at += 1


def _field(text: str, at: int, attribute: str | None) -> tuple[_Field, int]:
    """The field that begins here, and the place behind it."""
    if not text.startswith("'", at):
        bare = _BARE_FIELD.match(text, at)
        assert bare is not None
        return _Field(bare.group().rstrip(), quoted=False, start=at), bare.end()
    quoted = _QUOTED_FIELD.match(text, at)
    if quoted is None:
        raise FilterError(attribute, f"the string has no closing quote{_place(at)}")
    inside = quoted.group(1)
    if control := _RAW_CONTROL.search(inside):
        place = quoted.start(1) + control.start()
        raise FilterError(
            attribute, f"{control.group()!r} in a string must be escaped{_place(place)}"
        )
    with _blame(attribute, at):
        return _Field(_ESCAPED.sub(_unescape, inside), quoted=True, start=at), quoted.end()


def _unescape(found: re.Match[str]) -> str:
    digits, letter = found.groups()
    if digits is not None:
        return chr(int(digits, 16))
    if letter not in _BY_LETTER:
        raise FilterError(
            None, f"invalid escape {found.group()!r}: expected \\' \\\\ \\n \\r \\t or \\uXXXX"
        )
    return _BY_LETTER[letter]


def _predicate(attribute: str, fields: list[_Field]) -> Interval:
    """The interval that [attribute,operator,value] stands for."""
    start = fields[0].start
    if len(fields) == 1:
        raise FilterError(
            attribute, f"expected [attribute,operator,value], got one field{_place(start)}"
        )
    operator = fields[1]
    value = fields[2] if len(fields) == 3 else None
    with _blame(attribute, operator.start):
        if operator.quoted:
            raise FilterError(attribute, "an operator must not be quoted")
        if operator.text == "isPresent":
            return present()
        if operator.text in _NO_INTERVAL:
            raise FilterError(
                attribute,
                f"operator {operator.text!r} is not supported: it does not describe an interval",
            )
        if operator.text not in _MEANING:
            raise FilterError(
                attribute,
                f"unknown operator {_cut(operator.text)!r}: "
                f"expected {' '.join(_MEANING)} or isPresent",
            )
        if value is None:
            raise FilterError(attribute, f"{operator.text} needs a value")
    known = _value(attribute, value)
    with _blame(attribute, value.start):
        return _MEANING[operator.text](known)


def _value(attribute: str, field: _Field) -> Value:
    """The value that a field stands for."""
    text = field.text
    with _blame(attribute, field.start):
        if field.quoted:
            return check_value(attribute, text)
        if text in ("true", "false"):
            return text == "true"
        if _FLOAT.fullmatch(text):
            if len(text) > MAX_NUMBER_LENGTH:
                raise FilterError(
                    attribute, f"number of {len(text)} characters: at most {MAX_NUMBER_LENGTH}"
                )
            return check_value(attribute, (int if _INTEGER.fullmatch(text) else float)(text))
        if not text:
            raise FilterError(attribute, "missing value")
        if not _WORD.fullmatch(text):
            raise FilterError(attribute, f"invalid value {_cut(text)!r}: put strings in quotes")
        if text.lower() in _DECEPTIVE:
            raise FilterError(
                attribute, f"{text!r} is neither a number nor true or false: put strings in quotes"
            )
        return check_value(attribute, text)


@contextmanager
def _blame(attribute: str | None, at: int) -> Iterator[None]:
    """Add the attribute and the position to an error that has neither."""
    try:
        yield
    except FilterError as error:
        known = attribute if error.attribute is None else error.attribute
        raise FilterError(known, error.reason + _place(at)) from None


def _skip_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    assert found is not None
    return found.end()


def _found(text: str, at: int) -> str:
    what = repr(text[at]) if at < len(text) else "the end"
    return f", found {what}{_place(at)}"


def _place(at: int) -> str:
    return f" (character {at + 1})"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_LENGTH else text[:_SHOWN_LENGTH] + "…"
