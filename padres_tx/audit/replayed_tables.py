"""A broker's SRT and PRT, rebuilt from its records.

Entries are found with the product's matching index; the rules (the last operation decides,
versions, views) are written independently of the product here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from overlay.filters import Filter, Value
from overlay.matching.index import Index, is_visible
from padres_tx.audit.record_fields import change_of, is_positive, versions_of

if TYPE_CHECKING:
    # Executors have no msgspec, which messages need.
    from overlay.messages import Hop, Version


class ReplayStep(NamedTuple):
    """A record of a broker, with the unit that it belongs to."""

    node: str
    #: From 1, in the order of the broker's records.
    seq: int
    kind: str
    tx: str
    engine: str
    op_id: str
    op_kind: str
    client: str
    filter: str
    source: str
    dests: tuple[str, ...]
    version: str
    outcome: str
    #: The unit (`dependency_graph.Unit`) whose step it is; empty for a step that does not count.
    unit_kind: str = ""
    unit_name: str = ""
    unit_life: int = 0
    #: The transaction in which an entry's operation, or a publication, was issued.
    issued_in: str = ""
    #: Whether a publication entered the overlay here.
    entered: bool = False


class RecordedView:
    """What one step saw: the versions committed here then, except those it hides, and its own."""

    __slots__ = ("committed", "hidden", "own", "seen")

    def __init__(self, text: str, own: str, committed: Mapping[str, None]) -> None:
        self.seen, self.hidden = versions_of(text)
        self.own = own
        #: The live mapping of the replay; after its step a view is asked for `seen` and `hidden`
        #: only.
        self.committed = committed

    def includes(self, version: Version) -> bool:
        name = version[0]
        if name == self.own or name in self.seen:
            return True
        return name in self.committed and name not in self.hidden


class ReplayedEntry:
    """An entry of a table, and the step that added it."""

    __slots__ = ("added_by", "client", "filter", "hop", "number", "positive", "removed_by", "step")

    def __init__(
        self, step: ReplayStep, number: int, filter: Filter, added_by: Version | None
    ) -> None:
        self.step = step
        self.client = step.client
        self.number = number
        self.filter = filter
        self.hop = cast("Hop", step.source)
        self.positive = is_positive(step.op_kind)
        self.added_by = added_by
        self.removed_by: tuple[Version, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """The versions whose marks it carries."""
        added = [self.added_by] if self.added_by is not None else []
        return tuple(name for name, _, _ in (*added, *self.removed_by))


def _version(tx: str) -> Version | None:
    """A version as entries are marked with it; None for a change that all traffic sees."""
    return (tx, 0, 0) if tx else None


class ReplayedTable:
    """The SRT or PRT of one broker."""

    def __init__(self) -> None:
        self._positive: Index[ReplayedEntry] = Index()
        self._negative: Index[ReplayedEntry] = Index()
        self._by_client: dict[str, dict[int, list[ReplayedEntry]]] = {}
        #: The entries that each version has marked.
        self._marked: dict[str, list[ReplayedEntry]] = {}

    def __iter__(self) -> Iterator[ReplayedEntry]:
        for client in sorted(self._by_client):
            for number in sorted(self._by_client[client]):
                yield from self._by_client[client][number]

    def _index(self, entry: ReplayedEntry) -> Index[ReplayedEntry]:
        return self._positive if entry.positive else self._negative

    def _copies(self, client: str, number: int) -> list[ReplayedEntry]:
        return self._by_client.get(client, {}).get(number, [])

    def add(self, step: ReplayStep, number: int, filter: Filter, tx: str) -> None:
        """Add an entry, for all traffic or in a transaction's version."""
        version = _version(tx)
        for entry in self._copies(step.client, number):
            if version is not None and version in entry.removed_by:
                left = tuple(other for other in entry.removed_by if other != version)
                self._index(entry).remark(entry, removed_by=left)
                return
            if entry.added_by == version:
                return
        entry = ReplayedEntry(step, number, filter, version)
        self._by_client.setdefault(step.client, {}).setdefault(number, []).append(entry)
        self._index(entry).insert(entry)
        if version is not None:
            self._marked.setdefault(tx, []).append(entry)

    def drop(self, client: str, number: int, tx: str, view: RecordedView) -> None:
        """Remove the entry of that number that the view sees."""
        version = _version(tx)
        for entry in self._copies(client, number):
            if not is_visible(entry, view):
                continue
            if version is None or entry.added_by == version:
                self._remove(entry)
            else:
                self._index(entry).remark(entry, removed_by=(*entry.removed_by, version))
                self._marked.setdefault(tx, []).append(entry)
            return

    def _remove(self, entry: ReplayedEntry) -> None:
        numbers = self._by_client[entry.client]
        numbers[entry.number].remove(entry)
        if not numbers[entry.number]:
            del numbers[entry.number]
            if not numbers:
                del self._by_client[entry.client]
        self._index(entry).remove(entry)

    def remove_client(self, client: str) -> list[ReplayedEntry]:
        """Remove all entries of a client, and return them."""
        numbers = self._by_client.get(client, {})
        gone = [entry for copies in numbers.values() for entry in copies]
        for entry in gone:
            self._remove(entry)
        return gone

    def _unmark(self, tx: str) -> Iterator[ReplayedEntry]:
        """The entries that a version has marked and that are still here."""
        for entry in self._marked.pop(tx, ()):
            if entry in self._copies(entry.client, entry.number):
                yield entry

    def discard(self, tx: str) -> None:
        """Undo the changes of an aborted version."""
        version = _version(tx)
        for entry in self._unmark(tx):
            if entry.added_by == version:
                self._remove(entry)
            elif version in entry.removed_by:
                left = tuple(other for other in entry.removed_by if other != version)
                self._index(entry).remark(entry, removed_by=left)

    def make_permanent(self, tx: str) -> None:
        """Drop the state before a committed version, which no view needs any more."""
        version = _version(tx)
        for entry in self._unmark(tx):
            if version in entry.removed_by:
                self._remove(entry)
            elif entry.added_by == version:
                copies = self._copies(entry.client, entry.number)
                if any(copy.added_by is None for copy in copies):
                    self._remove(entry)
                else:
                    self._index(entry).remark(entry, added_by=None)

    def matching(self, point: Mapping[str, Value], view: RecordedView) -> list[ReplayedEntry]:
        """The positive entries that match a point; of each client the last operation decides."""
        last_negative: dict[str, int] = {}
        for hole in self._negative.matching(point, view):
            last_negative[hole.client] = max(hole.number, last_negative.get(hole.client, 0))
        found = self._positive.matching(point, view)
        return [entry for entry in found if entry.number > last_negative.get(entry.client, 0)]

    def overlapping(self, filter: Filter, view: RecordedView) -> list[ReplayedEntry]:
        return self._positive.overlapping(filter, view) + self._negative.overlapping(filter, view)


def tcm_receivers(entries: list[ReplayedEntry]) -> list[ReplayedEntry]:
    """Of each client the last entry, unless it is for events only."""
    last: dict[str, ReplayedEntry] = {}
    for entry in sorted(entries, key=lambda entry: entry.number):
        last[entry.client] = entry
    return [entry for entry in last.values() if not change_of(entry.step.outcome).events_only]
