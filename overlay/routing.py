"""A broker's routing tables, and what an operation does to them.

SRT: where advertisements came from; tells where subscriptions have to go. PRT: where subscriptions
came from; tells where publications have to go. CRT: behind which neighbour each client is.

Where an operation has been sent is not written down: it follows from the tables. An entry that came
from hop h has gone to every neighbour but h from which an overlapping advertisement came. Each
operation is applied in one step, so the tables before and after it say exactly what a neighbour
has to be told, and what it was told before. Hence tables that differ from the oracle's can only
come from a message on its way.

This module knows no links, no requests and no transactions: versions on entries are opaque.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from overlay.errors import NotHeld, ProtocolError
from overlay.filters import Filter, Value
from overlay.index import Index, View
from overlay.lastword import reaches, settle
from overlay.messages import BrokerName, ClientName, Hop, Operation, Version, is_client
from overlay.notation import format_filter


class Entry:
    """One line of a table: an operation of a client, and the hop that it came from."""

    __slots__ = ("added_by", "client", "filter", "hop", "positive", "removed_by", "seq")

    def __init__(self, operation: Operation, hop: Hop, added_by: Version | None = None) -> None:
        self.client = ClientName(operation.client)
        self.seq = operation.seq
        self.filter = operation.filter
        self.hop = hop
        self.positive = operation.positive
        #: The version that brought the entry (None: it is simply there) and those that remove it.
        self.added_by = added_by
        self.removed_by: tuple[Version, ...] = ()

    def __repr__(self) -> str:
        sign = "+" if self.positive else "-"
        return f"<{self.client}:{self.seq} {sign}{format_filter(self.filter)} from {self.hop}>"


def by_client_and_number(entry: Entry) -> tuple[str, int]:
    return entry.client, entry.seq


class Space:
    """Entries of many clients, yes and no, in which each client's last word on a point decides."""

    def __init__(self) -> None:
        self._yes: Index[Entry] = Index()
        self._no: Index[Entry] = Index()
        self._of: dict[str, dict[int, Entry]] = {}

    def add(self, entry: Entry) -> None:
        held = self._of.setdefault(entry.client, {})
        assert entry.seq not in held, entry
        held[entry.seq] = entry
        (self._yes if entry.positive else self._no).insert(entry)

    def remove(self, entry: Entry) -> None:
        held = self._of[entry.client]
        del held[entry.seq]
        if not held:
            del self._of[entry.client]
        (self._yes if entry.positive else self._no).remove(entry)

    def get(self, client: str, seq: int) -> Entry | None:
        return self._of.get(client, {}).get(seq)

    def of(self, client: str) -> list[Entry]:
        """The client's entries in its own order."""
        return sorted(self._of.get(client, {}).values(), key=lambda entry: entry.seq)

    def count_of(self, client: str) -> int:
        return len(self._of.get(client, ()))

    def __len__(self) -> int:
        return len(self._yes) + len(self._no)

    def __iter__(self) -> Iterator[Entry]:
        for client in sorted(self._of):
            yield from self.of(client)

    def hops(self, point: Mapping[str, Value], view: View | None = None) -> Iterable[Hop]:
        """The hops of the clients that want the point, each once."""
        if not len(self._no):
            return self._yes.hops(point, view)
        return dict.fromkeys(entry.hop for entry in self.matching(point, view))

    def matching(self, point: Mapping[str, Value], view: View | None = None) -> list[Entry]:
        """The yes entries that contain the point and that no later no of their client does."""
        last_no: dict[str, int] = {}
        for hole in self._no.matching(point, view):
            last_no[hole.client] = max(hole.seq, last_no.get(hole.client, 0))
        return [
            entry
            for entry in self._yes.matching(point, view)
            if entry.seq > last_no.get(entry.client, 0)
        ]

    def overlapping(self, filter: Filter, view: View | None = None) -> list[Entry]:
        return self._yes.overlapping(filter, view) + self._no.overlapping(filter, view)

    def reaches(
        self, filter: Filter, view: View | None = None, *, client: str | None = None
    ) -> bool:
        """Whether some client (or this one) still holds a part of the filter."""
        candidates = self._yes.overlapping(filter, view)
        if client is not None:
            candidates = [entry for entry in candidates if entry.client == client]
        if not candidates or not len(self._no):
            return bool(candidates)
        holes: dict[str, list[Entry]] = {}
        for hole in self._no.overlapping(filter, view):
            holes.setdefault(hole.client, []).append(hole)
        return any(reaches(yes, filter, holes.get(yes.client, ())) for yes in candidates)


