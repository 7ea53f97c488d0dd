"""What the overlay must come to, computed the naive way: no messages, no index, only sets.

Given the tree, where each client is and what it has said, this says what every client holds, who
gets a publication, and which entries every broker's tables hold once everything has settled.
It shares no code with the routing that it judges, apart from the filter relations themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import networkx as nx

from overlay.filters import Filter, Value
from overlay.notation import format_filter


class IssuedOperation(NamedTuple):
    """One operation of a client: its number, its kind and its box."""

    seq: int
    kind: str
    filter: Filter

    @property
    def positive(self) -> bool:
        return self.kind in ("sub", "adv")


class ExpectedRow(NamedTuple):
    """One line of a broker's table."""

    client: str
    seq: int
    kind: str
    filter: str
    hop: str


def holds(said: Iterable[IssuedOperation], point: Mapping[str, Value]) -> bool:
    """The last operation that contains the point decides."""
    answer = False
    for word in said:
        if word.filter.matches(point):
            answer = word.positive
    return answer


def live(said: Iterable[IssuedOperation]) -> list[IssuedOperation]:
    """The operations that still count: not covered by a later one, and no hole in nothing."""
    words: list[IssuedOperation] = []
    for word in said:
        words = [other for other in words if not word.filter.covers(other.filter)] + [word]
        while (kept := [w for w in words if w.positive or _carves(w, words)]) != words:
            words = kept
    return words


def _carves(hole: IssuedOperation, words: list[IssuedOperation]) -> bool:
    return any(w.positive and w.seq < hole.seq and w.filter.overlaps(hole.filter) for w in words)


def reaches(said: Iterable[IssuedOperation], filter: Filter) -> bool:
    """Whether a client still holds some part of the filter (holes are not added up)."""
    words = list(said)
    for word in words:
        if word.positive and (common := word.filter.meet(filter)) is not None:
            holes = (w for w in words if not w.positive and w.seq > word.seq)
            if not any(hole.filter.covers(common) for hole in holes):
                return True
    return False


def table_of(kind: str) -> Literal["sub", "adv"]:
    """The table that an operation of this kind changes."""
    return "sub" if kind in ("sub", "usub") else "adv"


def holds_part(words: Iterable[tuple[str, Filter]], table: str, filter: Filter) -> bool:
    """Whether a client that has said all this, in this order, holds some part of the filter."""
    own = [word for word in words if word[0] in (table, f"u{table}")]
    return reaches([IssuedOperation(at, kind, box) for at, (kind, box) in enumerate(own)], filter)


@dataclass
class Oracle:
    """The overlay as one set of clients with what they have said."""

    tree: nx.Graph[str]
    edges: dict[str, str] = field(default_factory=dict)
    advertised: dict[str, list[IssuedOperation]] = field(default_factory=dict)
    subscribed: dict[str, list[IssuedOperation]] = field(default_factory=dict)
    numbers: Counter[str] = field(default_factory=Counter)
    _ways: dict[tuple[str, str], list[str]] = field(default_factory=dict, repr=False)

    def join(self, client: str, edge: str) -> None:
        self.edges[client] = edge
        self.advertised[client] = []
        self.subscribed[client] = []
        self.numbers[client] = 0

    def leave(self, client: str) -> None:
        for holds_part in (self.edges, self.advertised, self.subscribed, self.numbers):
            del holds_part[client]

    def say(self, client: str, kind: str, filter: Filter) -> bool:
        """Let a client operate; False if it takes back what it does not hold."""
        said = self.subscribed[client] if kind in ("sub", "usub") else self.advertised[client]
        if kind in ("usub", "uadv") and not reaches(live(said), filter):
            return False
        self.numbers[client] += 1
        said.append(IssuedOperation(self.numbers[client], kind, filter))
        return True

    def receivers(self, point: Mapping[str, Value]) -> list[str]:
        """The clients that get a publication."""
        return sorted(client for client, said in self.subscribed.items() if holds(said, point))

    def srt(self, broker: str) -> list[ExpectedRow]:
        return sorted(
            self._line(broker, client, word)
            for client, said in self.advertised.items()
            for word in live(said)
        )

    def prt(self, broker: str) -> list[ExpectedRow]:
        return sorted(
            self._line(broker, client, word)
            for client, said in self.subscribed.items()
            for word in live(said)
            if broker == self.edges[client] or self._attracted(broker, client, word)
        )

    def _attracted(self, broker: str, client: str, word: IssuedOperation) -> bool:
        """Whether the broker lies between the client and somebody who may publish for it."""
        return any(
            broker in self._way(self.edges[client], self.edges[publisher])
            and reaches(live(said), word.filter)
            for publisher, said in self.advertised.items()
        )

    def _line(self, broker: str, client: str, word: IssuedOperation) -> ExpectedRow:
        edge = self.edges[client]
        hop = f"@{client}" if broker == edge else self._way(broker, edge)[1]
        return ExpectedRow(client, word.seq, word.kind, format_filter(word.filter), hop)

    def _way(self, one: str, other: str) -> list[str]:
        """The brokers from one to another; the tree stays as it is."""
        way = self._ways.get((one, other))
        if way is None:
            way = self._ways[one, other] = nx.shortest_path(self.tree, one, other)
        return way
