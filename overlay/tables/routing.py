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

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from overlay.errors import NotHeld, ProtocolError
from overlay.filters import Filter, Value
from overlay.matching.index import Index, View, is_visible
from overlay.messages import BrokerName, ClientName, Hop, Kind, Operation, Version, is_client
from overlay.notation import format_filter
from overlay.stored import stored, stored_value
from overlay.tables.client_entries import ClientEntries, LookBudget, TooManyLooks
from overlay.tables.last_word import Settled, settle
from overlay.tables.space import Entry, EntryCount, Space, SpaceSearch, by_client_and_number

#: To count the subscriptions that may move: looks at records and nodes of the index at a time, and
#: for each subscription that may be found.
LOOKS_AT_ONCE = 256
LOOKS_PER_MOVED = 4


@stored_value("home")
class Home(NamedTuple):
    """Where a client is: its edge broker, the hop that leads there, and which life it lives."""

    edge: BrokerName
    hop: Hop
    life: int = 0


class Outcome(NamedTuple):
    """What has to be sent after an operation was applied, in this order.

    `forward` is the operation itself on its way; `triggered` are the (un-)subscriptions of others
    that it attracts or sends back (internally triggered operations, Definition 3.3). `read` are the
    filters of the subscriptions that were looked at to find out, whether they move or not. `rest`
    finds more of `triggered`, if they are too many for one turn.
    """

    forward: list[tuple[Hop, Operation]]
    triggered: list[tuple[Hop, Operation]]
    read: list[Filter]
    rest: Retargeting | None = None


class Scope(NamedTuple):
    """As whom one looks at the tables and changes them.

    A plain operation sees what is committed and changes the tables for all traffic (`version`
    None).
    A transaction sees its snapshot and itself, and its changes are marked with its version.
    """

    view: View | None = None
    version: Version | None = None


PLAIN = Scope()


@stored(
    "retargeting",
    fields=("source", "_search", "_found", "_gained", "_lost_yes", "_lost_no"),
)
class Retargeting:
    """The rest of moving subscriptions after a change of what is advertised behind a hop, in parts.

    The change itself is made at once; the entries that it concerns are found and told to the hop
    piece by piece. Several changes can be under way, and what comes to the same:

    Let s(0), s(1), ... be whether an entry has to be known to the hop before and after each change
    that concerns it. The part of change i, when it comes to the entry, compares s(i-1) with what
    the tables say now, s(m), m >= i, and if they differ tells the hop s(m). Say that the hop was
    last told s(a), or was never told and knows s(a) = s(0), and that the tables say s(n) in the
    end, another thing. It was told before change a+1, so the part of that change comes later, and
    compares s(a) with s(m), m > a. If they differ, it tells, and s(a) was not the last. If not, the
    same holds for change m+1, which is later than this, and so on up to the last change. Its part
    compares s(a) with s(n), and tells. So in the end the hop knows what the tables say.

    An entry of the PRT that comes meanwhile is sent as the tables say, and one that goes is dropped
    at every hop for which something is under way: it may be known there. To be told what one knows
    already, or that something goes that one does not have, changes nothing.
    """

    def __init__(self, source: Hop, search: SpaceSearch, found: list[Entry]) -> None:
        self.source = source
        self._search = search
        self._found = found
        #: What the SRT has got since just before the change, and what it has lost since: without
        #: the one and with the other it is as it was.
        self._gained: dict[Entry, None] = {}
        self._lost_yes: Index[Entry] = Index()
        self._lost_no: Index[Entry] = Index()

    def gains(self, entry: Entry) -> None:
        """The SRT gets an entry from the hop."""
        self._gained[entry] = None

    def loses(self, entry: Entry) -> None:
        """The SRT loses an entry from the hop."""
        if entry in self._gained:
            del self._gained[entry]
        else:
            (self._lost_yes if entry.positive else self._lost_no).insert(entry)

    @property
    def done(self) -> bool:
        return self._search.done and not self._found

    def some(self, routing: Routing, view: View | None, limit: int) -> list[tuple[Hop, Operation]]:
        """The next operations that have to be sent."""
        entries, self._found = self._found[:limit], self._found[limit:]
        if len(entries) < limit:
            entries += self._search.some(limit - len(entries), view)
        space, moved = routing.srt[self.source], list[tuple[Hop, Operation]]()
        for entry in entries:
            if entry.hop == self.source or entry not in routing.prt:
                continue
            now = space.reaches(entry.filter, view)
            lost = self._lost_yes, self._lost_no
            if now != space.reaches(entry.filter, view, without=self._gained, lost=lost):
                moved.append((self.source, attracted(entry) if now else taken_back(entry)))
        return moved


