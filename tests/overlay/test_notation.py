"""PADRES text: what it means, that it survives both ways, and what is said of a bad one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from overlay.errors import FilterError
from overlay.filters import (
    MAX_ATTRIBUTES,
    MAX_NAME_LENGTH,
    MAX_STRING_LENGTH,
    Filter,
    Value,
    between,
    eq,
    ge,
    gt,
    lt,
    prefix,
)
from overlay.notation import (
    MAX_NUMBER_LENGTH,
    MAX_PREDICATES,
    MAX_TEXT_LENGTH,
    format_filter,
    format_publication,
    parse_filter,
    parse_publication,
)
from tests.overlay.strategies import filters, points

# --- what it means --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("[class,eq,'p1'],[x,>=,3],[x,<=,9]", Filter(class_="p1", x=(3, 9))),
        ("[x,=,3],[s,=,'a'],[n,eq,3]", Filter(x=3, s="a", n=3)),
        ("[x,>,3]", Filter(x=gt(3))),
        ("[x,<,'b']", Filter(x=lt("b"))),
        ("[x,isPresent]", Filter(x=...)),
        ("[x,isPresent,'TEXT']", Filter(x=...)),
        ("[x,isPresent,3],[x,>,2]", Filter(x=gt(2))),
        ("[x,str-prefix,'ab']", Filter(x=prefix("ab"))),
        (
            "[x,str-prefix,ab],[x,>,'abc']",
            Filter(x=between("abc", "ac", lo_open=True, hi_open=True)),
        ),
        ("[x,>=,'']", Filter(x=ge(""))),
        ("[x,eq,true],[y,>=,false]", Filter(x=True, y=(False, True))),
        ("[class,eq,stock-x.1_b]", Filter(class_="stock-x.1_b")),
        ("[x,eq,'true'],[y,eq,'3']", Filter(x="true", y="3")),
        (
            "  [ a b , >= , -1.5e3 ] ,\n[c,eq,' blank ']  ",
            Filter({"a b": ge(-1500), "c": " blank "}),
        ),
        ("[x,<=,+.5],[y,=,7.],[z,=,007]", Filter(x=(None, 0.5), y=7, z=7)),
        (r"[x,eq,'it\'s \\ \n\r\t\u00e9\u0000']", Filter(x="it's \\ \n\r\té\0")),
        ("[x,>=,3],[x,>=,5],[x,<,9],[x,isPresent]", Filter(x=between(5, 9, hi_open=True))),
        ("[>=,>=,1]", Filter({">=": ge(1)})),
    ],
)
def test_filter_text(text: str, meaning: Filter) -> None:
    assert parse_filter(text) == meaning


@pytest.mark.parametrize(
    ("box", "text"),
    [
        (Filter(x=(3, 9), class_="p1"), "[class,eq,'p1'],[x,>=,3],[x,<=,9]"),
        (Filter(x=1.0, y=1e300, z=-0.5), "[x,=,1.0],[y,=,1e+300],[z,=,-0.5]"),
        (Filter(x=True, y=(False, True)), "[x,eq,true],[y,>=,false],[y,<=,true]"),
        (Filter(x=..., y=prefix("ab")), "[x,isPresent,any],[y,str-prefix,'ab']"),
        (Filter(x=ge(""), y=lt("b"), z=gt("")), "[x,>=,''],[y,<,'b'],[z,>,'']"),
        (Filter(x="it's\\\n\x07é"), r"[x,eq,'it\'s\\\n\u0007é']"),
    ],
)
def test_filter_is_printed(box: Filter, text: str) -> None:
    assert format_filter(box) == text


def test_publication_text() -> None:
    point = parse_publication("[class,'p1'],[x,4],[b,false],[word,abc], [f , .5]")
    assert point == {"class": "p1", "x": 4, "b": False, "word": "abc", "f": 0.5}
    assert type(point["b"]) is bool
    assert format_publication(point) == "[class,'p1'],[x,4],[b,false],[word,'abc'],[f,0.5]"


# --- both ways ------------------------------------------------------------------------------


@settings(max_examples=300)
@given(filters())
def test_every_filter_prints_and_parses_to_an_equal_one(box: Filter) -> None:
    text = format_filter(box)
    again = parse_filter(text)
    assert again == box
    assert format_filter(again) == text
    assert "\n" not in text


@settings(max_examples=300)
@given(points())
def test_every_publication_prints_and_parses_to_the_same(point: dict[str, Value]) -> None:
    again = parse_publication(format_publication(point))
    assert list(again.items()) == list(point.items())
    assert [type(v) for v in again.values()] == [type(v) for v in point.values()]


def test_the_longest_filter_prints_and_parses() -> None:
    names = [f"{i:0{MAX_NAME_LENGTH}}" for i in range(MAX_ATTRIBUTES)]
    low, high = "\0" * MAX_STRING_LENGTH, "\x01" * MAX_STRING_LENGTH
    box = Filter({name: between(low, high, lo_open=True) for name in names})
    text = format_filter(box)
    assert len(text) < MAX_TEXT_LENGTH
    assert parse_filter(text) == box


# --- any text -------------------------------------------------------------------------------

SIGNS = [*"[],'\\ =<>-.+e0\n\ud800", "eq", "isPresent", "str-prefix", "true", "\\u"]


@st.composite
def damaged(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> str:
    """A good text after a few cuts, repetitions and insertions."""
    text = draw(texts)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 6)))
        instead = draw(st.sampled_from(["", text[start:end] * 2, *SIGNS]))
        text = text[:start] + instead + text[end:]
    return text


def check_any(text: str) -> None:
    """Both parsers give what prints and parses to the same, or raise the one documented error."""
    both: list[tuple[Callable[[str], object], Callable[..., str]]] = [
        (parse_filter, format_filter),
        (parse_publication, format_publication),
    ]
    for parse, print_ in both:
        try:
            meaning = parse(text)
        except FilterError as error:
            str(error).encode()
        else:
            assert parse(print_(meaning)) == meaning


@settings(max_examples=300)
@given(st.text() | st.text(st.sampled_from("[],'\\=<> ax0.e-")) | st.text(st.characters()))
@example("[x,=," + "9" * 5000 + "]")
@example("[" * 10_000)
@example("[x,=,'" + "\\" * 9_999)
def test_any_text_parses_or_raises_filter_error(text: str) -> None:
    check_any(text)


@settings(max_examples=300)
@given(damaged(filters().map(format_filter) | points().map(format_publication)))
def test_damaged_text_parses_or_raises_filter_error(text: str) -> None:
    check_any(text)


# --- refusals -------------------------------------------------------------------------------

NO_INTERVAL = "it does not describe an interval"
OPERATORS = "eq = > < >= <= str-prefix or isPresent"


@pytest.mark.parametrize(
    ("text", "attribute", "reason"),
    [
        ("", None, "expected '[', found the end (character 1)"),
        ("x", None, "expected '[', found 'x' (character 1)"),
        ("[x,=,3] [y,=,3]", None, "expected ',' or the end, found '[' (character 9)"),
        ("[x,=,3],", None, "expected '[', found the end (character 9)"),
        ("[,=,3]", "", "a name must not be empty (character 2)"),
        ("['x',=,3]", None, "an attribute must not be quoted (character 2)"),
        ("[x\x00,=,3]", "x\x00", "a name must not contain '\\x00' (character 2)"),
        ("[x]", "x", "expected [attribute,operator,value], got one field (character 2)"),
        ("[x", "x", "expected ',' or ']', found the end (character 3)"),
        ("[x,=,3,4]", "x", "expected ']', found ',' (character 7)"),
        ("[x,=,3", "x", "expected ']', found the end (character 7)"),
        ("[x,=,'a'b]", "x", "expected ']', found 'b' (character 9)"),
        ("[x,'=',3]", "x", "an operator must not be quoted (character 4)"),
        ("[x,==,3]", "x", f"unknown operator '==': expected {OPERATORS} (character 4)"),
        (
            "[x,neq,3]",
            "x",
            f"operator 'neq' is not supported: {NO_INTERVAL} (character 4)",
        ),
        (
            "[x,<>,3]",
            "x",
            f"operator '<>' is not supported: {NO_INTERVAL} (character 4)",
        ),
        (
            "[x,str-suffix,'a']",
            "x",
            f"operator 'str-suffix' is not supported: {NO_INTERVAL} (character 4)",
        ),
        (
            "[x,str-contains,'a']",
            "x",
            f"operator 'str-contains' is not supported: {NO_INTERVAL} (character 4)",
        ),
        ("[x,=]", "x", "= needs a value (character 4)"),
        ("[x,=,]", "x", "missing value (character 6)"),
        ("[x,=,a b]", "x", "invalid value 'a b': put strings in quotes (character 6)"),
        (
            "[x,=,True]",
            "x",
            "'True' is neither a number nor true or false: put strings in quotes (character 6)",
        ),
        (
            "[x,=,nan]",
            "x",
            "'nan' is neither a number nor true or false: put strings in quotes (character 6)",
        ),
        ("[x,=,-inf]", "x", "invalid value '-inf': put strings in quotes (character 6)"),
        ("[x,=,1e400]", "x", "expected a finite number, got inf (character 6)"),
        ("[x,=,9223372036854775808]", "x", "integer beyond 64 bits (character 6)"),
        (
            f"[x,=,{'9' * 65}]",
            "x",
            "number of 65 characters: at most 64 (character 6)",
        ),
        ("[x,eq,'abc]", "x", "the string has no closing quote (character 7)"),
        ("[x,eq,'\n']", "x", "'\\n' in a string must be escaped (character 8)"),
        (
            "[x,eq,'\\q']",
            "x",
            "invalid escape '\\\\q': expected \\' \\\\ \\n \\r \\t or \\uXXXX (character 7)",
        ),
        (
            "[x,eq,'\\ud800']",
            "x",
            "'\\ud800' contains a lone surrogate (character 7)",
        ),
        ("[x,str-prefix,3]", "x", "expected a prefix, a string, got int (character 15)"),
        ("[x,<,'']", "x", "the interval ['', '') is empty (character 6)"),
        (
            "[y,=,1],[x,>=,9],[x,<=,3]",
            "x",
            "no value satisfies [x,>=,9] and also [x,<=,3] (character 19)",
        ),
        (
            "[x,>=,9],[x,<=,'a']",
            "x",
            "no value satisfies [x,>=,9] and also [x,<=,'a'] (character 11)",
        ),
    ],
)
def test_a_bad_filter_says_where_and_why(text: str, attribute: str | None, reason: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse_filter(text)
    assert (caught.value.attribute, caught.value.reason) == (attribute, reason)


@pytest.mark.parametrize(
    ("text", "attribute", "reason"),
    [
        ("[x,1],[x,2]", "x", "named twice (character 8)"),
        ("[x]", "x", "expected [attribute,value], got 1 fields (character 2)"),
        ("[x,=,3]", "x", "expected [attribute,value], got 3 fields (character 2)"),
        ("[x,]", "x", "missing value (character 4)"),
        ("", None, "expected '[', found the end (character 1)"),
    ],
)
def test_a_bad_publication_says_where_and_why(
    text: str, attribute: str | None, reason: str
) -> None:
    with pytest.raises(FilterError) as caught:
        parse_publication(text)
    assert (caught.value.attribute, caught.value.reason) == (attribute, reason)


def test_limits() -> None:
    many = ",".join(["[x,=,1]"] * MAX_PREDICATES)
    assert parse_filter(many) == Filter(x=eq(1))
    with pytest.raises(FilterError, match="more than 128 brackets"):
        parse_filter(many + ",[x,=,1]")
    with pytest.raises(FilterError, match="filter of 65 attributes: at most 64"):
        parse_filter(",".join(f"[a{i},=,1]" for i in range(MAX_ATTRIBUTES + 1)))
    with pytest.raises(FilterError, match="publication of 65 attributes: at most 64"):
        parse_publication(",".join(f"[a{i},1]" for i in range(MAX_ATTRIBUTES + 1)))
    with pytest.raises(FilterError, match=f"at most {MAX_TEXT_LENGTH}"):
        parse_filter(" " * (MAX_TEXT_LENGTH + 1))
    assert parse_filter("[x,=,1]".ljust(MAX_TEXT_LENGTH)) == Filter(x=eq(1))
    number = "1".rjust(MAX_NUMBER_LENGTH, "0")
    assert parse_filter(f"[x,=,{number}]") == Filter(x=eq(1))
    with pytest.raises(FilterError, match="number of 65 characters: at most 64"):
        parse_filter(f"[x,=,0{number}]")
    with pytest.raises(FilterError, match="string of 4097 characters"):
        parse_filter(f"[x,eq,'{'a' * (MAX_STRING_LENGTH + 1)}']")


def test_what_is_no_text_or_no_point_is_refused() -> None:
    with pytest.raises(FilterError, match="expected text in PADRES notation, got bytes"):
        parse_filter(b"[x,=,3]")  # type: ignore[arg-type]
    with pytest.raises(
        FilterError, match="attribute 'x': expected a number, string or boolean, got NoneType"
    ):
        format_publication({"x": None})  # type: ignore[dict-item]
