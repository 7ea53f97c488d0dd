"""What has survived a full collection is set aside when the tables have grown."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from overlay.hosts.garbage import GROWTH, SMALL, ShortCollections


class Tables:
    """Tables of so many entries."""

    entries = 0


@pytest.fixture
def tables() -> Iterator[Tables]:
    made, threshold = Tables(), gc.get_threshold()
    collections = ShortCollections(lambda: made.entries)
    collections.start()
    yield made
    collections.stop()
    gc.unfreeze()
    gc.set_threshold(*threshold)


def set_aside(tables: Tables, entries: int) -> int:
    """How many more objects are set aside after a full collection with so many entries."""
    before = gc.get_freeze_count()
    tables.entries = entries
    gc.collect()
    return gc.get_freeze_count() - before


def test_what_survives_is_set_aside_when_the_tables_have_grown(tables: Tables) -> None:
    kept = [[n] for n in range(1000)]
    assert set_aside(tables, GROWTH - 1) == 0
    assert set_aside(tables, GROWTH) >= len(kept)
    assert set_aside(tables, 2 * GROWTH - 1) == 0
    more = [[n] for n in range(1000)]
    assert set_aside(tables, 2 * GROWTH) >= len(more)


def test_nothing_is_set_aside_again_and_again_while_the_tables_are_as_large(tables: Tables) -> None:
    """Or connections that have come and gone would stay for ever."""
    set_aside(tables, 10 * GROWTH)
    kept = [[n] for n in range(1000)]
    for entries in (9 * GROWTH, 10 * GROWTH, 9 * GROWTH, 10 * GROWTH):
        assert set_aside(tables, entries) == 0
    assert len(kept) == 1000


def test_all_is_looked_at_again_when_the_tables_are_small(tables: Tables) -> None:
    set_aside(tables, 10 * GROWTH)
    assert gc.get_freeze_count() > 0
    set_aside(tables, SMALL + 1)
    assert gc.get_freeze_count() > 0
    set_aside(tables, SMALL)
    assert gc.get_freeze_count() == 0


def test_young_collections_set_nothing_aside(tables: Tables) -> None:
    tables.entries = 10 * GROWTH
    before = gc.get_freeze_count()
    gc.collect(1)
    assert gc.get_freeze_count() == before
