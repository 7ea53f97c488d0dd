"""`is_evidently_right` says yes only where `check_point` does, and for what usually comes."""

from __future__ import annotations

import enum
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import overlay.filters
from overlay.errors import FilterError
from overlay.filters import (
    INT_MAX,
    INT_MIN,
    MAX_ATTRIBUTES,
    MAX_STRING_LENGTH,
    check_point,
    is_evidently_right,
)


class Colour(enum.StrEnum):
    RED = "red"


names = st.sampled_from(["a", "b", "class", "x y", "", " ", "a'b", "n" * 128, "n" * 129, "ü"])
values = st.one_of(
    st.text(max_size=3),
    st.floats(),
    st.booleans(),
    st.integers(),
    st.sampled_from([INT_MIN, INT_MIN - 1, INT_MAX, INT_MAX + 1, Colour.RED, None, b"", "\ud800"]),
    st.sampled_from(["s" * MAX_STRING_LENGTH, "s" * (MAX_STRING_LENGTH + 1)]),
)


@given(st.lists(st.dictionaries(names, values, max_size=4), max_size=5))
def test_a_yes_is_never_wrong(points: list[dict[str, Any]]) -> None:
    for point in points:
        sure = is_evidently_right(point)
        try:
            checked = check_point(point)
        except FilterError:
            assert not sure
        else:
            assert not sure or checked == point


@pytest.mark.parametrize(
    "point",
    [
        {"class": "order", "n": 1},
        {"city": "Köln", "shop": "本店"},
        {"price": -0.5, "big": INT_MAX, "small": INT_MIN, "urgent": True},
        {f"a{number}": number for number in range(MAX_ATTRIBUTES)},
    ],
)
def test_what_usually_comes_is_checked_once_only(
    point: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests in this process may have left so many names that they are thrown away meanwhile.
    monkeypatch.setattr(overlay.filters, "_right_names", set())
    check_point(point)
    assert is_evidently_right(point)


@pytest.mark.parametrize(
    "point",
    [
        {},
        {"price": math.nan},
        {"price": math.inf},
        {"n": INT_MAX + 1},
        {"s": "s" * (MAX_STRING_LENGTH + 1)},
        {"s": "\ud800"},
        {f"a{number}": number for number in range(MAX_ATTRIBUTES + 1)},
    ],
)
def test_what_is_wrong_never_is(point: dict[str, Any]) -> None:
    check_point(dict.fromkeys(point, 1) if len(point) == 1 else {"n": 1})
    assert not is_evidently_right(point)
    with pytest.raises(FilterError):
        check_point(point)


def test_any_number_of_names_passes() -> None:
    for number in range(3000):
        point: dict[str, Any] = {f"name-{number}": number}
        check_point(point)
        assert is_evidently_right(point)
