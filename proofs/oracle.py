"""The expected result of a run, computed the naive way: no messages, no index, only sets.

Given the tree, the edge broker of each client and the operations that each client has issued, the
oracle returns what every client holds, which clients receive a publication, and which entries every
broker's tables have at rest. It shares no code with the routing that it checks, except for the
filter relations themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import networkx as nx

from overlay.filters import Filter, Value
from overlay.notation import format_filter

#: A row of a table in the form that is compared: client, kind, filter and hop. The client's number
#: is left out, because numbers of aborted operations leave gaps.
ComparableRow: TypeAlias = tuple[str, str, str, str]


class IssuedOperation(NamedTuple):
    """One operation of a client: its number, its kind and its filter."""

    seq: int
    kind: str
    filter: Filter

    @property
    def positive(self) -> bool:
        return self.kind in ("sub", "adv")


class ExpectedRow(NamedTuple):
    """One row of a broker's table."""

    client: str
    seq: int
    kind: str
    filter: str
    hop: str


def broker_rows(table: Iterable[Mapping[str, Any]]) -> list[ComparableRow]:
    """A broker's table (`Routing.as_data`) in the form that is compared."""
    return sorted((row["client"], row["kind"], row["filter"], row["hop"]) for row in table)


def oracle_rows(table: Iterable[ExpectedRow]) -> list[ComparableRow]:
    """An oracle's table in the form that is compared."""
    return sorted((row.client, row.kind, row.filter, row.hop) for row in table)


def holds(operations: Iterable[IssuedOperation], point: Mapping[str, Value]) -> bool:
    """Whether a client holds a point: the last operation that contains it decides."""
    answer = False
    for operation in operations:
        if operation.filter.matches(point):
            answer = operation.positive
    return answer


def live(operations: Iterable[IssuedOperation]) -> list[IssuedOperation]:
    """The operations that still count.

    An operation that a later one covers does not count, nor does a negative one that takes nothing
    out of an earlier positive one.
    """
    kept: list[IssuedOperation] = []
    for operation in operations:
        kept = [other for other in kept if not operation.filter.covers(other.filter)] + [operation]
        while (fewer := [one for one in kept if one.positive or _carves(one, kept)]) != kept:
            kept = fewer
    return kept


def _carves(hole: IssuedOperation, operations: list[IssuedOperation]) -> bool:
    return any(
        one.positive and one.seq < hole.seq and one.filter.overlaps(hole.filter)
        for one in operations
    )


def reaches(operations: Iterable[IssuedOperation], filter: Filter) -> bool:
    """Whether a client still holds some part of the filter.

    Several holes that only together cover the filter count as if they did not.
    """
    listed = list(operations)
    for one in listed:
        if one.positive and (common := one.filter.meet(filter)) is not None:
            holes = (other for other in listed if not other.positive and other.seq > one.seq)
            if not any(hole.filter.covers(common) for hole in holes):
                return True
    return False


def table_of(kind: str) -> Literal["sub", "adv"]:
    """The table that an operation of this kind changes."""
    return "sub" if kind in ("sub", "usub") else "adv"


def holds_part(operations: Iterable[tuple[str, Filter]], table: str, filter: Filter) -> bool:
    """Whether a client that has issued these operations, in this order, holds part of a filter."""
    own = [one for one in operations if one[0] in (table, f"u{table}")]
    return reaches([IssuedOperation(at, kind, box) for at, (kind, box) in enumerate(own)], filter)


@dataclass
class Oracle:
    """The overlay as a set of clients and the operations that each has issued."""

    tree: nx.Graph[str]
    edges: dict[str, str] = field(default_factory=dict)
    advertised: dict[str, list[IssuedOperation]] = field(default_factory=dict)
    subscribed: dict[str, list[IssuedOperation]] = field(default_factory=dict)
    numbers: Counter[str] = field(default_factory=Counter)
    _paths: dict[tuple[str, str], list[str]] = field(default_factory=dict, repr=False)

    def join(self, client: str, edge: str) -> None:
        self.edges[client] = edge
        self.advertised[client] = []
        self.subscribed[client] = []
        self.numbers[client] = 0

    def leave(self, client: str) -> None:
        for known in (self.edges, self.advertised, self.subscribed, self.numbers):
            del known[client]

    def operate(self, client: str, kind: str, filter: Filter) -> bool:
        """Carry out an operation; False if it takes back what the client does not hold."""
        own = self.subscribed[client] if kind in ("sub", "usub") else self.advertised[client]
        if kind in ("usub", "uadv") and not reaches(live(own), filter):
            return False
        self.numbers[client] += 1
        own.append(IssuedOperation(self.numbers[client], kind, filter))
        return True

    def receivers(self, point: Mapping[str, Value]) -> list[str]:
        """The clients that receive a publication."""
        return sorted(client for client, own in self.subscribed.items() if holds(own, point))

    def srt(self, broker: str) -> list[ExpectedRow]:
        return sorted(
            self._row(broker, client, operation)
            for client, own in self.advertised.items()
            for operation in live(own)
        )

    def prt(self, broker: str) -> list[ExpectedRow]:
        return sorted(
            self._row(broker, client, operation)
            for client, own in self.subscribed.items()
            for operation in live(own)
            if broker == self.edges[client] or self._attracted(broker, client, operation)
        )

    def _attracted(self, broker: str, client: str, operation: IssuedOperation) -> bool:
        """Whether the broker is on the path from the client to a client that may publish for it."""
        return any(
            broker in self._path(self.edges[client], self.edges[publisher])
            and reaches(live(own), operation.filter)
            for publisher, own in self.advertised.items()
        )

    def _row(self, broker: str, client: str, operation: IssuedOperation) -> ExpectedRow:
        edge = self.edges[client]
        hop = f"@{client}" if broker == edge else self._path(broker, edge)[1]
        text = format_filter(operation.filter)
        return ExpectedRow(client, operation.seq, operation.kind, text, hop)

    def _path(self, one: str, other: str) -> list[str]:
        """The brokers from one to the other; the tree does not change."""
        path = self._paths.get((one, other))
        if path is None:
            path = self._paths[one, other] = nx.shortest_path(self.tree, one, other)
        return path
