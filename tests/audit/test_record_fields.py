"""The audit reads records as `overlay.trace` writes them."""

from __future__ import annotations

from overlay import trace
from padres_tx.audit import record_fields
from padres_tx.audit.record_fields import TableChange, change_of, versions_of


def test_executors_know_entries_for_events_only_by_the_same_name() -> None:
    assert record_fields.EVENTS == trace.EVENTS


def test_an_outcome_says_what_became_of_the_tables() -> None:
    assert change_of("") == record_fields.NO_CHANGE
    assert change_of("+ events -7 -3") == TableChange(True, (7, 3), (), events_only=True)
    assert change_of("C2#7>B3 a#b#1>B4") == TableChange(
        False, (), (("C2", 7, "B3"), ("a#b", 1, "B4"))
    )


def test_a_view_names_what_it_sees_and_what_it_hides() -> None:
    assert versions_of("A:0:1,-B:0:2,C:0:3") == (
        frozenset({"A:0:1", "C:0:3"}),
        frozenset({"B:0:2"}),
    )
    assert versions_of("") == (frozenset(), frozenset())
