"""Operations change the tables of this broker, and ask the neighbours for their part.

A client's operation is admitted here, at its edge broker: it is numbered, and what it makes
obsolete is computed. Every broker then applies the same operation. Before an operation comes here,
it may have to wait (`overlay.broker.waiting`); if it concerns very many entries, it is cut into
parts (`overlay.broker.long_work`).

A part of the broker (`overlay.broker.core`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from overlay.broker.limits import (
    DROPS_PER_OPERATION,
    ENTRIES_PER_BROKER,
    ENTRIES_PER_CLIENT,
    LOOKS_PER_OPERATION,
    Usage,
    too_many_entries,
)
from overlay.broker.long_work import LongOperation, MovingSubscriptions
from overlay.broker.requests import Task
from overlay.broker.service import RouteChange
from overlay.broker.waiting import HeldItem, answer
from overlay.effects import Effect
from overlay.errors import LimitReached, OperationError, ProtocolError
from overlay.messages import ClientName, Hop, Leave, Operation, is_client
from overlay.stored import stored
from overlay.tables.client_entries import LookBudget, TooManyLooks
from overlay.tables.routing import Scope
from overlay.trace import TraceKind

if TYPE_CHECKING:
    from overlay.broker.core import Broker


@stored("operations", fields=(), derived=("_broker",))
class Operations:
    """The part of a broker that carries operations out. It has no state of its own."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def receive(self, source: Hop, operation: Operation, now: float) -> list[Effect]:
        """Take a plain operation, from a client here or from a neighbour."""
        broker = self._broker
        if is_client(source):
            broker.check_client(source, operation.client)
        elif source not in broker.routing.srt:
            raise ProtocolError(f"{source} is no neighbour of {broker.name}")
        return broker.waiting.after_reserved(source, operation, now)

    def admit(self, source: Hop, operation: Operation, scope: Scope) -> Operation:
        """A client's operation as it goes on from here (`Broker.admit`)."""
        self._check_room(source, operation)
        looks = LookBudget(LOOKS_PER_OPERATION)
        try:
            admitted = self._broker.routing.admit(source, operation, scope, looks)
        except TooManyLooks:
            raise too_many_entries(operation.client) from None
        if len(admitted.drop) > DROPS_PER_OPERATION:
            raise too_many_entries(operation.client)
        return msgspec.structs.replace(admitted, seq=self._broker.next_number(source))

    def _check_room(self, source: Hop, operation: Operation) -> None:
        """Raises LimitReached if the client may not have another entry."""
        if self._broker.routing.held_by(source, operation.client) >= ENTRIES_PER_CLIENT:
            raise LimitReached(f"{operation.client} holds {ENTRIES_PER_CLIENT} entries already")
        if operation.positive:  # To take back must be possible.
            self.entries.check(self._broker.name)

    @property
    def entries(self) -> Usage:
        """The entries of the tables, of all clients together."""
        return Usage("entries", self._broker.routing.entries, ENTRIES_PER_BROKER)

    def carry_out(self, source: Hop, message: Operation | Leave, now: float) -> list[Effect]:
        """Carry out a plain operation that need not wait, or the leaving of a client."""
        broker = self._broker
        if source in broker.busy.long:
            broker.busy.defer(HeldItem(source, message))
            return []
        if isinstance(message, Leave):
            return broker.membership.let_go(source, message, now)
        operation, task = message, Task(source, message.req)
        if is_client(source):
            try:
                self._check_room(source, operation)
                if broker.routing.is_long(source, operation, broker.versions.view(), broker.slice):
                    return broker.busy.begin(LongOperation(broker, source, operation, task))
                operation = broker.admit(source, operation, Scope(broker.versions.view()))
            except OperationError as error:
                return answer(source, operation.req, error)
            task.number = operation.seq
        return self.apply(task, operation, now)

    def undo(self, task: Task, operation: Operation, now: float) -> list[Effect]:
        """Carry out an operation that takes another one back."""
        if ClientName(operation.client) not in self._broker.routing.crt:
            # Its client was put out, and all it had done with it.
            return self._broker.requests.finished(task, now)
        return self.apply(task, operation, now, "undo")

    def apply(
        self,
        task: Task,
        operation: Operation,
        now: float,
        kind: TraceKind = "apply",
        *,
        tx: str = "",
        after: tuple[str, ...] = (),
    ) -> list[Effect]:
        """Change the tables, and ask the neighbours for their part."""
        broker = self._broker
        view = broker.versions.view()
        task.operation = operation
        outcome = broker.routing.apply(task.origin, operation, Scope(view), limit=broker.slice)
        for engine in broker.engines.values():
            engine.operation_applied(task.origin, operation, outcome)
        effects: list[Effect] = []
        if broker.trace:
            whose = task.engine if tx else ""
            effects.append(
                broker.record_change(
                    kind, now, task.origin, operation, outcome, view, tx, whose, after
                )
            )
        effects += self.ask(task, operation, outcome.forward + outcome.triggered)
        effects += broker.routes_changed((RouteChange(task.origin, operation),), now)
        if outcome.rest is not None:
            moving = MovingSubscriptions(broker, task, outcome.rest, operation)
            return effects + broker.busy.begin_job(moving)
        return effects + broker.requests.finished(task, now)

    def ask(
        self, task: Task, operation: Operation, sent: Iterable[tuple[Hop, Operation]]
    ) -> list[Effect]:
        """Send neighbours their parts of an operation; an engine may require their answers."""
        broker = self._broker
        needed = {
            hop for engine in broker.engines.values() for hop in engine.requires_answers(operation)
        }
        return [
            broker.requests.ask(task, hop, message, required=hop in needed) for hop, message in sent
        ]
