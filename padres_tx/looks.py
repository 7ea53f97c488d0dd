"""Looks: reads of a client's own state in a transaction.

`tx.usub`, `tx.uadv`, `tx.pub` and `tx.tcm` raise NotHeld or NotAdvertised at the call, and
`tx.holds` and `tx.advertises` return at once. All of them look at the client's own state, which is
the newest that the client knows, while the transaction reads its snapshot. So in a dynamic
transaction such a result is a *look*: it is sent to the client's edge broker
(`padres_tx.client_messages.Look`), in order with the operations of the frame, and before Finish or
Commit. In D-TX the broker
- compares it with the answer in the transaction's scope, that is its snapshot and its own changes,
  and aborts the transaction with the code "conflict" if they differ;
- adds it to the footprint, as a read of the client's own subscriptions or advertisements.

*Why this is enough.* What a client holds is changed at its edge broker, and nowhere else. If the
two answers differ, the transaction is aborted, whatever the cause: a commit outside the snapshot of
which the client knows; one inside it of which the client has not heard yet; a plain operation of
the client that is in transit, waits there or was refused, which the client already counts. If they
agree, the program got the answer of the snapshot, and did with it what it would have done had it
asked the broker. From then on the look is a read like every other: what has
changed it outside the snapshot by Prepare, or is changing it, aborts the transaction (a commit, a
plain operation since it began, one under way or held, another engine's that is undecided), and what
comes after the vote waits for the decision.

A look that says yes for an operation needs no message: the operation is checked in the scope, and
is in the footprint. The broker's refusal has the code "conflict" if another attempt may be answered
otherwise: if the client's own state had what the operation needs (`Operate.held`), or if it was
changed outside the snapshot.

Engines without isolation ignore looks. Static transactions and BL-WAIT send none: they have no
snapshot. A client's own plain calls (`client.publish`, ...) are not looks.

A look counts the transaction's own operations as the broker will find them: those of the same
frame, and those of other frames that are done.

This module is pure, and knows neither sessions nor brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from overlay.filters import Filter, Value
from padres_tx.client_messages import Look, TxID
from padres_tx.errors import TooManyRequests

#: The table that a look is about.
Table: TypeAlias = Literal["sub", "adv"]

#: Different looks of one client in one transaction: as many as operations that may be under way.
LOOKS_LIMIT = 1024


class Looks:
    """The looks of one client in one transaction that have to be sent to its edge broker."""

    def __init__(self, tx: TxID) -> None:
        self._tx = tx
        self._unsent: dict[int, list[Look]] = {}
        #: Those that were added, with whether each is about a point.
        self._known: set[tuple[int, bool, Table, Filter, bool]] = set()

    def note(
        self,
        frame: int,
        table: Table,
        what: Filter | Mapping[str, Value],
        *,
        found: bool,
    ) -> None:
        """Add a look: at a filter, or at a point in "adv".

        The same result of the same look in the same frame is sent once.

        Raises TooManyRequests.
        """
        point = None if isinstance(what, Filter) else dict(what)
        filter = what if isinstance(what, Filter) else None
        box = filter if filter is not None else Filter(point or {})
        key = (frame, found, table, box, filter is None)
        if key in self._known:
            return
        if len(self._known) >= LOOKS_LIMIT:
            raise TooManyRequests(f"more than {LOOKS_LIMIT} different looks in a transaction")
        self._known.add(key)
        look = Look(self._tx, frame, table, found, filter, point)
        self._unsent.setdefault(frame, []).append(look)

    def take(self, frame: int) -> list[Look]:
        """The looks to send before the next message of the frame."""
        return self._unsent.pop(frame, [])
