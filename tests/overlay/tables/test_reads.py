"""What was read: many reads are searched by an index, and it finds what looking at each finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.filters import Filter
from overlay.tables import reads
from overlay.tables.reads import FEW, Read, Reads

NAMES = st.sampled_from(["a", "b"])
FILTERS = st.dictionaries(
    NAMES, st.integers(0, 4) | st.just((1, 3)) | st.just(...), min_size=1
).map(Filter)
POINTS = st.dictionaries(NAMES, st.integers(0, 4))  # Also one without attributes.


@given(st.lists(FILTERS | POINTS, max_size=8), st.lists(FILTERS | POINTS, max_size=8), FILTERS)
def test_an_index_finds_what_looking_at_each_finds(
    first: list[Read], more: list[Read], written: Filter
) -> None:
    few, many = Reads(), Reads()
    with pytest.MonkeyPatch.context() as patch:
        for part in (first, more):  # The index catches up with what comes later.
            for read in part:
                few.add(read)
                many.add(read)
            patch.setattr(reads, "FEW", 100)
            expected = few.meet(written)
            patch.setattr(reads, "FEW", 0)
            assert many.meet(written) == expected
    assert list(many) == [*first, *more] and len(many) == len(first) + len(more)


@pytest.mark.parametrize("count", [1, FEW, FEW + 1, 5 * FEW])
def test_each_of_so_many_is_found(count: int) -> None:
    read = Reads()
    for n in range(count):
        read.add(Filter(x=n) if n % 2 else {"x": n})
    assert all(read.meet(Filter(x=n)) for n in range(count))
    assert not read.meet(Filter(x=count))
