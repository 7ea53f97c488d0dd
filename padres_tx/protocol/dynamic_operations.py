"""The operations of dynamic transactions at a broker: queued, carried out, acknowledged.

The part of `padres_tx.protocol.dynamic` that is about single operations; its docstring has the
protocol, and why so few operations are acknowledged. A client's operations of one frame wait in a
queue at its edge broker and are done one by one. How transactions begin, and what becomes of them
when clients or brokers go, is not known here.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from overlay.broker.core import Broker
from overlay.broker.limits import MOVED_PER_OPERATION
from overlay.broker.service import RouteChange
from overlay.broker.turns import Worked
from overlay.effects import Effect
from overlay.errors import (
    FilterError,
    LimitReached,
    NotAdvertised,
    NotHeld,
    OperationError,
    OverlayError,
    ProtocolError,
)
from overlay.filters import check_point
from overlay.identity import name_text
from overlay.messages import Hop, Operation, Pub, is_client
from overlay.notation import format_publication
from overlay.tables.footprints import Footprint
from overlay.tables.routing import Outcome, Scope
from overlay.trace import TO
from overlay.wire.codec import encode
from overlay.wire.frames import BROKER_FRAME_LIMIT
from overlay.wire.link import OUTBOX_BYTES, OUTBOX_MESSAGES
from padres_tx.client_messages import (
    RECEIVERS_LIMIT,
    Abort,
    Commit,
    Effective,
    Ended,
    Finish,
    Look,
    Operate,
    Operated,
    Tcm,
    tx_text,
)
from padres_tx.looks import LOOKS_LIMIT
from padres_tx.protocol.admission import Conflict
from padres_tx.protocol.compensation import Undo, reserved_by_others
from padres_tx.protocol.dynamic_messages import Acked, TxOperation, codec
from padres_tx.protocol.dynamic_state import YES, DynamicState, Frame, OpTask, Verdict
from padres_tx.protocol.tcm_routes import tcm_routes
from padres_tx.protocol.two_phase import TwoPhaseCommit

#: Operations that one frame may have queued at its edge broker.
FRAME_LIMIT = 10_000

#: Operations that one transaction may carry out at one broker, those of all its clients together:
#: at its vote and at the decision the broker looks at all of them in one turn, which takes some ten
#: microseconds for each.
OPERATION_LIMIT = 2000

#: Why a transaction cannot go on.
TOO_LARGE = f"a transaction may have at most {OPERATION_LIMIT} operations at one broker"

#: Bytes of the effective operations of one broker's clients in a transaction: each client is sent
#: all of its own at the end, in one frame.
EFFECTIVE_LIMIT_BYTES = BROKER_FRAME_LIMIT // 2

#: What it takes to carry out an operation of a frame, as units of work: to admit it, to reserve its
#: filter, to change the tables and the footprint, and to tell the client and the neighbours.
OPERATION_UNITS = 4

#: What a transaction may keep for one client up to the commit. It then comes all at once, and a
#: client whose outbox it fills would be cut off, half of the transaction delivered.
DELIVERIES_LIMIT = OUTBOX_MESSAGES // 2
DELIVERIES_LIMIT_BYTES = OUTBOX_BYTES // 2


class DynamicOperations(TwoPhaseCommit):
    """Dynamic transactions at one broker, from the first operation to the commit request."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        #: Entries that operations have dropped in the slice that is being worked on.
        self._dropped = 0
        self.receivers |= {
            Operate: self._enqueue,
            Look: self._enqueue,
            Finish: self._enqueue,
            Commit: self._enqueue,
            Abort: self._abort,
            TxOperation: self._op,
            Acked: self._acked,
        }

    # --- what an engine decides (isolation) ---

    @abstractmethod
    def scope(self, tx: DynamicState) -> Scope:
        """Which versions the transaction's operations see, and which version they change.

        Called for every operation. Changes without a version count for all traffic at once.
        """

    def operation_queued(self, tx: DynamicState, source: Hop, operation: Operation) -> None:
        """A client of this broker has sent an operation, which waits for its turn in its frame.

        The operation has no number yet. By default nothing happens.
        """

    def apply(
        self, tx: DynamicState, source: Hop, operation: Operation, task: OpTask, now: float
    ) -> list[Effect]:
        """Carry an operation out by `carry_out`, now, or later if it has to wait.

        Called for operations of clients when they are admitted, and of neighbours when they come.
        By default now.
        """
        return self.carry_out(tx, source, operation, task, now)

    def is_answered(self, operation: Operation) -> bool:
        """Whether brokers acknowledge the operation.

        Called for each neighbour that it is sent to. By default an (un-)advertisement is, since it
        may trigger others.
        """
        return operation.kind in ("adv", "uadv")

    def applied(
        self, tx: DynamicState, source: Hop, operation: Operation, outcome: Outcome
    ) -> None:
        """An operation was carried out here. Called when the tables have changed, before the
        neighbours are told. By default nothing happens."""

    def left_out(
        self, tx: DynamicState, source: Hop, operation: Operation, now: float
    ) -> list[Effect]:
        """A neighbour's operation is not carried out in its transaction, which is aborted for that.

        By default nothing happens, which is right where an abort drops the transaction's version.
        """
        return []

    def came_late(self, source: Hop, operation: Operation, now: float) -> list[Effect]:
        """A neighbour's operation of a transaction that is not open here any more has come.

        It was on its way when the transaction was aborted. By default it is dropped, which is right
        where an abort drops the transaction's version.
        """
        return []

    def looked(self, tx: DynamicState, hop: Hop, look: Look) -> Verdict:
        """Whether an answer can stand that a client had from its own state (`padres_tx.looks`).

        Called in the order of the client's operations. A no aborts the transaction. By default it
        can.
        """
        return YES

    def changed_outside(self, tx: DynamicState, read: Footprint) -> Verdict:
        """A no if others have changed what is read here, or may have: another attempt may succeed.

        Called when an operation is refused, to tell a conflict from a mistake of the client. By
        default it is a mistake.
        """
        return YES

    # --- operations ---

    def _enqueue(
        self, source: Hop, message: Operate | Look | Finish | Commit, now: float
    ) -> list[Effect]:
        tx = self.txs.get(message.tx)
        number = 0 if isinstance(message, Commit) else message.frame
        frame = tx.frames.get((source, number)) if tx is not None else None
        if tx is None or not tx.open or frame is None:
            return [self.tell(source, self._stranger(source, message, tx, now))]
        if len(frame.queue) >= FRAME_LIMIT:
            return self.request_abort(
                tx, "refused", f"{source[1:]} queues too many operations", now
            )
        if isinstance(message, Operate):
            step = message.step
            if step.filter is not None and step.kind != "pub" and step.kind != "tcm":
                asked = Operation(0, step.kind, source[1:], 0, step.filter, store=False)
                self.operation_queued(tx, source, asked)
        frame.queue.append(message)
        return self.go_on(tx, frame, now)

    def _abort(self, source: Hop, abort: Abort, now: float) -> list[Effect]:
        tx = self.txs.get(abort.tx)
        if tx is None or source not in tx.effective:
            return [self.tell(source, self._stranger(source, abort, tx, now))]
        return self.request_abort(tx, "aborted", abort.reason or f"{source[1:]} aborted it", now)

    def _stranger(
        self,
        source: Hop,
        message: Operate | Look | Finish | Commit | Abort,
        tx: DynamicState | None,
        now: float,
    ) -> Ended:
        """What a client is told that has nothing to say in a transaction, or not any more.

        Its coordinator learns from a repeated Commit, or an Abort, how it has ended.
        """
        tx_id, name = message.tx, tx_text(message.tx)
        if tx is not None and tx.open:
            return Ended(tx_id, False, "foreign", f"{source[1:]} has no part in {name} to act in")
        ended = self.outcome(tx_id, now)
        if ended is not None and tx_id[0] == source[1:] and isinstance(message, Commit | Abort):
            return Ended(tx_id, ended.committed, ended.code, ended.reason)
        if tx is not None and source in tx.effective:
            return Ended(tx_id, tx.status == "committed", "finished", f"{name} is {tx.status}")
        return Ended(tx_id, False, "unknown", f"there is no transaction {name}")

    def go_on(self, tx: DynamicState, frame: Frame, now: float) -> list[Effect]:
        """Carry on with a frame, as far as it goes (Thread); what is more than a slice follows in
        the next ones."""
        if frame.pumping:
            return []  # Called from below, by an operation that was done at once.
        worked = self.work(frame, now)
        return worked.effects + (self.broker.later(self.name, frame) if worked.more else [])

    def work(self, context: Any, now: float) -> Worked:
        frame: Frame = context
        tx, effects, units = frame.tx, list[Effect](), 0
        frame.pumping = True
        while tx.open and frame.queue and not frame.busy and tx.status == "active":
            if units >= self.broker.slice:
                frame.pumping = False
                return Worked(effects, units, True)
            units += OPERATION_UNITS
            message = frame.queue.popleft()
            if isinstance(message, Operate):
                frame.busy, self._dropped = True, 0
                effects += self._step(tx, frame, message, now)
                units += self._dropped
            elif isinstance(message, Look):
                effects += self._look(tx, frame, message, now)
            elif isinstance(message, Finish):
                effects += self._finish(tx, frame, message, now)
            else:
                effects += self.prepare(tx, now)
        frame.pumping = False
        return Worked(effects, units)

    def _step(self, tx: DynamicState, frame: Frame, operate: Operate, now: float) -> list[Effect]:
        step, client = operate.step, frame.hop[1:]
        to = tuple(dict.fromkeys(step.receivers))
        task = OpTask(tx, frame.hop, 0, frame=frame, number=operate.number, to=to)
        scope = self.scope(tx)
        if len(to) > RECEIVERS_LIMIT:
            reason = f"a tcm names more than {RECEIVERS_LIMIT} receivers"
            return self.request_abort(tx, "refused", reason, now)
        try:
            if step.kind in ("pub", "tcm"):
                point, life = check_point(step.point), self.broker.life_of(frame.hop)
                pub = Pub(client, step.seq, point, step.payload, life=life)
                if not self.routing.may_publish(frame.hop, pub.point, scope.view):
                    text = format_publication(pub.point)
                    raise NotAdvertised(f"{client} has not advertised {text}")
                return self._publish(tx, frame.hop, pub, task, now, tcm=step.kind == "tcm")
            if step.filter is None:
                raise FilterError(None, f"a {step.kind} without a filter")
            assert step.kind != "pub" and step.kind != "tcm"
            asked = Operation(0, step.kind, client, 0, step.filter, events=step.events)
            self._check_turn(tx, frame.hop, asked)
            operation = self.broker.admit(frame.hop, asked, scope)
        except (OperationError, FilterError) as error:
            refusal = self._refusal(tx, frame, operate, error)
            return self.request_abort(tx, refusal.code, refusal.reason, now, to=refusal.to)
        told = Effective(step.kind, step.filter, operation.seq, operate.number, step.events)
        tx.effective_bytes += len(codec.encode(told))
        if tx.effective_bytes > EFFECTIVE_LIMIT_BYTES:
            reason = f"the filters of its operations take more than {EFFECTIVE_LIMIT_BYTES} bytes"
            return self.request_abort(tx, "refused", reason, now)
        return self.apply(tx, frame.hop, operation, task, now)

    def _refusal(
        self, tx: DynamicState, frame: Frame, operate: Operate, error: OverlayError
    ) -> Verdict:
        """Why an operation fails: a conflict if another attempt may not."""
        step, client, read = operate.step, frame.hop[1:], Footprint()
        if isinstance(error, NotAdvertised):
            read.looks_at_point(client, check_point(step.point))
        elif isinstance(error, NotHeld) and step.filter is not None:
            read.looks_at(client, "sub" if step.kind == "usub" else "adv", step.filter)
        else:
            return Verdict(error.code, str(error))
        changed = self.changed_outside(tx, read)
        if changed.code:
            return changed
        if operate.held:
            reason = f"its broker's answer differs from {client}'s own state: {error}"
            return Verdict(Conflict.code, reason)
        return Verdict(error.code, str(error))

    def _look(self, tx: DynamicState, frame: Frame, look: Look, now: float) -> list[Effect]:
        frame.looks += 1
        if frame.looks > LOOKS_LIMIT:
            return self.request_abort(
                tx, "refused", f"{frame.hop[1:]} looks at too many things", now
            )
        is_point = look.point is not None and look.table == "adv"
        if (look.filter is None) != is_point or (look.point is not None) != is_point:
            return self.request_abort(tx, FilterError.code, "a look needs a filter or a point", now)
        try:
            verdict = self.looked(tx, frame.hop, look)
        except FilterError as error:
            return self.request_abort(tx, error.code, str(error), now)
        if not verdict.code:
            return []
        return self.request_abort(tx, verdict.code, verdict.reason, now, to=verdict.to)

    def _check_turn(self, tx: DynamicState, hop: Hop, asked: Operation) -> None:
        """Raises Conflict if an earlier operation of the client waits for something reserved: it
        would get the later number, and with it the last word."""
        if any(map(Undo(hop, asked, []).concerns, self.broker.sent_before(hop, held=False))):
            other = reserved_by_others(self.broker, tx.id, asked)
            why = f"uses the same part in {tx_text(other)}" if other else "has sent one that waits"
            raise Conflict(f"{asked.client} {why}")

    def _op(self, source: Hop, op: TxOperation, now: float) -> list[Effect]:
        tx = self.txs.get(op.tx)
        if tx is None or not tx.open:
            return self.came_late(source, op.operation, now) if op.operation is not None else []
        self.check_phase(source, tx, op)
        task = OpTask(tx, source, op.req, to=op.to)
        if op.operation is not None:
            return self.apply(tx, source, op.operation, task, now)
        if op.pub is None:
            raise ProtocolError("an operation message without an operation")
        try:
            check_point(op.pub.point)
        except FilterError as error:
            raise ProtocolError(f"{source} forwarded an invalid publication: {error}") from None
        return self._publish(tx, source, op.pub, task, now, tcm=op.tcm)

    def carry_out(
        self, tx: DynamicState, source: Hop, operation: Operation, task: OpTask, now: float
    ) -> list[Effect]:
        """Change the tables, and ask the neighbours for their part (Algorithm 2)."""
        scope, frame = self.scope(tx), task.frame
        if (
            operation.kind in ("adv", "uadv")
            and not is_client(source)
            and self.routing.moves_more_than(MOVED_PER_OPERATION, operation, scope.view)
        ):
            return [
                *self.request_abort(tx, LimitReached.code, self._too_many(operation), now),
                *self.left_out(tx, source, operation, now),
            ]
        outcome = self.routing.apply(source, operation, scope)
        self._dropped += len(operation.drop)
        tx.footprint.operation(operation, outcome.read)
        self.applied(tx, source, operation, outcome)
        if frame:
            # Only here its number is certain: an engine may have let the operation wait.
            effective = tx.effective.setdefault(frame.hop, [])
            kind, filter, number = operation.kind, operation.filter, operation.seq
            effective.append(Effective(kind, filter, number, task.number, operation.events))
        effects: list[Effect] = []
        if self.broker.trace:
            record = self.broker.record_change(
                "apply",
                now,
                source,
                operation,
                outcome,
                scope.view,
                tx_text(tx.id),
                self.name,
                frame.last if frame else (),
                frame.trigger if frame else "",
            )
            effects.append(record)
            if frame:
                frame.last = (record.op_id,)
        for hop, sent in outcome.forward + outcome.triggered:
            req = tx.tasks.ask(task, hop) if self.is_answered(sent) else 0
            effects += self.send((hop,), TxOperation(tx.id, req, sent))
        change = RouteChange(source, operation)
        if scope.version is None:
            effects += self.broker.routes_changed((change,), now)
        else:
            tx.changes.append(change)  # Until the commit no other client sees it.
        if self._is_too_large(tx):
            # What neighbours have carried out is carried out here, too, before it is undone.
            effects += self.request_abort(tx, "refused", TOO_LARGE, now)
        return effects + self._finished(task, now)

    def _too_many(self, operation: Operation) -> str:
        return (
            f"more than {MOVED_PER_OPERATION} subscriptions at broker {self.broker.name} may "
            f"follow the {operation.kind} of {operation.client}: use several with smaller filters, "
            "or a plain one"
        )

    def _publish(
        self, tx: DynamicState, source: Hop, pub: Pub, task: OpTask, now: float, *, tcm: bool
    ) -> list[Effect]:
        if self._is_too_large(tx):
            return self.request_abort(tx, "refused", TOO_LARGE, now)
        task.tcm, task.pub = tcm, pub
        tx.footprint.publication(pub, at_edge=is_client(source))
        view = self.scope(tx).view
        if tcm:
            routes = tcm_routes(self.routing, source, pub, task.to, view)
            if routes.missing:
                return self._unheard(tx, pub, routes.missing, now)
            hops, named = routes.hops, routes.named
        else:
            hops, named = self.routing.prt.hops(pub.point, view), {}
            hops = tuple(hop for hop in hops if is_client(hop) or hop != source)
        effects: list[Effect] = []
        if self.broker.trace:
            whose: dict[str, Any] = {
                "tx": tx_text(tx.id),
                "engine": self.name,
                "op_kind": "tcm" if tcm else "pub",
                "view": view,
            }
            if by := task.frame:
                published = self.broker.record(
                    "publish", now, pub, source, after=by.last, trigger=by.trigger, **whose
                )
                effects.append(published)
                by.last = (published.op_id,)
            names = " ".join([TO, *task.to]) if task.to else ""
            matched = self.broker.record("match", now, pub, source, hops, outcome=names, **whose)
            effects.append(matched)
        for hop in hops:
            if not tx.open:
                return effects  # Aborted for one of them: no other need act.
            if not is_client(hop):
                req = tx.tasks.ask(task, hop) if tcm else 0
                to = named.get(hop, ())
                effects += self.send((hop,), TxOperation(tx.id, req, pub=pub, tcm=tcm, to=to))
                continue
            if tcm and not self.broker.is_here(hop):
                # Its entries are still here, since its leaving waits: next time they are not.
                code = "unheard" if task.to else Conflict.code
                reason = f"{hop[1:]}, which the tcm is for, has left"
                effects += self.request_abort(tx, code, reason, now, to=hop[1:])
            elif tcm:
                tx.effective.setdefault(hop, [])
                frame = tx.tasks.ask(task, hop)
                trigger = name_text(pub.client, pub.life, pub.seq)
                tx.frames[hop, frame] = Frame(tx, hop, frame, trigger)
                told = Tcm(tx.id, frame, pub.client, pub.seq, pub.point, pub.payload, pub.life)
                effects.append(self.tell(hop, told))
            else:
                effects += self._keep(tx, hop, pub, now)
        return effects + self._finished(task, now)

    def _unheard(self, tx: DynamicState, pub: Pub, reason: str, now: float) -> list[Effect]:
        """A tcm does not reach whom it is for; if that has changed since, it is a conflict."""
        read = Footprint()
        read.publication(pub, at_edge=False)
        changed = self.changed_outside(tx, read)
        if changed.code:
            reason = f"in its snapshot {reason}: {changed.reason}"
            return self.request_abort(tx, Conflict.code, reason, now, to=changed.to)
        return self.request_abort(tx, "unheard", reason, now)

    @staticmethod
    def _is_too_large(tx: DynamicState) -> bool:
        """Count one more operation of a transaction here; whether it is one too many."""
        tx.operations += 1
        return tx.operations > OPERATION_LIMIT

    def _keep(self, tx: DynamicState, hop: Hop, pub: Pub, now: float) -> list[Effect]:
        """Keep a publication for a client of this broker, up to the commit."""
        kept, size = tx.kept.get(hop, (0, 0))
        tx.kept[hop] = kept, size = kept + 1, size + len(encode(pub))
        if kept > DELIVERIES_LIMIT or size > DELIVERIES_LIMIT_BYTES:
            reason = f"{kept} publications ({size} bytes) would come to {hop[1:]} at once"
            return self.request_abort(tx, "refused", reason, now)
        tx.deliveries.append((hop, pub))
        return []

    def _finish(self, tx: DynamicState, frame: Frame, finish: Finish, now: float) -> list[Effect]:
        if finish.error:
            return self.request_abort(tx, "participant", f"{frame.hop[1:]}: {finish.error}", now)
        del tx.frames[frame.hop, frame.number]
        task = tx.tasks.answered(frame.hop, frame.number)
        task.receivers += 1
        return self._finished(task, now)

    def _acked(self, source: Hop, acked: Acked, now: float) -> list[Effect]:
        tx = self.txs.get(acked.tx)
        if tx is None or not tx.open:
            return []
        task = tx.tasks.answered(source, acked.req)
        task.receivers += acked.receivers
        return self._finished(task, now)

    def _finished(self, task: OpTask, now: float) -> list[Effect]:
        """Acknowledge an operation if nothing that belongs to it is outstanding any more."""
        tx, frame = task.tx, task.frame
        if task.waiting or not tx.open:
            return []
        if frame is None:
            if not task.req:
                return []
            return self.send((task.origin,), Acked(tx.id, task.req, task.receivers))
        if task.tcm and task.receivers < max(1, len(task.to)):
            assert task.pub is not None
            text = format_publication(task.pub.point)
            reason = f"no client receives the tcm {text}"
            if task.to:
                reason = f"{task.receivers} of {len(task.to)} clients receive the tcm {text}"
            return self._unheard(tx, task.pub, reason, now)
        frame.busy = False
        operated = self.tell(frame.hop, Operated(tx.id, frame.number, task.number))
        return [operated, *self.go_on(tx, frame, now)]
