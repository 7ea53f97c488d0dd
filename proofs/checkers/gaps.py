"""Plain streams over links that were reset: nothing twice, in order, and no loss without a gap.

Each end of a stream has to be told of what it may have lost: a subscriber by a gap of direction
"in", a publisher by one of direction "out", both later than the publication that is missing. Both
have to name a broker on the way between the two. And nobody may be told of a loss that cannot
concern it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from overlay.messages import Gap


class BrokenPromise(NamedTuple):
    """What a client received, or was not told, against the promise."""

    kind: Literal["duplicate", "order", "untold", "needless"]
    client: str
    story: str


class Sent(NamedTuple):
    """One publication of a stream."""

    publisher: str
    number: int
    at_s: float


class StreamClient(NamedTuple):
    """A client that publishes or subscribes, and what it has received."""

    edge: str
    #: The publishers whose streams it is subscribed to.
    subscribed: frozenset[str]
    #: The publisher and number of each publication, in the order of arrival.
    received: Sequence[tuple[str, int]]
    gaps: Sequence[Gap]
    #: Whether it was connected all the time.
    stayed: bool


class StreamHistory(NamedTuple):
    """A run of plain streams."""

    clients: Mapping[str, StreamClient]
    sent: Sequence[Sent]
    #: The brokers on the way from one to another, both included.
    ways: Mapping[tuple[str, str], Sequence[str]]
    #: The brokers of which a link was reset.
    reset: frozenset[str]


def check(history: StreamHistory) -> Iterator[BrokenPromise]:
    for name, client in history.clients.items():
        if client.stayed:
            yield from _order(name, client)
            yield from _losses(history, name, client)
            yield from _needless(history, name, client)


def _order(name: str, client: StreamClient) -> Iterator[BrokenPromise]:
    last: dict[str, int] = {}
    for publisher, number in client.received:
        before = last.get(publisher, -1)
        if number == before:
            yield BrokenPromise("duplicate", name, f"{publisher}:{number} came twice")
        elif number < before:
            yield BrokenPromise("order", name, f"{publisher}:{number} came after {before}")
        last[publisher] = max(before, number)


def _losses(history: StreamHistory, name: str, client: StreamClient) -> Iterator[BrokenPromise]:
    received = set(client.received)
    for sent in history.sent:
        if sent.publisher not in client.subscribed or sent[:2] in received:
            continue
        publisher = history.clients[sent.publisher]
        way = history.ways[publisher.edge, client.edge]
        missing = f"{name} lacks {sent.publisher}:{sent.number} of {sent.at_s:.3f} s"
        if not _covered(client.gaps, "in", sent, way):
            yield BrokenPromise("untold", name, f"{missing}: {client.gaps}")
        if publisher.stayed and not _covered(publisher.gaps, "out", sent, way):
            yield BrokenPromise("untold", sent.publisher, f"{missing}: {publisher.gaps}")


def _covered(gaps: Sequence[Gap], direction: str, sent: Sent, way: Sequence[str]) -> bool:
    return any(
        gap.direction in (direction, "both") and gap.time >= sent.at_s and gap.broker in way
        for gap in gaps
    )


def _needless(history: StreamHistory, name: str, client: StreamClient) -> Iterator[BrokenPromise]:
    """A gap has to be about a link that was reset, and told to a client with a stream that crosses
    such a link. While several are reset at once, nobody knows which stream crosses which."""
    sources = {(publisher, name) for publisher in client.subscribed}
    takers = {(name, other) for other, each in history.clients.items() if name in each.subscribed}
    for gap in client.gaps:
        for direction, pairs in (("in", sources), ("out", takers)):
            if gap.direction not in (direction, "both"):
                continue
            ways = [
                history.ways[history.clients[one].edge, history.clients[other].edge]
                for one, other in pairs
            ]
            crossing = [way for way in ways if not history.reset.isdisjoint(way)]
            if gap.broker not in history.reset or not crossing:
                yield BrokenPromise("needless", name, str(gap))
