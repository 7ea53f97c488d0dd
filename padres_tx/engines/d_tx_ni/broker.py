"""D-TX-NI: dynamic transactions without isolation (Section 5).

The same protocol as D-TX on the shared routing state: operations change the tables for all traffic
as they come, and there is neither a snapshot nor anything to validate, so there is no vote either:
when the coordinator's operations are done, its edge broker decides.

On the shared state an operation may have to wait for a D-TX decision at any broker. What neighbours
say of the transaction after that, but an AbortRequest, waits behind it there; so each broker still
handles everything in its order of arrival, which is all that the order of operations rests on
(`padres_tx.protocol.dynamic`), and no more is acknowledged than in D-TX. A D-TX's decision waits
for nothing here, so there is no circle of waiting.

An abort is compensated. The edge broker of each client undoes that client's operations, the last
first, and only what they really changed: it takes back what was stored and brings back what was
dropped, under its old number. These go out as plain operations do, so the tables converge by the
same argument. For the undoing to be exact, nothing else may change the same entries meanwhile: a
client's other operations that overlap those of an undecided transaction wait if they are plain,
and cost their transaction an abort otherwise.

**One outcome, without votes.** The coordinator's edge broker commits as soon as all operations are
acknowledged, so a side that has acknowledged them must never decide by itself. When the neighbour
towards the coordinator has lost its memory, a broker asks: the question crosses the restarted
neighbour and everything behind it (`padres_tx.protocol.questions`), and the answer counts as the
decision, for this broker and those behind it. "Unknown" means that the coordinator's edge broker
itself has lost its memory, and the transaction is aborted. That broker would have to write its
decisions down to do better; so would the one in the middle, to save publications that die in its
queues. Only while this side owes an acknowledgement, so that no broker can have committed, does it
abort at once.

A broker says that it has the decision (Decided) when it has carried out all that came before, and
when what it undoes is undone everywhere. Until Forget a D-TX that reads these operations in one
place might not find them, or still find them, in another, and loses.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from overlay.broker.core import Broker
from overlay.broker.engine import Undecided
from overlay.broker.turns import Worked
from overlay.effects import Close, Effect, SetTimer
from overlay.errors import NotHeld, OperationError, PeerError
from overlay.messages import Hop, Leave, Operation, is_client
from overlay.stored import stored
from overlay.tables.routing import Outcome, Scope
from padres_tx.client_messages import TxID, tx_text
from padres_tx.protocol.admission import Conflict
from padres_tx.protocol.broker_messages import Answer, Ask
from padres_tx.protocol.compensation import (
    Reservations,
    Undo,
    count_inverses,
    inverses,
    reserved_by_others,
)
from padres_tx.protocol.dynamic import YES, Dynamic, DynamicState, OpTask, Verdict
from padres_tx.protocol.dynamic_messages import AbortRequest, Decide, TxOperation

#: What it takes to undo an operation, as units of work: to change the tables and tell neighbours.
UNDO_UNITS = 2

#: Inverses of an operation that are worked out for a unit of work.
INVERSES_PER_UNIT = 8

#: Why a transaction has to go when another one has raised a fence.
PRECEDENCE = "another transaction has precedence after many losses"

#: The timer after which a broker that was too busy to find out is asked again, and its time.
AGAIN = "ask again"
AGAIN_S = 1.0


@stored("d-tx-ni", fields=("reserved",), derived=("_just_admitted",))
class DTxNI(Dynamic):
    """D-TX-NI at one broker."""

    name = "d-tx-ni"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        #: What clients of this broker have done in each undecided transaction, in order.
        self.reserved = Reservations()
        #: While an operation is submitted: it has its number, and nothing can have changed since.
        self._just_admitted: Operation | None = None

    def scope(self, tx: DynamicState) -> Scope:
        return Scope(self.broker.versions.view())

    def judge(self, tx: DynamicState) -> Verdict | None:
        return YES

    def prepare(self, tx: DynamicState, now: float) -> list[Effect]:
        """Everything is done that others were asked for, and no broker could say no: decide."""
        tx.status, tx.verdict = "preparing", YES
        self.preparing[tx.id] = tx
        return self._answer(tx, now)

    def is_bound(self, tx: DynamicState) -> bool:
        """An acknowledgement is what a vote is in D-TX: while this broker owes one, no other broker
        can have committed. When it owes none, the coordinator's edge may commit at any moment."""
        return not _owes(tx)

    def doubt(self, tx: DynamicState) -> str:
        return f"acknowledged all that was asked, waits for {self.decision_path(tx)}"

    def undecided(self) -> list[Undecided]:
        """What is written here and may be undone, or is not so everywhere yet."""
        return [Undecided(tx.id, tx.footprint) for tx in self.txs.values()]

    def reserved_by(self, operation: Operation, *, other_than: TxID) -> TxID | None:
        return self.reserved.by_others(other_than, operation)

    def give_way(self, now: float) -> list[Effect]:
        """A transaction needs precedence: what has written here and is not decided has to go."""
        effects: list[Effect] = []
        for tx in list(self.txs.values()):
            if tx.open and tx.footprint.writes:
                effects += self.request_abort(tx, "conflict", PRECEDENCE, now)
        return effects

    # --- everything in its order ---

    def take(self, source: Hop, message: Any, now: float) -> list[Effect]:
        tx = None if is_client(source) else self.txs.get(message.tx)
        if tx is None or not tx.behind or isinstance(message, AbortRequest | Ask):
            return super().take(source, message, now)
        if isinstance(message, TxOperation) and message.operation is not None:
            return super().take(source, message, now)  # The broker lets it wait, in its own place.
        tx.behind.append((source, message))
        return []

    def _go_on(self, tx: DynamicState, now: float) -> list[Effect]:
        """An operation of a neighbour need not wait any more: take what came behind it."""
        effects: list[Effect] = []
        while tx.behind and not isinstance(tx.behind[0][1], OpTask):
            source, message = tx.behind.popleft()
            try:
                effects += super().take(source, message, now)
            except PeerError as error:  # Not the mistake of the peer whose message we handle.
                effects.append(Close(source, error.code, str(error)))
        return effects

    def link_reset(self, neighbour: Hop, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for tx in list(self.txs.values()):
            if tx.upstream == neighbour:
                tx.owes = _owes(tx)
            # The broker has dropped what waited of the neighbour's former life.
            tx.behind = deque(waits for waits in tx.behind if waits[0] != neighbour)
            effects += self._go_on(tx, now)
        return effects + super().link_reset(neighbour, now)

    # --- a side that is cut off from the coordinator ---

    def cut_off(self, tx: DynamicState, reason: str, now: float) -> list[Effect]:
        """Abort what cannot have been committed; of anything else ask for the decision."""
        if tx.owes:
            return self.spread(tx, Decide(tx.id, False, "broker", reason), now)
        return self.questions.wonder(tx.id, tx.upstream, now)

    def learned(self, answer: Answer, now: float) -> list[Effect]:
        tx = self.txs.get(answer.tx)
        if tx is None or not tx.open or not tx.orphan:
            return []  # The decision has come by the usual way.
        if answer.status == "busy":
            return [SetTimer(f"{self.name}/{AGAIN}", AGAIN_S)]
        decide = Decide(tx.id, answer.status == "committed", answer.code, answer.reason)
        if answer.status == "unknown":
            reason = f"broker {tx.upstream} was restarted, and no broker knows the decision"
            decide = Decide(tx.id, False, "broker", reason)
        return self.spread(tx, decide, now)

    def wake(self, key: str, now: float) -> list[Effect]:
        if key != AGAIN:
            return super().wake(key, now)
        effects: list[Effect] = []
        for tx in list(self.txs.values()):
            if tx.open and tx.orphan:
                effects += self.questions.wonder(tx.id, tx.upstream, now)
        return effects

    # --- operations on the shared state ---

    def operation_queued(self, tx: DynamicState, source: Hop, operation: Operation) -> None:
        """Reserved at once, though it may have to wait and has changed nothing so far: what the
        client sends after it must not be done before it."""
        self.reserved.add(tx.id, Undo(source, operation, []))

    def apply(
        self, tx: DynamicState, source: Hop, operation: Operation, task: OpTask, now: float
    ) -> list[Effect]:
        if is_client(source):
            other = reserved_by_others(self.broker, tx.id, operation)
            if other is not None:
                reason = f"{operation.client} uses the same part in {tx_text(other)}"
                return self.request_abort(tx, "conflict", reason, now)
            if self._gives_way(source, operation):
                return self.request_abort(tx, "conflict", PRECEDENCE, now)
        else:
            tx.behind.append((source, task))
        self._just_admitted = operation
        effects = self.broker.submit(self.name, source, operation, (tx, task), now)
        self._just_admitted = None
        return effects

    def left_out(
        self, tx: DynamicState, source: Hop, operation: Operation, now: float
    ) -> list[Effect]:
        """The sender's tables have it, so ours must, as with what comes late."""
        tx.footprint.operation(operation)
        return self.broker.start("", source, operation, None, now)

    def came_late(self, source: Hop, operation: Operation, now: float) -> list[Effect]:
        """The sender's tables have it, so ours must; what undoes it comes behind it."""
        return self.broker.submit(self.name, source, operation, None, now)

    def resume(self, source: Hop, operation: Operation, context: Any, now: float) -> list[Effect]:
        if context is None:
            return self.broker.start("", source, operation, None, now)
        tx, task = context
        if not is_client(source):
            effects: list[Effect] = []
            while tx.behind.popleft() != (source, task):
                # What is in front was dropped with a neighbour that has lost its memory.
                effects += self._go_on(tx, now)
            if tx.open:
                effects += self.carry_out(tx, source, operation, task, now)
            else:
                effects += self.broker.start("", source, operation, None, now)
            return effects + self._go_on(tx, now)
        if not tx.open or not self.broker.is_here(source):
            return []  # It left while it waited, and the transaction is doomed for that.
        if self._gives_way(source, operation):
            return self.request_abort(tx, "conflict", PRECEDENCE, now)
        # If it had to wait, the client's entries may have changed meanwhile: it gets its number and
        # what it changes now, so that the numbers tell the order in which things were done.
        try:
            if operation is not self._just_admitted:
                operation = self.broker.admit(source, operation, self.scope(tx))
        except NotHeld as error:
            return self.request_abort(
                tx, Conflict.code, f"it had to wait, and meanwhile {error}", now
            )
        except OperationError as error:
            return self.request_abort(tx, error.code, str(error), now)
        space = self.routing.space(operation.kind, source)
        dropped = [space.get(operation.client, seq, self.scope(tx).view) for seq in operation.drop]
        undo = Undo(source, operation, [entry for entry in dropped if entry is not None])
        self.reserved.add(tx.id, undo)
        return self.carry_out(tx, source, operation, task, now)

    def _gives_way(self, source: Hop, operation: Operation) -> bool:
        others = (engine for engine in self.broker.engines.values() if engine is not self)
        return any(other.reserves(source, operation) for other in others)

    def applied(
        self, tx: DynamicState, source: Hop, operation: Operation, outcome: Outcome
    ) -> None:
        for engine in self.broker.engines.values():
            if engine is not self:
                engine.operation_applied(source, operation, outcome)

    def reserves(self, source: Hop, message: Operation | Leave) -> bool:
        return self.reserved.reserves(source, message)

    def waits_for(self, tx: DynamicState) -> str:
        if tx.open and tx.orphan:
            return f"the decision, for which it asks {tx.upstream}"
        if tx.behind:
            return "the decision of a transaction with which an operation here conflicts"
        if tx.undoing:
            return f"{tx.undoing} operations to be undone everywhere"
        return super().waits_for(tx)

    # --- the decision ---

    def decided(self, tx: DynamicState, now: float) -> list[Effect]:
        undos = self.reserved.of(tx.id)
        back = undos if tx.status == "aborted" else []
        tx.back = deque(reversed(back))
        # One more, so that no client is told before all are undone.
        tx.undoing = sum(map(count_inverses, back)) + 1
        worked = self._undo_some(tx, now)
        return worked.effects + (self.broker.later(self.name, tx) if worked.more else [])

    def work(self, context: Any, now: float) -> Worked:
        if not isinstance(context, DynamicState):
            return super().work(context, now)
        worked = self._undo_some(context, now)
        if worked.more:
            return worked
        effects = worked.effects + self.broker.release(now)
        return worked._replace(effects=effects + self.acknowledge(context, now))

    def _undo_some(self, tx: DynamicState, now: float) -> Worked:
        """Undo operations of an aborted transaction, the last first, a slice of them.

        The entries stay reserved until all is undone, so nothing comes between.
        """
        effects: list[Effect] = []
        units = 0
        while tx.back and units < self.broker.slice:
            units += UNDO_UNITS
            back = tx.back.popleft()
            if isinstance(back, Undo):
                undoing = [(back.source, operation) for operation in inverses(back)]
                units += len(undoing) // INVERSES_PER_UNIT
                tx.back.extendleft(reversed(undoing))
            else:
                effects += self.broker.put_back(self.name, *back, tx, now)
        if tx.back:
            return Worked(effects, units, True)
        self.reserved.release(tx.id)
        tx.undoing -= 1
        return Worked(effects, units)

    def completed(self, context: Any, now: float) -> list[Effect]:
        context.undoing -= 1
        return self.acknowledge(context, now)

    def is_carried_out(self, tx: DynamicState) -> bool:
        return not tx.undoing

    def forgotten(self, tx: DynamicState, now: float) -> list[Effect]:
        # What D-TX could not build on is done everywhere: a fence may have waited for that.
        return [*super().forgotten(tx, now), *self.broker.settled(now)]


def _owes(tx: DynamicState) -> bool:
    """Whether the neighbour towards the coordinator waits for an acknowledgement from here."""
    tasks = [*tx.tasks.under_way(), *(what for _, what in tx.behind if isinstance(what, OpTask))]
    return any(task.req and task.origin == tx.upstream for task in tasks) or any(
        hop == tx.upstream and isinstance(what, TxOperation) and what.req for hop, what in tx.behind
    )
