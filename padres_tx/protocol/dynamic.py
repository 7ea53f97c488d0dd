"""Dynamic transactions at a broker: operations one after the other, then one decision for all.

The coordinator's edge broker begins the transaction, runs the commit protocol and owns the
decision, so a client that dies never blocks anyone. The protocol, with the paper's names:

    Init      floods; on FIFO links it is at every broker before any operation of the transaction,
              so nobody has to acknowledge it.
    Op        travels as the tables say. One that makes others act, a tcm or an (un-)advertisement,
              is answered by Acked when it has been handled everywhere behind the sender, and the
              clients there have finished what a tcm asked for (nested acknowledgements,
              Algorithm 2). Nothing else is acknowledged; see below. A tcm that names its receivers
              goes only where they are; the broker that does not find one of them, or finds that it
              does not take tcms there, dooms the transaction.
    Prepare   and what follows, up to Forget: the votes and the decision
    (`padres_tx.protocol.two_phase`).

What isolates transactions from each other is left to the engines (`d_tx`, `d_tx_ni`): the scope in
which operations look at and change the tables, and how a broker judges at Prepare. What a broker
keeps of a transaction is in `padres_tx.protocol.dynamic_state`.

A client's operations of one frame wait in a queue at its edge broker and are done one by one
(Thread); a frame that a tcm opened ends before the tcm counts as done (Trigger, Trigger*).

**Why so few acknowledgements.** All messages of a transaction share one FIFO queue per link of a
tree, and a broker handles each when it arrives and passes it on in the same step. *If b is issued
at broker B after a was issued at broker A, as far as a chain of the transaction's own messages can
tell, then every broker X that handles both handles a first.*

    Let M be the broker where the ways between A, B and X meet. Along the way from A to M: the chain
    starts at A behind a. Whenever a broker on that way has handled a before the chain first came
    by, it had passed a on before, and the chain first comes to the next broker over the same link,
    since a tree has no other; so it comes there behind a. The chain goes from A to B, hence over M;
    b is issued at its end, and goes from B to X over M, hence comes to M behind a. From M on the
    two go the same way to X, b behind a on every link.

So what comes after an operation needs no answer from afar, only the chain. It runs through the
client's edge broker for the next operation of a frame; through Finish and the acknowledgement of
the tcm, both behind the operations of the frame, for what comes after the tcm. Who has to be asked
is who issues operations that the chain would not pass otherwise: the receivers of a tcm, and every
broker for an (un-)advertisement, since it may attract or take back subscriptions there. Those
triggered operations trigger nothing themselves. They leave a broker before its acknowledgement, so
they need none of their own. The same holds for the rest of the protocol. Prepare is behind every
operation at every broker, so footprints and deliveries are complete where it comes. A Doom is at
the coordinator's edge before whatever was said behind it, a vote or the acknowledgement on which
the commit would follow. Decided is behind all that its sender has issued, so Forget is the last
that any broker hears of the transaction.

An engine that lets an operation wait at a broker (`d_tx_ni`) breaks "handles each when it arrives".
It lets all that neighbours say of the transaction wait behind it: then that broker still handles
everything in the order in which it came, and the argument holds as it stands.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import msgspec

from overlay.broker.core import Broker
from overlay.broker.service import RouteChange
from overlay.broker.turns import Worked
from overlay.effects import Effect, SetTimer
from overlay.errors import (
    FilterError,
    NotAdvertised,
    NotHeld,
    OperationError,
    OverlayError,
    ProtocolError,
)
from overlay.filters import check_point
from overlay.identity import name_text
from overlay.messages import Hop, Operation, Pub, client_hop, is_client
from overlay.notation import format_publication
from overlay.tables.footprints import Footprint
from overlay.tables.routing import Outcome, Scope
from overlay.trace import TO
from overlay.wire.codec import encode
from overlay.wire.frames import BROKER_FRAME_LIMIT
from overlay.wire.link import OUTBOX_BYTES, OUTBOX_MESSAGES
from padres_tx.client_messages import (
    DEADLINE_LIMIT_S,
    RECEIVERS_LIMIT,
    TX_LIMIT,
    TX_PER_CLIENT_LIMIT,
    Abort,
    Began,
    Begin,
    Commit,
    Effective,
    Ended,
    Finish,
    Look,
    Operate,
    Operated,
    Tcm,
    TxID,
    parse_tx,
    tx_text,
)
from padres_tx.looks import LOOKS_LIMIT
from padres_tx.protocol import inspection
from padres_tx.protocol.admission import Conflict
from padres_tx.protocol.broker_messages import Between
from padres_tx.protocol.compensation import Undo, reserved_by_others
from padres_tx.protocol.dynamic_messages import Acked, Decide, Decided, Doom, Fence, Init, Op, codec
from padres_tx.protocol.dynamic_state import YES, Frame, OpTask, Tx, Verdict
from padres_tx.protocol.outcomes import REUSED
from padres_tx.protocol.tcm_routes import tcm_routes
from padres_tx.protocol.two_phase import TwoPhaseCommit, cannot_begin
from padres_tx.protocol.validation.losses import FENCE_LIMIT_S, LossCounts, LossRecord

#: What the author of an engine needs from here.
__all__ = ["YES", "Dynamic", "OpTask", "Tx", "Verdict"]

#: Ages of other brokers' transactions are counted on from up to here; what is above is left for
#: those that begin at this broker, so that one broker that is wrong does not use up all numbers.
AGE_LIMIT = 1 << 62

#: Operations that one frame may have queued at its edge broker.
FRAME_LIMIT = 10_000

#: Operations that one transaction may carry out at one broker, those of all its clients together:
#: at its vote and at the decision the broker looks at all of them in one turn, which takes some ten
#: microseconds for each.
OPERATION_LIMIT = 2000

#: Why a transaction cannot go on.
TOO_LARGE = f"a transaction may have at most {OPERATION_LIMIT} operations at one broker"

#: Bytes of the words that clients of one broker may say in a transaction: each client is told all
#: of its own at the end, in one frame.
WORDS_LIMIT_BYTES = BROKER_FRAME_LIMIT // 2

#: What it takes to carry out an operation of a frame, as units of work: to admit it, to reserve its
#: words, to change the tables and the footprint, and to tell the client and the neighbours.
OPERATION_UNITS = 4

#: What a transaction may keep for one client up to the commit. It then comes all at once, and a
#: client whose outbox it fills would be cut off, half of the transaction delivered.
DELIVERIES_LIMIT = OUTBOX_MESSAGES // 2
DELIVERIES_LIMIT_BYTES = OUTBOX_BYTES // 2


class Dynamic(TwoPhaseCommit):
    """A dynamic engine at one broker; see the module's docstring."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._clock = 0
        self.losses = LossCounts()
        self.receivers |= {
            Begin: self._begin,
            Operate: self._enqueue,
            Look: self._enqueue,
            Finish: self._enqueue,
            Commit: self._enqueue,
            Abort: self._abort,
            Init: self._init,
            Op: self._op,
            Acked: self._acked,
        }

    # --- what an engine decides (isolation) ---

    def begun(self, tx: Tx, undecided: tuple[TxID, ...]) -> None:
        """A transaction begins at this broker. Called before its first operation.

        `undecided` are the versions that the coordinator's edge broker had voted for, and did not
        know decided, when it began. By default nothing happens.
        """

    @abstractmethod
    def scope(self, tx: Tx) -> Scope:
        """Which versions the transaction's operations see, and which version they change.

        Called for every operation. Changes without a version count for all traffic at once.
        """

    def operation_queued(self, tx: Tx, source: Hop, operation: Operation) -> None:
        """A client of this broker has sent an operation, which waits for its turn in its frame.

        The operation has no number yet. By default nothing happens.
        """

    def apply(
        self, tx: Tx, source: Hop, operation: Operation, task: OpTask, now: float
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

    def applied(self, tx: Tx, source: Hop, operation: Operation, outcome: Outcome) -> None:
        """An operation was carried out here. Called when the tables have changed, before the
        neighbours are told. By default nothing happens."""

    def came_late(self, source: Hop, operation: Operation, now: float) -> list[Effect]:
        """A neighbour's operation of a transaction that is not open here any more has come.

        It was on its way when the transaction was aborted. By default it is dropped, which is right
        where an abort drops the transaction's version.
        """
        return []

    def looked(self, tx: Tx, hop: Hop, look: Look) -> Verdict:
        """Whether an answer can stand that a client had from its own state (`padres_tx.looks`).

        Called in the order of the client's operations. A no aborts the transaction. By default it
        can.
        """
        return YES

    def changed_outside(self, tx: Tx, read: Footprint) -> Verdict:
        """A no if others have changed what is read here, or may have: another attempt may succeed.

        Called when an operation is refused, to tell a conflict from a mistake of the client. By
        default it is a mistake.
        """
        return YES

    # --- the broker's inputs (overlay.broker.engine.Engine) ---

    def receive(self, source: Hop, body: msgspec.Raw, now: float) -> list[Effect]:
        message = codec.decode(body)
        if isinstance(message, Between) == is_client(source):
            raise ProtocolError(f"{source} may not say {type(message).__name__}")
        if is_client(source):
            self.broker.check_client(source, source[1:])
        return self.take(source, message, now)

    def take(self, source: Hop, message: Any, now: float) -> list[Effect]:
        """Act on a message that the source may send."""
        receiver = self.receivers.get(type(message))
        if receiver is None:
            raise ProtocolError(f"{self.name} takes no {type(message).__name__}")
        return receiver(source, message, now)

    def wake(self, key: str, now: float) -> list[Effect]:
        """A deadline has passed."""
        tx_id = parse_tx(key)
        tx = self.txs.get(tx_id) if tx_id is not None else None
        if tx is None or not tx.open:
            return []
        if not tx.at_edge:
            return self.overdue(tx, now)
        return self.doom(tx, "deadline", f"not decided by its deadline: {self.waits_for(tx)}", now)

    def client_left(self, client: str, now: float) -> list[Effect]:
        hop = client_hop(client)
        self.questions.client_left(client)
        self.losses.client_left(hop)
        effects: list[Effect] = []
        for tx in list(self.txs.values()):
            if not tx.open:
                continue
            for frame in tx.frames.values():
                if frame.hop == hop:
                    frame.queue.clear()
            if tx.upstream == hop and tx.status != "preparing":
                effects += self.doom(tx, "left", f"its coordinator {client} has left", now)
            elif tx.upstream != hop and any(frame.hop == hop for frame in tx.frames.values()):
                effects += self.doom(tx, "left", f"{client}, which took part, has left", now)
        return effects

    def link_reset(self, neighbour: Hop, now: float) -> list[Effect]:
        """A neighbour has lost its memory: what is not decided is aborted.

        A broker that dies takes its part of undecided transactions with it. The side of the
        coordinator decides; what becomes of a side that is cut off from it, `cut_off` says.
        """
        effects = self.questions.link_reset(neighbour, now)
        for tx in list(self.txs.values()):
            reason = f"broker {neighbour} was restarted"
            if tx.upstream == neighbour:
                tx.orphan = True
                if tx.open:
                    effects += self.cut_off(tx, reason, now)
                else:
                    effects += self.acknowledge(tx, now)
            elif tx.open:
                effects += self.doom(tx, "broker", reason, now)
            elif neighbour in tx.awaited:
                effects += self._decided(neighbour, Decided(tx.id), now)
        return effects

    def cut_off(self, tx: Tx, reason: str, now: float) -> list[Effect]:
        """The neighbour towards the coordinator has lost its memory of an open transaction.

        This side aborts it. If it had voted yes, the coordinator's edge broker may have decided to
        commit just then. To ask it, as D-TX-NI does, would not be enough for versioned tables: the
        restarted neighbour was told what counted at that moment, and a later commit would have to
        be told to it as plain operations. That is left to durable brokers.
        """
        tx.alone = tx.voted and tx.verdict == YES
        return self.spread(tx, Decide(tx.id, False, "broker", reason), now)

    def inspect(self, argument: str, now: float) -> tuple[Any, list[Effect]]:
        return inspection.answer(
            argument,
            self.txs.values(),
            self.ended,
            engine=self.name,
            broker=self.broker.name,
            now=now,
            describe=lambda tx: self.describe(tx, now),
            abort=lambda tx, code, reason: self.doom(tx, code, reason, now),
        )

    def describe(self, tx: Tx, now: float) -> dict[str, Any]:
        clients = [hop[1:] for hop in tx.words]
        return inspection.description(
            tx, engine=self.name, waits_for=self.waits_for(tx), clients=clients, now=now
        )

    def waits_for(self, tx: Tx) -> str:
        """What keeps a transaction from going on, at this broker, in words."""
        if tx.in_doubt and tx.open:
            return f"in doubt: {self.doubt(tx)}"
        if tx.status == "active":
            clients = sorted({frame.hop[1:] for frame in tx.frames.values() if frame.number})
            if clients:
                return f"{', '.join(clients)} to finish what a tcm asked for"
            under_way = len(tx.tasks.under_way())
            plural = "s" if under_way > 1 else ""
            missing = inspection.missing(self.broker.reach, tx.tasks.awaited())
            waits = f"{under_way} operation{plural} under way" if under_way else "its coordinator"
            return f"{waits}; {missing}" if missing else waits
        if tx.status == "preparing" and tx.verdict is None:
            return "the decision of transactions that it conflicts with"
        if tx.awaited:
            return inspection.awaited(self.broker.reach, tx.awaited)
        return "nothing" if not tx.open else "the decision"

    # --- beginning ---

    def _begin(self, source: Hop, begin: Begin, now: float) -> list[Effect]:
        known = self.txs.get(begin.tx)
        own = source[1:], self.broker.life_of(source)
        if begin.tx[:2] != own or (known is not None and known.open and known.upstream == source):
            raise ProtocolError(f"{source} cannot begin {tx_text(begin.tx)}")
        if known is not None or self.outcome(begin.tx, now) is not None:
            return [self.tell(source, Ended(begin.tx, False, "refused", REUSED))]
        if reason := self._impossible(source, begin):
            return [self.tell(source, Ended(begin.tx, False, "refused", reason))]
        standing = self.losses.resume(source, begin.age)
        age = begin.age if standing is not None else self._clock + 1
        tx = self.add(begin.tx, age, source, now)
        tx.standing = standing or LossRecord()
        tx.deadline_at = now + begin.deadline_s
        tx.frames[source, 0] = Frame(tx, source, 0)
        tx.words[source] = []
        started = self.start(tx, now)
        deadline_s = min(begin.deadline_s, FENCE_LIMIT_S) if tx.fenced else begin.deadline_s
        return [
            self.tell(source, Began(tx.id, age)),
            SetTimer(f"{self.name}/{tx_text(tx.id)}", deadline_s),
            *started,
        ]

    def ended_here(self, tx: Tx, decide: Decide, now: float) -> None:
        if decide.code == Conflict.code and self.broker.is_here(tx.upstream):
            self.losses.lost(tx.upstream, tx.age, tx.standing, to=decide.to, fenced=tx.fenced)
        if tx.fenced:
            self.losses.fence_ended(tx.upstream, tx.began_at, now)

    def _impossible(self, source: Hop, begin: Begin) -> str:
        """Why a transaction cannot begin, if so."""
        if not 0 < begin.deadline_s <= DEADLINE_LIMIT_S:
            return f"a deadline is at most {DEADLINE_LIMIT_S:g} s"
        if len(self.txs) >= TX_LIMIT:
            return f"{self.broker.name} knows {TX_LIMIT} transactions already"
        if len(self.txs) >= TX_PER_CLIENT_LIMIT:
            own = sum(1 for tx in self.txs.values() if tx.upstream == source and tx.open)
            if own >= TX_PER_CLIENT_LIMIT:
                return f"{source[1:]} has {own} open transactions already"
        return ""

    def start(self, tx: Tx, now: float) -> list[Effect]:
        """Tell every broker that the transaction begins."""
        undecided = tuple(self.broker.versions.voted)
        self.begun(tx, undecided)
        return [
            *self._trace("begin", tx, now),
            *self.send(self.others(tx), Init(tx.id, tx.age, undecided, self.left_s(tx, now))),
        ]

    def _init(self, source: Hop, init: Init, now: float) -> list[Effect]:
        tx = self.txs.get(init.tx)
        if tx is not None and (tx.upstream != source or tx.status != "fenced"):
            return self.send((source,), Doom(init.tx, "refused", REUSED))
        effects: list[Effect] = []
        if tx is None:
            if refused := self.not_begun(source, init):
                return refused
            effects += self.time_limit(init.tx, init.deadline_s)
            tx = self.add(init.tx, init.age, source, now)
        self.begun(tx, init.undecided)
        effects += self._trace("begin", tx, now)
        return effects + self.send(self.others(tx), init)

    def not_begun(self, source: Hop, begin: Init | Fence) -> list[Effect]:
        """Refuse a neighbour's transaction if it cannot begin here; otherwise nothing.

        Raises ProtocolError if it is one of this broker's own clients.
        """
        reason = cannot_begin(self.broker, source, begin.tx, len(self.txs))
        return self.send((source,), Doom(begin.tx, "refused", reason)) if reason else []

    def add(self, tx_id: TxID, age: int, source: Hop, now: float) -> Tx:
        if age < AGE_LIMIT:
            self._clock = max(self._clock, age)
        tx = self.txs[tx_id] = Tx(tx_id, age, source, now)
        return tx

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
            return self.doom(tx, "refused", f"{source[1:]} queues too many operations", now)
        if isinstance(message, Operate):
            step = message.step
            if step.filter is not None and step.kind != "pub" and step.kind != "tcm":
                asked = Operation(0, step.kind, source[1:], 0, step.filter, store=False)
                self.operation_queued(tx, source, asked)
        frame.queue.append(message)
        return self.go_on(tx, frame, now)

    def _abort(self, source: Hop, abort: Abort, now: float) -> list[Effect]:
        tx = self.txs.get(abort.tx)
        if tx is None or source not in tx.words:
            return [self.tell(source, self._stranger(source, abort, tx, now))]
        return self.doom(tx, "aborted", abort.reason or f"{source[1:]} aborted it", now)

    def _stranger(
        self,
        source: Hop,
        message: Operate | Look | Finish | Commit | Abort,
        tx: Tx | None,
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
        if tx is not None and source in tx.words:
            return Ended(tx_id, tx.status == "committed", "finished", f"{name} is {tx.status}")
        return Ended(tx_id, False, "unknown", f"there is no transaction {name}")

    def go_on(self, tx: Tx, frame: Frame, now: float) -> list[Effect]:
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
                frame.busy = True
                effects += self._step(tx, frame, message, now)
            elif isinstance(message, Look):
                effects += self._look(tx, frame, message, now)
            elif isinstance(message, Finish):
                effects += self._finish(tx, frame, message, now)
            else:
                effects += self.prepare(tx, now)
        frame.pumping = False
        return Worked(effects, units)

    def _step(self, tx: Tx, frame: Frame, operate: Operate, now: float) -> list[Effect]:
        step, client = operate.step, frame.hop[1:]
        to = tuple(dict.fromkeys(step.receivers))
        task = OpTask(tx, frame.hop, 0, frame=frame, number=operate.number, to=to)
        scope = self.scope(tx)
        if len(to) > RECEIVERS_LIMIT:
            reason = f"a tcm names more than {RECEIVERS_LIMIT} receivers"
            return self.doom(tx, "refused", reason, now)
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
            return self.doom(tx, refusal.code, refusal.reason, now, to=refusal.to)
        told = Effective(step.kind, step.filter, operation.seq, operate.number, step.events)
        tx.words_bytes += len(codec.encode(told))
        if tx.words_bytes > WORDS_LIMIT_BYTES:
            reason = f"the filters of its operations take more than {WORDS_LIMIT_BYTES} bytes"
            return self.doom(tx, "refused", reason, now)
        return self.apply(tx, frame.hop, operation, task, now)

    def _refusal(self, tx: Tx, frame: Frame, operate: Operate, error: OverlayError) -> Verdict:
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

    def _look(self, tx: Tx, frame: Frame, look: Look, now: float) -> list[Effect]:
        frame.looks += 1
        if frame.looks > LOOKS_LIMIT:
            return self.doom(tx, "refused", f"{frame.hop[1:]} looks at too many things", now)
        is_point = look.point is not None and look.table == "adv"
        if (look.filter is None) != is_point or (look.point is not None) != is_point:
            return self.doom(tx, FilterError.code, "a look needs a filter or a point", now)
        try:
            verdict = self.looked(tx, frame.hop, look)
        except FilterError as error:
            return self.doom(tx, error.code, str(error), now)
        if not verdict.code:
            return []
        return self.doom(tx, verdict.code, verdict.reason, now, to=verdict.to)

    def _check_turn(self, tx: Tx, hop: Hop, asked: Operation) -> None:
        """Raises Conflict if the client has said something before that waits for its own words: it
        would get the later number, and with it the last word."""
        if any(map(Undo(hop, asked, []).concerns, self.broker.said_before(hop, held=False))):
            other = reserved_by_others(self.broker, tx.id, asked)
            why = f"uses the same part in {tx_text(other)}" if other else "has said what waits"
            raise Conflict(f"{asked.client} {why}")

    def _op(self, source: Hop, op: Op, now: float) -> list[Effect]:
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
        self, tx: Tx, source: Hop, operation: Operation, task: OpTask, now: float
    ) -> list[Effect]:
        """Change the tables, and ask the neighbours for their part (Algorithm 2)."""
        scope, frame = self.scope(tx), task.frame
        outcome = self.routing.apply(source, operation, scope)
        tx.footprint.operation(operation, outcome.read)
        self.applied(tx, source, operation, outcome)
        if frame:
            # Only here its number is certain: an engine may have let the operation wait.
            words = tx.words.setdefault(frame.hop, [])
            kind, filter, number = operation.kind, operation.filter, operation.seq
            words.append(Effective(kind, filter, number, task.number, operation.events))
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
            effects += self.send((hop,), Op(tx.id, req, sent))
        change = RouteChange(source, operation)
        if scope.version is None:
            effects += self.broker.routes_changed((change,), now)
        else:
            tx.changes.append(change)  # Until the commit nobody else sees it.
        if self._is_too_large(tx):
            # What neighbours have carried out is carried out here, too, before it is undone.
            effects += self.doom(tx, "refused", TOO_LARGE, now)
        return effects + self._finished(task, now)

    def _publish(
        self, tx: Tx, source: Hop, pub: Pub, task: OpTask, now: float, *, tcm: bool
    ) -> list[Effect]:
        if self._is_too_large(tx):
            return self.doom(tx, "refused", TOO_LARGE, now)
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
                return effects  # Aborted for one of them: nobody else need act.
            if not is_client(hop):
                req = tx.tasks.ask(task, hop) if tcm else 0
                to = named.get(hop, ())
                effects += self.send((hop,), Op(tx.id, req, pub=pub, tcm=tcm, to=to))
                continue
            if tcm and not self.broker.is_here(hop):
                # Its entries are still here, since its leaving waits: next time they are not.
                code = "unheard" if task.to else Conflict.code
                reason = f"{hop[1:]}, which the tcm is for, has left"
                effects += self.doom(tx, code, reason, now, to=hop[1:])
            elif tcm:
                tx.words.setdefault(hop, [])
                frame = tx.tasks.ask(task, hop)
                trigger = name_text(pub.client, pub.life, pub.seq)
                tx.frames[hop, frame] = Frame(tx, hop, frame, trigger)
                told = Tcm(tx.id, frame, pub.client, pub.seq, pub.point, pub.payload, pub.life)
                effects.append(self.tell(hop, told))
            else:
                effects += self._keep(tx, hop, pub, now)
        return effects + self._finished(task, now)

    def _unheard(self, tx: Tx, pub: Pub, reason: str, now: float) -> list[Effect]:
        """A tcm does not reach whom it is for; if that has changed since, it is a conflict."""
        read = Footprint()
        read.publication(pub, at_edge=False)
        changed = self.changed_outside(tx, read)
        if changed.code:
            reason = f"in its snapshot {reason}: {changed.reason}"
            return self.doom(tx, Conflict.code, reason, now, to=changed.to)
        return self.doom(tx, "unheard", reason, now)

    @staticmethod
    def _is_too_large(tx: Tx) -> bool:
        """Count one more operation of a transaction here; whether it is one too many."""
        tx.operations += 1
        return tx.operations > OPERATION_LIMIT

    def _keep(self, tx: Tx, hop: Hop, pub: Pub, now: float) -> list[Effect]:
        """Keep a publication for a client of this broker, up to the commit."""
        kept, size = tx.kept.get(hop, (0, 0))
        tx.kept[hop] = kept, size = kept + 1, size + len(encode(pub))
        if kept > DELIVERIES_LIMIT or size > DELIVERIES_LIMIT_BYTES:
            reason = f"{kept} publications ({size} bytes) would come to {hop[1:]} at once"
            return self.doom(tx, "refused", reason, now)
        tx.deliveries.append((hop, pub))
        return []

    def _finish(self, tx: Tx, frame: Frame, finish: Finish, now: float) -> list[Effect]:
        if finish.error:
            return self.doom(tx, "participant", f"{frame.hop[1:]}: {finish.error}", now)
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
            reason = f"nobody receives the tcm {text}"
            if task.to:
                reason = f"{task.receivers} of {len(task.to)} clients receive the tcm {text}"
            return self._unheard(tx, task.pub, reason, now)
        frame.busy = False
        operated = self.tell(frame.hop, Operated(tx.id, frame.number, task.number))
        return [operated, *self.go_on(tx, frame, now)]
