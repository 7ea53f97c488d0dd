"""What operations read and write in a broker's tables, and when two groups of them conflict.

Routing operations write: (un-)advertising the SRT, (un-)subscribing the PRT. Everything reads, and
what is read is a predicate, not a row: a publication reads the PRT at its point, so a subscription
that comes to contain the point changes what was read, though it was not there before. An operation
that finds nothing has read that there is nothing.

    publication, tcm   PRT at its point, at every broker that it visits; at the edge also its
                       client's own advertisements at that point
    look               its client's own subscriptions or advertisements there, at the edge
    sub, usub          SRT entries that overlap it; its client's own subscriptions there
    adv, uadv          PRT entries that overlap it, even if there are none; for each of them the SRT
                       entries that overlap that one; its client's own advertisements there

A footprint is of one broker, and of one plain operation or one transaction. This module knows
nothing of when to compare them. They are compared often, each with all that are undecided at a
broker, and mostly have nothing in common: the values that all filters of a side require
(`Hull`) show that at a glance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from overlay.filters import Filter, Value
from overlay.matching.index import View
from overlay.messages import Hop, Leave, Operation, Pub
from overlay.notation import format_filter
from overlay.stored import stored
from overlay.tables.reads import Read, Reads
from overlay.tables.routing import Outcome, Routing

#: Looks at subscriptions that may be near a plain (un-)advertisement; each becomes a read, and is
#: compared with what transactions have written.
NEAR_LIMIT = 200


@stored("hull")
class Hull:
    """The values of attributes that every filter or point of a group fixes to one value.

    Two groups that fix an attribute to different values have no point in common.
    """

    __slots__ = ("fixed",)

    def __init__(self) -> None:
        #: None while the group is empty. Dicts stand for sets: their order is everywhere the same.
        self.fixed: dict[str, dict[Value, None]] | None = None

    def add_filter(self, filter: Filter) -> None:
        at = {name: i.lo for name, i in filter.predicates.items() if i.is_point}
        self.add_point(cast("Mapping[str, Value]", at))

    def add_point(self, point: Mapping[str, Value]) -> None:
        if self.fixed is None:
            self.fixed = {name: {value: None} for name, value in point.items()}
            return
        for name, values in list(self.fixed.items()):
            if name in point:
                values[point[name]] = None
            else:
                del self.fixed[name]

    def is_apart(self, other: Hull) -> bool:
        """Whether it is evident that nothing is in both."""
        mine, theirs = self.fixed, other.fixed
        if mine is None or theirs is None:
            return True
        for name, values in mine.items():
            if name in theirs and values.keys().isdisjoint(theirs[name]):
                return True
        return False


@stored("footprint")
class Footprint:
    """What was read and written at one broker."""

    __slots__ = (
        "_read",
        "_written",
        "own",
        "points",
        "prt",
        "srt",
        "whole_srt",
        "wrote_adv",
        "wrote_sub",
    )

    def __init__(self) -> None:
        self._read = Hull()
        self._written = Hull()
        self.points = Reads()
        self.srt = Reads()
        #: Whether it counts as having read all advertisements.
        self.whole_srt = False
        self.prt = Reads()
        #: Clients' own entries in a table ("sub" or "adv") around a filter or at a point.
        self.own: dict[tuple[str, str], Reads] = {}
        self.wrote_sub: list[tuple[str, Filter]] = []
        self.wrote_adv: list[tuple[str, Filter]] = []

    def publication(self, pub: Pub, *, at_edge: bool) -> None:
        self.points.add(pub.point)
        self._read.add_point(pub.point)
        if at_edge:
            self._add_own(pub.client, "adv", pub.point)

    def looks_at(self, client: str, table: str, filter: Filter) -> None:
        """Add that a client's own entries in a table ("sub" or "adv") were read around a filter."""
        self._add_own(client, table, filter)
        self._read.add_filter(filter)

    def looks_at_point(self, client: str, point: Mapping[str, Value]) -> None:
        """Add that a client's own advertisements were read at a point."""
        self._add_own(client, "adv", point)
        self._read.add_point(point)

    def _add_own(self, client: str, table: str, read: Read) -> None:
        own = self.own.get((client, table))
        if own is None:
            own = self.own[client, table] = Reads()
        own.add(read)

    def operation(self, operation: Operation, read: Iterable[Filter] = ()) -> None:
        """Add a routing operation; `read` are the subscriptions that an (un-)adv looked at."""
        client, filter = operation.client, operation.filter
        self._read.add_filter(filter)
        if operation.kind in ("sub", "usub"):
            self.srt.add(filter)
            self._add_own(client, "sub", filter)
            self.writes_sub(client, filter)
            return
        self.prt.add(filter)
        for looked_at in read:
            self.srt.add(looked_at)
            self._read.add_filter(looked_at)
        self._add_own(client, "adv", filter)
        self.writes_adv(client, filter)

    def writes_sub(self, client: str, filter: Filter) -> None:
        self.wrote_sub.append((client, filter))
        self._written.add_filter(filter)

    def writes_adv(self, client: str, filter: Filter) -> None:
        self.wrote_adv.append((client, filter))
        self._written.add_filter(filter)

    def leaves(self, client: str, subs: Iterable[Filter], advs: Iterable[Filter]) -> None:
        """Add that a client takes back all that it has said."""
        for filter in subs:
            self.writes_sub(client, filter)
        for filter in advs:
            self.writes_adv(client, filter)
            self.prt.add(filter)
            self._read.add_filter(filter)

    def reads_what(self, other: Footprint) -> Filter | None:
        """A filter that the other writes and this one reads, if there is one."""
        if self.whole_srt and other.wrote_adv:
            return other.wrote_adv[0][1]
        if self._read.is_apart(other._written):
            return None
        for client, filter in other.wrote_sub:
            if (
                self.points.meet(filter)
                or self.prt.meet(filter)
                or self._own(client, "sub", filter)
            ):
                return filter
        for client, filter in other.wrote_adv:
            if self.srt.meet(filter) or self._own(client, "adv", filter):
                return filter
        return None

    def _own(self, client: str, table: str, filter: Filter) -> bool:
        own = self.own.get((client, table))
        return own is not None and own.meet(filter)

    def conflict(self, other: Footprint) -> Filter | None:
        """A filter on which the two conflict, whichever of them reads and writes."""
        return self.reads_what(other) or other.reads_what(self)

    @property
    def writer(self) -> str:
        """A client whose filters are written, if there is one."""
        return next((client for client, _ in (*self.wrote_sub, *self.wrote_adv)), "")

    @property
    def writes(self) -> bool:
        return bool(self.wrote_sub or self.wrote_adv)


