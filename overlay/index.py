"""The matching index: which of very many filters match a point, or overlap another filter.

A search tree over the filters, after the BE-tree (Sadoghi and Jacobsen, SIGMOD 2011). A node keeps
a few entries unsorted; when they become too many it sorts them by one attribute into children,
which may sort theirs by another, until nothing is left to sort by. Under an attribute lie

- equal values in a hash;
- intervals of numbers in cells at least as wide as they are, one size of cells for each power of
  two, so that an interval touches two cells at most; it lies in the first, and a point looks into
  its own cell and the one before;
- intervals of strings under the prefix that all strings inside have in common;
- `isPresent` apart.

Intervals with one end, and those that nothing else tells apart, are ordered by an end.

Every entry is in one place only, so nothing is found twice, inserting and removing touch one path,
and there is no moment at which everything is rebuilt. What a search visits lies near the point in
every attribute that was sorted by: the cost follows the candidates and not the table. Each
candidate is then tested exactly; the tree may be wrong only by offering too much.

Routing asks for hops far more often than for entries. Nodes count the hops below them, and large
groups are kept by hop, so that a search leaves out what leads only to hops that it already has: a
thousand matching subscriptions behind one neighbour cost as much as one.

This module knows nothing of what entries are for (advertisements, subscriptions), and of versions
only that a view includes them or not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from sortedcontainers import SortedList

from overlay.filters import KIND_OF, Filter, Interval, Kind, Value
from overlay.messages import Hop, Version

#: Entries that a node keeps unsorted. Testing one costs about a quarter of stepping into a child.
LEAF_SIZE: Final = 8


class View(Protocol):
    """What a reader sees: some versions of the routing state, and others not."""

    def includes(self, version: Version) -> bool: ...


class Entry(Protocol):
    """What the index has to know of an entry; filter and hop never change while it is in there.

    `added_by` is the version that brought the entry, None if it is simply there; `removed_by`
    are the versions in which it is gone. In the index they change by `Index.remark` only.
    """

    added_by: Version | None
    removed_by: tuple[Version, ...]

    @property
    def filter(self) -> Filter: ...
    @property
    def hop(self) -> Hop: ...


E = TypeVar("E", bound=Entry)


def is_visible(entry: Entry, view: View | None) -> bool:
    """Whether the view includes what added the entry, and nothing that removed it.

    No view includes no version: what a version brought is not there, what it removed still is.
    """
    if view is None:
        return entry.added_by is None
    if entry.added_by is not None and not view.includes(entry.added_by):
        return False
    return not any(view.includes(version) for version in entry.removed_by)


class _Keep(Enum):
    """What `Index.remark` takes for "as it is", None being a value."""

    KEEP = 0


class Index(Generic[E]):
    """Entries, found by a point that they match or by a filter that they overlap.

    An entry is itself only: two with the same filter and hop are two. All answers come in an
    order that depends on nothing but the insertions.
    """

    def __init__(self) -> None:
        self._records: dict[int, _Record[E]] = {}
        self._root: _Node[E] = _Node(None, _PRESENT)
        self._inserted = 0
        #: While no entry carries a version, nobody has to ask for visibility.
        self._marked = 0

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[E]:
        """All entries, whatever their versions, in the order of insertion."""
        return (record.entry for record in self._records.values())

    def insert(self, entry: E) -> None:
        """Take the entry in."""
        assert id(entry) not in self._records, f"in the index already: {entry!r}"
        self._inserted += 1
        record = self._records[id(entry)] = _Record(entry, self._inserted)
        self._marked += _is_marked(entry)
        self._root.insert(record)

    def remove(self, entry: E) -> None:
        """Take out this very entry, which must be in."""
        record = self._records.pop(id(entry), None)
        assert record is not None, f"not in the index: {entry!r}"
        self._marked -= _is_marked(entry)
        record.home.remove(record)

    def remark(
        self,
        entry: E,
        *,
        added_by: Version | _Keep | None = _Keep.KEEP,
        removed_by: tuple[Version, ...] | _Keep = _Keep.KEEP,
    ) -> None:
        """Change the versions of an entry that is in; what is not given stays."""
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
        found = [
            record
            for _, bunch in self._reached(point, set())
            for record in bunch
            if _matches(record.tests, get)
        ]
        return self._visible(found, view)

    def overlapping(self, filter: Filter, view: View | None = None) -> list[E]:
        """The entries that overlap the filter and are visible, in the order of insertion."""
        found = [
            record
            for bunch in self._crossed(filter.predicates)
            for record in bunch
            if filter.overlaps(record.entry.filter)
        ]
        return self._visible(found, view)

    def hops(self, point: Mapping[str, Value], view: View | None = None) -> list[Hop]:
        """The hops of the entries that match the point and are visible, each once, sorted."""
        get = point.get
        marked = self._marked
        found: set[Hop] = set()
        for of_one_hop, bunch in self._reached(point, found):
            for record in bunch:
                if (
                    record.hop not in found
                    and _matches(record.tests, get)
                    and (not marked or is_visible(record.entry, view))
                ):
                    found.add(record.hop)
                    if of_one_hop:
                        break
        return sorted(found)

    def _visible(self, found: list[_Record[E]], view: View | None) -> list[E]:
        if len(found) > 1:
            found.sort(key=_number)
        if self._marked:
            return [record.entry for record in found if is_visible(record.entry, view)]
        return [record.entry for record in found]

    def _reached(self, point: Mapping[str, Value], known: set[Hop]) -> Iterator[_Bunch[E]]:
        """Whatever can match the point, but for what leads to known hops only.

        The caller may come to know more hops between one bunch and the next.
        """
        get = point.get
        stack = [self._root]
        while stack:
            node = stack.pop()
            if node.records:
                yield False, node.records
            inner = node.inner
            if inner is None or (known and inner.hops.keys() <= known):
                continue
            parts = inner.parts
            for name in point if len(point) < len(parts) else parts:
                part = parts.get(name)
                value = get(name)
                if part is not None and value is not None:
                    part.reach(value, stack)
            for ladder in inner.ladders.values():
                value = get(ladder.end.name)
                if value is not None and KIND_OF[type(value)] == ladder.end.kind:
                    yield from ladder.reached(value, known)
            for hop, pile in inner.piles.items():
                if hop not in known:
                    yield True, pile

    def _crossed(self, predicates: Mapping[str, Interval]) -> Iterator[Iterable[_Record[E]]]:
        """Whatever can overlap a filter of these predicates."""
        stack = [self._root]
        while stack:
            node = stack.pop()
            yield node.records
            inner = node.inner
            if inner is None:
                continue
            for name, part in inner.parts.items():
                part.cross(predicates.get(name, _ANYTHING), stack)
            for end, ladder in inner.ladders.items():
                yield from ladder.crossed(predicates.get(end.name, _ANYTHING))
            yield from inner.piles.values()


def _is_marked(entry: Entry) -> bool:
    return entry.added_by is not None or bool(entry.removed_by)


#: What a filter says of an attribute that it does not name.
_ANYTHING: Final = Interval()


# --- records --------------------------------------------------------------------------------

#: One predicate, taken apart so that testing it rarely calls anything: the attribute, the types
#: that compare with the ends, the ends, and the interval itself if one of them is exclusive.
_Test: TypeAlias = tuple[str, frozenset[type], Any, Any, Interval | None]

_TYPES_OF: Final = {
    kind: frozenset(type_ for type_ in KIND_OF if kind in (None, KIND_OF[type_]))
    for kind in (None, *KIND_OF.values())
}


class _Record(Generic[E]):
    """An entry as the index holds it."""

    __slots__ = ("entry", "home", "hop", "number", "predicates", "tests")

    #: Which part of the tree to take it out of.
    home: _Node[E] | _Ladder[E]

    def __init__(self, entry: E, number: int) -> None:
        self.entry = entry
        self.hop = entry.hop
        self.number = number
        self.predicates = entry.filter.predicates
        self.tests: tuple[_Test, ...] = tuple(
            (
                name,
                _TYPES_OF[interval.kind],
                interval.lo,
                interval.hi,
                interval if interval.lo_open or interval.hi_open else None,
            )
            for name, interval in self.predicates.items()
        )


#: Records to be tested, and whether all of them are of one hop.
_Bunch: TypeAlias = tuple[bool, Iterable[_Record[E]]]


def _number(record: _Record[Any]) -> int:
    return record.number


def _matches(tests: tuple[_Test, ...], get: Callable[[str], Any]) -> bool:
    """`Filter.matches`, at a third of its cost."""
    for name, types, lo, hi, exclusive in tests:
        value = get(name)
        if (
            value.__class__ not in types
            or (lo is not None and value < lo)
            or (hi is not None and value > hi)
            or (exclusive is not None and not exclusive.contains(value))
        ):
            return False
    return True


# --- where an interval belongs --------------------------------------------------------------


class _Sort(Enum):
    """How a child is found under an attribute."""

    EQUAL = 0
    CELL = 1
    PREFIX = 2
    PRESENT = 3


class _Place(NamedTuple):
    """Where under an attribute: in which shelf (a width of cells, a length of prefixes), and where
    on it."""

    sort: _Sort
    size: Any
    key: Any


class _End(NamedTuple):
    """By which of its ends an interval is ordered."""

    name: str
    kind: Kind
    lower: bool


_PRESENT: Final = _Place(_Sort.PRESENT, None, None)

#: Python takes True for 1 and False for 0; a hash table here must not.
_BOOLEAN_KEYS: Final = {False: (False,), True: (True,)}

#: A quarter of what a float can hold: the cells, twice as wide at most, can then still be counted.
_MAX_WIDTH: Final = 2.0**1022


def _place(interval: Interval) -> _Place | None:
    """Where the interval is found by a value inside; None if only its ends tell where it is."""
    lo: Any = interval.lo
    hi: Any = interval.hi
    if interval.kind is None or (lo == "" and hi is None):
        return _PRESENT
    if interval.kind == "boolean":
        return _Place(_Sort.EQUAL, None, _BOOLEAN_KEYS[lo]) if lo == hi else _PRESENT
    if lo is None or hi is None:
        return None
    if lo == hi:
        return _Place(_Sort.EQUAL, None, lo)
    if interval.kind == "string":
        common = _common_prefix(interval)
        return _Place(_Sort.PREFIX, len(common), common) if common else None
    size = _cell_size(float(lo), float(hi))
    return _Place(_Sort.CELL, size, lo // size) if size is not None else None


def _cell_size(lo: float, hi: float) -> float | None:
    """The power of two above the interval's width; None if floats do not reach so far.

    All numbers are compared with cells as floats; rounding keeps their order, so what lies inside
    still does. frexp makes the size greater than the width, so the interval touches two cells at
    most. Dividing by a power of two is exact. And no size is below the distance of two floats
    here, so cells are numbered below 2**53, where floats still count by one.
    """
    width = max(hi - lo, math.ulp(lo), math.ulp(hi))
    return math.ldexp(1.0, math.frexp(width)[1]) if width < _MAX_WIDTH else None


def _common_prefix(interval: Interval) -> str:
    """What all strings of an interval with two ends begin with."""
    lo: Any = interval.lo
    hi: Any = interval.hi
    length = 0
    for left, right in zip(lo, hi, strict=False):
        if left != right:
            # Nothing from ab up to ac, without ac, begins with anything but ab.
            if interval.hi_open and len(hi) == length + 1 and ord(left) + 1 == ord(right):
                length += 1
            break
        length += 1
    return str(lo[:length])


def _end(name: str, interval: Interval) -> _End | None:
    """The end to order the interval by; None if it has none that tells it from others."""
    if interval.kind is None or interval.kind == "boolean" or interval.is_point:
        return None
    if interval.lo is not None and interval.lo != "":
        return _End(name, interval.kind, True)
    return None if interval.hi is None else _End(name, interval.kind, False)


# --- the tree -------------------------------------------------------------------------------


class _Node(Generic[E]):
    """A few records as they came and, once there were too many of them, the sorted ones."""

    __slots__ = ("inner", "part", "place", "records")

    def __init__(self, part: _Part[E] | None, place: _Place) -> None:
        self.part = part
        self.place = place
        self.records: list[_Record[E]] = []
        self.inner: _Inner[E] | None = None

    def insert(self, record: _Record[E]) -> None:
        node = self
        while (inner := node.inner) is not None:
            inner.hops[record.hop] = inner.hops.get(record.hop, 0) + 1
            child = inner.child_for(record)
            if child is None:
                break
            node = child
        node.records.append(record)
        record.home = node
        if len(node.records) > LEAF_SIZE:
            node._sort()

    def remove(self, record: _Record[E]) -> None:
        if record in self.records:
            self.records.remove(record)
        else:
            assert self.inner is not None
            self.inner.unpile(record)
        self.lost(record.hop)

    def lost(self, hop: Hop) -> None:
        """Count that a record of the hop has left this node, or what is below; tidy up."""
        node = self
        while True:
            if node.inner is not None and node.inner.is_done_without(hop):
                node.inner = None
            part = node.part
            if part is None:
                return
            if node.inner is None and not node.records:
                part.drop(node.place)
            node = part.node

    def _sort(self) -> None:
        """Move the records on: by an attribute, else by an end, else onto piles."""
        batch, self.records = self.records, []
        inner = self.inner
        if inner is None:
            inner = self.inner = _Inner(self)
            inner.hops.update(Counter(record.hop for record in batch))
        while batch and (name := _best_attribute(batch, inner.used)) is not None:
            batch = inner.sort_by_attribute(name, batch)
        while batch and (end := _best_end(batch)) is not None:
            batch = inner.sort_by_end(end, batch)
        for record in batch:
            inner.put_away(record)


def _best_attribute(batch: list[_Record[E]], used: frozenset[str]) -> str | None:
    """The attribute to sort by next; None if that takes no record further.

    Equality first. Of equalities the one with the fewest values: the class before the instance,
    so that a filter which names the class alone finds its own in one place. Of intervals the
    one that spreads the records most.
    """
    tallies: dict[str, Counter[_Place]] = {}
    for record in batch:
        for name, interval in record.predicates.items():
            place = _place(interval) if name not in used else None
            if place is not None and place is not _PRESENT:
                tallies.setdefault(name, Counter())[place] += 1

    def rank(name: str) -> tuple[int, int, int, str]:
        tally = tallies[name]
        equal = sum(count for place, count in tally.items() if place.sort is _Sort.EQUAL)
        if equal:
            return -equal, len(tally), 0, name
        return 0, -tally.total(), -len(tally), name

    return min(tallies, key=rank, default=None)


def _best_end(batch: list[_Record[E]]) -> _End | None:
    """The end to order by next, the one in which most records differ; None if none has any."""
    bounds: dict[_End, set[Any]] = {}
    for record in batch:
        for name, interval in record.predicates.items():
            if (end := _end(name, interval)) is not None:
                bounds.setdefault(end, set()).add(interval.lo if end.lower else interval.hi)
    return min(bounds, key=lambda end: (-len(bounds[end]), end), default=None)


class _Inner(Generic[E]):
    """What a node has sorted: by attributes, by ends, and the rest in one pile for each hop."""

    __slots__ = ("hops", "ladders", "node", "parts", "piles", "used")

    def __init__(self, node: _Node[E]) -> None:
        self.node = node
        #: The attributes by which everything here has been sorted above.
        self.used: frozenset[str] = node.part.used if node.part is not None else frozenset()
        self.parts: dict[str, _Part[E]] = {}
        self.ladders: dict[_End, _Ladder[E]] = {}
        #: In the order of insertion, as dicts, from which one of thousands is quickly removed.
        self.piles: dict[Hop, dict[_Record[E], None]] = {}
        #: How many records of each hop are in the node and below it.
        self.hops: dict[Hop, int] = {}

    def child_for(self, record: _Record[E]) -> _Node[E] | None:
        """Where a new record belongs; None if it has to wait for more of its sort."""
        found: tuple[_Part[E], _Place] | None = None
        for name, interval in record.predicates.items():
            part = self.parts.get(name)
            if part is None:
                continue
            place = _place(interval)
            if place is None or place is _PRESENT:
                continue
            if place.sort is _Sort.EQUAL:
                return part.child(place)
            found = found or (part, place)
        return found[0].child(found[1]) if found is not None else None

    def sort_by_attribute(self, name: str, batch: list[_Record[E]]) -> list[_Record[E]]:
        """Put the records under the attribute; the others are returned."""
        others = []
        part = self._part(name)
        for record in batch:
            interval = record.predicates.get(name)
            place = _place(interval) if interval is not None else None
            if place is None or place is _PRESENT:
                others.append(record)
            else:
                part.child(place).insert(record)
        return others

    def sort_by_end(self, end: _End, batch: list[_Record[E]]) -> list[_Record[E]]:
        """Put the records on the ladder; those that have no such end are returned."""
        others = []
        ladder = self.ladders.setdefault(end, _Ladder(self.node, end))
        for record in batch:
            interval = record.predicates.get(end.name)
            if interval is None or _end(end.name, interval) != end:
                others.append(record)
            else:
                ladder.insert(record)
        return others

    def put_away(self, record: _Record[E]) -> None:
        """Keep a record that has no value or end to sort it by."""
        for name in record.predicates:
            if name not in self.used:
                self._part(name).child(_PRESENT).insert(record)
                return
        self.piles.setdefault(record.hop, {})[record] = None
        record.home = self.node

    def unpile(self, record: _Record[E]) -> None:
        pile = self.piles[record.hop]
        del pile[record]
        if not pile:
            del self.piles[record.hop]

    def is_done_without(self, hop: Hop) -> bool:
        """Count one record of the hop less; say whether nothing sorted is left."""
        if self.hops[hop] > 1:
            self.hops[hop] -= 1
        else:
            del self.hops[hop]
        return not (self.parts or self.ladders or self.piles)

    def _part(self, name: str) -> _Part[E]:
        part = self.parts.get(name)
        if part is None:
            part = self.parts[name] = _Part(self.node, name, self.used | {name})
        return part


class _Part(Generic[E]):
    """The children of a node under one attribute."""

    __slots__ = ("cells", "equal", "name", "node", "prefixes", "present", "used")

    def __init__(self, node: _Node[E], name: str, used: frozenset[str]) -> None:
        self.node = node
        self.name = name
        self.used = used
        self.equal: dict[Any, _Node[E]] = {}
        self.cells: dict[float, dict[float, _Node[E]]] = {}
        self.prefixes: dict[int, dict[str, _Node[E]]] = {}
        self.present: dict[None, _Node[E]] = {}

    def child(self, place: _Place) -> _Node[E]:
        """The child at the place, a new one if there was none."""
        shelf: dict[Any, _Node[E]]
        sort = place.sort
        if sort is _Sort.EQUAL:
            shelf = self.equal
        elif sort is _Sort.CELL:
            shelf = self.cells.setdefault(place.size, {})
        elif sort is _Sort.PREFIX:
            shelf = self.prefixes.setdefault(place.size, {})
        else:
            shelf = self.present
        node = shelf.get(place.key)
        if node is None:
            node = shelf[place.key] = _Node(self, place)
        return node

    def drop(self, place: _Place) -> None:
        """Take away the child at the place, which is empty, and what that leaves empty."""
        sort = place.sort
        if sort is _Sort.EQUAL:
            del self.equal[place.key]
        elif sort is _Sort.CELL:
            del self.cells[place.size][place.key]
            if not self.cells[place.size]:
                del self.cells[place.size]
        elif sort is _Sort.PREFIX:
            del self.prefixes[place.size][place.key]
            if not self.prefixes[place.size]:
                del self.prefixes[place.size]
        else:
            del self.present[place.key]
        if not (self.equal or self.cells or self.prefixes or self.present):
            assert self.node.inner is not None
            del self.node.inner.parts[self.name]

    def reach(self, value: Value, stack: list[_Node[E]]) -> None:
        """Add the children where an interval can contain the value."""
        kind = type(value)
        key: Any = value
        node = self.equal.get(_BOOLEAN_KEYS[key] if kind is bool else key)
        if node is not None:
            stack.append(node)
        if self.cells and (kind is float or kind is int):
            number: Any = value
            for size, numbered in self.cells.items():
                cell = number // size
                node = numbered.get(cell)
                if node is not None:
                    stack.append(node)
                node = numbered.get(cell - 1.0)
                if node is not None:
                    stack.append(node)
        if self.prefixes and kind is str:
            text: Any = value
            for length, named in self.prefixes.items():
                node = named.get(text[:length])
                if node is not None:
                    stack.append(node)
        if self.present:
            stack.extend(self.present.values())

    def cross(self, interval: Interval, stack: list[_Node[E]]) -> None:
        """Add the children where an interval can overlap this one."""
        lo: Any = interval.lo
        hi: Any = interval.hi
        if interval.is_point:
            self.reach(lo, stack)
            return
        stack.extend(self.present.values())
        if interval.kind is None:
            stack.extend(self.equal.values())
            for numbered in self.cells.values():
                stack.extend(numbered.values())
            for named in self.prefixes.values():
                stack.extend(named.values())
        elif interval.kind == "boolean":
            stack.extend(node for key in _BOOLEAN_KEYS.values() if (node := self.equal.get(key)))
        else:
            stack.extend(node for value, node in self.equal.items() if interval.contains(value))
            if interval.kind == "number":
                for size, numbered in self.cells.items():
                    first = -math.inf if lo is None else lo // size - 1.0
                    last = math.inf if hi is None else hi // size
                    stack.extend(_between(numbered, first, last))
            else:
                for length, named in self.prefixes.items():
                    stop = None if hi is None else hi[:length]
                    stack.extend(
                        node
                        for key, node in named.items()
                        if lo[:length] <= key and (stop is None or key <= stop)
                    )


def _between(numbered: dict[float, _Node[E]], first: float, last: float) -> Iterator[_Node[E]]:
    """The cells from one number to another, without looking at all if those are few."""
    if last - first < len(numbered):
        cells = (first + offset for offset in range(int(last - first) + 1))
        return (numbered[cell] for cell in cells if cell in numbered)
    return (node for cell, node in numbered.items() if first <= cell <= last)


class _Ladder(Generic[E]):
    """Records in the order of an end, those of each hop apart.

    Going up from the lowest of the lower ends (or down from the highest of the upper ones), all
    that can contain a value come before the first that cannot.
    """

    __slots__ = ("end", "node", "runs", "starts")

    def __init__(self, node: _Node[E], end: _End) -> None:
        self.node = node
        self.end = end
        #: By hop (end, number, record). The numbers differ, so records are never compared.
        self.runs: dict[Hop, SortedList] = {}
        #: (end, hop) of each run's first, or last.
        self.starts = SortedList()

    def insert(self, record: _Record[E]) -> None:
        run = self.runs.get(record.hop)
        if run is None:
            run = self.runs[record.hop] = SortedList()
        else:
            self.starts.remove((self._start(run), record.hop))
        run.add((self._bound(record), record.number, record))
        self.starts.add((self._start(run), record.hop))
        record.home = self

    def remove(self, record: _Record[E]) -> None:
        run = self.runs[record.hop]
        self.starts.remove((self._start(run), record.hop))
        run.remove((self._bound(record), record.number, record))
        if run:
            self.starts.add((self._start(run), record.hop))
        else:
            del self.runs[record.hop]
            if not self.runs:
                assert self.node.inner is not None
                del self.node.inner.ladders[self.end]
        self.node.lost(record.hop)

    def reached(self, value: Any, known: set[Hop]) -> Iterator[_Bunch[E]]:
        """By hop, unless known, the records whose end lets the value in."""
        for start, hop in self.starts if self.end.lower else reversed(self.starts):
            if start > value if self.end.lower else start < value:
                break
            if hop not in known:
                yield True, self._up_to(self.runs[hop], value)

    def crossed(self, interval: Interval) -> Iterator[Iterable[_Record[E]]]:
        """The records whose end lets in something of the interval."""
        if interval.kind is None:
            limit = None
        elif interval.kind == self.end.kind:
            limit = interval.hi if self.end.lower else interval.lo
        else:
            return
        for run in self.runs.values():
            yield (record for *_, record in run) if limit is None else self._up_to(run, limit)

    def _up_to(self, run: SortedList, value: Any) -> Iterator[_Record[E]]:
        if self.end.lower:
            steps = run.irange(None, (value, math.inf))
        else:
            steps = run.irange((value,), None, reverse=True)
        return (record for _, _, record in steps)

    def _start(self, run: SortedList) -> Any:
        return run[0][0] if self.end.lower else run[-1][0]

    def _bound(self, record: _Record[E]) -> Any:
        interval = record.predicates[self.end.name]
        return interval.lo if self.end.lower else interval.hi
