"""The matching index: which of very many filters match a point, or overlap another filter.

The filters are sorted in a tree (`tree`). A search returns candidates that lie near the point in
every attribute; each is then tested exactly. So the cost follows the candidates, not the table.

Routing asks for hops far more often than for entries. Branches of the tree know the hops below
them, and entries that the tree cannot separate are grouped by hop, so that a search skips what
leads only to hops that it already has: a thousand matching subscriptions behind one neighbour cost
as much as a few.

Entries are visible from one version of the routing state to another. As long as no entry carries a
version, which is the normal state, that costs nothing.

This module does not know what entries are for (advertisements, subscriptions). Of versions it knows
only that a view includes them or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from overlay.filters import Filter, Value
from overlay.matching.cells import BOOLEAN_KEYS
from overlay.matching.compiled_tests import Admission, never
from overlay.matching.stored_tree import as_data, from_data, node_at, path_to
from overlay.matching.tree import IndexRecord, TreeNode
from overlay.stored import Plain, Several, stored

if TYPE_CHECKING:
    # For annotations only: a search needs no codec.
    from overlay.messages import Hop, Run, Version


#: Points from which on a joint look pays off; for fewer it costs what it saves.
MANY: Final = 8


class View(Protocol):
    """The versions of the routing state that a reader sees."""

    def includes(self, version: Version) -> bool: ...


class IndexEntry(Protocol):
    """What the index has to know of an entry. Filter and hop never change while it is in the index.

    `added_by` is the version that added the entry, None if it is in the base state; `removed_by`
    are the versions that removed it. In the index they change by `Index.remark` only.
    """

    added_by: Version | None
    removed_by: tuple[Version, ...]

    @property
    def filter(self) -> Filter: ...
    @property
    def hop(self) -> Hop: ...


E = TypeVar("E", bound=IndexEntry)


def is_visible(entry: IndexEntry, view: View | None) -> bool:
    """Whether the view includes what added the entry, and nothing that removed it.

    Without a view no version counts: added entries are invisible, removed ones visible.
    """
    if view is None:
        return entry.added_by is None
    if entry.added_by is not None and not view.includes(entry.added_by):
        return False
    return not any(view.includes(version) for version in entry.removed_by)


class _Keep(Enum):
    """The default of `Index.remark`: keep the value. None is a value."""

    KEEP = 0


@stored(
    "index",
    fields=("_records", "_root"),
    derived=("_inserted", "_hops", "_last_match_by_hop", "_answer", "_marked"),
)
class Index(Generic[E]):
    """Entries, found by a point that they match or by a filter that they overlap.

    Entries are compared by identity: two with the same filter and hop are two. The order of every
    result depends only on the order of insertion, or on the names of the hops.
    """

    def __init__(self) -> None:
        #: By the entry's identity, in the order of insertion.
        self._records: dict[int, IndexRecord[E]] = {}
        self._root: TreeNode[E] = TreeNode()
        self._inserted = 0
        #: How many entries lead to each hop.
        self._hops: dict[Hop, int] = {}
        #: For each hop, the entry that matched last. It is dropped when it does not match, so there
        #: are never more of them to test than the last search found.
        self._last_match_by_hop: dict[Hop, IndexRecord[E]] = {}
        #: The hops that have a last match, sorted; None when they have changed. Successive
        #: publications that go the same way share this tuple.
        self._answer: tuple[Hop, ...] | None = None
        #: How many entries carry a version; while there are none, all entries are visible.
        self._marked = 0

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[E]:
        """All entries, whatever their versions, in the order of insertion."""
        return (record.entry for record in self._records.values())

    def insert(self, entry: E) -> None:
        """Add the entry."""
        assert id(entry) not in self._records, f"already in the index: {entry!r}"
        self._inserted += 1
        record = IndexRecord(entry, entry.filter, entry.hop, self._inserted)
        self._records[id(entry)] = record
        self._hops[record.hop] = self._hops.get(record.hop, 0) + 1
        self._marked += _is_marked(entry)
        self._root.insert(record)

    def remove(self, entry: E) -> None:
        """Remove this entry, which must be in the index."""
        record = self._records.pop(id(entry), None)
        assert record is not None, f"not in the index: {entry!r}"
        self._marked -= _is_marked(entry)
        hop = record.hop
        if self._last_match_by_hop.get(hop) is record:
            del self._last_match_by_hop[hop]
            self._answer = None
        if self._hops[hop] == 1:
            del self._hops[hop]
        else:
            self._hops[hop] -= 1
        record.home.remove(record)

    def remark(
        self,
        entry: E,
        *,
        added_by: Version | _Keep | None = _Keep.KEEP,
        removed_by: tuple[Version, ...] | _Keep = _Keep.KEEP,
    ) -> None:
        """Change the versions of an entry; an argument that is not given leaves its value."""
        assert id(entry) in self._records, f"not in the index: {entry!r}"
        self._marked -= _is_marked(entry)
        if not isinstance(added_by, _Keep):
            entry.added_by = added_by
        if not isinstance(removed_by, _Keep):
            entry.removed_by = removed_by
        self._marked += _is_marked(entry)

    def matching(self, point: Mapping[str, Value], view: View | None = None) -> list[E]:
        """The entries that match the point and are visible, in the order of insertion."""
        get = point.get
        found: list[IndexRecord[E]] = []
        node = self._root
        stack: list[TreeNode[E]] = []
        while True:
            for record in node.records:
                if record.rest(get, record.values):
                    found.append(record)
            branches = node.branches
            if branches is not None:
                way = branches.way
                if way is None:
                    way = branches.equality_children()
                if way:
                    # The same step as in `_search`; in a function of its own it would make every
                    # publication beside a dispatcher's holes slower by a fifth.
                    name, children = way
                    key: Any = get(name)
                    if key.__class__ is bool:
                        key = BOOLEAN_KEYS[key]
                    child = children.get(key)
                    if child is not None:
                        node = child
                        continue
                else:
                    for _, group in branches.reach(point, stack):
                        found += [record for record in group if record.rest(get, record.values)]
            if not stack:
                return self._in_order(found, view)
            node = stack.pop()

    def admission(self) -> Admission:
        """A fast pre-check: True means that the point is valid and an entry matches it, False means
        unknown. It uses what `hops` found before, and is valid until an entry changes."""
        if not self._marked:
            for record in self._last_match_by_hop.values():
                return record.whole.admission(record.values)
        return never

    def hops(self, point: Mapping[str, Value], view: View | None = None) -> tuple[Hop, ...]:
        """The hops of the entries that match the point and are visible, each once, sorted."""
        get = point.get
        witnesses = self._last_match_by_hop
        failed: list[Hop] | None = None
        for hop, record in witnesses.items():
            if not record.test(get, record.values) or (
                self._marked and not is_visible(record.entry, view)
            ):
                if failed is None:
                    failed = []
                failed.append(hop)
        if failed is not None:
            for hop in failed:
                del witnesses[hop]
            self._answer = None
        if len(witnesses) != len(self._hops):
            self._search(point, view)
        answer = self._answer
        if answer is None:
            answer = self._answer = tuple(sorted(witnesses))
        return answer

    def runs(self, points: list[dict[str, Value]], view: View | None = None) -> list[Run]:
        """The hops of the points in turn, as runs of points with the same hops."""
        if not points:
            return []
        hops = self.hops(points[0], view)
        count = 1
        if len(points) >= MANY and self.hops(points[1], view) is hops:
            count = self._same_way(points)  # All of them may go the same way.
        return in_runs(hops, count, (self.hops(point, view) for point in points[count:]))

    def _same_way(self, points: list[dict[str, Value]]) -> int:
        """How many points have the hops of the first two, which `hops` has just found.

        At least two, and more if a joint look at all of them shows it.
        """
        witnesses = self._last_match_by_hop
        if len(witnesses) != len(self._hops) and not self._no_other_hop(points):
            return 2
        for count, point in enumerate(points):
            get = point.get
            for record in witnesses.values():
                if not record.test(get, record.values):
                    return count
        return len(points)

    def _no_other_hop(self, points: list[dict[str, Value]]) -> bool:
        """Whether certainly none of the points matches an entry of a hop without a last match.

        The points go down the tree together, in a fraction of the time of single searches, as
        long as they take the same path.
        """
        columns = _columns(points)
        if columns is None:
            return False
        witnesses = self._last_match_by_hop
        stack = [self._root]
        while stack:
            node = stack.pop()
            if any(record.hop not in witnesses for record in node.records):
                return False
            branches = node.branches
            if branches is None or branches.hops.keys() <= witnesses.keys():
                continue
            shared = branches.common_children(columns)
            if shared is None:
                return False
            stack += shared
        return True

    def _search(self, point: Mapping[str, Value], view: View | None) -> None:
        """Find a match for each hop that has no last match."""
        get = point.get
        marked = self._marked
        found = self._last_match_by_hop
        node = self._root
        stack: list[TreeNode[E]] = []
        while True:
            for record in node.records:
                hop = record.hop
                if (
                    hop not in found
                    and record.rest(get, record.values)
                    and (not marked or is_visible(record.entry, view))
                ):
                    found[hop] = record
                    self._answer = None
            branches = node.branches
            if branches is not None:
                way = branches.way
                if way is None:
                    way = branches.equality_children()
                if way:
                    # Looking there takes no longer than finding out whether it is necessary.
                    name, children = way
                    key: Any = get(name)
                    if key.__class__ is bool:
                        key = BOOLEAN_KEYS[key]
                    child = children.get(key)
                    if child is not None:
                        node = child
                        continue
                elif len(branches.hops) > len(found) or not branches.hops.keys() <= found.keys():
                    # `Branches.reach`, inlined: its calls would cost more than its work.
                    parts = branches.parts
                    for name in point if len(point) < len(parts) else parts:
                        part = parts.get(name)
                        value = get(name)
                        if part is None or value is None:
                            continue
                        if value.__class__ is not bool:
                            child = part.equal.get(value)
                            if child is not None:
                                stack.append(child)
                            if not (part.cells or part.prefixes or part.present):
                                continue
                            part.reach_unequal(value, stack)
                        else:
                            part.reach(value, stack)
                    if branches.ladders or branches.piles:
                        for hop, group in branches.groups(point):
                            if hop in found:
                                continue
                            for record in group:
                                if record.rest(get, record.values) and (
                                    not marked or is_visible(record.entry, view)
                                ):
                                    found[hop] = record
                                    self._answer = None
                                    break
            if not stack:
                return
            node = stack.pop()

    def overlapping(self, filter: Filter, view: View | None = None) -> list[E]:
        """The entries that overlap the filter and are visible, in the order of insertion."""
        predicates = filter.predicates
        found: list[IndexRecord[E]] = []
        stack = [self._root]
        while stack:
            node = stack.pop()
            found += [record for record in node.records if filter.overlaps(record.filter)]
            if (branches := node.branches) is not None:
                for group in branches.cross(predicates, stack):
                    found += [record for record in group if filter.overlaps(record.filter)]
        return self._in_order(found, view)

    def some_overlapping(self, filter: Filter) -> Iterator[E | None]:
        """The entries that overlap, whatever their versions, found one by one, for a caller that
        needs the first few. Each look at a record or node that finds nothing yields None. The index
        must not change meanwhile; for that there is `search`."""
        overlaps, predicates = filter.overlaps, filter.predicates
        stack: list[Iterator[TreeNode[E]]] = [iter((self._root,))]
        while stack:
            node = next(stack[-1], None)
            if node is None:
                stack.pop()
                continue
            yield None
            records: Iterable[IndexRecord[E]] = node.records
            if (branches := node.branches) is not None:
                children, others = branches.across(predicates)
                stack.append(children)
                records = chain(records, others)
            for record in records:
                yield record.entry if overlaps(record.filter) else None

    def covering(self, filter: Filter, view: View | None = None) -> list[E]:
        """The visible entries that cover the filter, in the order of insertion. What names other
        attributes than the filter is not looked at."""
        predicates = filter.predicates
        found: list[IndexRecord[E]] = []
        stack = [self._root]
        while stack:
            node = stack.pop()
            found += [record for record in node.records if record.filter.covers(filter)]
            if (branches := node.branches) is not None:
                for group in branches.around(predicates, stack):
                    found += [record for record in group if record.filter.covers(filter)]
        return self._in_order(found, view)

    def search(self, filter: Filter) -> Search[E]:
        """What overlaps piece by piece, whatever the versions, in the order of the tree."""
        return Search(self, filter)

    @property
    def root(self) -> TreeNode[E]:
        return self._root

    def __contains__(self, entry: E) -> bool:
        return id(entry) in self._records

    def _in_order(self, found: list[IndexRecord[E]], view: View | None) -> list[E]:
        if len(found) > 1:
            found.sort(key=_number)
        if self._marked:
            return [record.entry for record in found if is_visible(record.entry, view)]
        return [record.entry for record in found]

    def _freeze(self) -> tuple[Several, Plain]:
        places = {record.number: at for at, record in enumerate(self._records.values())}
        return Several(self), Plain(as_data(self._root, places))

    def _thaw(self, entries: list[E], tree: list[Any]) -> None:
        Index.__init__(self)
        records = [
            IndexRecord(entry, entry.filter, entry.hop, number)
            for number, entry in enumerate(entries, 1)
        ]
        self._inserted = len(records)
        self._records = {id(record.entry): record for record in records}
        for record in records:
            self._hops[record.hop] = self._hops.get(record.hop, 0) + 1
            self._marked += _is_marked(record.entry)
        self._root = from_data(tree, records)


@stored(
    "search",
    fields=("_index", "_filter", "_stack", "_group", "_at", "done", "looked"),
    rank=1,
)
class Search(Generic[E]):
    """The entries that overlap a filter, found piece by piece, while the index may change.

    The caller has to see whether what was found is still there. What was there when the
    search began and is still there is found once: records never move up in the tree or from one
    branch to another. What comes later may be found or not.
    """

    __slots__ = ("_at", "_filter", "_group", "_index", "_stack", "done", "looked")

    def __init__(self, index: Index[E], filter: Filter) -> None:
        self._index = index
        self._filter = filter
        self._stack: list[TreeNode[E]] = [index.root]
        #: Entries of the node that was looked at last, and how many of them have been tested.
        self._group: list[E] = []
        self._at = 0
        self.done = False
        #: How many records and nodes have been looked at so far.
        self.looked = 0

    def some(self, limit: int) -> list[E]:
        """The next entries; at most so many records and nodes are looked at. `done` after the
        last."""
        found: list[E] = []
        filter, stack = self._filter, self._stack
        end = self.looked + limit
        while (limit := end - self.looked) > 0:
            group = self._group[self._at : self._at + limit]
            if group:
                self._at += len(group)
                self.looked += len(group)
                found += [each for each in group if filter.overlaps(each.filter)]
            elif stack:
                self.looked += 1
                node = stack.pop()
                self._group, self._at = [record.entry for record in node.records], 0
                if (branches := node.branches) is not None:
                    for others in branches.cross(filter.predicates, stack, roughly=True):
                        self._group += [record.entry for record in others]
            else:
                self.done = True
                return found
        self.done = not (stack or self._at < len(self._group))
        return found

    @property
    def filter(self) -> Filter:
        return self._filter

    def remaining(self) -> list[E]:
        """All entries that are still to be found; the search stays where it is."""
        ahead: Search[E] = Search.__new__(Search)
        ahead._index = self._index
        ahead._filter, ahead._stack = self._filter, list(self._stack)
        ahead._group, ahead._at = self._group, self._at
        ahead.done, ahead.looked = self.done, 0
        found: list[E] = []
        while not ahead.done:
            found += ahead.some(1000)
        return found

    def _freeze(self) -> tuple[Any, ...]:
        # A node that is not in the tree any more is empty, and only counts as looked at.
        stack = Plain([path_to(node, self._index.root) for node in self._stack])
        return self._index, self._filter, stack, self._group, self._at, self.done, self.looked

    def _thaw(
        self,
        index: Index[E],
        filter: Filter,
        stack: list[Any],
        group: list[E],
        at: int,
        done: bool,
        looked: int,
    ) -> None:
        self._index, self._filter = index, filter
        self._stack = [TreeNode() if path is None else node_at(index.root, path) for path in stack]
        self._group, self._at = group, at
        self.done, self.looked = done, looked


def in_runs(hops: tuple[Hop, ...], count: int, following: Iterable[tuple[Hop, ...]]) -> list[Run]:
    """Runs of equal hops, the first of which has `count` members already."""
    runs: list[Run] = []
    for others in following:
        if others is hops or others == hops:
            count += 1
        else:
            runs.append((hops, count))
            hops, count = others, 1
    return [*runs, (hops, count)]


def _columns(points: list[dict[str, Value]]) -> dict[str, list[Value]] | None:
    """The points' values by attribute; None if they do not all have the same attributes."""
    names = points[0]
    if set(map(len, points)) != {len(names)}:
        return None
    try:
        return {name: list(map(itemgetter(name), points)) for name in names}
    except KeyError:
        return None


def _is_marked(entry: IndexEntry) -> bool:
    return entry.added_by is not None or bool(entry.removed_by)


def _number(record: IndexRecord[Any]) -> int:
    return record.number
