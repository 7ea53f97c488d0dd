"""Dynamic transactions at a broker: operations one after the other, then one decision for all.

The coordinator's edge broker begins the transaction, runs the commit protocol and owns the
decision, so a client that dies never blocks anyone. The protocol, with the paper's names:

    Init      floods; on FIFO links it is at every broker before any operation of the transaction,
              so nobody has to acknowledge it.
    Op        travels as the tables say. One that makes others act, a tcm or an (un-)advertisement,
              is answered by Acked when it has been handled everywhere behind the sender, and the
              clients there have finished what a tcm asked for (nested acknowledgements,
              Algorithm 2). Nothing else is acknowledged; see below.
    Prepare   floods, and every broker votes; Vote converges (Algorithm 3).
    Decide    floods, Decided converges, and then Forget floods: nobody needs the state before.
    Doom      goes to the coordinator's edge: this transaction cannot be carried out.

What isolates transactions from each other is left to the engines (`d_tx`, `d_tx_ni`): the scope in
which operations look at and change the tables, and how a broker judges at Prepare.

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

An engine that lets operations wait at a broker breaks "handles each when it arrives", and says in
`is_answered` that it wants answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import msgspec

from overlay.broker import Broker
from overlay.effects import CancelTimer, Effect, Send, SetTimer
from overlay.errors import FilterError, NotAdvertised, OperationError, ProtocolError
from overlay.filters import Filter, check_point
from overlay.messages import Hop, Leave, Operation, Pub, client_hop, is_client
from overlay.notation import format_publication
from overlay.routing import Outcome, Scope
from overlay.tasks import Tasks
from padres_tx.between import (
    Acked,
    AnyBetween,
    Between,
    Decide,
    Decided,
    Doom,
    Forget,
    Init,
    Op,
    Prepare,
    Vote,
    codec,
)
from padres_tx.conflicts import Footprint
from padres_tx.wire import (
    Abort,
    Applied,
    Began,
    Begin,
    Commit,
    Drained,
    Ended,
    Finish,
    Operate,
    Operated,
    Tcm,
    ToClient,
    TxID,
    engine_message,
    to_client,
    tx_text,
)

#: Transactions that may be known to a broker at once, so that one client cannot fill all of them.
TX_LIMIT = 100_000

#: Operations that one frame may have queued at its edge broker.
FRAME_LIMIT = 10_000

#: The longest deadline that is accepted: what a transaction holds up waits no longer than this.
DEADLINE_LIMIT_S = 3600.0


# --- what a broker knows of a transaction ---


class Verdict(NamedTuple):
    """A broker's vote: an empty code is a yes."""

    code: str = ""
    reason: str = ""


YES = Verdict()

#: Why a transaction cannot begin: an earlier client of that name has given the same number.
REUSED = "brokers still know an earlier transaction of this name"

#: The vote of a broker that has sent Doom, which says why.
DOOMED = Verdict("doomed", "a broker has found that it cannot be carried out")


class Frame:
    """Operations of one client that are carried out one after the other."""

    __slots__ = ("busy", "hop", "last", "number", "queue", "trigger")

    def __init__(self, hop: Hop, number: int, trigger: str = "") -> None:
        self.hop = hop
        self.number = number
        #: For records: the tcm that opened the frame, and the last operation in it.
        self.trigger = trigger
        self.last: tuple[str, ...] = ()
        self.queue: deque[Operate | Finish | Commit] = deque()
        self.busy = False


class OpTask:
    """An operation under way here and behind this broker.

    It came from a neighbour, with a request number if that wants an answer, or from a frame of a
    client of this broker.
    """

    __slots__ = ("frame", "number", "origin", "pub", "receivers", "req", "tcm", "tx", "waiting")

    def __init__(
        self, tx: Tx, origin: Hop, req: int, *, frame: Frame | None = None, number: int = 0
    ) -> None:
        self.tx = tx
        self.origin = origin
        self.req = req
        self.frame = frame
        self.number = number
        self.waiting = 0
        self.receivers = 0
        self.tcm = False
        self.pub: Pub | None = None


