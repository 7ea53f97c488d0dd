"""Dynamic transactions at a broker: operations one after the other, then one decision for all.

The coordinator's edge broker begins the transaction, runs the commit protocol and owns the
decision, so a client that dies never blocks anyone. The protocol, with the paper's names:

    Init      floods; on FIFO links it is at every broker before any operation of the transaction,
              so it needs no acknowledgement.
    TxOperation travels as the tables say. One that makes others act, a tcm or an
              (un-)advertisement, is answered by Acked when it has been handled everywhere behind
              the sender, and the clients there have finished what a tcm asked for (nested
              acknowledgements, Algorithm 2). Nothing else is acknowledged; see below. A tcm that
              names its receivers goes only where they are; the broker that does not find one of
              them, or finds that it does not take tcms there, asks for its abort.
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
operation at every broker, so footprints and deliveries are complete where it comes. An AbortRequest
is at the coordinator's edge before whatever was said behind it, a vote or the acknowledgement on
which the commit would follow. Decided is behind all that its sender has issued, so Forget is the
last that any broker hears of the transaction.

An engine that lets an operation wait at a broker (`d_tx_ni`) breaks "handles each when it arrives".
It lets all that neighbours say of the transaction wait behind it: then that broker still handles
everything in the order in which it came, and the argument holds as it stands.
"""

from __future__ import annotations

from typing import Any

import msgspec

from overlay.broker.core import Broker
from overlay.effects import Effect, SetTimer
from overlay.errors import (
    ProtocolError,
)
from overlay.messages import Hop, client_hop, is_client
from overlay.stored import stored
from padres_tx.client_messages import (
    DEADLINE_LIMIT_S,
    TX_LIMIT,
    TX_PER_CLIENT_LIMIT,
    Began,
    Begin,
    Ended,
    TxID,
    parse_tx,
    tx_text,
)
from padres_tx.protocol import inspection
from padres_tx.protocol.admission import Conflict
from padres_tx.protocol.broker_messages import BrokerMessage
from padres_tx.protocol.dynamic_messages import AbortRequest, Decide, Decided, Fence, Init, codec
from padres_tx.protocol.dynamic_operations import DynamicOperations
from padres_tx.protocol.dynamic_state import YES, DynamicState, Frame, OpTask, Verdict
from padres_tx.protocol.outcomes import REUSED
from padres_tx.protocol.two_phase import cannot_begin
from padres_tx.protocol.validation.losses import FENCE_LIMIT_S, LossCounts, LossRecord

#: What the author of an engine needs from here.
__all__ = ["YES", "Dynamic", "DynamicState", "OpTask", "Verdict"]

#: Ages of other brokers' transactions are counted on from up to here; what is above is left for
#: those that begin at this broker, so that one broker that is wrong does not use up all numbers.
AGE_LIMIT = 1 << 62


@stored("dynamic", fields=("_clock", "losses"), derived=("_dropped",))
class Dynamic(DynamicOperations):
    """A dynamic engine at one broker; see the module's docstring."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._clock = 0
        self.losses = LossCounts()
        self.receivers |= {
            Begin: self._begin,
            Init: self._init,
        }

    # --- what an engine decides ---

    def begun(self, tx: DynamicState, undecided: tuple[TxID, ...]) -> None:
        """A transaction begins at this broker. Called before its first operation.

        `undecided` are the versions that the coordinator's edge broker had voted for, and did not
        know decided, when it began. By default nothing happens.
        """

    # --- the broker's inputs (overlay.broker.engine.Engine) ---

    def receive(self, source: Hop, body: msgspec.Raw, now: float) -> list[Effect]:
        message = codec.decode(body)
        if isinstance(message, BrokerMessage) == is_client(source):
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
        reason = f"not decided by its deadline: {self.waits_for(tx)}"
        return self.request_abort(tx, "deadline", reason, now)

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
                effects += self.request_abort(tx, "left", f"its coordinator {client} has left", now)
            elif tx.upstream != hop and any(frame.hop == hop for frame in tx.frames.values()):
                effects += self.request_abort(
                    tx, "left", f"{client}, which took part, has left", now
                )
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
                effects += self.request_abort(tx, "broker", reason, now)
            elif neighbour in tx.awaited:
                effects += self._decided(neighbour, Decided(tx.id), now)
        return effects

    def cut_off(self, tx: DynamicState, reason: str, now: float) -> list[Effect]:
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
            abort=lambda tx, code, reason: self.request_abort(tx, code, reason, now),
        )

    def describe(self, tx: DynamicState, now: float) -> dict[str, Any]:
        clients = [hop[1:] for hop in tx.effective]
        return inspection.description(
            tx, engine=self.name, waits_for=self.waits_for(tx), clients=clients, now=now
        )

    def waits_for(self, tx: DynamicState) -> str:
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
        tx.effective[source] = []
        started = self.start(tx, now)
        deadline_s = min(begin.deadline_s, FENCE_LIMIT_S) if tx.fenced else begin.deadline_s
        return [
            self.tell(source, Began(tx.id, age)),
            SetTimer(f"{self.name}/{tx_text(tx.id)}", deadline_s),
            *started,
        ]

    def ended_here(self, tx: DynamicState, decide: Decide, now: float) -> None:
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

    def start(self, tx: DynamicState, now: float) -> list[Effect]:
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
            return self.send((source,), AbortRequest(init.tx, "refused", REUSED))
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
        """Refuse a neighbour's transaction if it cannot begin here; otherwise nothing."""
        reason = cannot_begin(self.broker, source, begin.tx, len(self.txs))
        return self.send((source,), AbortRequest(begin.tx, "refused", reason)) if reason else []

    def add(self, tx_id: TxID, age: int, source: Hop, now: float) -> DynamicState:
        if age < AGE_LIMIT:
            self._clock = max(self._clock, age)
        tx = self.txs[tx_id] = DynamicState(tx_id, age, source, now)
        return tx
