"""The search tree as plain data, and back, for snapshots.

The shape of a tree depends on all that was ever inserted and removed. It does not show in what is
found, but long work that searches piece by piece (`index.Search`) goes on from slice to slice by
it. So a snapshot has the tree as it is, and thawing sorts nothing anew.

    node       [number of a record, ...], or if it has branches:
    branches   [records, hops, parts, ladders, piles]
    hops       [hop, how many, ...]
    part       [attribute, in order?, [value, node, ...], [size, [cell, node, ...], ...],
                [length, [prefix, node, ...], ...], node or null]
    ladder     [attribute, kind, lower?, [hop, [number of a record, ...], ...]]
    piles      [hop, [number of a record, ...], ...]

A record's number is its place in the order of insertion, from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar, cast

from overlay.matching.cells import BOOLEAN_KEYS, PRESENT, Bound, Cell, CellKind
from overlay.matching.tree import AttributePart, Branches, IndexRecord, Ladder, TreeNode

T = TypeVar("T")

#: Numbers of records by their numbers in the index.
Places: TypeAlias = dict[int, int]


# --- nodes by name ---


def path_to(node: TreeNode[T], root: TreeNode[T]) -> list[list[Any]] | None:
    """The way from the root to a node: under which attribute and in which cell, step by step; None
    if it is not in the tree any more."""
    path: list[list[Any]] = []
    while (part := node.part) is not None:
        branches, cell = part.node.branches, node.cell
        if branches is None or branches.parts.get(part.name) is not part:
            return None
        if _shelf(part, cell).get(cell.key) is not node:
            return None
        path.append([part.name, cell.kind.value, cell.size, _plain_key(cell.key)])
        node = part.node
    return path[::-1] if node is root else None


def node_at(root: TreeNode[T], path: list[list[Any]]) -> TreeNode[T]:
    """The node at the end of a path."""
    node = root
    for name, kind, size, key in path:
        assert node.branches is not None
        cell = Cell(CellKind(kind), size, _key(key))
        node = _shelf(node.branches.parts[name], cell)[cell.key]
    return node


def _shelf(part: AttributePart[T], cell: Cell) -> dict[Any, TreeNode[T]]:
    if cell.kind is CellKind.EQUAL:
        return part.equal
    if cell.kind is CellKind.CELL:
        return part.cells.get(cell.size, {})
    if cell.kind is CellKind.PREFIX:
        return part.prefixes.get(cell.size, {})
    return cast("dict[Any, TreeNode[T]]", part.present)


def _plain_key(key: Any) -> Any:
    return key[0] if key.__class__ is tuple else key


def _key(plain: Any) -> Any:
    return BOOLEAN_KEYS[plain] if plain.__class__ is bool else plain


# --- writing ---


def as_data(node: TreeNode[T], places: Places) -> list[Any]:
    """A node and all below it."""
    records: list[Any] = [places[record.number] for record in node.records]
    branches = node.branches
    if branches is None:
        return records
    return [
        records,
        [each for item in branches.hops.items() for each in item],
        [_part_as_data(part, places) for part in branches.parts.values()],
        [_ladder_as_data(ladder, places) for ladder in branches.ladders.values()],
        _groups(branches.piles.items(), places),
    ]


def _part_as_data(part: AttributePart[T], places: Places) -> list[Any]:
    def shelf(held: dict[Any, TreeNode[T]]) -> list[Any]:
        data: list[Any] = []
        for key, node in held.items():
            data.append(_plain_key(key))
            data.append(as_data(node, places))
        return data

    return [
        part.name,
        part.is_in_order,
        shelf(part.equal),
        [each for size, held in part.cells.items() for each in (size, shelf(held))],
        [each for length, held in part.prefixes.items() for each in (length, shelf(held))],
        as_data(part.present[None], places) if part.present else None,
    ]


def _ladder_as_data(ladder: Ladder[T], places: Places) -> list[Any]:
    runs = ((hop, [record for _, _, record in run]) for hop, run in ladder.runs.items())
    return [*ladder.end, _groups(runs, places)]


def _groups(groups: Any, places: Places) -> list[Any]:
    """Records by hop."""
    return [
        each
        for hop, records in groups
        for each in (hop, [places[record.number] for record in records])
    ]


# --- reading ---


def from_data(data: list[Any], records: Sequence[IndexRecord[T]]) -> TreeNode[T]:
    """The root of a tree that has these records."""
    root: TreeNode[T] = TreeNode()
    _fill(root, data, records, ())
    return root


def _fill(
    node: TreeNode[T], data: list[Any], records: Sequence[IndexRecord[T]], known: tuple[str, ...]
) -> None:
    """`known` are the attributes that the path has established to be equal."""
    is_leaf = not data or data[0].__class__ is not list
    for place in data if is_leaf else data[0]:
        record = records[place]
        _place(record, node, known)
        node.records.append(record)
    if is_leaf:
        return
    _, hops, parts, ladders, piles = data
    branches = node.branches = Branches(node)
    branches.hops = dict(zip(hops[::2], hops[1::2], strict=True))
    for part in parts:
        _fill_part(branches, part, records, known)
    for name, kind, lower, runs in ladders:
        _fill_ladder(branches, Bound(name, kind, lower), runs, records, known)
    for hop, places in zip(piles[::2], piles[1::2], strict=True):
        branches.piles[hop] = {records[place]: None for place in places}
        for record in branches.piles[hop]:
            _place(record, node, known)


def _place(record: IndexRecord[T], home: TreeNode[T] | Ladder[T], known: tuple[str, ...]) -> None:
    for name in known:
        record.was_equal_in(name)
    record.home = home


def _fill_part(
    branches: Branches[T],
    data: list[Any],
    records: Sequence[IndexRecord[T]],
    known: tuple[str, ...],
) -> None:
    name, is_in_order, equal, cells, prefixes, present = data
    part = branches.parts[name] = AttributePart(branches.node, name, branches.used | {name})
    is_known = (*known, name)
    for at in range(0, len(equal), 2):
        key = _key(equal[at])
        child = part.equal[key] = TreeNode(part, Cell(CellKind.EQUAL, None, key))
        _fill(child, equal[at + 1], records, is_known)
    if is_in_order:
        part.put_all_in_order()
    for kind, sizes, shelves in (
        (CellKind.CELL, cells, part.cells),
        (CellKind.PREFIX, prefixes, part.prefixes),
    ):
        for size, held in zip(sizes[::2], sizes[1::2], strict=True):
            shelf: dict[Any, TreeNode[T]] = shelves.setdefault(size, {})
            for key, below in zip(held[::2], held[1::2], strict=True):
                child = shelf[key] = TreeNode(part, Cell(kind, size, key))
                _fill(child, below, records, known)
    if present is not None:
        child = part.present[None] = TreeNode(part, PRESENT)
        _fill(child, present, records, known)


def _fill_ladder(
    branches: Branches[T],
    end: Bound,
    runs: list[Any],
    records: Sequence[IndexRecord[T]],
    known: tuple[str, ...],
) -> None:
    ladder = branches.ladders[end] = Ladder(branches.node, end)
    for hop, places in zip(runs[::2], runs[1::2], strict=True):
        run = [records[place] for place in places]
        for record in run:
            _place(record, ladder, known)
        ladder.put_run(hop, run)