class Tx:
    """One transaction at one broker."""

    def __init__(self, tx: TxID, age: int, upstream: Hop, now: float) -> None:
        self.id = tx
        self.age = age
        #: Where the coordinator is; its own hop at its edge broker.
        self.upstream = upstream
        self.began_at = now
        self.status = "active"
        #: The neighbours whose votes or acknowledgements are outstanding.
        self.awaited: set[Hop] = set()
        self.verdict: Verdict | None = None
        self.voted = False
        self.doomed = False
        self.forgotten = False
        #: Whether the neighbour towards the coordinator has lost its memory of it: here it ends.
        self.orphan = False
        self.footprint = Footprint()
        self.frames: dict[tuple[Hop, int], Frame] = {}
        #: What this broker has asked of others and of clients in it.
        self.tasks: Tasks[OpTask] = Tasks()
        #: Publications that clients of this broker get at commit, in order.
        self.deliveries: list[tuple[Hop, Pub]] = []
        #: What clients of this broker have said in it, by client; also those that only received.
        self.words: dict[Hop, list[tuple[str, Filter]]] = {}

    @property
    def at_edge(self) -> bool:
        """Whether this is the coordinator's edge broker."""
        return is_client(self.upstream)

    @property
    def open(self) -> bool:
        return self.status not in ("committed", "aborted")

    @property
    def precedence(self) -> tuple[int, TxID]:
        """Who is older: by the age of the first attempt, then by name."""
        return self.age, self.id


