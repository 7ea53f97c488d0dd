"""Table entries, and a space of them in which each client's last word on a point decides.

A space finds who wants a point, and whether a client still holds a part of a filter. SRT and PRT
are made of spaces (`routing`), and so is what a client knows of itself. Entries can carry versions
(`versions`): a view tells which of them it sees.

A subscription can be for events only. Its client then wants the point as any other does, but is
not asked to act on it (`takers`). Here, too, the client's last word on the point decides.

This module knows nothing of brokers, nor where an operation has to go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from overlay.filters import Filter, Value
from overlay.matching.compiled_tests import Admission, never
from overlay.matching.index import Index, Search, View, in_runs, is_visible
from overlay.messages import ClientName, Hop, Operation, Run, Version
from overlay.notation import format_filter
from overlay.stored import Several, stored
from overlay.tables.client_entries import ClientEntries, LookBudget
from overlay.tables.covered_entries import CoveredEntries
from overlay.tables.last_word import reaches
from overlay.tables.past import Past
from overlay.tables.versions import Seen

#: Entries of one client that are looked through one by one. For more of them an index is asked; to
#: find what overlaps, the one that finds those of other clients too, if there are others.
FEW = 8
FEW_OVERLAPPING = 256


@stored("entry")
class Entry:
    """One line of a table: an operation of a client, and the hop that it came from."""

    __slots__ = ("added_by", "client", "events", "filter", "hop", "positive", "removed_by", "seq")

    def __init__(self, operation: Operation, hop: Hop, added_by: Version | None = None) -> None:
        self.client = ClientName(operation.client)
        self.seq = operation.seq
        self.filter = operation.filter
        self.hop = hop
        self.positive = operation.positive
        #: Whether it is a subscription for events only.
        self.events = operation.events and operation.kind == "sub"
        #: The version that brought the entry (None: it is simply there) and those that remove it.
        self.added_by = added_by
        self.removed_by: tuple[Version, ...] = ()

    def __repr__(self) -> str:
        sign = "+" if self.positive else "-"
        return f"<{self.client}:{self.seq} {sign}{format_filter(self.filter)} from {self.hop}>"


def by_client_and_number(entry: Entry) -> tuple[str, int]:
    return entry.client, entry.seq


@stored("tally")
class EntryCount:
    """A number that several spaces count together."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


