"""The tables that brokers at rest should have, from the operations that clients issued.

The operations count in the order of their numbers. An advertisement is at every broker; a
subscription is at every broker on a path from its client to a client that may publish for it.
Advertisements are indexed by filter and searched once for each filter, so the work grows with the
operations and the brokers, not with the pairs of operations.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from overlay.filters import Filter
from overlay.matching.index import Index
from overlay.tables.last_word import Overlapping, reaches, settle
from padres_tx.audit.record_fields import filter_of, is_positive, table_of

if TYPE_CHECKING:
    # Executors have no msgspec, which messages need.
    from overlay.messages import Hop, Version

#: An entry as two tables are compared: broker, table, client, kind, filter, hop. The number is left
#: out, since aborted operations leave gaps.
ExpectedLine: TypeAlias = tuple[str, str, str, str, str, str]


class RoutingOperation(NamedTuple):
    """A routing operation at the edge broker of its client."""

    client: str
    number: int
    kind: str
    filter: str
    node: str


class IndexedOperation:
    """A routing operation as the index takes it; its hop is its edge broker."""

    __slots__ = (
        "added_by",
        "client",
        "filter",
        "hop",
        "operation",
        "positive",
        "removed_by",
        "seq",
    )

    def __init__(self, operation: RoutingOperation) -> None:
        self.operation = operation
        self.client = operation.client
        self.filter = filter_of(operation.filter)
        self.hop = cast("Hop", operation.node)
        self.positive = is_positive(operation.kind)
        self.seq = operation.number
        self.added_by: Version | None = None
        self.removed_by: tuple[Version, ...] = ()


def effective(operations: Iterable[RoutingOperation]) -> list[RoutingOperation]:
    """Those of one client's operations in one table that later ones have not replaced."""
    index: Index[IndexedOperation] = Index()
    held: dict[int, IndexedOperation] = {}
    for operation in sorted(operations, key=lambda operation: operation.number):
        new = IndexedOperation(operation)
        settled = settle(Overlapping(index.overlapping), new.filter, new.positive)
        for number in settled.drop:
            index.remove(held.pop(number))
        if settled.store:
            held[new.seq] = new
            index.insert(new)
    return [each.operation for each in held.values()]


def expected_lines(
    operations: Iterable[RoutingOperation], links: Iterable[tuple[str, str]]
) -> Counter[ExpectedLine]:
    """The entries of all brokers, given the effective operations and the links of the overlay."""
    tree = _Tree(links)
    indexed = [IndexedOperation(operation) for operation in operations]
    publishers = _Publishers(each for each in indexed if table_of(each.operation.kind) == "srt")
    lines: Counter[ExpectedLine] = Counter()
    for each in indexed:
        edge, kind, text = each.operation.node, each.operation.kind, each.operation.filter
        towards = tree.towards(edge)
        table = table_of(kind)
        nodes: Iterable[str] = (edge, *towards)
        if table == "prt":
            nodes = _paths(edge, publishers.edges(each), towards)
        for node in nodes:
            hop = towards.get(node, f"@{each.client}")
            lines[node, table, each.client, kind, text, hop] += 1
    return lines


class _Tree:
    """The overlay, as far as any message went between brokers."""

    def __init__(self, links: Iterable[tuple[str, str]]) -> None:
        self._next: defaultdict[str, set[str]] = defaultdict(set)
        for one, other in links:
            self._next[one].add(other)
            self._next[other].add(one)
        self._towards: dict[str, dict[str, str]] = {}

    def towards(self, edge: str) -> dict[str, str]:
        """For each other broker, its neighbour on the path to this one."""
        found = self._towards.get(edge)
        if found is None:
            found = self._towards[edge] = {}
            todo = [edge]
            for node in todo:
                for other in sorted(self._next[node]):
                    if other != edge and other not in found:
                        found[other] = node
                        todo.append(other)
        return found


def _paths(edge: str, others: Iterable[str], towards: dict[str, str]) -> dict[str, None]:
    """The brokers on the paths from one broker to others, both ends included."""
    found = {edge: None}
    for other in others:
        while other not in found and other in towards:
            found[other] = None
            other = towards[other]
    return found


class _Publishers:
    """The edge brokers of clients that may publish for a subscription."""

    def __init__(self, advertised: Iterable[IndexedOperation]) -> None:
        self._positive: Index[IndexedOperation] = Index()
        self._negative: Index[IndexedOperation] = Index()
        self._found: dict[str, tuple[str, ...]] = {}
        for each in advertised:
            (self._positive if each.positive else self._negative).insert(each)

    def edges(self, subscription: IndexedOperation) -> tuple[str, ...]:
        """Edge brokers; computed once for each filter, since filters repeat."""
        text = subscription.operation.filter
        found = self._found.get(text)
        if found is None:
            found = self._found[text] = tuple(self._search(subscription.filter))
        return found

    def _search(self, filter: Filter) -> Iterator[str]:
        holes: defaultdict[str, list[IndexedOperation]] = defaultdict(list)
        for hole in self._negative.overlapping(filter):
            holes[hole.client].append(hole)
        edges: dict[str, None] = {}
        for each in self._positive.overlapping(filter):
            if each.hop not in edges and reaches(each, filter, holes.get(each.client, ())):
                edges[each.hop] = None
        yield from edges
