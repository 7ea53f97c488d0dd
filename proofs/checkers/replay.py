"""A broker's tables, rebuilt from its records, step by step.

An operation's record says what became of the tables, and a publication's on which view it looked at
them; so for every step it can be worked out what the broker had before it, and whether it did
what its tables say. Entries are found with the product's matching index; the rules (last word,
versions, views) are written once more here.

This module knows nothing of promises: it says what is so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from overlay.filters import Filter, Value
from overlay.matching.index import Index, is_visible
from overlay.messages import Hop, Version
from proofs.history import (
    REPLICATED,
    VERSIONED,
    Event,
    History,
    Row,
    Tx,
    Word,
    box,
    point,
    table_of,
    versions,
)


def version(name: str) -> Version:
    """A transaction's name as entries are marked with it."""
    return name, 0, 0


class View:
    """What one step saw: what was committed here then, but for what it hides, and its own."""

    __slots__ = ("committed", "hidden", "own", "seen")

    def __init__(self, record_version: str, own: str, committed: Mapping[str, None]) -> None:
        self.seen, self.hidden = versions(record_version)
        self.own = own
        self.committed = committed

    def includes(self, marked: Version) -> bool:
        return self.sees(marked[0])

    def sees(self, tx: str) -> bool:
        return tx == self.own or tx in self.seen or (tx in self.committed and tx not in self.hidden)


class Entry:
    """A line of a table, and the event that brought it."""

    __slots__ = ("added_by", "client", "event", "filter", "hop", "number", "positive", "removed_by")

    def __init__(self, event: Event, added_by: Version | None) -> None:
        record = event.record
        assert event.key is not None
        self.client = record.client
        self.number = event.key[2]
        self.filter = box(record.filter)
        self.hop = Hop(record.source)
        self.positive = record.op_kind in ("sub", "adv")
        self.event = event
        self.added_by = added_by
        self.removed_by: tuple[Version, ...] = ()


class Table:
    """SRT or PRT of one broker."""

    def __init__(self) -> None:
        self._yes: Index[Entry] = Index()
        self._no: Index[Entry] = Index()
        self._of: dict[str, dict[int, list[Entry]]] = {}
        #: The entries that each transaction has marked.
        self._marked: dict[str, list[Entry]] = {}

    def _index(self, entry: Entry) -> Index[Entry]:
        return self._yes if entry.positive else self._no

    def __iter__(self) -> Iterator[Entry]:
        for client in sorted(self._of):
            for number in sorted(self._of[client]):
                yield from self._of[client][number]

    def _copies(self, client: str, number: int) -> list[Entry]:
        return self._of.get(client, {}).get(number, [])

    def _contains(self, entry: Entry) -> bool:
        return entry in self._copies(entry.client, entry.number)

    def add(self, event: Event, tx: str) -> None:
        """Bring an entry, for everybody or in a transaction's version."""
        assert event.key is not None
        client, number = event.record.client, event.key[2]
        mark = version(tx) if tx else None
        for entry in self._copies(client, number):
            if mark is not None and mark in entry.removed_by:
                left = tuple(other for other in entry.removed_by if other != mark)
                self._index(entry).remark(entry, removed_by=left)
                return
            if entry.added_by == mark:
                return
        entry = Entry(event, mark)
        self._of.setdefault(client, {}).setdefault(number, []).append(entry)
        self._index(entry).insert(entry)
        if mark is not None:
            self._marked.setdefault(tx, []).append(entry)

    def drop(self, client: str, number: int, tx: str, view: View) -> None:
        """Take away the entry of that number that the view sees."""
        for entry in self._copies(client, number):
            if not is_visible(entry, view):
                continue
            mark = version(tx) if tx else None
            if mark is None or entry.added_by == mark:
                self._remove(entry)
            else:
                removed = (*entry.removed_by, mark)
                self._index(entry).remark(entry, removed_by=removed)
                self._marked.setdefault(tx, []).append(entry)
            return

    def _remove(self, entry: Entry) -> None:
        held = self._of[entry.client]
        held[entry.number].remove(entry)
        if not held[entry.number]:
            del held[entry.number]
            if not held:
                del self._of[entry.client]
        self._index(entry).remove(entry)

    def forget(self, client: str) -> list[Entry]:
        """Take away all that a client has; answers with it."""
        gone = [entry for copies in self._of.get(client, {}).values() for entry in copies]
        for entry in gone:
            self._remove(entry)
        return gone

    def discard(self, tx: str) -> None:
        """A version was aborted."""
        mark = version(tx)
        for entry in self._marked.pop(tx, ()):
            if not self._contains(entry):
                continue
            if entry.added_by == mark:
                self._remove(entry)
            else:
                left = tuple(other for other in entry.removed_by if other != mark)
                self._index(entry).remark(entry, removed_by=left)

    def fold(self, tx: str) -> None:
        """Nobody needs the state before a committed version any more."""
        mark = version(tx)
        for entry in self._marked.pop(tx, ()):
            if not self._contains(entry):
                continue
            if mark in entry.removed_by:
                self._remove(entry)
            elif entry.added_by == mark:
                copies = self._copies(entry.client, entry.number)
                if any(copy.added_by is None for copy in copies):
                    self._remove(entry)
                else:
                    self._index(entry).remark(entry, added_by=None)

    def matching(self, at: Mapping[str, Value], view: View) -> list[Entry]:
        """The entries whose clients want the point: of each client the last word decides."""
        last_no: dict[str, int] = {}
        for hole in self._no.matching(at, view):
            last_no[hole.client] = max(hole.number, last_no.get(hole.client, 0))
        return [
            entry
            for entry in self._yes.matching(at, view)
            if entry.number > last_no.get(entry.client, 0)
        ]

    def overlapping(self, filter: Filter, view: View) -> list[Entry]:
        return self._yes.overlapping(filter, view) + self._no.overlapping(filter, view)


