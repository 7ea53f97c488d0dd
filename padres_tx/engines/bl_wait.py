"""BL-WAIT: plain operations with waits between them; the yardstick (Section 7), not an answer.

It has only a client's half. Publications and (un-)subscriptions are the plain ones; a tcm is a
plain publication with a mark, on which its receivers run their handlers. The coordinator pauses
`wait_s` between its operations, in the hope that what one of them has led to is over before the
next. Participants act at once.

Nothing is guaranteed: no atomicity, no isolation, no order but the one that the waits happen to
give, and no participant learns how it ends. "Committed" means that all has been sent, and that the
coordinator's own operations were not refused. What was sent before an abort stays.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import msgspec

from overlay.errors import OverlayError
from overlay.messages import Operation
from padres_tx.client.engine_halves import ClientHalf
from padres_tx.client.operations import Op
from padres_tx.client.session import Event, Notification, PublicationRefused
from padres_tx.client.transactions import (
    NO_HANDLER,
    TCM_MARK,
    ClientTransaction,
    CommitApplied,
    OperationDone,
    SendForOperation,
    SetTransactionTimer,
    Terms,
    check_seconds,
)
from padres_tx.client_messages import TxID, parse_tx
from padres_tx.engine_declaration import OVERLAY, EngineDeclaration
from padres_tx.errors import BadTransaction, TransactionError

#: Long enough for a message to cross small overlays, as the paper's were found to need.
WAIT_S = 0.05

#: Where the paper's calibration begins is 2 s; what needs longer is not a wait but a breakdown.
WAIT_LIMIT_S = 60.0

UNSURE = "bl-wait guarantees nothing"


class Queued(NamedTuple):
    """An operation of the coordinator that waits for its turn."""

    number: int
    op: Op
    callback: Any


class WaitTx(ClientTransaction):
    """A transaction of plain operations."""

    def __init__(self, id: TxID, half: ClientHalf, *, coordinator: bool) -> None:
        super().__init__(id, half, coordinator=coordinator)
        self.wait_s = WAIT_S
        self.pausing = False
        self.queue: deque[Queued] = deque()
        #: Why one of the operations was refused, or what a handler has raised.
        self.failure: OverlayError | None = None
        #: Whether the client knows of that already: it has seen its handler raise.
        self.failure_known = False
        self.calls = 0


class BlWait(ClientHalf):
    """BL-WAIT at one client."""

    transaction_class = WaitTx
    options = ("wait_s",)
    drains = True

    def __init__(self, engine: str, transactions: Any) -> None:
        super().__init__(engine, transactions)
        #: Plain requests that are not answered: whose they are, and what they ask.
        self._asked: dict[int, tuple[WaitTx, int, Operation]] = {}

    # --- the coordinator ---

    def begin(self, tx: ClientTransaction, terms: Terms) -> list[Event]:
        assert isinstance(tx, WaitTx)
        tx.wait_s = check_seconds("wait_s", terms.options.get("wait_s", WAIT_S), WAIT_LIMIT_S)
        return []

    def operate(
        self, tx: ClientTransaction, frame: int, number: int, op: Op, callback: Any
    ) -> list[Event]:
        assert isinstance(tx, WaitTx)
        if op.to is not None:
            raise BadTransaction("bl-wait cannot take `to`: it does not learn who receives a tcm")
        queued = Queued(number, op, callback)
        if tx.pausing and not frame:
            self.transactions.start(tx, number, op)
            tx.queue.append(queued)
            return []
        events = self._send(tx, queued)
        if not frame:
            tx.pausing = True
            events.append(SetTransactionTimer(tx, tx.wait_s))
        return events

    def wake(self, tx: ClientTransaction) -> list[Event]:
        assert isinstance(tx, WaitTx)
        tx.pausing = False
        events: list[Event] = []
        while tx.queue and not tx.pausing and tx.state != "ended":
            queued = tx.queue.popleft()
            try:
                events += self._send(tx, queued)
            except OverlayError as error:
                events += self._failed(tx, queued.number, error)
            else:
                tx.pausing = True
                events.append(SetTransactionTimer(tx, tx.wait_s))
        return events + self._over(tx)

    def commit(self, tx: ClientTransaction) -> list[Event]:
        assert isinstance(tx, WaitTx)
        tx.state = "committing"
        return self._over(tx)

    def abort(self, tx: ClientTransaction, reason: str) -> list[Event]:
        said = reason or f"{self.session.name} aborted it"
        return self.transactions.end(tx, False, "aborted", f"{said}; what was sent stays")

    # --- those who take part ---

    def notified(self, name: str, notification: Notification) -> list[Event] | None:
        id = parse_tx(name)
        if id is None:
            return None
        if not self.session.subscribed.acts(notification.point):
            return []  # It comes as publications do, also to subscriptions for events only.
        tx = self.transactions.get(id)
        if tx is None or (tx.state == "ended" and not tx.coordinator):
            tx = self.transactions.join(self, id)
        if not isinstance(tx, WaitTx) or tx.state == "ended":
            return None
        tx.calls += 1
        point = {key: value for key, value in notification.point.items() if key != TCM_MARK}
        plain = msgspec.structs.replace(notification, point=point)
        return self.transactions.call(tx, tx.calls, plain)

    def finish(self, tx: ClientTransaction, frame: int, error: str) -> list[Event]:
        assert isinstance(tx, WaitTx)
        if error and tx.failure is None:
            tx.failure = TransactionError(f"{tx.name}: {error}")
            tx.failure_known = error != NO_HANDLER
        return self._over(tx)

    # --- plain messages ---

    def _send(self, tx: WaitTx, queued: Queued) -> list[Event]:
        """Send an operation. Raises what a session raises."""
        number, op, callback = queued
        if op.kind == "pub" or op.kind == "tcm":
            assert op.point is not None
            mark = {TCM_MARK: f"{self.engine} {tx.name}"} if op.kind == "tcm" else {}
            pub = self.session.publish({**op.point, **mark}, op.payload)
            self.transactions.over(tx, number)
            return [SendForOperation(tx, number, pub), OperationDone(tx, number)]
        assert op.filter is not None
        operation = self.session.operate(op.kind, op.filter, callback, events=op.events)
        if number not in tx.pending:
            self.transactions.start(tx, number, op)
        self._asked[operation.req] = (tx, number, operation)
        return [SendForOperation(tx, number, operation)]

    def answered(self, req: int, error: OverlayError | None) -> list[Event]:
        asked = self._asked.pop(req, None)
        if asked is None:
            return []
        tx, number, _ = asked
        if error is not None:
            return self._failed(tx, number, error)
        self.transactions.over(tx, number)
        return [OperationDone(tx, number), *self._over(tx)]

    def unsent(self, tx: ClientTransaction, number: int, error: OverlayError) -> list[Event]:
        assert isinstance(tx, WaitTx)
        for req, (other, its, operation) in list(self._asked.items()):
            if other is tx and its == number:
                self.session.unsent(operation, error)
                return self.answered(req, error)
        return self._failed(tx, number, error)

    def _failed(self, tx: WaitTx, number: int, error: OverlayError) -> list[Event]:
        self.transactions.over(tx, number)
        tx.failure = tx.failure or error
        return [OperationDone(tx, number, error), *self._over(tx)]

    def _over(self, tx: WaitTx) -> list[Event]:
        """End it here when nothing is outstanding, and nothing more will come."""
        over = tx.state == "committing" if tx.coordinator else not tx.frames
        if not over or tx.queue or tx.pending or tx.state == "ended":
            return []
        if tx.failure is None:
            ended = self.transactions.end(tx, True, reason=UNSURE)
            changes = [(sent.kind, sent.filter) for sent in tx.sent]
            return [*ended, CommitApplied(tx.name), *self.transactions.drained(tx.id, changes)]
        # The coordinator learns it from the commit; who only takes part has no call to raise it.
        known = tx.coordinator or tx.failure_known
        report: list[Event] = [] if known else [PublicationRefused(0, tx.failure)]
        reason = f"{tx.failure}; what was sent stays"
        return [*report, *self.transactions.end(tx, False, tx.failure.code, reason)]


engine = EngineDeclaration(broker=None, client=BlWait, promises=OVERLAY)
