"""What plain operations have written at a broker while transactions were open there.

A transaction loses if it has read what a plain operation wrote since it began. All open
transactions share one log: of each thing that was written (a client's filter in a table) only the
last time counts, and a transaction remembers the position at which it began. So a plain operation
costs the same however many transactions are open, and a client that says the same few things over
and over adds nothing. What was written before the oldest open transaction began goes, a few at a
time, so that no message waits for it.

Very much can be written while a transaction is open, and the broker does nothing else while it
votes. So the log is indexed, and if it is long, what lies near the reads of the transaction is
looked up and not all of it looked through.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TypeAlias

from overlay.filters import Filter
from overlay.matching.index import Index
from overlay.messages import Hop, Version
from overlay.stored import stored
from overlay.tables.footprints import Footprint
from overlay.tables.reads import Read, Reads
from padres_tx.client_messages import TxID

#: A client's filter, with the table ("sub" or "adv") that it is in.
Written: TypeAlias = tuple[str, str, Filter]

#: Writes since a transaction began that are looked through one by one.
FEW = 64

#: Old writes that are dropped with each new one, and at the end of a transaction.
DROPPED_WITH_ONE = 2
DROPPED_AT_END = 64


@stored("plain-write")
class PlainWrite:
    """The last time that something was written, as the index takes it."""

    __slots__ = ("added_by", "client", "filter", "footprint", "hop", "removed_by", "seq")

    def __init__(self, table: str, client: str, filter: Filter) -> None:
        self.client = client
        self.filter = filter
        self.seq = 0
        self.footprint = Footprint()
        if table == "sub":
            self.footprint.writes_sub(client, filter)
        else:
            self.footprint.writes_adv(client, filter)
        self.hop = Hop("")
        self.added_by: Version | None = None
        self.removed_by: tuple[Version, ...] = ()


@stored("plain-writes", fields=("_began", "_writes", "_near", "_next"))
class PlainWrites:
    """The writes of plain operations since the oldest open transaction began, the oldest first."""

    def __init__(self) -> None:
        #: The number of the first write after each open transaction began, the oldest first.
        self._began: OrderedDict[TxID, int] = OrderedDict()
        self._writes: OrderedDict[Written, PlainWrite] = OrderedDict()
        self._near: dict[str, Index[PlainWrite]] = {"sub": Index(), "adv": Index()}
        self._next = 0

    def __len__(self) -> int:
        return len(self._writes)

    @property
    def wanted(self) -> bool:
        """Whether a transaction is open that has to know of plain operations."""
        return bool(self._began)

    def begin(self, tx: TxID) -> None:
        self._began[tx] = self._next

    def end(self, tx: TxID) -> None:
        """Drop what only this transaction had to know, or begin to."""
        if self._began.pop(tx, None) is None:
            return
        if not self._began:
            self._writes.clear()
            self._near = {"sub": Index(), "adv": Index()}
            self._next = 0
            return
        self._drop(DROPPED_AT_END)

    def _drop(self, count: int) -> None:
        """Drop so many writes of before the oldest open transaction."""
        oldest = next(iter(self._began.values()))
        for _ in range(count):
            if not self._writes or next(iter(self._writes.values())).seq >= oldest:
                return
            (table, _, _), write = self._writes.popitem(last=False)
            self._near[table].remove(write)

    def add(self, footprint: Footprint) -> None:
        """Add what a plain operation has written, if a transaction has to know of it."""
        if not self._began:
            return
        for client, filter in footprint.wrote_sub:
            self._add("sub", client, filter)
        for client, filter in footprint.wrote_adv:
            self._add("adv", client, filter)

    def _add(self, table: str, client: str, filter: Filter) -> None:
        write = self._writes.pop((table, client, filter), None)
        if write is None:
            write = PlainWrite(table, client, filter)
            self._near[table].insert(write)
        write.seq = self._next
        self._next += 1
        self._writes[table, client, filter] = write
        self._drop(DROPPED_WITH_ONE)

    def conflict(self, tx: TxID, mine: Footprint) -> tuple[Filter, str] | None:
        """A filter that was written since the transaction began and that is read by a footprint,
        and its writer; None if there is none."""
        began = self._began[tx]
        if self._next - began <= FEW:
            for wrote in self.since(tx):
                if filter := mine.reads_what(wrote):
                    return filter, wrote.writer
            return None
        found = (
            self._meet("sub", mine.points, began)
            or self._meet("sub", mine.prt, began)
            or self._meet("adv", mine.srt, began)
        )
        for (client, table), own in mine.own.items():
            found = found or self._meet(table, own, began, client)
        return (found.filter, found.client) if found is not None else None

    def since(self, tx: TxID) -> Iterator[Footprint]:
        """What was written since the transaction began, the last first."""
        began = self._began[tx]
        for write in reversed(self._writes.values()):
            if write.seq < began:
                return
            yield write.footprint

    def _meet(
        self, table: str, reads: Reads, began: int, client: str | None = None
    ) -> PlainWrite | None:
        """A write of a table, or of a client in it, since then that changes what was read."""
        for read in reads:
            for write in self._around(table, read):
                if write.seq >= began and (client is None or write.client == client):
                    return write
        return None

    def _around(self, table: str, read: Read) -> Iterator[PlainWrite]:
        """The writes that change what was read, whenever they were made."""
        index = self._near[table]
        if not isinstance(read, Filter):
            yield from index.matching(read)
            return
        yield from (write for write in index.some_overlapping(read) if write is not None)