class Home(NamedTuple):
    """Where a client is: its edge broker, and the hop that leads there."""

    edge: BrokerName
    hop: Hop


class Outcome(NamedTuple):
    """What has to be sent after an operation was applied, in this order.

    `forward` is the operation itself on its way; `triggered` are the (un-)subscriptions of others
    that it attracts or sends back (internally triggered operations, Definition 3.3).
    """

    forward: list[tuple[Hop, Operation]]
    triggered: list[tuple[Hop, Operation]]


class Routing:
    """SRT, PRT and CRT of one broker."""

    def __init__(self, name: BrokerName, neighbours: Iterable[BrokerName]) -> None:
        self.name = name
        self.neighbours = tuple(Hop(neighbour) for neighbour in sorted(neighbours))
        self.srt: dict[Hop, Space] = {hop: Space() for hop in self.neighbours}
        self.prt = Space()
        self.crt: dict[ClientName, Home] = {}

    # --- at a client's edge broker ---

    def admit(self, source: Hop, operation: Operation) -> Operation:
        """The client's operation with what it changes worked out; apply it next.

        Raises NotHeld for un-subscribing or un-advertising what the client does not hold.
        """
        space = self._space(operation.kind, source)
        client = operation.client
        if not operation.positive and not space.reaches(operation.filter, client=client):
            verb = "un-subscribe from" if operation.kind == "usub" else "un-advertise"
            raise NotHeld(f"{client} holds no part of {format_filter(operation.filter)} to {verb}")

        def held(filter: Filter) -> list[Entry]:
            return [entry for entry in space.overlapping(filter) if entry.client == client]

        settled = settle(held, operation.filter, operation.positive)
        return msgspec.structs.replace(operation, store=settled.store, drop=settled.drop)

    def held_by(self, source: Hop, client: str) -> int:
        """How many entries a client of this broker holds, in both tables."""
        advertised = self.srt[source].count_of(client) if source in self.srt else 0
        return advertised + self.prt.count_of(client)

    def may_publish(self, source: Hop, point: Mapping[str, Value]) -> bool:
        """Whether the point lies in the space that the client advertised."""
        space = self.srt.get(source)
        return space is not None and bool(space.matching(point))

    # --- at every broker ---

    def apply(self, source: Hop, operation: Operation) -> Outcome:
        """Carry out an operation, and say what has to be sent because of it.

        Raises ProtocolError if the source drops an entry that never came from it.
        """
        if operation.kind in ("sub", "usub"):
            return Outcome(self._apply_subscription(source, operation), [])
        space = self._space(operation.kind, source)
        dropped = self._dropped(space, source, operation)
        changed = [entry.filter for entry in dropped]
        if operation.store:
            changed.append(operation.filter)

        def change() -> None:
            for entry in dropped:
                space.remove(entry)
            if operation.store:
                space.add(Entry(operation, source))

        triggered = self._retarget(source, changed, change)
        return Outcome([(hop, operation) for hop in self._others(source)], triggered)

    def _apply_subscription(self, source: Hop, operation: Operation) -> list[tuple[Hop, Operation]]:
        dropped = self._dropped(self.prt, source, operation)
        drop_at: dict[Hop, list[int]] = {}
        for entry in dropped:
            for hop in self.towards(entry):
                drop_at.setdefault(hop, []).append(entry.seq)
            self.prt.remove(entry)
        store_at: list[Hop] = []
        if operation.store:
            entry = Entry(operation, source)
            self.prt.add(entry)
            store_at = self.towards(entry)
        return [
            (
                hop,
                msgspec.structs.replace(
                    operation, store=hop in store_at, drop=tuple(drop_at.get(hop, ()))
                ),
            )
            for hop in self.neighbours
            if hop in store_at or hop in drop_at
        ]

    def towards(self, entry: Entry) -> list[Hop]:
        """The neighbours that an entry of the PRT has to be known to."""
        return [hop for hop in self._others(entry.hop) if self.srt[hop].reaches(entry.filter)]

    def forget(self, client: ClientName) -> list[tuple[Hop, Operation]]:
        """Remove a client that has left from all tables.

        Returns the un-subscriptions of others that this triggers.
        """
        source = self.crt.pop(client).hop
        for entry in self.prt.of(client):
            self.prt.remove(entry)
        space = self.srt.get(source)
        gone = space.of(client) if space is not None else []

        def change() -> None:
            for entry in gone:
                assert space is not None
                space.remove(entry)

        triggered = self._retarget(source, [entry.filter for entry in gone], change)
        if is_client(source):
            self.srt.pop(source, None)
        return triggered

    def _retarget(
        self, source: Hop, changed: list[Filter], change: Callable[[], None]
    ) -> list[tuple[Hop, Operation]]:
        """Change what is advertised behind a hop, and move the subscriptions that this concerns.

        An entry that only now has something to go to is attracted; one that has nothing to go to
        any more is taken back.
        """
        if is_client(source):
            change()
            return []
        space = self.srt[source]
        concerned: dict[tuple[str, int], Entry] = {}
        for filter in changed:
            for entry in self.prt.overlapping(filter):
                if entry.hop != source:
                    concerned[by_client_and_number(entry)] = entry
        entries = [concerned[key] for key in sorted(concerned)]
        before = [space.reaches(entry.filter) for entry in entries]
        change()
        moved: list[tuple[Hop, Operation]] = []
        for entry, was in zip(entries, before, strict=True):
            now = space.reaches(entry.filter)
            if now and not was:
                moved.append((source, attracted(entry)))
            elif was and not now:
                moved.append((source, taken_back(entry)))
        return moved

    def _space(self, kind: str, source: Hop) -> Space:
        if kind in ("sub", "usub"):
            return self.prt
        return self.srt.setdefault(source, Space())

    def _others(self, source: Hop) -> list[Hop]:
        return [hop for hop in self.neighbours if hop != source]

    @staticmethod
    def _dropped(space: Space, source: Hop, operation: Operation) -> list[Entry]:
        dropped: list[Entry] = []
        for seq in operation.drop:
            entry = space.get(operation.client, seq)
            if entry is None or entry.hop != source:
                raise ProtocolError(
                    f"{source} drops {operation.client}:{seq}, which did not come from there"
                )
            dropped.append(entry)
        return dropped

    # --- for people and checkers ---

    def as_data(self) -> dict[str, Any]:
        """The three tables as plain data, in a fixed order."""
        ads = [entry for hop in sorted(self.srt) for entry in self.srt[hop]]
        return {
            "broker": self.name,
            "srt": [
                _line(entry, "adv" if entry.positive else "uadv")
                for entry in sorted(ads, key=by_client_and_number)
            ],
            "prt": [_line(entry, "sub" if entry.positive else "usub") for entry in self.prt],
            "clients": [
                {"client": client, "edge": home.edge, "hop": home.hop}
                for client, home in sorted(self.crt.items())
            ],
        }


def attracted(entry: Entry) -> Operation:
    """The entry as an operation on its way again; `req` is the sender's to fill in."""
    return Operation(0, "sub" if entry.positive else "usub", entry.client, entry.seq, entry.filter)


def taken_back(entry: Entry) -> Operation:
    """The internally triggered un-subscription that takes an entry back."""
    return Operation(
        0, "usub", entry.client, entry.seq, entry.filter, store=False, drop=(entry.seq,)
    )


def _line(entry: Entry, kind: str) -> dict[str, Any]:
    return {
        "client": entry.client,
        "seq": entry.seq,
        "kind": kind,
        "filter": format_filter(entry.filter),
        "hop": entry.hop,
    }
