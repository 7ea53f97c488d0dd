"""D-TX-NI: dynamic transactions without isolation (Section 5).

The same protocol as D-TX on the shared routing state: operations change the tables for everybody
as they come, and there is neither a snapshot nor anything to validate, so there is no vote either:
when the coordinator's operations are done, its edge broker decides.

On the shared state an operation may have to wait for a D-TX decision at any broker, and then what
comes behind it would overtake it. So all routing operations are acknowledged here, not only those
that trigger others; that they are done everywhere before the decision is also why later operations
of the coordinator find them. Publications never wait, and are not acknowledged.

An abort is compensated. The edge broker of each client undoes that client's operations, the last
first, and only what they really changed: it takes back what was stored and brings back what was
dropped, under its old number. These go out as plain operations do, so the tables converge by the
same argument. For the undoing to be exact, nothing else may change the same words meanwhile: a
client's other operations that overlap those of an undecided transaction wait if they are plain,
and cost their transaction an abort otherwise.
"""

from __future__ import annotations

from typing import Any

import msgspec

from overlay.broker import Broker
from overlay.effects import Effect
from overlay.errors import OperationError
from overlay.messages import Hop, Leave, Operation, is_client
from overlay.routing import Outcome, Scope
from padres_tx.compensation import Undo, compensate, reserved_by_others, reserves
from padres_tx.conflicts import Footprint
from padres_tx.dynamic import YES, Dynamic, OpTask, Tx, Verdict
from padres_tx.dynamic_wire import Op
from padres_tx.wire import TxID, tx_text

#: Why a transaction has to go when another one has raised a fence.
PRECEDENCE = "another transaction has precedence after many losses"


class DTxNI(Dynamic):
    """D-TX-NI at one broker."""

    name = "d-tx-ni"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        #: What clients of this broker have done in each undecided transaction, in order.
        self.reserved: dict[TxID, list[Undo]] = {}

    def scope(self, tx: Tx) -> Scope:
        return Scope(self.broker.versions.view())

    def judge(self, tx: Tx) -> Verdict | None:
        return YES

    def is_answered(self, operation: Operation) -> bool:
        return True

    def prepare(self, tx: Tx, now: float) -> list[Effect]:
        """Everything is acknowledged, and nobody could say no: decide."""
        tx.status, tx.verdict = "preparing", YES
        return self._answer(tx, now)

    def undecided(self) -> list[tuple[str, Footprint]]:
        """What is written here and may still be undone: nobody isolated may build on it."""
        return [(tx_text(tx.id), tx.footprint) for tx in self.txs.values() if tx.open]

    def give_way(self, now: float) -> list[Effect]:
        """Somebody needs precedence: what has written here and is not decided has to go."""
        effects: list[Effect] = []
        for tx in list(self.txs.values()):
            if tx.open and tx.footprint.writes:
                effects += self.doom(tx, "conflict", PRECEDENCE, now)
        return effects

    # --- operations on the shared state ---

    def apply(
        self, tx: Tx, source: Hop, operation: Operation, task: OpTask, now: float
    ) -> list[Effect]:
        if is_client(source):
            other = reserved_by_others(self.broker, tx.id, operation)
            if other is not None:
                reason = f"{operation.client} uses the same part in {tx_text(other)}"
                return self.doom(tx, "conflict", reason, now)
            if self._gives_way(source, operation):
                return self.doom(tx, "conflict", PRECEDENCE, now)
            # Reserved at once, though it may have to wait and has changed nothing so far.
            self.reserved.setdefault(tx.id, []).append(Undo(source, _nothing(operation), []))
        return self.broker.submit(self.name, source, operation, (tx, task), now)

    def _op(self, source: Hop, op: Op, now: float) -> list[Effect]:
        tx = self.txs.get(op.tx)
        if op.operation is not None and (tx is None or not tx.open):
            # It was under way when the transaction was aborted. The sender's tables have it, so
            # ours must; what undoes it comes behind it.
            return self.broker.submit(self.name, source, op.operation, None, now)
        return super()._op(source, op, now)

    def resume(self, source: Hop, operation: Operation, context: Any, now: float) -> list[Effect]:
        if context is None or not context[0].open:
            if is_client(source):
                return []
            return self.broker.start("", source, operation, None, now)
        tx, task = context
        if is_client(source):
            if not self.broker.is_here(source):
                return []  # It left while it waited, and the transaction is doomed for that.
            if self._gives_way(source, operation):
                return self.doom(tx, "conflict", PRECEDENCE, now)
            # The client's words may have changed meanwhile: it gets its number and what it
            # changes now, so that the numbers tell the order in which things were done.
            try:
                operation = self.broker.admit(source, operation, self.scope(tx))
            except OperationError as error:
                return self.doom(tx, error.code, str(error), now)
            space = self.routing.space(operation.kind, source)
            dropped = [
                space.get(operation.client, seq, self.scope(tx).view) for seq in operation.drop
            ]
            undo = Undo(source, operation, [entry for entry in dropped if entry is not None])
            self.reserved[tx.id].append(undo)
        return self.carry_out(tx, source, operation, task, now)

    def _gives_way(self, source: Hop, operation: Operation) -> bool:
        others = (engine for engine in self.broker.engines.values() if engine is not self)
        return any(other.reserves(source, operation) for other in others)

    def applied(self, tx: Tx, source: Hop, operation: Operation, outcome: Outcome) -> None:
        for engine in self.broker.engines.values():
            if engine is not self:
                engine.passed(source, operation, outcome)

    def reserves(self, source: Hop, message: Operation | Leave) -> bool:
        return reserves(self.reserved, source, message)

    def decided(self, tx: Tx, now: float) -> list[Effect]:
        undos = self.reserved.pop(tx.id, [])
        return compensate(self.broker, undos, now) if tx.status == "aborted" else []


def _nothing(operation: Operation) -> Operation:
    """The operation as one that has changed nothing: there is nothing to undo."""
    return msgspec.structs.replace(operation, store=False, drop=())


broker = DTxNI
client = "dynamic"