class Dynamic:
    """A dynamic engine at one broker; see the module's docstring."""

    name: ClassVar[str]

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.routing = broker.routing
        self.txs: dict[TxID, Tx] = {}
        self._clock = 0
        self._receivers: dict[type, Callable[[Hop, Any, float], list[Effect]]] = {
            Begin: self._begin,
            Operate: self._enqueue,
            Finish: self._enqueue,
            Commit: self._enqueue,
            Abort: self._abort,
            Init: self._init,
            Op: self._op,
            Acked: self._acked,
            Prepare: self._asked_to_vote,
            Vote: self._vote,
            Decide: self._decide_here,
            Decided: self._decided,
            Forget: self._forget,
            Doom: self._doomed,
        }

    # --- what an engine decides (isolation) ---

    def begun(self, tx: Tx, undecided: tuple[TxID, ...]) -> None:
        """A transaction begins at this broker."""

    def scope(self, tx: Tx) -> Scope:
        """As whom its operations look at and change the tables."""
        raise NotImplementedError

    def judge(self, tx: Tx) -> Verdict | None:
        """This broker's vote, or None to look again after the next decision."""
        raise NotImplementedError

    def apply(
        self, tx: Tx, source: Hop, operation: Operation, task: OpTask, now: float
    ) -> list[Effect]:
        """Carry an operation out, now or later, by `carry_out`."""
        return self.carry_out(tx, source, operation, task, now)

    def is_answered(self, operation: Operation) -> bool:
        """Whether brokers acknowledge the operation; an (un-)advertisement may trigger others."""
        return operation.kind in ("adv", "uadv")

    def applied(self, tx: Tx, source: Hop, operation: Operation, outcome: Outcome) -> None:
        """An operation was carried out."""

    def decided(self, tx: Tx, now: float) -> list[Effect]:
        """The decision has come: make the changes count, or undo them."""
        raise NotImplementedError

    def forgotten(self, tx: Tx) -> None:
        """Every broker has the decision."""
        del self.txs[tx.id]

    def something_decided(self, now: float) -> list[Effect]:
        """A transaction was decided here, of whichever engine, and what it held up is released."""
        return []

    # --- the broker's inputs (overlay.broker.Engine) ---

    def receive(self, source: Hop, body: msgspec.Raw, now: float) -> list[Effect]:
        message = codec.decode(body)
        if isinstance(message, Between) == is_client(source):
            raise ProtocolError(f"{source} may not say {type(message).__name__}")
        if is_client(source):
            self.broker.check_client(source, source[1:])
        receiver = self._receivers.get(type(message))
        if receiver is None:
            raise ProtocolError(f"{self.name} takes no {type(message).__name__}")
        return receiver(source, message, now)

    def wake(self, key: str, now: float) -> list[Effect]:
        """A deadline has passed."""
        client, _, number = key.rpartition(":")
        tx = self.txs.get((client, int(number)))
        if tx is None or not tx.open:
            return []
        return self.doom(tx, "deadline", f"not decided by its deadline: {self.waits_for(tx)}", now)

    def client_left(self, client: str, now: float) -> list[Effect]:
        hop = client_hop(client)
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
        coordinator decides; a side that is cut off from it aborts on its own, which can differ
        from a commit that was decided in just that moment: brokers are not durable yet.
        """
        effects: list[Effect] = []
        for tx in list(self.txs.values()):
            reason = f"broker {neighbour} was restarted"
            if tx.upstream == neighbour:
                tx.orphan = True
                if tx.open:
                    effects += self._spread(tx, Decide(tx.id, False, "broker", reason), now)
                else:
                    effects += self._acknowledge(tx, now)
            elif tx.open:
                effects += self.doom(tx, "broker", reason, now)
            elif neighbour in tx.awaited:
                effects += self._decided(neighbour, Decided(tx.id), now)
        return effects

    def reserves(self, source: Hop, message: Operation | Leave) -> bool:
        return False

    def holds(self, source: Hop, message: Operation | Leave) -> bool:
        return False

    def passed(self, source: Hop, message: Operation | Leave, outcome: Outcome | None) -> None:
        pass

    def resume(self, source: Hop, operation: Operation, context: Any, now: float) -> list[Effect]:
        raise AssertionError("nothing was submitted")

    def completed(self, context: Any, now: float) -> list[Effect]:
        raise AssertionError("nothing was started")

    def inspect(self, argument: str, now: float) -> tuple[Any, list[Effect]]:
        """List the transactions here, or "abort CLIENT:NUMBER" at its edge broker."""
        verb, _, name = argument.partition(" ")
        if verb == "abort":
            for tx in self.txs.values():
                if tx_text(tx.id) == name and tx.open and tx.at_edge:
                    return {"aborted": name}, self.doom(
                        tx, "operator", "an operator aborted it", now
                    )
            return {"error": f"{name} is not open, or {self.broker.name} does not decide it"}, []
        return [self.describe(tx, now) for tx in self.txs.values()], []

    def describe(self, tx: Tx, now: float) -> dict[str, Any]:
        return {
            "tx": tx_text(tx.id),
            "engine": self.name,
            "coordinator": tx.id[0],
            "edge": tx.at_edge,
            "status": tx.status,
            "since_s": round(now - tx.began_at, 3),
            "waits_for": self.waits_for(tx),
            "clients": sorted(hop[1:] for hop in tx.words),
        }

    def waits_for(self, tx: Tx) -> str:
        """What keeps a transaction from going on, at this broker, in words."""
        if tx.status == "active":
            clients = sorted({frame.hop[1:] for frame in tx.frames.values() if frame.number})
            if clients:
                return f"{', '.join(clients)} to finish what a tcm asked for"
            under_way = len(tx.tasks.under_way())
            plural = "s" if under_way > 1 else ""
            return f"{under_way} operation{plural} under way" if under_way else "its coordinator"
        if tx.status == "preparing" and tx.verdict is None:
            return "the decision of transactions that it conflicts with"
        if tx.awaited:
            return f"brokers {', '.join(sorted(tx.awaited))}"
        return "nothing" if not tx.open else "the decision"

    # --- beginning ---

    def _begin(self, source: Hop, begin: Begin, now: float) -> list[Effect]:
        known = self.txs.get(begin.tx)
        if begin.tx[0] != source[1:] or (known is not None and known.open):
            raise ProtocolError(f"{source} cannot begin {tx_text(begin.tx)}")
        if known is not None:
            return [self.tell(source, Ended(begin.tx, False, "refused", REUSED))]
        if not 0 < begin.deadline_s <= DEADLINE_LIMIT_S or len(self.txs) >= TX_LIMIT:
            return [self.tell(source, Ended(begin.tx, False, "refused", "too many, or too long"))]
        age = begin.age or self._clock + 1
        tx = self._new(begin.tx, age, source, now)
        tx.frames[source, 0] = Frame(source, 0)
        tx.words[source] = []
        return [
            self.tell(source, Began(tx.id, age)),
            SetTimer(f"{self.name}/{tx_text(tx.id)}", begin.deadline_s),
            *self.start(tx, begin, now),
        ]

    def start(self, tx: Tx, begin: Begin, now: float) -> list[Effect]:
        """Tell every broker that the transaction begins."""
        undecided = tuple(self.broker.versions.open)
        self.begun(tx, undecided)
        return [
            *self._trace("begin", tx, now),
            *self.send(self.others(tx), Init(tx.id, tx.age, undecided)),
        ]

    def _init(self, source: Hop, init: Init, now: float) -> list[Effect]:
        tx = self.txs.get(init.tx)
        if tx is not None and (tx.upstream != source or tx.status != "fenced"):
            return self.send((source,), Doom(init.tx, "refused", REUSED))
        tx = tx or self._new(init.tx, init.age, source, now)
        self.begun(tx, init.undecided)
        return [*self._trace("begin", tx, now), *self.send(self.others(tx), init)]

    def _new(self, tx_id: TxID, age: int, source: Hop, now: float) -> Tx:
        self._clock = max(self._clock, age)
        tx = self.txs[tx_id] = Tx(tx_id, age, source, now)
        return tx

    # --- operations ---

    def _enqueue(self, source: Hop, message: Operate | Finish | Commit, now: float) -> list[Effect]:
        tx = self.txs.get(message.tx)
        number = 0 if isinstance(message, Commit) else message.frame
        frame = tx.frames.get((source, number)) if tx is not None else None
        if tx is None or not tx.open or frame is None:
            return [self.tell(source, self._stranger(source, message.tx, tx))]
        if len(frame.queue) >= FRAME_LIMIT:
            return self.doom(tx, "refused", f"{source[1:]} queues too many operations", now)
        frame.queue.append(message)
        return self._pump(tx, frame, now)

    def _stranger(self, source: Hop, tx_id: TxID, tx: Tx | None) -> Ended:
        name = tx_text(tx_id)
        if tx is not None and tx.open:
            return Ended(tx_id, False, "foreign", f"{source[1:]} has no part in {name} to act in")
        if tx is not None and source in tx.words:
            return Ended(tx_id, tx.status == "committed", "finished", f"{name} is {tx.status}")
        return Ended(tx_id, False, "unknown", f"there is no transaction {name}")

    def _pump(self, tx: Tx, frame: Frame, now: float) -> list[Effect]:
        """Carry on with a frame, as far as it goes (Thread)."""
        effects: list[Effect] = []
        while tx.open and frame.queue and not frame.busy and tx.status == "active":
            message = frame.queue.popleft()
            if isinstance(message, Operate):
                frame.busy = True
                effects += self._step(tx, frame, message, now)
            elif isinstance(message, Finish):
                effects += self._finish(tx, frame, message, now)
            else:
                effects += self.prepare(tx, now)
        return effects

    def _step(self, tx: Tx, frame: Frame, operate: Operate, now: float) -> list[Effect]:
        step, client = operate.step, frame.hop[1:]
        task = OpTask(tx, frame.hop, 0, frame=frame, number=operate.number)
        scope = self.scope(tx)
        try:
            if step.kind in ("pub", "tcm"):
                pub = Pub(client, step.seq, check_point(step.point), step.payload)
                if not self.routing.may_publish(frame.hop, pub.point, scope.view):
                    text = format_publication(pub.point)
                    raise NotAdvertised(f"{client} has not advertised {text}")
                return self._publish(tx, frame.hop, pub, task, now, tcm=step.kind == "tcm")
            if step.filter is None:
                raise FilterError(None, f"a {step.kind} without a filter")
            assert step.kind != "pub" and step.kind != "tcm"
            asked = Operation(0, step.kind, client, 0, step.filter)
            operation = self.broker.admit(frame.hop, asked, scope)
        except (OperationError, FilterError) as error:
            return self.doom(tx, error.code, str(error), now)
        tx.words.setdefault(frame.hop, []).append((step.kind, step.filter))
        return self.apply(tx, frame.hop, operation, task, now)

    def _op(self, source: Hop, op: Op, now: float) -> list[Effect]:
        tx = self.txs.get(op.tx)
        if tx is None or not tx.open:
            return []  # It was under way when the transaction was aborted.
        task = OpTask(tx, source, op.req)
        if op.operation is not None:
            return self.apply(tx, source, op.operation, task, now)
        if op.pub is None:
            raise ProtocolError("an operation message without an operation")
        return self._publish(tx, source, op.pub, task, now, tcm=op.tcm)

    def carry_out(
        self, tx: Tx, source: Hop, operation: Operation, task: OpTask, now: float
    ) -> list[Effect]:
        """Change the tables, and ask the neighbours for their part (Algorithm 2)."""
        scope, frame = self.scope(tx), task.frame
        outcome = self.routing.apply(source, operation, scope)
        tx.footprint.operation(operation, outcome.read)
        self.applied(tx, source, operation, outcome)
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
        return effects + self._finished(task, now)

    def _publish(
        self, tx: Tx, source: Hop, pub: Pub, task: OpTask, now: float, *, tcm: bool
    ) -> list[Effect]:
        task.tcm, task.pub = tcm, pub
        tx.footprint.publication(pub, at_edge=is_client(source))
        view = self.scope(tx).view
        hops = self.routing.prt.hops(pub.point, view)
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
            effects.append(self.broker.record("match", now, pub, source, hops, **whose))
        for hop in hops:
            if not is_client(hop):
                req = tx.tasks.ask(task, hop) if tcm else 0
                effects += self.send((hop,), Op(tx.id, req, pub=pub, tcm=tcm))
                continue
            if tcm and not self.broker.is_here(hop):
                effects += self.doom(tx, "left", f"{hop[1:]}, which the tcm is for, has left", now)
            elif tcm:
                tx.words.setdefault(hop, [])
                frame = tx.tasks.ask(task, hop)
                tx.frames[hop, frame] = Frame(hop, frame, f"{pub.client}:{pub.seq}")
                told = Tcm(tx.id, frame, pub.client, pub.seq, pub.point, pub.payload)
                effects.append(self.tell(hop, told))
            else:
                tx.deliveries.append((hop, pub))
        return effects + self._finished(task, now)

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
        if task.tcm and not task.receivers:
            assert task.pub is not None
            text = format_publication(task.pub.point)
            return self.doom(tx, "unheard", f"nobody receives the tcm {text}", now)
        frame.busy = False
        operated = self.tell(frame.hop, Operated(tx.id, frame.number, task.number))
        return [operated, *self._pump(tx, frame, now)]

    # --- preparing ---

    def prepare(self, tx: Tx, now: float) -> list[Effect]:
        """The coordinator wants the commit and all operations are done: ask for the votes."""
        return self._prepare(tx.upstream, Prepare(tx.id), now)

    def _asked_to_vote(self, source: Hop, prepare: Prepare, now: float) -> list[Effect]:
        tx = self.txs.get(prepare.tx)
        if tx is None or tx.upstream != source:
            # This broker was restarted since it began.
            return self.send((source,), Vote(prepare.tx, "broker", f"{self.broker.name} forgot it"))
        return self._prepare(source, prepare, now)

    def _prepare(self, source: Hop, prepare: Prepare, now: float) -> list[Effect]:
        tx = self._known(prepare.tx, source)
        if not tx.open:
            return []
        tx.status = "preparing"
        tx.awaited = set(self.others(tx))
        # Forwarded before this broker has made up its mind: waiting happens side by side.
        return [*self.send(self.others(tx), prepare), *self._look_again(tx, now)]

    def _look_again(self, tx: Tx, now: float) -> list[Effect]:
        if tx.status == "preparing" and tx.verdict is None:
            tx.verdict = DOOMED if tx.doomed else self.judge(tx)
        return self._answer(tx, now)

    def _vote(self, source: Hop, vote: Vote, now: float) -> list[Effect]:
        tx = self.txs.get(vote.tx)
        if tx is None or not tx.open:
            return []
        tx.awaited.discard(source)
        if vote.code:
            tx.verdict = Verdict(vote.code, vote.reason)
        return self._answer(tx, now)

    def _answer(self, tx: Tx, now: float) -> list[Effect]:
        """Vote, or at the coordinator's edge decide: a no at once, a yes when all have said so."""
        verdict = tx.verdict
        if verdict is None or tx.voted or tx.status != "preparing":
            return []
        if not verdict.code and tx.awaited:
            return []
        tx.voted = True
        if tx.at_edge:
            return self._spread(tx, Decide(tx.id, not verdict.code, *verdict), now)
        return self.send((tx.upstream,), Vote(tx.id, *verdict))

    # --- the decision ---

    def doom(self, tx: Tx, code: str, reason: str, now: float) -> list[Effect]:
        """The transaction cannot be carried out: abort it, or tell who can."""
        if tx.doomed or not tx.open:
            return []
        tx.doomed = True
        if tx.at_edge:
            return self._spread(tx, Decide(tx.id, False, code, reason), now)
        return self.send((tx.upstream,), Doom(tx.id, code, reason))

    def _doomed(self, source: Hop, doom: Doom, now: float) -> list[Effect]:
        tx = self.txs.get(doom.tx)
        return self.doom(tx, doom.code, doom.reason, now) if tx is not None else []

    def _abort(self, source: Hop, abort: Abort, now: float) -> list[Effect]:
        tx = self.txs.get(abort.tx)
        if tx is None or source not in tx.words:
            return [self.tell(source, self._stranger(source, abort.tx, tx))]
        return self.doom(tx, "aborted", abort.reason or f"{source[1:]} aborted it", now)

    def _decide_here(self, source: Hop, decide: Decide, now: float) -> list[Effect]:
        tx = self.txs.get(decide.tx)
        if tx is None or not tx.open:
            # Forgotten with this broker's former life, or never begun here (`_init`).
            return self.send((source,), Decided(decide.tx))
        if tx.upstream != source:
            raise ProtocolError(f"{source} does not decide {tx_text(decide.tx)}")
        return self._spread(tx, decide, now)

    def _spread(self, tx: Tx, decide: Decide, now: float) -> list[Effect]:
        """Make a decision count here, and pass it on."""
        assert tx.open, "a decision is final"
        tx.status = "committed" if decide.committed else "aborted"
        tx.awaited = set(self.others(tx))
        tx.tasks = Tasks()
        tx.frames.clear()
        effects: list[Effect] = []
        if tx.at_edge:
            effects.append(CancelTimer(f"{self.name}/{tx_text(tx.id)}"))
        effects += self._trace("decide", tx, now)
        effects += self.decided(tx, now)
        effects += self.send(self.others(tx), decide)
        if decide.committed:
            effects += self._deliver(tx, now)
        for hop, words in tx.words.items():
            effective = tuple(words) if decide.committed else ()
            ended = Ended(tx.id, decide.committed, decide.code, decide.reason, effective)
            effects.append(self.tell(hop, ended))
        for other in list(self.txs.values()):
            if other.status == "preparing" and other.verdict is None:
                effects += self._look_again(other, now)
        effects += self.broker.release(now)
        effects += something_decided(self.broker, now)
        return effects + self._acknowledge(tx, now)

    def _deliver(self, tx: Tx, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for hop, pub in tx.deliveries:
            if self.broker.trace:
                effects.append(
                    self.broker.record(
                        "deliver", now, pub, dests=(hop,), tx=tx_text(tx.id), engine=self.name
                    )
                )
            effects.append(Send((hop,), pub))
        return effects

    def _decided(self, source: Hop, decided: Decided, now: float) -> list[Effect]:
        tx = self.txs.get(decided.tx)
        if tx is None or tx.open:
            return []
        tx.awaited.discard(source)
        return self._acknowledge(tx, now)

    def _acknowledge(self, tx: Tx, now: float) -> list[Effect]:
        """When all behind this broker have the decision, say so; at the edge, that was all."""
        if tx.awaited or tx.forgotten:
            return []
        if not tx.at_edge and not tx.orphan:
            return self.send((tx.upstream,), Decided(tx.id))
        effects: list[Effect] = []
        if tx.at_edge and tx.status == "committed":
            effects.append(self.tell(tx.upstream, Applied(tx.id)))
        return [*effects, *self._forget(tx.upstream, Forget(tx.id), now)]

    def _forget(self, source: Hop, forget: Forget, now: float) -> list[Effect]:
        tx = self.txs.get(forget.tx)
        if tx is None or tx.upstream != source or tx.open:
            return []
        tx.forgotten = True
        effects = [*self.send(self.others(tx), forget), *self._trace("end", tx, now)]
        if tx.status == "committed":
            effects += [self.tell(hop, Drained(tx.id)) for hop in tx.words]
        self.forgotten(tx)
        return effects

    # --- small things ---

    def others(self, tx: Tx) -> tuple[Hop, ...]:
        """The neighbours on the far side from the coordinator."""
        return tuple(hop for hop in self.routing.neighbours if hop != tx.upstream)

    def _known(self, tx_id: TxID, source: Hop) -> Tx:
        tx = self.txs.get(tx_id)
        if tx is None or tx.upstream != source:
            raise ProtocolError(f"{source} does not speak for {tx_text(tx_id)}")
        return tx

    def send(self, hops: tuple[Hop, ...], message: AnyBetween) -> list[Effect]:
        if not hops:
            return []
        return [Send(hops, engine_message(self.name, codec.encode(message)))]

    def tell(self, hop: Hop, message: ToClient) -> Effect:
        return Send((hop,), engine_message(self.name, to_client.encode(message)))

    def _trace(self, kind: Any, tx: Tx, now: float) -> list[Effect]:
        if not self.broker.trace:
            return []
        outcome = "" if tx.open else tx.status
        return [
            self.broker.record(
                kind,
                now,
                None,
                tx.upstream,
                self.others(tx),
                tx=tx_text(tx.id),
                engine=self.name,
                outcome=outcome,
            )
        ]


def something_decided(broker: Broker, now: float) -> list[Effect]:
    """Tell the engines of a broker that a transaction was decided there."""
    effects: list[Effect] = []
    for engine in broker.engines.values():
        if isinstance(engine, Dynamic):
            effects += engine.something_decided(now)
    return effects
