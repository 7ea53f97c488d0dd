"""A view of the tables costs nothing to take, however much is in them: nothing is copied."""

from __future__ import annotations

import sys

from overlay.filters import Filter
from overlay.messages import Hop, Operation, Version
from overlay.tables.space import Entry, Space
from overlay.tables.versions import Versions


def steps_of_a_view(entries: int) -> int:
    """How many lines run while a view of a table of this size is taken; it sees what it must."""
    versions, space = Versions(), Space()
    version: Version = ("t", 1)
    versions.begin(version)
    for number in range(entries):
        operation = Operation(0, "sub", "c", number + 1, Filter(x=number))
        space.add(Entry(operation, Hop("@c"), version))
    versions.commit(version)
    steps = 0

    def count(frame: object, event: str, what: object) -> object:
        nonlocal steps
        steps += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)  # type: ignore[arg-type]
    try:
        now, hidden = versions.view(), versions.view([version])
    finally:
        sys.settrace(before)
    assert now is versions.view(), "the same one for everybody"
    assert len(space.matching({"x": 0}, now)) == 1
    assert space.matching({"x": 0}, hidden) == []
    return steps


def test_a_view_takes_the_same_steps_whatever_the_table() -> None:
    assert 0 < steps_of_a_view(1) == steps_of_a_view(2000)
