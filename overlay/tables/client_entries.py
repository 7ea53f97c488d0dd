"""What one client holds in a space, as `overlay.tables.last_word` asks for it.

The caller may limit how much is looked at: a broker does nothing else meanwhile, and does in slices
(`overlay.broker.long_work`) what takes more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from overlay.filters import Filter
from overlay.matching.index import View
from overlay.stored import stored

if TYPE_CHECKING:
    from overlay.tables.space import Entry, Space


class TooManyLooks(Exception):
    """More entries have to be looked at than may be."""


@stored("looks")
class LookBudget:
    """How many entries may be looked at, by default any number."""

    __slots__ = ("left", "used")

    def __init__(self, limit: float = math.inf) -> None:
        self.left = limit
        self.used = 0

    def use(self, count: int) -> None:
        """Raises TooManyLooks."""
        self.used += count
        self.left -= count
        if self.left < 0:
            raise TooManyLooks


class ClientEntries:
    """The entries of a client in a space. All methods raise TooManyLooks."""

    def __init__(self, space: Space, client: str, view: View | None, looks: LookBudget) -> None:
        self._space = space
        self._client = client
        self._view = view
        self.looks = looks

    def covered_by(self, filter: Filter) -> list[Entry]:
        self.looks.use(self._space.looks_for_covered(self._client, filter))
        return self._space.covered_of(self._client, filter, self._view)

    def yes(self, filter: Filter) -> Iterator[Entry]:
        return self._space.some_of(self._client, filter, self._view, self.looks, yes=True)

    def holes(self, filter: Filter) -> list[Entry]:
        found = self._space.some_of(self._client, filter, self._view, self.looks, yes=False)
        return list(found)

    def reaches(self, filter: Filter) -> bool:
        """Whether the client holds a part of the filter."""
        holds = self._space.holds_a_part
        return any(holds(yes, filter, self._view) for yes in self.yes(filter))

    def get(self, seq: int) -> Entry | None:
        return self._space.get(self._client, seq, self._view)