@stored(
    "space",
    fields=("_total", "_yes", "_no", "_past", "_covered", "_of"),
    derived=("_holes", "_events"),
)
class Space:
    """Entries of many clients, yes and no, in which each client's last word on a point decides."""

    def __init__(self, total: EntryCount | None = None) -> None:
        #: Where this space's entries are counted together with those of others.
        self._total = total or EntryCount()
        self._yes: Index[Entry] = Index()
        self._no: Index[Entry] = Index()
        #: How many entries say no; mostly none, and then there is no need to search them.
        self._holes = 0
        #: How many entries are for events only.
        self._events = 0
        #: By client and number. Mostly one entry each; but two transactions that know nothing of
        #: each other may both bring one operation here, and at most one of them will be committed.
        self._of: dict[str, dict[int, list[Entry]]] = {}
        #: Of clients with more than a few entries that were asked what a filter covers.
        self._covered: dict[str, CoveredEntries] = {}
        #: What snapshots need that are older than what is simply so by now.
        self._past = Past()

    def add(self, entry: Entry) -> None:
        copies = self._of.setdefault(entry.client, {}).setdefault(entry.seq, [])
        assert all(copy.added_by != entry.added_by for copy in copies), entry
        copies.append(entry)
        self._total.count += 1
        if not entry.positive:
            self._holes += 1
        self._events += entry.events
        if (covered := self._covered.get(entry.client)) is not None:
            covered.add(entry)
        self._index(entry).insert(entry)

    def remove(self, entry: Entry) -> None:
        if self._past and entry in self._past:
            self._past.drop(entry)
            return
        self._total.count -= 1
        held = self._of[entry.client]
        held[entry.seq].remove(entry)
        if not held[entry.seq]:
            del held[entry.seq]
            if not held:
                del self._of[entry.client]
        if (covered := self._covered.get(entry.client)) is not None:
            covered.remove(entry)
            if not held:
                del self._covered[entry.client]
        if not entry.positive:
            self._holes -= 1
        self._events -= entry.events
        self._index(entry).remove(entry)

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._copies(entry.client, entry.seq) or entry in self._past

    def mark_removed(self, entry: Entry, version: Version) -> None:
        """In this version the entry is gone."""
        self._mark_removed(entry, (*entry.removed_by, version))

    def unmark_removed(self, entry: Entry, version: Version) -> None:
        """In this version the entry is there after all."""
        self._mark_removed(entry, tuple(other for other in entry.removed_by if other != version))

    def _mark_removed(self, entry: Entry, removed_by: tuple[Version, ...]) -> None:
        if self._past and entry in self._past:
            entry.removed_by = removed_by
        else:
            self._index(entry).remark(entry, removed_by=removed_by)

    def make_plain(self, entry: Entry) -> None:
        """Let the entry be simply there, whatever brought it."""
        if self._past and entry in self._past:
            entry.added_by = None
        elif any(copy.added_by is None for copy in self._copies(entry.client, entry.seq)):
            self.remove(entry)  # A plain operation brought it too, meanwhile.
        else:
            self._index(entry).remark(entry, added_by=None)

    # --- versions that count everywhere but in older snapshots ---

    def retire(self, entry: Entry, version: Version) -> None:
        """Make a change of a committed version permanent, but for snapshots without it."""
        if version in entry.removed_by:
            if entry not in self._past:
                self.remove(entry)
            self._past.remove(version, entry)
        elif entry.added_by == version:
            self.make_plain(entry)
            if entry in self:  # Not if it was there by a plain operation, too.
                self._past.add(version, entry)

    def forget_past(self, version: Version, limit: int | None = None) -> bool:
        """No snapshot is without the version any more; whether there is more to forget."""
        return self._past.forget(version, limit)

    def forget_client(self, client: str) -> None:
        """Drop what snapshots could still see of a client that has left."""
        self._past.drop_client(client)

    def _before(self, view: View | None) -> Seen | None:
        """The view, if it is a snapshot that may be older than what is simply so."""
        return view if self._past and isinstance(view, Seen) else None

    def get(self, client: str, seq: int, view: View | None = None) -> Entry | None:
        """The client's entry of that number, if the view sees one."""
        before = self._before(view)
        for entry in self._copies(client, seq):
            if is_visible(entry, view) and not (before and self._past.hides(entry, before)):
                return entry
        for entry in self._past.copies(client, seq) if before else ():
            if is_visible(entry, view) and not (before and self._past.hides(entry, before)):
                return entry
        return None

    def copy(self, client: str, seq: int, added_by: Version | None) -> Entry | None:
        """The client's entry of that number that this version has brought."""
        for entry in self._copies(client, seq):
            if entry.added_by == added_by:
                return entry
        return None

    def removed_in(self, client: str, seq: int, version: Version) -> Entry | None:
        """The client's entry of that number, if this version has removed it."""
        for entry in (*self._copies(client, seq), *self._past.copies(client, seq)):
            if version in entry.removed_by:
                return entry
        return None

    def of(self, client: str) -> list[Entry]:
        """The client's entries in its own order, whatever their versions."""
        held = self._of.get(client, {})
        return [entry for seq in sorted(held) for entry in held[seq]]

    def numbers_of(self, client: str) -> list[int]:
        """The numbers of the client's entries, in the order in which they came."""
        return list(self._of.get(client, ()))

    def clients(self) -> Iterable[str]:
        """The clients that have entries, in no particular order."""
        return self._of.keys()

    def count_of(self, client: str) -> int:
        return len(self._of.get(client, ()))

    def __len__(self) -> int:
        return len(self._yes) + len(self._no)

    def __iter__(self) -> Iterator[Entry]:
        for client in sorted(self._of):
            yield from self.of(client)

    def _copies(self, client: str, seq: int) -> Sequence[Entry]:
        return self._of.get(client, {}).get(seq, ())

    def _index(self, entry: Entry) -> Index[Entry]:
        return self._yes if entry.positive else self._no

    def hops(self, point: Mapping[str, Value], view: View | None = None) -> tuple[Hop, ...]:
        """The hops of the clients that want the point, each once."""
        if self._before(view):
            return tuple(sorted({entry.hop: None for entry in self.matching(point, view)}))
        if not self._holes or not (holes := self._no.matching(point, view)):
            return self._yes.hops(point, view)
        return tuple(dict.fromkeys([entry.hop for entry in self._outside(holes, point, view)]))

    def runs(self, points: list[dict[str, Value]], view: View | None = None) -> list[Run]:
        """The same for one point after the other: how many in a row go to which hops."""
        if not points or not (self._holes or self._before(view)):
            return self._yes.runs(points, view)
        first, *others = (self.hops(point, view) for point in points)
        return in_runs(first, 1, others)

    def admission(self) -> Admission:
        """A test whether evidently some client wants a point, and it is well-formed: a quick yes,
        while a no may be mistaken. Good until an entry changes."""
        return never if self._holes else self._yes.admission()

    def holds(self, point: Mapping[str, Value], view: View | None = None) -> bool:
        """Whether some client wants the point."""
        if self._before(view):
            return bool(self.matching(point, view))
        return bool(self._yes.hops(point, view) if not self._holes else self.matching(point, view))

    def matching(self, point: Mapping[str, Value], view: View | None = None) -> list[Entry]:
        """The yes entries that contain the point and that no later no of their client does."""
        holes: Iterable[Entry] = self._no.matching(point, view) if self._holes else ()
        if before := self._before(view):
            old = self._past.seen_by([*holes], before, positive=False)
            holes = [hole for hole in old if hole.filter.matches(point)]
        return self._outside(holes, point, view)

    def takers(self, point: Mapping[str, Value], view: View | None = None) -> dict[str, Hop]:
        """The clients that want the point for more than events, each with its hop."""
        last: dict[str, Entry] = {}
        for entry in self.matching(point, view):
            known = last.get(entry.client)
            if known is None or known.seq < entry.seq:
                last[entry.client] = entry
        return {client: entry.hop for client, entry in sorted(last.items()) if not entry.events}

    def taking_hops(self, point: Mapping[str, Value], view: View | None = None) -> tuple[Hop, ...]:
        """The hops of the clients that want the point for more than events, each once."""
        if not (self._events or self._before(view)):
            return self.hops(point, view)
        return tuple(dict.fromkeys(self.takers(point, view).values()))

    def _outside(
        self, holes: Iterable[Entry], point: Mapping[str, Value], view: View | None
    ) -> list[Entry]:
        """The yes entries that contain the point, and come after their client's holes."""
        last_no: dict[str, int] = {}
        for hole in holes:
            last_no[hole.client] = max(hole.seq, last_no.get(hole.client, 0))
        found = self._yes.matching(point, view)
        if before := self._before(view):
            old = self._past.seen_by(found, before, positive=True)
            found = [entry for entry in old if entry.filter.matches(point)]
        return [entry for entry in found if entry.seq > last_no.get(entry.client, 0)]

    def overlapping(self, filter: Filter, view: View | None = None) -> list[Entry]:
        return self._overlapping(filter, view, yes=True) + self._overlapping(
            filter, view, yes=False
        )

    def _overlapping(self, filter: Filter, view: View | None, *, yes: bool) -> list[Entry]:
        found = (self._yes if yes else self._no).overlapping(filter, view)
        if before := self._before(view):
            old = self._past.seen_by(found, before, positive=yes)
            found = [entry for entry in old if entry.filter.overlaps(filter)]
        return found

    def of_client(
        self, client: str, view: View | None = None, looks: LookBudget | None = None
    ) -> ClientEntries:
        """What a client holds here, as one that looks at so much of it at most can find out."""
        return ClientEntries(self, client, view, looks or LookBudget())

    def overlapping_of(self, client: str, filter: Filter, view: View | None = None) -> list[Entry]:
        """The same of one client, which does not take longer because others hold much, unless the
        client does."""
        held = self._of.get(client, {})
        if len(held) > FEW_OVERLAPPING or self._before(view):
            return [entry for entry in self.overlapping(filter, view) if entry.client == client]
        return [
            entry
            for copies in held.values()
            for entry in copies
            if filter.overlaps(entry.filter) and is_visible(entry, view)
        ]

    def some_of(
        self, client: str, filter: Filter, view: View | None, looks: LookBudget, *, yes: bool
    ) -> Iterator[Entry]:
        """The entries of a client that overlap a filter and say yes, or no, found one by one."""
        if not (yes or self._holes or self._before(view)):
            return
        few = FEW_OVERLAPPING if len(self._of) > 1 else FEW
        count, before = self.count_of(client), self._before(view)
        if count <= few or before:
            found = self.overlapping_of(client, filter, view)
            looks.use(len(found) if before else count)
            yield from [entry for entry in found if entry.positive == yes]
            return
        for entry in (self._yes if yes else self._no).some_overlapping(filter):
            looks.use(1)
            if entry is not None and entry.client == client and is_visible(entry, view):
                yield entry

    def covered_of(self, client: str, filter: Filter, view: View | None = None) -> list[Entry]:
        """The entries of a client that a filter covers."""
        if self._before(view):
            near = self.overlapping_of(client, filter, view)
            return [entry for entry in near if filter.covers(entry.filter)]
        if self.count_of(client) <= FEW:
            covers = filter.covers
            return [
                entry
                for copies in self._of.get(client, {}).values()
                for entry in copies
                if covers(entry.filter) and is_visible(entry, view)
            ]
        found = self.covered_entries(client).covered_by(filter)
        return [entry for entry in found if is_visible(entry, view)]

    def looks_for_covered(self, client: str, filter: Filter) -> int:
        """How many entries have to be looked at to find those."""
        count = self.count_of(client)
        return count if count <= FEW else self.covered_entries(client).count_near(filter)

    def covered_entries(self, client: str) -> CoveredEntries:
        """The client's entries, to look for those that a filter covers."""
        covered = self._covered.get(client)
        if covered is None:
            covered = self._covered[client] = CoveredEntries(self.of(client))
        return covered

    def search(self, filters: Sequence[Filter]) -> SpaceSearch:
        """Find the entries that overlap one of the filters piece by piece."""
        return SpaceSearch(self, filters)

    def searches(self, filter: Filter) -> list[Search[Entry]]:
        """The searches in the parts of the space, what says yes first."""
        return [self._yes.search(filter), *([self._no.search(filter)] if self._holes else ())]

    def reaches(
        self,
        filter: Filter,
        view: View | None = None,
        *,
        client: str | None = None,
        without: Collection[Entry] = (),
        lost: tuple[Index[Entry], Index[Entry]] | None = None,
    ) -> bool:
        """Whether some client (or this one) still holds a part of the filter; or would, without
        some entries, and with others, those that say yes and no, that are not here any more."""
        if self._before(view):
            near = self._overlapping(filter, view, yes=True)
            holes = self._overlapping(filter, view, yes=False) if near else []
            return any(
                reaches(entry, filter, [hole for hole in holes if hole.client == entry.client])
                for entry in near
                if client is None or entry.client == client
            )
        # Mostly the first that is found is enough, and thousands may overlap.
        if client is not None:
            found = self.some_of(client, filter, view, LookBudget(), yes=True)
        else:
            found = self._some_yes(filter, view, without, lost)
        return any(self.holds_a_part(yes, filter, view, without, lost) for yes in found)

    def _some_yes(
        self,
        filter: Filter,
        view: View | None,
        without: Collection[Entry],
        lost: tuple[Index[Entry], Index[Entry]] | None,
    ) -> Iterator[Entry]:
        for index in (self._yes, *(lost[:1] if lost else ())):
            for entry in index.some_overlapping(filter):
                if entry is not None and is_visible(entry, view) and entry not in without:
                    yield entry

    def holds_a_part(
        self,
        yes: Entry,
        filter: Filter,
        view: View | None,
        without: Collection[Entry] = (),
        lost: tuple[Index[Entry], Index[Entry]] | None = None,
    ) -> bool:
        """The same as `last_word.reaches`, with a search for the holes that matter."""
        indexes = [self._no] if self._holes else []
        if lost and lost[1]:
            indexes.append(lost[1])
        common = yes.filter.meet(filter) if indexes else None
        return common is None or not any(
            hole.client == yes.client and hole.seq > yes.seq and hole not in without
            for index in indexes
            for hole in index.covering(common, view)
        )

    def _freeze(self) -> tuple[Any, ...]:
        entries = (entry for held in self._of.values() for each in held.values() for entry in each)
        return self._total, self._yes, self._no, self._past, self._covered, Several(entries)

    def _thaw(
        self,
        total: EntryCount,
        yes: Index[Entry],
        no: Index[Entry],
        past: Past,
        covered: dict[str, CoveredEntries],
        entries: list[Entry],
    ) -> None:
        self._total, self._yes, self._no, self._past = total, yes, no, past
        self._covered = covered
        self._holes = self._events = 0
        self._of = {}
        for entry in entries:
            self._of.setdefault(entry.client, {}).setdefault(entry.seq, []).append(entry)
            self._holes += not entry.positive
            self._events += entry.events


@stored("space-search", fields=("_space", "_filters", "_searches"))
class SpaceSearch:
    """The entries of a space that overlap one of some filters, found piece by piece.

    The space may change meanwhile: what was there when the search began and is still there is
    found, what comes later perhaps. An entry that overlaps several filters is found for each.
    """

    def __init__(self, space: Space, filters: Sequence[Filter]) -> None:
        self._space = space
        self._filters = list(reversed(filters))
        self._searches: list[Search[Entry]] = []
        self._advance()

    @property
    def done(self) -> bool:
        return not self._searches

    def _advance(self) -> None:
        while not self._searches and self._filters:
            self._searches = self._space.searches(self._filters.pop())

    def some(self, limit: int, view: View | None) -> list[Entry]:
        """The next entries that the view sees; at most so many records are looked at."""
        found: list[Entry] = []
        while self._searches and limit > 0:
            search = self._searches[0]
            before = search.looked
            found += search.some(limit)
            limit -= search.looked - before
            if search.done:
                del self._searches[0]
                self._advance()
        return [entry for entry in found if is_visible(entry, view) and entry in self._space]