@stored(
    "routing",
    fields=(
        *("name", "neighbours", "_entries", "srt", "prt", "crt"),
        *("_marked", "_retired", "retargeting"),
    ),
)
class Routing:
    """SRT, PRT and CRT of one broker."""

    def __init__(self, name: BrokerName, neighbours: Iterable[BrokerName]) -> None:
        self.name = name
        self.neighbours = tuple(Hop(neighbour) for neighbour in sorted(neighbours))
        #: How many entries all tables have.
        self._entries = EntryCount()
        self.srt: dict[Hop, Space] = {hop: Space(self._entries) for hop in self.neighbours}
        self.prt = Space(self._entries)
        self.crt: dict[ClientName, Home] = {}
        #: The entries that each version has marked.
        self._marked: dict[Version, list[tuple[Space, Entry]]] = {}
        #: The tables that keep the state before each retired version.
        self._retired: dict[Version, dict[Space, None]] = {}
        #: Changes of the SRT because of which subscriptions still have to be moved.
        self.retargeting: dict[Retargeting, None] = {}

    # --- at a client's edge broker ---

    def is_long(self, source: Hop, operation: Operation, view: View | None, limit: int) -> bool:
        """Whether it takes more than so many looks at entries to `admit` this, or drops more."""
        client = operation.client
        space = self.space(operation.kind, source)
        if space.count_of(client) <= limit:
            return False
        held = space.of_client(client, view, LookBudget(limit))
        try:
            self._settle(held, operation)
        except NotHeld:
            return False
        except TooManyLooks:
            return True
        return False

    def admit(
        self,
        source: Hop,
        operation: Operation,
        scope: Scope = PLAIN,
        looks: LookBudget | None = None,
    ) -> Operation:
        """The client's operation with what it changes worked out; apply it next.

        Raises NotHeld for un-subscribing or un-advertising what the client does not hold, and
        TooManyLooks.
        """
        space = self.space(operation.kind, source)
        settled = self._settle(space.of_client(operation.client, scope.view, looks), operation)
        return msgspec.structs.replace(operation, store=settled.store, drop=settled.drop)

    @staticmethod
    def _settle(held: ClientEntries, operation: Operation) -> Settled:
        if not operation.positive and not held.reaches(operation.filter):
            raise not_held(operation)
        return settle(held, operation.filter, operation.positive)

    def moves_more_than(self, limit: int, operation: Operation, view: View | None) -> bool:
        """Whether more subscriptions than that may follow an (un-)advertisement of a neighbour's
        client, or too much has to be looked at to find out."""
        search = self.prt.search([operation.filter])
        found, looks = 0, LOOKS_PER_MOVED * limit
        while not search.done and looks > 0 and found <= limit:
            found += len(search.some(LOOKS_AT_ONCE, view))
            looks -= LOOKS_AT_ONCE
        return not search.done or found > limit

    def held_by(self, source: Hop, client: str) -> int:
        """How many entries a client of this broker holds, in both tables."""
        advertised = self.srt[source].count_of(client) if source in self.srt else 0
        return advertised + self.prt.count_of(client)

    def may_publish(
        self, source: Hop, point: Mapping[str, Value], view: View | None = None
    ) -> bool:
        """Whether the point lies in the space that the client advertised."""
        space = self.srt.get(source)
        return space is not None and space.holds(point, view)

    # --- at every broker ---

    def apply(
        self,
        source: Hop,
        operation: Operation,
        scope: Scope = PLAIN,
        *,
        limit: int | None = None,
    ) -> Outcome:
        """Carry out an operation, and say what has to be sent because of it.

        With a limit, if that takes more looks at subscriptions, only a part of it (`rest`).

        Bringing what is here already changes nothing, nor does dropping what is not: an operation
        may have been carried out on behalf of the source (`apply_here`), or a plain operation that
        brings the entry is held here, and then the version that drops it won't be committed. Nor
        does what comes from where its client is not: a client of the same name has come elsewhere,
        while a link was down, and may have gone again; the brokers that say this will hear of it.

        Raises ProtocolError for an entry that came from elsewhere, or that is dropped twice.
        """
        home = self.crt.get(ClientName(operation.client))
        if home is None or home.hop != source:
            return Outcome([], [], [])
        if operation.kind in ("sub", "usub"):
            return Outcome(self._apply_subscription(source, operation, scope), [], [])
        space = self.space(operation.kind, source)
        dropped = self._dropped(space, source, operation, scope)
        # What a later operation of its client covers decides nothing: it goes, and nothing changes.
        decides = operation.store or (
            operation.seq not in operation.drop
            and space.get(operation.client, operation.seq, scope.view) is not None
        )
        covers = operation.filter.covers
        changed = [entry.filter for entry in dropped if not (decides and covers(entry.filter))]
        if operation.store:
            changed.append(operation.filter)

        def change() -> None:
            for entry in dropped:
                self._remove(space, entry, scope)
            if operation.store:
                self._add(space, operation, source, scope)

        triggered, read, rest = self._retarget(source, changed, change, scope, limit)
        forward = [(hop, operation) for hop in self._others(source)]
        return Outcome(forward, triggered, read, rest)

    def _apply_subscription(
        self, source: Hop, operation: Operation, scope: Scope
    ) -> list[tuple[Hop, Operation]]:
        drop_at: dict[Hop, list[int]] = {}
        retracting = {job.source for job in self.retargeting}
        for entry in self._dropped(self.prt, source, operation, scope):
            for hop in self.towards(entry, scope.view, retracting):
                drop_at.setdefault(hop, []).append(entry.seq)
            self._remove(self.prt, entry, scope)
        store_at: list[Hop] = []
        if operation.store:
            entry = self._add(self.prt, operation, source, scope)
            store_at = self.towards(entry, scope.view)
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

    def towards(
        self, entry: Entry, view: View | None = None, retracting: Collection[Hop] = ()
    ) -> list[Hop]:
        """The neighbours that an entry of the PRT has to be known to, and those from which it may
        not have been taken back yet."""
        others = self._others(entry.hop)
        return [
            hop for hop in others if hop in retracting or self.srt[hop].reaches(entry.filter, view)
        ]

    def forget(
        self, client: ClientName, view: View | None = None, *, limit: int | None = None
    ) -> Outcome:
        """Remove a client that has left from all tables, in every version.

        Returns the un-subscriptions of others that this triggers; with a limit, perhaps a part.
        """
        source = self.crt.pop(client).hop
        for entry in self.prt.of(client):
            self.prt.remove(entry)
        self.prt.forget_client(client)
        space = self.srt.get(source)
        if space is not None:
            space.forget_client(client)
        gone = space.of(client) if space is not None else []

        def change() -> None:
            for entry in gone:
                assert space is not None
                self._changes(entry, Retargeting.loses)
                space.remove(entry)

        filters = [entry.filter for entry in gone]
        triggered, _, rest = self._retarget(source, filters, change, Scope(view), limit)
        if is_client(source):
            self.srt.pop(source, None)
        return Outcome([], triggered, [], rest)

    def _retarget(
        self,
        source: Hop,
        changed: list[Filter],
        change: Callable[[], None],
        scope: Scope,
        limit: int | None,
    ) -> tuple[list[tuple[Hop, Operation]], list[Filter], Retargeting | None]:
        """Change what is advertised behind a hop, and move the subscriptions that this concerns.

        An entry that only now has something to go to is attracted; one that has nothing to go to
        any more is taken back.
        """
        if is_client(source) or not changed:
            change()
            return [], [], None
        space = self.srt[source]
        concerned: dict[tuple[str, int], Entry] = {}
        if limit is not None:
            assert scope.version is None
            search = self.prt.search(changed)
            found = search.some(limit, scope.view)
            if not search.done:
                job = Retargeting(source, search, found)
                self.retargeting[job] = None
                change()
                return [], [], job
            for entry in found:
                if entry.hop != source:
                    concerned[by_client_and_number(entry)] = entry
        else:
            for filter in changed:
                for entry in self.prt.overlapping(filter, scope.view):
                    if entry.hop != source:
                        concerned[by_client_and_number(entry)] = entry
        entries = [concerned[key] for key in sorted(concerned)]
        before = [space.reaches(entry.filter, scope.view) for entry in entries]
        change()
        moved: list[tuple[Hop, Operation]] = []
        for entry, was in zip(entries, before, strict=True):
            now = space.reaches(entry.filter, scope.view)
            if now and not was:
                moved.append((source, attracted(entry)))
            elif was and not now:
                moved.append((source, taken_back(entry)))
        return moved, [entry.filter for entry in entries], None

    def _changes(self, entry: Entry, how: Callable[[Retargeting, Entry], None]) -> None:
        """An entry comes into the SRT or goes, while subscriptions are still being moved."""
        for job in self.retargeting:
            if job.source == entry.hop:
                how(job, entry)

    def space(self, kind: str, source: Hop) -> Space:
        """The table that an operation of this kind and from this hop goes to."""
        if kind in ("sub", "usub"):
            return self.prt
        found = self.srt.get(source)
        if found is None:
            found = self.srt[source] = Space(self._entries)
        return found

    @property
    def entries(self) -> int:
        """How many entries all tables have, whatever their versions."""
        return self._entries.count

    def _others(self, source: Hop) -> list[Hop]:
        return [hop for hop in self.neighbours if hop != source]

    @staticmethod
    def _dropped(space: Space, source: Hop, operation: Operation, scope: Scope) -> list[Entry]:
        if len(set(operation.drop)) < len(operation.drop):
            raise ProtocolError(f"{source} drops an entry of {operation.client} twice")
        dropped: list[Entry] = []
        for seq in operation.drop:
            entry = space.get(operation.client, seq, scope.view)
            if entry is not None:
                if entry.hop != source:
                    raise ProtocolError(f"{source} drops {entry!r}")
                dropped.append(entry)
        return dropped

    def apply_here(
        self, operation: Operation, around: Collection[Hop], view: View | None
    ) -> list[tuple[Hop, Operation]]:
        """Carry out a subscription that no neighbour sends, knowing that those `around` do alike.

        Comes to what `apply` would: the entry belongs here if a client behind this broker, seen
        from the entry's client, may publish for it; then the neighbour towards the client would
        have sent it. Returns what has to be sent to other neighbours. Those around are told only
        what goes: what may be on its way to them, attracted by an advertisement before it was
        dropped here; and the new entry itself, if it would not have come to them from here. They
        may know of an advertisement that is on its way to this broker. If it arrives, it attracts
        the entry; if it is taken back before, no other broker would tell them.
        """
        source = self.crt[ClientName(operation.client)].hop
        own = (operation.seq,) if operation.store else ()
        if not is_client(source):
            beyond = (space for hop, space in self.srt.items() if hop != source)
            store = operation.store and any(s.reaches(operation.filter, view) for s in beyond)
            operation = msgspec.structs.replace(operation, store=store)
        forward = dict(self._apply_subscription(source, operation, Scope(view)))
        sent: list[tuple[Hop, Operation]] = []
        for hop in self._others(source):
            message = forward.get(hop)
            if hop not in around:
                if message is not None:
                    sent.append((hop, message))
                continue
            drop = message.drop if message is not None else ()
            if message is None or not message.store:
                drop = (*drop, *own)
            if drop:
                sent.append((hop, _taken_out(operation, drop)))
        return sent

    # --- versions ---

    def _add(self, space: Space, operation: Operation, source: Hop, scope: Scope) -> Entry:
        if scope.version is not None:
            back = space.removed_in(operation.client, operation.seq, scope.version)
            if back is not None:
                space.unmark_removed(back, scope.version)
                return back
        present = space.copy(operation.client, operation.seq, scope.version)
        if present is not None:
            if present.hop != source:
                raise ProtocolError(f"{source} brings {present!r}")
            return present
        entry = Entry(operation, source, scope.version)
        space.add(entry)
        if space is not self.prt:
            self._changes(entry, Retargeting.gains)
        if scope.version is not None:
            self._marked.setdefault(scope.version, []).append((space, entry))
        return entry

    def _remove(self, space: Space, entry: Entry, scope: Scope) -> None:
        if scope.version is None or entry.added_by == scope.version:
            if space is not self.prt:
                self._changes(entry, Retargeting.loses)
            space.remove(entry)
        else:
            space.mark_removed(entry, scope.version)
            self._marked.setdefault(scope.version, []).append((space, entry))

    def discard(self, version: Version, limit: int | None = None) -> bool:
        """Undo what a version has marked: it was aborted.

        With a limit only so many marks; returns whether there are more. Until they are gone they
        have no effect, since no view includes the version.
        """
        for space, entry in self._some_marked(version, limit):
            if entry not in space:
                continue
            if entry.added_by == version:
                space.remove(entry)
            else:
                space.unmark_removed(entry, version)
        return version in self._marked

    def make_permanent(self, version: Version, limit: int | None = None) -> bool:
        """Make a committed version's changes permanent: nothing needs the state before.

        With a limit only so many marks; returns whether there are more. Until they are gone the
        version must count as committed.
        """
        for space, entry in self._some_marked(version, limit):
            if entry not in space:
                continue
            if version in entry.removed_by:
                space.remove(entry)
            elif entry.added_by == version:
                space.make_plain(entry)
        if version in self._marked:
            return True
        for space in list(self._retired.get(version, ())):
            if space.forget_past(version, limit):
                return True
            del self._retired[version][space]
        self._retired.pop(version, None)
        return False

    def retire(self, version: Version, limit: int | None = None) -> bool:
        """Make a committed version's changes permanent, but for snapshots without it.

        Only those need the state before; `make_permanent` follows when they do not either. With a
        limit only so many marks; returns whether there are more.
        """
        for space, entry in self._some_marked(version, limit):
            if entry in space:
                space.retire(entry, version)
                self._retired.setdefault(version, {})[space] = None
        return version in self._marked

    def _some_marked(self, version: Version, limit: int | None) -> list[tuple[Space, Entry]]:
        """Take marks of a version out of the account, the last first."""
        marked = self._marked.get(version, [])
        if limit is None or len(marked) <= limit:
            return self._marked.pop(version, [])
        some = marked[-limit:]
        del marked[-limit:]
        return some

    # --- for people and checkers ---

    def as_data(self, view: View | None = None) -> dict[str, Any]:
        """The three tables as plain data, in a fixed order."""
        ads = [entry for hop in sorted(self.srt) for entry in self.srt[hop]]
        return {
            "broker": self.name,
            "srt": [
                entry_line(entry, "adv" if entry.positive else "uadv")
                for entry in sorted(ads, key=by_client_and_number)
                if is_visible(entry, view)
            ],
            "prt": [
                entry_line(entry, "sub" if entry.positive else "usub")
                for entry in self.prt
                if is_visible(entry, view)
            ],
            "clients": [
                {"client": client, "edge": home.edge, "hop": home.hop}
                for client, home in sorted(self.crt.items())
            ],
        }

    @property
    def is_plain(self) -> bool:
        """Whether no entry carries a version, and none is kept for a snapshot."""
        return not (self._marked or self._retired)