class Looked(NamedTuple):
    """A publication at a broker: what the tables held for it, and where it should have gone."""

    event: Event
    view: View
    entries: list[Entry]
    hops: frozenset[str]


class Replay:
    """The tables of all brokers, and what each step found in them."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.tables: dict[str, dict[str, Table]] = {}
        #: All publications at all brokers.
        self.looked: list[Looked] = []
        #: The view of each step that looked at the tables, by node and place.
        self.views: dict[tuple[str, int], View] = {}
        #: The subscriptions that an (un-)advertisement from a neighbour has looked at.
        self.concerned: dict[tuple[str, int], list[Filter]] = {}
        #: What a client that has left took with it.
        self.taken: dict[tuple[str, int], list[Entry]] = {}
        for node in sorted(history.events):
            self._replay(node)

    def _replay(self, node: str) -> None:
        srt, prt = Table(), Table()
        self.tables[node] = {"srt": srt, "prt": prt}
        committed: dict[str, None] = {}
        folds = _Folds(self._history.txs)
        for event in self._history.events[node]:
            record = event.record
            place = node, event.at
            if record.kind == "match":
                view = self.views[place] = View(record.version, record.tx, committed.copy())
                self._look(event, prt, view)
            elif record.kind in ("apply", "undo"):
                view = self.views[place] = View(record.version, record.tx, committed.copy())
                tx = record.tx if record.engine in VERSIONED else ""
                table = prt if table_of(record.op_kind) == "prt" else srt
                if table is srt and not record.source.startswith("@"):
                    near = prt.overlapping(box(record.filter), view)
                    self.concerned[place] = [e.filter for e in near if e.hop != record.source]
                for number in event.change.dropped:
                    table.drop(record.client, number, tx, view)
                if event.change.kept:
                    table.add(event, tx)
            elif record.kind == "end" and not record.tx:
                self.taken[place] = [*prt.forget(record.client), *srt.forget(record.client)]
            elif record.tx and record.engine in VERSIONED:
                if record.kind == "begin":
                    folds.begin(record.tx)
                elif record.kind == "decide":
                    if record.outcome == "committed":
                        committed[record.tx] = None
                    else:
                        srt.discard(record.tx)
                        prt.discard(record.tx)
                    folds.decide(record.tx)
                elif record.kind == "end":
                    folds.end(record.tx)
                for tx in folds.due():
                    srt.fold(tx)
                    prt.fold(tx)
                    committed.pop(tx, None)

    def _look(self, event: Event, prt: Table, view: View) -> None:
        record = event.record
        entries = prt.matching(point(record.filter), view)
        takers = entries
        if record.op_kind == "tcm":
            names = record.outcome.split()[1:]
            takers = [e for e in _takers(entries) if not names or e.client in names]
        hops = {str(entry.hop) for entry in takers}
        tx = self._history.txs.get(record.tx)
        if tx is not None and tx.engine in REPLICATED:
            # Every broker of the span does its own part.
            hops -= {hop for hop in tx.neighbours.get(record.node, ()) if not hop.startswith("@")}
            if record.op_kind == "tcm":
                hops = set()
        elif not record.source.startswith("@"):
            hops.discard(record.source)
        self.looked.append(Looked(event, view, entries, frozenset(hops)))

    def rows(self, node: str) -> list[Row]:
        """A broker's tables in the end."""
        found: list[Row] = []
        for name, table in self.tables[node].items():
            for entry in table:
                marks = [entry.added_by] if entry.added_by else []
                record = entry.event.record
                kind = record.op_kind
                found.append(
                    Row(
                        name,
                        entry.client,
                        entry.number,
                        kind,
                        record.filter,
                        entry.hop,
                        tuple(tx for tx, _, _ in (*marks, *entry.removed_by)),
                    )
                )
        return found

    def writer(self, entry: Entry) -> Tx | None:
        """The transaction that has said what stands in an entry."""
        word: Word | None = self._history.word(entry.event)
        return word.tx if word is not None else None


def _takers(entries: list[Entry]) -> list[Entry]:
    """Of each client the last word, if it is not for events only."""
    last: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda entry: entry.number):
        last[entry.client] = entry
    return [entry for entry in last.values() if not entry.event.change.events]


class _Folds:
    """Which committed versions nobody needs the state before of.

    When one is over at this node, those that are undecided here may still hide it.
    """

    def __init__(self, txs: Mapping[str, Tx]) -> None:
        self._txs = txs
        self._open: dict[str, None] = {}
        self._waiting: dict[str, set[str]] = {}
        self._due: list[str] = []

    def begin(self, tx: str) -> None:
        self._open[tx] = None

    def decide(self, tx: str) -> None:
        self._open.pop(tx, None)
        for other, waits_for in list(self._waiting.items()):
            waits_for.discard(tx)
            if not waits_for:
                del self._waiting[other]
                self._due.append(other)

    def end(self, tx: str) -> None:
        if self._txs[tx].committed:
            self._waiting[tx] = set(self._open)
            if not self._open:
                del self._waiting[tx]
                self._due.append(tx)

    def due(self) -> list[str]:
        due, self._due = self._due, []
        return due