def of_plain(
    routing: Routing, source: Hop, message: Operation | Leave, view: View | None
) -> Footprint:
    """The footprint of a plain operation that is about to be carried out.

    An (un-)advertisement near which there are very many subscriptions counts as having read all
    advertisements, instead of those that overlap one of these: a broker does nothing else
    meanwhile. So it may wait, or a transaction lose to it, that need not.
    """
    footprint = Footprint()
    if isinstance(message, Operation):
        read: list[Filter] = []
        if message.kind in ("adv", "uadv"):
            near = routing.prt.search([message.filter])
            read = [entry.filter for entry in near.some(NEAR_LIMIT, view)]
            footprint.whole_srt = not near.done
        footprint.operation(message, read)
        return footprint
    client = message.client
    gone = routing.srt[source].of(client) if source in routing.srt else []
    footprint.leaves(
        client,
        [entry.filter for entry in routing.prt.of(client)],
        [entry.filter for entry in gone],
    )
    return footprint


def of_applied(operation: Operation, outcome: Outcome) -> Footprint:
    """The footprint of an operation that has been applied."""
    footprint = Footprint()
    footprint.operation(operation, outcome.read)
    return footprint


def text(filter: Filter) -> str:
    """A conflict's filter, for the reason that people read."""
    return format_filter(filter)
