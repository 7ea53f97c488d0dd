"""What has survived a full collection is set aside while the tables are large."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from overlay.hosts.garbage import LARGE, ShortCollections


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


def set_aside(tables: Tables, entries: int, generation: int = 2) -> int:
    """How many more objects are set aside after a collection with so many entries."""
    before = gc.get_freeze_count()
    tables.entries = entries
    gc.collect(generation)
    return gc.get_freeze_count() - before


def test_all_there_is_is_set_aside_at_the_start(tables: Tables) -> None:
    assert gc.get_freeze_count() > 1000


def test_what_survives_a_full_collection_is_set_aside_while_the_tables_are_large(
    tables: Tables,
) -> None:
    kept = [[n] for n in range(1000)]
    assert set_aside(tables, LARGE - 1) == 0
    assert set_aside(tables, LARGE, generation=1) == 0
    assert set_aside(tables, LARGE) >= len(kept)
    more = [[n] for n in range(1000)]
    assert set_aside(tables, 2 * LARGE) >= len(more)


def test_garbage_is_not_set_aside(tables: Tables) -> None:
    for _ in range(1000):
        cycle: list[object] = []
        cycle.append(cycle)
    del cycle
    assert set_aside(tables, LARGE) < 1000
