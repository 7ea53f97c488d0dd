"""The search tree of the index: records sorted by one attribute after the other.

After the BE-tree (Sadoghi and Jacobsen, SIGMOD 2011). A node keeps a few records unsorted; when
they become too many it sorts them by one attribute into children, which may sort theirs by
another, until nothing is left to sort by. Under an attribute lie

- equal values in a hash;
- intervals of numbers in cells wider than they are, one size of cells for each power of two, so
  that an interval touches two cells at most; it lies in the first, and a value looks into its own
  cell and the one before;
- intervals of strings under the prefix that all strings inside have in common;
- `isPresent` apart.

Intervals with one end, and those that nothing else separates, are on a ladder, ordered by an end.
Records that even a ladder cannot separate are on piles.

Every record is in one place only, so nothing is found twice, inserting and removing touch one path,
and nothing is ever rebuilt as a whole. A search returns the records that lie near in every
attribute that was sorted by. It may return too many, and the caller tests each.

This module knows points and filters, but no versions; `index` does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from sortedcontainers import SortedList

from overlay.filters import KIND_OF, Filter, Interval, Value
from overlay.matching.cells import (
    BOOLEAN_KEYS,
    PRESENT,
    Bound,
    Cell,
    CellKind,
    bound_of,
    cell_of,
)
from overlay.matching.compiled_tests import shape_of

if TYPE_CHECKING:
    from overlay.messages import Hop

#: Records that a node keeps unsorted. From 3 to 8 the measured times differ little; more is slower.
LEAF_SIZE: Final = 8

#: Sizes of cells, or lengths of prefixes, up to which many values are looked up together.
FEW_SIZES: Final = 4

#: Equal values up to which one looks at all of them for those in an interval.
MANY_VALUES: Final = 64

T = TypeVar("T")


# --- records --------------------------------------------------------------------------------


class IndexRecord(Generic[T]):
    """An entry as the tree holds it; its number is unique.

    It matches a point if `test(point.get, values)`. For a search that has reached `home`, `rest` is
    enough: it leaves out what the path has established.
    """

    __slots__ = (
        "entry",
        "filter",
        "form",
        "home",
        "hop",
        "number",
        "rest",
        "test",
        "values",
        "whole",
    )

    #: The node or pile that holds it; set by the tree.
    home: TreeNode[T] | Ladder[T]

    def __init__(self, entry: T, filter: Filter, hop: Hop, number: int) -> None:
        self.entry = entry
        self.filter = filter
        self.hop = hop
        self.number = number
        #: The shape of the filter, and of what is left of it for `rest`.
        self.whole, self.values = shape_of(filter)
        self.form = self.whole
        self.test = self.rest = self.form.test

    def was_equal_in(self, name: str) -> None:
        """Drop the test of an attribute that the path to the record has established."""
        self.form = self.form.without(name)
        self.rest = self.form.test


# --- what to sort by -------------------------------------------------------------------------


def _best_attribute(batch: list[IndexRecord[T]], used: frozenset[str]) -> str | None:
    """The attribute to sort by next; None if no attribute helps.

    Equality first. Of equalities the one with the fewest values: the class before the instance,
    so that a filter that names only the class is found in one place. Of intervals the one that
    spreads the records most.
    """
    tallies: dict[str, Counter[Cell]] = {}
    for record in batch:
        for name, interval in record.filter.predicates.items():
            cell = cell_of(interval) if name not in used else None
            if cell is not None and cell is not PRESENT:
                tallies.setdefault(name, Counter())[cell] += 1

    def rank(name: str) -> tuple[int, int, int, str]:
        tally = tallies[name]
        equal = sum(count for cell, count in tally.items() if cell.kind is CellKind.EQUAL)
        if equal:
            return -equal, len(tally), 0, name
        return 0, -tally.total(), -len(tally), name

    return min(tallies, key=rank, default=None)


def _best_end(batch: list[IndexRecord[T]]) -> Bound | None:
    """The bound to order by next: the one in which most records differ; None if there is none."""
    bounds: dict[Bound, set[Any]] = {}
    for record in batch:
        for name, interval in record.filter.predicates.items():
            if (end := bound_of(name, interval)) is not None:
                bounds.setdefault(end, set()).add(interval.lo if end.lower else interval.hi)
    return min(bounds, key=lambda end: (-len(bounds[end]), end), default=None)


# --- the tree -------------------------------------------------------------------------------


class TreeNode(Generic[T]):
    """A few unsorted records and, once there are too many, branches for the sorted ones."""

    __slots__ = ("branches", "cell", "part", "records")

    def __init__(self, part: AttributePart[T] | None = None, cell: Cell = PRESENT) -> None:
        self.part = part
        self.cell = cell
        self.records: list[IndexRecord[T]] = []
        self.branches: Branches[T] | None = None

    def insert(self, record: IndexRecord[T]) -> None:
        node = self
        while (branches := node.branches) is not None:
            branches.hops[record.hop] = branches.hops.get(record.hop, 0) + 1
            branches.way = None
            child = branches.child_for(record)
            if child is None:
                break
            node = child
        node.records.append(record)
        record.home = node
        if len(node.records) > LEAF_SIZE:
            node._sort()

    def remove(self, record: IndexRecord[T]) -> None:
        if record in self.records:
            self.records.remove(record)
        else:
            assert self.branches is not None
            self.branches.unpile(record)
        self.lost(record.hop)

    def lost(self, hop: Hop) -> None:
        """Note that a record of the hop has left this subtree, and remove what is empty."""
        node = self
        while True:
            if node.branches is not None and node.branches.are_gone_without(hop):
                node.branches = None
            part = node.part
            if part is None:
                return
            if node.branches is None and not node.records:
                part.drop(node.cell)
            node = part.node

    def _sort(self) -> None:
        """Sort the records: by an attribute, else by a bound, else into piles."""
        batch, self.records = self.records, []
        branches = self.branches
        if branches is None:
            branches = self.branches = Branches(self)
            branches.hops.update(Counter(record.hop for record in batch))
        while batch and (name := _best_attribute(batch, branches.used)) is not None:
            batch = branches.sort_by_attribute(name, batch)
        if len(batch) <= LEAF_SIZE // 2 and branches.parts:
            # Testing a few records is faster than a ladder. Half of the room stays free, or the
            # next record would start all this again.
            self.records = batch
            return
        while batch and (end := _best_end(batch)) is not None:
            batch = branches.sort_by_end(end, batch)
        for record in batch:
            branches.put_away(record)


class Branches(Generic[T]):
    """The sorted records of a node: by attributes, by bounds, and the rest in one pile per hop."""

    __slots__ = ("hops", "ladders", "node", "parts", "piles", "used", "way")

    def __init__(self, node: TreeNode[T]) -> None:
        self.node = node
        #: The attributes by which everything here has been sorted above.
        self.used: frozenset[str] = node.part.used if node.part is not None else frozenset()
        self.parts: dict[str, AttributePart[T]] = {}
        self.ladders: dict[Bound, Ladder[T]] = {}
        #: In the order of insertion; dicts, because one of thousands has to be removed quickly.
        self.piles: dict[Hop, dict[IndexRecord[T], None]] = {}
        #: How many records of each hop are in the node and below it.
        self.hops: dict[Hop, int] = {}
        #: The result of `equality_children`; None if something has changed since.
        self.way: tuple[str, dict[Any, TreeNode[T]]] | tuple[()] | None = None

    def equality_children(self) -> tuple[str, dict[Any, TreeNode[T]]] | tuple[()]:
        """The attribute and its children by value, if all that is sorted here is equalities of one
        attribute; empty otherwise. Most nodes are like that, above all near the root."""
        self.way = ()
        if len(self.parts) == 1 and not (self.ladders or self.piles):
            [part] = self.parts.values()
            if not (part.cells or part.prefixes or part.present):
                self.way = part.name, part.equal
        return self.way

    def reach(
        self, point: Mapping[str, Value], stack: list[TreeNode[T]]
    ) -> Iterable[tuple[Hop, Iterable[IndexRecord[T]]]]:
        """What can match the point: pushes children on the stack, returns groups by hop."""
        parts, get = self.parts, point.get
        for name in point if len(point) < len(parts) else parts:
            part = parts.get(name)
            value = get(name)
            if part is not None and value is not None:
                part.reach(value, stack)
        # Most nodes have neither, and need no generator.
        return self.groups(point) if self.ladders or self.piles else ()

    def common_children(self, columns: Mapping[str, list[Value]]) -> list[TreeNode[T]] | None:
        """The children in which all of several points may find something, if no point may find
        anything elsewhere; None if their paths part, or a quick look cannot tell.

        The points are given by attribute: the values of all points under each name.
        """
        if self.ladders or self.piles:
            return None
        found: list[TreeNode[T]] = []
        parts = self.parts
        for name in columns if len(columns) < len(parts) else parts:
            part, column = parts.get(name), columns.get(name)
            if part is None or column is None:
                continue
            values = set(column)
            if not values.isdisjoint((0, 1)) and bool in set(map(type, column)):
                return None  # In a set booleans equal numbers.
            if len(values) == 1:
                part.reach(values.pop(), found)
            elif not part.misses_all(values):
                return None
        return found

    def groups(self, point: Mapping[str, Value]) -> Iterator[tuple[Hop, Iterable[IndexRecord[T]]]]:
        """The records outside the attributes that can match the point, by hop."""
        for end, ladder in self.ladders.items():
            value = point.get(end.name)
            if value is not None and KIND_OF[type(value)] == end.kind:
                yield from ladder.reach(value)
        yield from self.piles.items()

    def cross(
        self,
        predicates: Mapping[str, Interval],
        stack: list[TreeNode[T]],
        *,
        roughly: bool = False,
    ) -> Iterator[Iterable[IndexRecord[T]]]:
        """What can overlap a filter: children are put on the stack, groups returned. Roughly: some
        that cannot as well, so that it takes no look at each of very many."""
        for name, part in self.parts.items():
            part.cross(predicates.get(name, _ANYTHING), stack, roughly=roughly)
        for end, ladder in self.ladders.items():
            yield from ladder.cross(predicates.get(end.name, _ANYTHING))
        yield from self.piles.values()

    def across(
        self, predicates: Mapping[str, Interval]
    ) -> tuple[Iterator[TreeNode[T]], Iterator[IndexRecord[T]]]:
        """The same one after the other, and nothing is copied: children, and other records."""
        parts, ladders = self.parts.items(), self.ladders.items()
        children = (
            child
            for name, part in parts
            for group in part.across(predicates.get(name, _ANYTHING), roughly=True)
            for child in group
        )
        groups = (
            run
            for end, ladder in ladders
            for run in ladder.cross(predicates.get(end.name, _ANYTHING))
        )
        return children, chain(chain.from_iterable(groups), *self.piles.values())

    def around(
        self, predicates: Mapping[str, Interval], stack: list[TreeNode[T]]
    ) -> Iterator[Iterable[IndexRecord[T]]]:
        """What can cover a filter: children are put on the stack, groups returned. Whatever is
        sorted by an attribute that the filter does not name cannot."""
        for name, interval in predicates.items():
            if (part := self.parts.get(name)) is not None:
                part.around(interval, stack)
        for end, ladder in self.ladders.items():
            if (of_end := predicates.get(end.name)) is not None:
                yield from ladder.around(of_end)
        yield from self.piles.values()

    def child_for(self, record: IndexRecord[T]) -> TreeNode[T] | None:
        """The child for a new record; None if it stays unsorted until there are more like it."""
        found: tuple[AttributePart[T], Cell] | None = None
        for name, interval in record.filter.predicates.items():
            part = self.parts.get(name)
            if part is None:
                continue
            cell = cell_of(interval)
            if cell is None or cell is PRESENT:
                continue
            if cell.kind is CellKind.EQUAL:
                record.was_equal_in(name)
                return part.child(cell)
            found = found or (part, cell)
        return found[0].child(found[1]) if found is not None else None

    def sort_by_attribute(self, name: str, batch: list[IndexRecord[T]]) -> list[IndexRecord[T]]:
        """Put records under the attribute; returns those that do not belong there."""
        others = []
        part = self._part(name)
        for record in batch:
            interval = record.filter.predicates.get(name)
            cell = cell_of(interval) if interval is not None else None
            if cell is None or cell is PRESENT:
                others.append(record)
            else:
                if cell.kind is CellKind.EQUAL:
                    record.was_equal_in(name)
                part.child(cell).insert(record)
        return others

    def sort_by_end(self, end: Bound, batch: list[IndexRecord[T]]) -> list[IndexRecord[T]]:
        """Put records on the ladder; returns those that have no such bound."""
        others = []
        ladder = self.ladders.get(end)
        if ladder is None:
            ladder = self.ladders[end] = Ladder(self.node, end)
        for record in batch:
            interval = record.filter.predicates.get(end.name)
            if interval is not None and bound_of(end.name, interval) == end:
                ladder.insert(record)
            else:
                others.append(record)
        return others

    def put_away(self, record: IndexRecord[T]) -> None:
        """Put a record that has no value or bound to sort by on a pile."""
        for name in record.filter.predicates:
            if name not in self.used:
                self._part(name).child(PRESENT).insert(record)
                return
        self.piles.setdefault(record.hop, {})[record] = None
        record.home = self.node

    def unpile(self, record: IndexRecord[T]) -> None:
        pile = self.piles[record.hop]
        del pile[record]
        if not pile:
            del self.piles[record.hop]

    def are_gone_without(self, hop: Hop) -> bool:
        """Count one record of the hop less; returns whether nothing sorted is left."""
        if self.hops[hop] > 1:
            self.hops[hop] -= 1
        else:
            del self.hops[hop]
        self.way = None  # `equality_children` may apply again.
        return not (self.parts or self.ladders or self.piles)

    def _part(self, name: str) -> AttributePart[T]:
        part = self.parts.get(name)
        if part is None:
            part = self.parts[name] = AttributePart(self.node, name, self.used | {name})
        return part


#: The interval of an attribute that a filter does not name.
_ANYTHING: Final = Interval()


class AttributePart(Generic[T]):
    """The children of a node under one attribute."""

    __slots__ = ("_in_order", "cells", "equal", "name", "node", "prefixes", "present", "used")

    def __init__(self, node: TreeNode[T], name: str, used: frozenset[str]) -> None:
        self.node = node
        self.name = name
        self.used = used
        self.equal: dict[Any, TreeNode[T]] = {}
        #: The equal values in their order, numbers and strings apart, once there are many.
        self._in_order: dict[type, SortedList] | None = None
        self.cells: dict[float, dict[float, TreeNode[T]]] = {}
        self.prefixes: dict[int, dict[str, TreeNode[T]]] = {}
        self.present: dict[None, TreeNode[T]] = {}

    def child(self, cell: Cell) -> TreeNode[T]:
        """The child in the cell, which is made if there is none."""
        shelf: dict[Any, TreeNode[T]]
        if cell.kind is CellKind.EQUAL:
            shelf = self.equal
        elif cell.kind is CellKind.CELL:
            shelf = self.cells.setdefault(cell.size, {})
        elif cell.kind is CellKind.PREFIX:
            shelf = self.prefixes.setdefault(cell.size, {})
        else:
            shelf = self.present
        node = shelf.get(cell.key)
        if node is None:
            node = shelf[cell.key] = TreeNode(self, cell)
            if cell.kind is CellKind.EQUAL:
                self._put_in_order(cell.key)
        return node

    def _put_in_order(self, value: Any) -> None:
        if self._in_order is not None:
            if value.__class__ is not tuple:
                self._in_order[str if value.__class__ is str else float].add(value)
        elif len(self.equal) > MANY_VALUES:
            self.put_all_in_order()

    @property
    def is_in_order(self) -> bool:
        """Whether the equal values are kept in their order, too."""
        return self._in_order is not None

    def put_all_in_order(self) -> None:
        self._in_order = {str: SortedList(), float: SortedList()}
        for known in self.equal:
            self._put_in_order(known)

    def _equal_between(self, interval: Interval) -> Iterable[TreeNode[T]]:
        """The children of equal values that the interval contains, without a look at all."""
        if self._in_order is None:
            return [node for value, node in self.equal.items() if interval.contains(value)]
        values = self._in_order[str if interval.kind == "string" else float]
        found = values.irange(interval.lo, interval.hi)  # Also at an open end; that is tested.
        return map(self.equal.__getitem__, found)

    def drop(self, cell: Cell) -> None:
        """Take away the child in the cell, which is empty, and what that leaves empty."""
        if cell.kind is CellKind.EQUAL:
            del self.equal[cell.key]
            if self._in_order is not None and cell.key.__class__ is not tuple:
                self._in_order[str if cell.key.__class__ is str else float].remove(cell.key)
        elif cell.kind is CellKind.CELL:
            del self.cells[cell.size][cell.key]
            if not self.cells[cell.size]:
                del self.cells[cell.size]
        elif cell.kind is CellKind.PREFIX:
            del self.prefixes[cell.size][cell.key]
            if not self.prefixes[cell.size]:
                del self.prefixes[cell.size]
        else:
            del self.present[cell.key]
        if not (self.equal or self.cells or self.prefixes or self.present):
            assert self.node.branches is not None
            del self.node.branches.parts[self.name]

    def reach(self, value: Any, stack: list[TreeNode[T]]) -> None:
        """Push the children where an interval can contain the value."""
        kind = value.__class__
        node = self.equal.get(BOOLEAN_KEYS[value] if kind is bool else value)
        if node is not None:
            stack.append(node)
        self.reach_unequal(value, stack)

    def reach_unequal(self, value: Any, stack: list[TreeNode[T]]) -> None:
        """The same without equal values."""
        kind = value.__class__
        if self.cells and (kind is float or kind is int):
            for size, numbered in self.cells.items():
                cell = value // size
                node = numbered.get(cell)
                if node is not None:
                    stack.append(node)
                node = numbered.get(cell - 1.0)
                if node is not None:
                    stack.append(node)
        if self.prefixes and kind is str:
            for length, named in self.prefixes.items():
                node = named.get(value[:length])
                if node is not None:
                    stack.append(node)
        if self.present:
            stack.extend(self.present.values())

    def misses_all(self, values: set[Any]) -> bool:
        """Whether certainly no child has an interval that contains one of the values, none of which
        is a boolean."""
        if self.present or not self.equal.keys().isdisjoint(values):
            return False
        if len(self.cells) > FEW_SIZES or len(self.prefixes) > FEW_SIZES:
            return False  # It would take as long as searching for each.
        if self.cells:
            numbers = [value for value in values if isinstance(value, int | float)]
            for size, numbered in self.cells.items():
                cells = {value // size for value in numbers}
                if not numbered.keys().isdisjoint(cells):
                    return False
                if not numbered.keys().isdisjoint([cell - 1.0 for cell in cells]):
                    return False
        if self.prefixes:
            strings = [value for value in values if value.__class__ is str]
            for length, named in self.prefixes.items():
                if not named.keys().isdisjoint([value[:length] for value in strings]):
                    return False
        return True

    def across(self, interval: Interval, *, roughly: bool = False) -> list[Iterable[TreeNode[T]]]:
        """The children where an interval can overlap this one, in groups that are not copied."""
        if interval.is_point:
            reached: list[TreeNode[T]] = []
            self.reach(interval.lo, reached)
            return [reached]
        groups: list[Iterable[TreeNode[T]]] = [self.present.values()]
        if interval.kind is None:
            groups.append(self.equal.values())
            groups += [numbered.values() for numbered in self.cells.values()]
            groups += [named.values() for named in self.prefixes.values()]
        elif interval.kind == "boolean":
            groups.append([self.equal[key] for key in BOOLEAN_KEYS.values() if key in self.equal])
        else:
            groups.append(self._equal_between(interval))
            lo, hi = interval.lo, interval.hi
            if interval.kind == "number":
                for size, numbered in self.cells.items():
                    groups.append(_numbered_between(numbered, size, lo, hi, roughly=roughly))
            else:
                for length, named in self.prefixes.items():
                    groups.append(_named_between(named, length, lo, hi))
        return groups

    def cross(self, interval: Interval, stack: list[TreeNode[T]], *, roughly: bool = False) -> None:
        """Push the children where an interval can overlap this one."""
        if interval.is_point:
            self.reach(interval.lo, stack)
        elif interval.kind == "number" and not (self.equal or self.present):
            for size, numbered in self.cells.items():
                stack.extend(
                    _numbered_between(numbered, size, interval.lo, interval.hi, roughly=roughly)
                )
        else:
            for group in self.across(interval, roughly=roughly):
                stack.extend(group)

    def around(self, interval: Interval, stack: list[TreeNode[T]]) -> None:
        """Push the children where an interval can cover this one: its lower end lies in those."""
        if interval.is_point:
            self.reach(interval.lo, stack)
        elif interval.lo is not None and interval.kind != "boolean":
            self.reach_unequal(interval.lo, stack)
        else:
            stack.extend(self.present.values())


def _numbered_between(
    numbered: dict[float, TreeNode[T]], size: float, lo: Any, hi: Any, *, roughly: bool
) -> Iterable[TreeNode[T]]:
    """The cells where an interval can overlap [lo, hi], without a look at all if those are few."""
    first = lo // size - 1.0 if lo is not None else -math.inf
    last = hi // size if hi is not None else math.inf
    if last - first < len(numbered):
        cells = (first + step for step in range(int(last - first) + 1))
        return (numbered[cell] for cell in cells if cell in numbered)
    if roughly:
        return numbered.values()
    return (node for cell, node in numbered.items() if first <= cell <= last)


def _named_between(
    named: dict[str, TreeNode[T]], length: int, lo: Any, hi: Any
) -> Iterator[TreeNode[T]]:
    """The prefixes with which a string from lo to hi can begin."""
    first = lo[:length]
    if hi is None:
        return (node for name, node in named.items() if first <= name)
    last = hi[:length]
    return (node for name, node in named.items() if first <= name <= last)


class Ladder(Generic[T]):
    """Records ordered by a bound, one list per hop.

    Going up from the lowest lower bound, or down from the highest upper bound, everything that can
    contain a value comes before the first that cannot.
    """

    __slots__ = ("end", "node", "runs", "starts")

    def __init__(self, node: TreeNode[T], end: Bound) -> None:
        self.node = node
        self.end = end
        #: By hop, (bound, number, record); numbers differ, so records are never compared.
        self.runs: dict[Hop, SortedList] = {}
        #: (bound, hop) where each run starts.
        self.starts = SortedList()

    def insert(self, record: IndexRecord[T]) -> None:
        run = self.runs.get(record.hop)
        if run is None:
            run = self.runs[record.hop] = SortedList()
        else:
            self.starts.remove((self._start(run), record.hop))
        run.add((self._bound(record), record.number, record))
        self.starts.add((self._start(run), record.hop))
        record.home = self

    def put_run(self, hop: Hop, records: list[IndexRecord[T]]) -> None:
        """Insert all records of a hop, which has none here; their `home` is set already."""
        run = SortedList((self._bound(record), record.number, record) for record in records)
        self.runs[hop] = run
        self.starts.add((self._start(run), hop))

    def remove(self, record: IndexRecord[T]) -> None:
        run = self.runs[record.hop]
        self.starts.remove((self._start(run), record.hop))
        run.remove((self._bound(record), record.number, record))
        if run:
            self.starts.add((self._start(run), record.hop))
        else:
            del self.runs[record.hop]
        if not self.runs:
            assert self.node.branches is not None
            del self.node.branches.ladders[self.end]
        self.node.lost(record.hop)

    def reach(self, value: Any) -> Iterator[tuple[Hop, Iterator[IndexRecord[T]]]]:
        """By hop, the records whose bound admits the value."""
        for start, hop in self.starts if self.end.lower else reversed(self.starts):
            if start > value if self.end.lower else start < value:
                return
            yield hop, self._up_to(value, self.runs[hop])

    def cross(self, interval: Interval) -> Iterator[Iterator[IndexRecord[T]]]:
        """The records whose bound admits a part of the interval."""
        if interval.kind is not None and interval.kind != self.end.kind:
            return
        limit = interval.hi if self.end.lower else interval.lo
        for run in self.runs.values():
            yield self._up_to(limit, run)

    def around(self, interval: Interval) -> Iterator[Iterator[IndexRecord[T]]]:
        """The records whose bound excludes nothing of the interval."""
        limit = interval.lo if self.end.lower else interval.hi
        if limit is not None and interval.kind == self.end.kind:
            for run in self.runs.values():
                yield self._up_to(limit, run)

    def _up_to(self, limit: Any, run: SortedList) -> Iterator[IndexRecord[T]]:
        """The records of the run up to a limit (None: all), from its start on."""
        if self.end.lower:
            steps = run.irange(None, None if limit is None else (limit, math.inf))
        else:
            steps = run.irange(None if limit is None else (limit,), None, reverse=True)
        return (record for _, _, record in steps)

    def _start(self, run: SortedList) -> Any:
        return run[0][0] if self.end.lower else run[-1][0]

    def _bound(self, record: IndexRecord[T]) -> Any:
        interval = record.filter.predicates[self.end.name]
        return interval.lo if self.end.lower else interval.hi
