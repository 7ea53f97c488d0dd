"""What plain operations have written at a broker while transactions were open there.

A transaction loses if it has read what a plain operation wrote since it began. All open
transactions share one log: of each thing that was written (a client's filter in a table) only the
last time counts, and a transaction remembers the position at which it began. So a plain operation
costs the same however many transactions are open, and a client that says the same few things over
and over adds nothing. What was written before the oldest open transaction began goes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TypeAlias

from overlay.filters import Filter
from overlay.tables.footprints import Footprint
from padres_tx.client_messages import TxID

#: A client's filter, with the table ("sub" or "adv") that it is in.
Written: TypeAlias = tuple[str, str, Filter]


class PlainWrites:
    """The writes of plain operations since the oldest open transaction began, the oldest first."""

    def __init__(self) -> None:
        #: The number of the first write after each open transaction began, the oldest first.
        self._began: OrderedDict[TxID, int] = OrderedDict()
        #: The number of the last time that each was written.
        self._writes: OrderedDict[Written, tuple[int, Footprint]] = OrderedDict()
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
        """Drop what only this transaction had to know."""
        if self._began.pop(tx, None) is None:
            return
        if not self._began:
            self._writes.clear()
            self._next = 0
            return
        oldest = next(iter(self._began.values()))
        while self._writes and next(iter(self._writes.values()))[0] < oldest:
            self._writes.popitem(last=False)

    def add(self, footprint: Footprint) -> None:
        """Add what a plain operation has written, if a transaction has to know of it."""
        if not self._began:
            return
        for client, filter in footprint.wrote_sub:
            self._add("sub", client, filter)
        for client, filter in footprint.wrote_adv:
            self._add("adv", client, filter)

    def _add(self, table: str, client: str, filter: Filter) -> None:
        known = self._writes.pop((table, client, filter), None)
        if known is None:
            wrote = Footprint()
            (wrote.writes_sub if table == "sub" else wrote.writes_adv)(client, filter)
        else:
            wrote = known[1]
        self._writes[table, client, filter] = self._next, wrote
        self._next += 1

    def since(self, tx: TxID) -> Iterator[Footprint]:
        """What was written since the transaction began, the last first."""
        began = self._began[tx]
        for number, wrote in reversed(self._writes.values()):
            if number < began:
                return
            yield wrote