def not_held(operation: Operation) -> NotHeld:
    verb = "un-subscribe from" if operation.kind == "usub" else "un-advertise"
    text = format_filter(operation.filter)
    return NotHeld(f"{operation.client} holds no part of {text} to {verb}")


def attracted(entry: Entry) -> Operation:
    """The entry as an operation on its way again; `req` is the sender's to fill in."""
    kind: Kind = "sub" if entry.positive else "usub"
    return Operation(0, kind, entry.client, entry.seq, entry.filter, events=entry.events)


def taken_back(entry: Entry) -> Operation:
    """The internally triggered un-subscription that takes an entry back."""
    return Operation(
        0, "usub", entry.client, entry.seq, entry.filter, store=False, drop=(entry.seq,)
    )


def _taken_out(operation: Operation, drop: tuple[int, ...]) -> Operation:
    """That a client's entries go, and nothing comes in their place."""
    return msgspec.structs.replace(operation, req=0, kind="usub", store=False, drop=drop)


def entry_line(entry: Entry, kind: str) -> dict[str, Any]:
    """An entry as plain data; one for events only says so."""
    line = {
        "client": entry.client,
        "seq": entry.seq,
        "kind": kind,
        "filter": format_filter(entry.filter),
        "hop": entry.hop,
    }
    return {**line, "events": True} if entry.events else line
