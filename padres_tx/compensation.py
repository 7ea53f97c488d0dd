"""Undoing operations on the shared routing state, the last first.

Compensating in the original order is wrong: of `sub(F), usub(F)` the first inverse un-subscribes
what is not there, the second subscribes, and the client ends up subscribed. In reverse order, and
with only what each operation really changed, the tables end as they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from overlay.broker import Broker
from overlay.messages import Hop, Kind, Leave, Operation
from overlay.space import Entry
from padres_tx.wire import TxID


class Undo(NamedTuple):
    """An operation that a client of this broker has done, and the entries that it dropped."""

    source: Hop
    operation: Operation
    dropped: list[Entry]

    def concerns(self, operation: Operation) -> bool:
        """Whether another operation of the same client touches the same words."""
        mine = self.operation
        return (
            mine.client == operation.client
            and (mine.kind in ("sub", "usub")) == (operation.kind in ("sub", "usub"))
            and (
                mine.filter.overlaps(operation.filter)
                or any(entry.filter.overlaps(operation.filter) for entry in self.dropped)
            )
        )


def reserved_by_others(broker: Broker, tx: TxID, operation: Operation) -> TxID | None:
    """Another undecided transaction that uses the same words of the client, if there is one."""
    for engine in broker.engines.values():
        reserved: dict[TxID, list[Undo]] = getattr(engine, "reserved", {})
        for other, undos in reserved.items():
            if other != tx and any(undo.concerns(operation) for undo in undos):
                return other
    return None


def reserves(reserved: dict[TxID, list[Undo]], source: Hop, message: Operation | Leave) -> bool:
    """Whether a client's operation, or its leaving, touches words that are reserved."""
    for undos in reserved.values():
        for undo in undos:
            if undo.source == source and (isinstance(message, Leave) or undo.concerns(message)):
                return True
    return False


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


def compensation(undos: Iterable[Undo]) -> list[tuple[Hop, Operation]]:
    """What undoes what clients have done: whose each is, and the operation; the last first."""
    return [(undo.source, back) for undo in reversed(list(undos)) for back in inverses(undo)]
