"""Undoing operations on the shared routing state, the last first.

Compensating in the original order is wrong: of `sub(F), usub(F)` the first inverse un-subscribes
what is not there, the second subscribes, and the client ends up subscribed. In reverse order, and
with only what each operation really changed, the tables end as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from overlay.broker.core import Broker
from overlay.filters import Filter
from overlay.matching.index import Index
from overlay.messages import Hop, Kind, Leave, Operation, client_hop
from overlay.stored import stored, stored_value
from overlay.tables.space import Entry
from padres_tx.client_messages import TxID


@stored_value("undo")
class Undo(NamedTuple):
    """An operation that a client of this broker has done, and the entries that it dropped."""

    source: Hop
    operation: Operation
    dropped: list[Entry]

    def concerns(self, operation: Operation) -> bool:
        """Whether another operation of the same client touches the same entries."""
        mine = self.operation
        return (
            mine.client == operation.client
            and (mine.kind in ("sub", "usub")) == (operation.kind in ("sub", "usub"))
            and (
                mine.filter.overlaps(operation.filter)
                or any(entry.filter.overlaps(operation.filter) for entry in self.dropped)
            )
        )


@stored("reserved-filter")
class ReservedFilter(Entry):
    """A filter of a client's entries that an undecided transaction uses."""

    __slots__ = ("tx",)

    def __init__(self, operation: Operation, hop: Hop, tx: TxID, filter: Filter) -> None:
        super().__init__(operation, hop)
        self.tx = tx
        self.filter = filter


@stored("reservations", fields=("_undos", "_reserved", "_used", "_count"))
class Reservations:
    """What undecided transactions have done for clients of this broker, found by its filters."""

    def __init__(self) -> None:
        self._undos: dict[TxID, list[Undo]] = {}
        #: By client and table: each filter that a transaction uses.
        self._reserved: dict[tuple[Hop, str], Index[ReservedFilter]] = {}
        self._used: dict[TxID, dict[tuple[Hop, str], list[ReservedFilter]]] = {}
        #: How many operations there are for each client.
        self._count: dict[Hop, int] = {}

    def add(self, tx: TxID, undo: Undo) -> None:
        """A transaction has done this for a client."""
        self._undos.setdefault(tx, []).append(undo)
        self._count[undo.source] = self._count.get(undo.source, 0) + 1
        key = undo.source, _table(undo.operation)
        index = self._reserved.setdefault(key, Index())
        used = self._used.setdefault(tx, {}).setdefault(key, [])
        whole = undo.operation.filter
        # What it has covered is inside it; only holes that carve nothing any more may reach out.
        beyond = (entry.filter for entry in undo.dropped if not whole.covers(entry.filter))
        for filter in (whole, *beyond):
            reserved = ReservedFilter(undo.operation, undo.source, tx, filter)
            index.insert(reserved)
            used.append(reserved)

    def __iter__(self) -> Iterator[TxID]:
        """The transactions that use something."""
        return iter(self._undos)

    def of(self, tx: TxID) -> list[Undo]:
        """What a transaction has done, in order."""
        return self._undos.get(tx, [])

    def release(self, tx: TxID) -> list[Undo]:
        """A transaction is decided: what it used is free. Returns what it has done."""
        undos = self._undos.pop(tx, [])
        for undo in undos:
            self._count[undo.source] -= 1
            if not self._count[undo.source]:
                del self._count[undo.source]
        for key, filters in self._used.pop(tx, {}).items():
            index = self._reserved[key]
            if len(index) == len(filters):
                del self._reserved[key]  # Mostly no other transaction uses anything there.
                continue
            for reserved in filters:
                index.remove(reserved)
        return undos

    def by_others(self, tx: TxID, operation: Operation) -> TxID | None:
        """Another transaction that uses the same entries of the operation's client."""
        key = client_hop(operation.client), _table(operation)
        index, own = self._reserved.get(key, ()), self._used.get(tx, {}).get(key, ())
        if len(index) == len(own):
            return None
        return next((reserved.tx for reserved in self._near(operation) if reserved.tx != tx), None)

    def reserves(self, source: Hop, message: Operation | Leave) -> bool:
        """Whether a client's operation, or its leaving, touches entries that are reserved."""
        if isinstance(message, Leave):
            return source in self._count
        return source in self._count and bool(self._near(message))

    def _near(self, operation: Operation) -> list[ReservedFilter]:
        index = self._reserved.get((client_hop(operation.client), _table(operation)))
        return index.overlapping(operation.filter) if index is not None else []


def _table(operation: Operation) -> str:
    return "sub" if operation.kind in ("sub", "usub") else "adv"


def reserved_by_others(broker: Broker, tx: TxID, operation: Operation) -> TxID | None:
    """Another undecided transaction that uses the same entries of the client, if there is one."""
    for engine in broker.engines.values():
        other = engine.reserved_by(operation, other_than=tx)
        if other is not None:
            return other
    return None


def inverses(undo: Undo) -> list[Operation]:
    """The operations that undo one: what was dropped comes back before what was stored goes."""
    operation = undo.operation
    yes: Kind = "sub" if operation.kind in ("sub", "usub") else "adv"
    no: Kind = "usub" if yes == "sub" else "uadv"
    back = [
        Operation(
            0,
            yes if entry.positive else no,
            entry.client,
            entry.seq,
            entry.filter,
            events=entry.events,
        )
        for entry in undo.dropped
    ]
    if operation.store:
        gone = Operation(
            0,
            no,
            operation.client,
            operation.seq,
            operation.filter,
            store=False,
            drop=(operation.seq,),
        )
        back.append(gone)
    return back


def count_inverses(undo: Undo) -> int:
    """How many operations undo one."""
    return len(undo.dropped) + undo.operation.store
