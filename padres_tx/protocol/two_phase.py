"""One decision for all brokers: the commit protocol of dynamic transactions (Algorithm 3).

The coordinator's edge broker asks for votes and owns the decision:

    Prepare   floods, and every broker votes; Vote converges. A no goes on at once, a yes when all
              behind the broker have said so.
    Decide    floods; each broker makes the changes count or undoes them, hands over the
              publications of a commit and tells its clients. Decided converges, and then Forget
              floods: nothing needs the state before any more.
    AbortRequest goes to the coordinator's edge at any time: this transaction cannot be carried
              out.

A broker that was restarted knows nothing of a transaction: it votes no, and has no objection to
any decision.

**A side that is cut off.** Every broker knows the deadline. The coordinator's edge broker aborts
then what is not decided, so as a rule its decision comes first. Where it does not come, because a
link or a broker on the way is down, a broker waits OVERDUE_AFTER_S more and then acts by itself:

    Before its yes it aborts the transaction, for itself and all behind it, and sends AbortRequest.
    There is still one outcome. A commit needs the yes of every broker (`_answer`: the edge decides
    when no vote is awaited, and a broker says yes when it has one from all behind it). This broker
    has not said yes, and will not: the transaction is closed here, and Prepare finds it so. So
    every other decision is an abort, too: by AbortRequest, by the deadline, or because the edge
    broker has gone. Those behind have this broker as their only way to the coordinator, and take
    its decision as ever, whether they had said yes or not. When the decision comes after all, it is
    only acknowledged.

    After its yes it may not: the others may have committed. It tells its clients (InDoubt) which
    broker they wait for, and waits. Nothing but the decision ends that, or a neighbour that has
    lost its memory.

None of this depends on clocks: an early or late deadline costs an abort and never an outcome. An
engine without votes says what binds it instead (`is_bound`).

Each broker remembers for a while how transactions have ended (`padres_tx.protocol.outcomes`), and
answers those who ask (`padres_tx.protocol.questions`).

How operations come about and who waits for them is not known here (`padres_tx.protocol.dynamic`),
nor how a broker judges, or what makes changes count (the engines).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection
from typing import Any

from overlay.broker.core import Broker
from overlay.broker.requests import Tasks
from overlay.effects import CancelTimer, Effect, Send, SetTimer
from overlay.errors import ProtocolError
from overlay.messages import ClientName, Hop
from overlay.stored import stored
from padres_tx.client_messages import (
    DEADLINE_LIMIT_S,
    TX_LIMIT,
    Applied,
    AskOutcome,
    Drained,
    Ended,
    InDoubt,
    ToClient,
    TxID,
    engine_message,
    to_client,
    tx_text,
)
from padres_tx.protocol import inspection
from padres_tx.protocol.broker_messages import Answer, Ask, shortened
from padres_tx.protocol.dynamic_messages import (
    AbortRequest,
    AnyDynamicMessage,
    Decide,
    Decided,
    Fenced,
    Forget,
    Prepare,
    TxOperation,
    Vote,
    codec,
)
from padres_tx.protocol.dynamic_state import YES, DynamicState, Verdict
from padres_tx.protocol.questions import OutcomeEngine

#: How long after a deadline brokers act on it that do not decide: the decision of the one that
#: does, which it makes at the deadline, comes first unless the way is cut or very slow.
OVERDUE_AFTER_S = 1.0

#: The states of an open transaction in which a neighbour may send a message. Links are FIFO, so one
#: that comes in another state was sent by a broker that is mistaken, or forged. (An operation that
#: comes behind Prepare is mistaken, too, but harms only its own transaction.)
PHASES: dict[type, tuple[str, ...]] = {
    Fenced: ("fencing", "flushing"),
    TxOperation: ("active", "preparing"),
    Prepare: ("active",),
    Vote: ("preparing",),
}

#: The vote of a broker that has sent AbortRequest, which says why.
ABORT_REQUESTED = Verdict("doomed", "a broker has found that it cannot be carried out")


@stored("two-phase-commit", fields=("routing", "preparing"), derived=("receivers",))
class TwoPhaseCommit(OutcomeEngine[DynamicState]):
    """The votes and the decision at one broker; see the module's docstring."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.routing = broker.routing
        #: Those that were asked for their votes and are not decided here.
        self.preparing: dict[TxID, DynamicState] = {}
        #: The method for each type of message; an engine adds its own.
        self.receivers: dict[type, Callable[[Hop, Any, float], list[Effect]]] = {
            Prepare: self._asked_to_vote,
            Vote: self._voted,
            Decide: self._decide_here,
            Decided: self._decided,
            Forget: self._forget,
            AbortRequest: self._abort_requested,
            Ask: self.asked,
            Answer: self.question_answered,
            AskOutcome: self.asked,
        }

    # --- what an engine decides (isolation) ---

    @abstractmethod
    def judge(self, tx: DynamicState) -> Verdict | None:
        """This broker's own vote: YES, a no with its reason, or None for not yet.

        Called when Prepare comes, and after None again whenever another transaction of this engine
        is decided here.
        """

    def accepts_yes(self, tx: DynamicState, neighbour: Hop) -> Verdict:
        """Whether a neighbour's yes counts here: YES, or a no with its reason.

        Called when the yes comes, for the neighbour and all brokers behind it. By default it does.
        """
        return YES

    def confirms_yes(self, tx: DynamicState) -> Verdict:
        """Whether this broker can stand by its own yes: YES, or a no with its reason.

        Called after `judge` has said yes, whenever the yes might be sent. By default it can.
        """
        return YES

    def voted_yes(self, tx: DynamicState) -> None:
        """This broker sends its yes, for itself and all behind it: others may commit from now on.

        Not called at the coordinator's edge broker, which decides. By default nothing happens.
        """
        return

    @abstractmethod
    def decided(self, tx: DynamicState, now: float) -> list[Effect]:
        """Make the changes of a transaction count here, or undo them, as `tx.status` says.

        Called once, when the decision comes, before it is passed on.
        """

    @abstractmethod
    def ended_here(self, tx: DynamicState, decide: Decide, now: float) -> None:
        """This broker, the coordinator's edge, has decided. Called before `decided`."""

    def is_carried_out(self, tx: DynamicState) -> bool:
        """Whether this broker has carried the decision out, and may say so (Decided).

        Called when all brokers behind this one have said so. If not, the engine calls
        `acknowledge` later. By default the decision is carried out by `decided`.
        """
        return True

    def forgotten(self, tx: DynamicState, now: float) -> list[Effect]:
        """Every broker has carried the decision out: drop the transaction, now or later."""
        del self.txs[tx.id]
        return []

    def is_bound(self, tx: DynamicState) -> bool:
        """Whether other brokers may commit without hearing from this broker again.

        Called when the deadline has passed; if not, this broker aborts the transaction by itself.
        Called when a commit comes, too; if not, the neighbour that sends it breaks the protocol.
        By default a broker is bound by its yes.
        """
        return tx.voted and tx.verdict == YES

    def doubt(self, tx: DynamicState) -> str:
        """Why clients of this broker have to wait for the decision, as a person is told."""
        return f"voted yes, waits for {self.decision_path(tx)}"

    def transactions(self) -> Collection[TxID]:
        return self.txs

    # --- preparing ---

    def prepare(self, tx: DynamicState, now: float) -> list[Effect]:
        """The coordinator wants the commit and all operations are done: ask for the votes."""
        return self._prepare(tx.upstream, Prepare(tx.id), now)

    def _asked_to_vote(self, source: Hop, prepare: Prepare, now: float) -> list[Effect]:
        tx = self.txs.get(prepare.tx)
        if tx is None or tx.upstream != source:
            # This broker was restarted since it began.
            return self.send((source,), Vote(prepare.tx, "broker", f"{self.broker.name} forgot it"))
        if tx.open:
            self.check_phase(source, tx, prepare)
        return self._prepare(source, prepare, now)

    def _prepare(self, source: Hop, prepare: Prepare, now: float) -> list[Effect]:
        tx = self._known(prepare.tx, source)
        if not tx.open:
            return []
        tx.status = "preparing"
        self.preparing[tx.id] = tx
        tx.awaited = set(self.others(tx))
        # Forwarded before this broker has made up its mind: waiting happens side by side.
        return [*self.send(self.others(tx), prepare), *self._look_again(tx, now)]

    def _look_again(self, tx: DynamicState, now: float) -> list[Effect]:
        if tx.status == "preparing" and tx.verdict is None:
            tx.verdict = ABORT_REQUESTED if tx.abort_requested else self.judge(tx)
        return self._answer(tx, now)

    def _voted(self, source: Hop, vote: Vote, now: float) -> list[Effect]:
        tx = self.txs.get(vote.tx)
        if tx is None or not tx.open:
            return []
        self.check_phase(source, tx, vote)
        self.check_awaited(source, tx, vote)
        tx.awaited.discard(source)
        verdict = Verdict(vote.code, vote.reason, vote.to)
        if not verdict.code:
            verdict = self.accepts_yes(tx, source)
        if verdict.code:
            tx.verdict = verdict
        return self._answer(tx, now)

    def _answer(self, tx: DynamicState, now: float) -> list[Effect]:
        """Vote, or at the coordinator's edge decide: a no at once, a yes when all have said so."""
        if tx.verdict == YES and not tx.voted:
            tx.verdict = self.confirms_yes(tx)
        verdict = tx.verdict
        if verdict is None or tx.voted or tx.status != "preparing":
            return []
        if not verdict.code and tx.awaited:
            return []
        tx.voted = True
        verdict = verdict._replace(reason=shortened(verdict.reason))
        if tx.at_edge:
            return self.spread(tx, Decide(tx.id, not verdict.code, *verdict), now)
        if not verdict.code:
            self.voted_yes(tx)
        return self.send((tx.upstream,), Vote(tx.id, *verdict))

    # --- the decision ---

    def request_abort(
        self, tx: DynamicState, code: str, reason: str, now: float, *, to: str = ""
    ) -> list[Effect]:
        """The transaction cannot be carried out: abort it, or tell who can.

        `to` is the client whose transaction or operation it has lost to, if one is known.
        """
        if tx.abort_requested or not tx.open:
            return []
        tx.abort_requested = True
        reason = shortened(reason)
        if tx.at_edge:
            return self.spread(tx, Decide(tx.id, False, code, reason, to), now)
        return self.send((tx.upstream,), AbortRequest(tx.id, code, reason, to))

    def _abort_requested(self, source: Hop, request: AbortRequest, now: float) -> list[Effect]:
        tx = self.txs.get(request.tx)
        if tx is None:
            return []
        return self.request_abort(tx, request.code, request.reason, now, to=request.to)

    def _decide_here(self, source: Hop, decide: Decide, now: float) -> list[Effect]:
        tx = self.txs.get(decide.tx)
        if tx is None:
            # Forgotten with this broker's former life, or never begun here (`_init`).
            if is_elsewhere(self.broker, source, decide.tx):
                return self.send((source,), Decided(decide.tx))
            return [*self._remember(decide, now), *self.send((source,), Decided(decide.tx))]
        if tx.upstream != source and tx.open:
            raise ProtocolError(f"{source} does not decide {tx_text(decide.tx)}")
        if tx.gave_up and tx.upstream == source:
            if decide.committed:
                raise ProtocolError(f"{source} commits {tx_text(tx.id)} without our yes")
            tx.gave_up = tx.orphan = False
            return self.acknowledge(tx, now)
        if not tx.open:
            if tx.orphan and tx.upstream == source and not tx.forgotten:
                # The link was lost and not the neighbour's memory: Decided goes there, after all.
                tx.orphan = False
                return []
            return self.send((source,), Decided(decide.tx))
        if decide.committed and not self.is_bound(tx):
            raise ProtocolError(f"{source} commits {tx_text(tx.id)} without our yes")
        tx.orphan = False
        return self.spread(tx, decide, now)

    def _remember(self, decide: Decide, now: float) -> list[Effect]:
        """Keep the outcome of a transaction that this broker knows nothing else of."""
        if self.outcome(decide.tx, now) is None:
            self.ended.add(
                decide.tx,
                committed=decide.committed,
                code=decide.code,
                reason=decide.reason,
                began_at=now,
                now=now,
            )
        return self.questions.decided(decide.tx, now)

    def spread(self, tx: DynamicState, decide: Decide, now: float) -> list[Effect]:
        """Make a decision count here, and pass it on."""
        assert tx.open, "a decision is final"
        tx.ended = self.ended.add(
            tx.id,
            committed=decide.committed,
            code=decide.code,
            reason=decide.reason,
            began_at=tx.began_at,
            now=now,
            edge=tx.at_edge,
            clients=[hop[1:] for hop in tx.effective],
            alone=tx.alone,
        )
        tx.status = "committed" if decide.committed else "aborted"
        self.preparing.pop(tx.id, None)
        tx.awaited = set(self.others(tx))
        tx.tasks = Tasks()
        tx.frames.clear()
        effects: list[Effect] = [CancelTimer(f"{self.name}/{tx_text(tx.id)}")]
        if tx.at_edge:
            self.ended_here(tx, decide, now)
        effects += self._trace("decide", tx, now)
        effects += self.decided(tx, now)
        effects += self.send(self.others(tx), decide)
        if decide.committed and tx.changes:
            effects += self.broker.routes_changed(tx.changes, now)
        if decide.committed:
            effects += self._deliver(tx, now)
        for hop, changes in tx.effective.items():
            effective = tuple(changes) if decide.committed else ()
            ended = Ended(tx.id, decide.committed, decide.code, decide.reason, effective)
            effects.append(self.tell(hop, ended))
        tx.clear()
        for other in list(self.preparing.values()):
            if other.verdict is None:
                effects += self._look_again(other, now)
        effects += self.questions.decided(tx.id, now)
        effects += self.broker.release(now)
        return effects + self.acknowledge(tx, now)

    def _deliver(self, tx: DynamicState, now: float) -> list[Effect]:
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
        return self.acknowledge(tx, now)

    def acknowledge(self, tx: DynamicState, now: float) -> list[Effect]:
        """When all behind this broker have the decision, say so; at the edge, that was all."""
        if not self.is_carried_out(tx):
            return []
        if tx.awaited or tx.forgotten or (tx.gave_up and not tx.orphan):
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
        if tx.forgotten:
            return []  # This side was cut off, and has let it go by itself.
        tx.forgotten = True
        if tx.ended is not None:
            # From here on nothing else tells of it. A broker that was away may still ask.
            self.ended.keep(tx.ended, now)
        effects = [*self.send(self.others(tx), forget), *self._trace("end", tx, now)]
        if tx.status == "committed":
            effects += [self.tell(hop, Drained(tx.id)) for hop in tx.effective]
        return effects + self.forgotten(tx, now)

    # --- a side that is cut off from the coordinator's edge broker ---

    def left_s(self, tx: DynamicState, now: float) -> float:
        """What is left of a deadline, at the coordinator's edge broker."""
        return max(tx.deadline_at - now, 0.0)

    def time_limit(self, tx_id: TxID, deadline_s: float) -> list[Effect]:
        """Act on a transaction's deadline here, in case that its decision does not come.

        Raises ProtocolError if that is no deadline.
        """
        if not 0 <= deadline_s <= DEADLINE_LIMIT_S:
            raise ProtocolError(f"{tx_text(tx_id)} has a deadline of {deadline_s} s")
        delay_s = deadline_s + OVERDUE_AFTER_S
        return [SetTimer(f"{self.name}/{tx_text(tx_id)}", delay_s)] if deadline_s else []

    def overdue(self, tx: DynamicState, now: float) -> list[Effect]:
        """The deadline has passed and the decision has not come: end it here, or say why not."""
        if self.is_bound(tx):
            if tx.in_doubt:
                return []
            tx.in_doubt = True
            told = InDoubt(tx.id, self._decider(tx), self.doubt(tx))
            return [self.tell(hop, told) for hop in tx.effective]
        reason = shortened(f"not decided by its deadline: {self.decision_path(tx)}")
        effects: list[Effect] = []
        if not tx.abort_requested:
            effects += self.send((tx.upstream,), AbortRequest(tx.id, "deadline", reason))
        tx.gave_up = True
        return effects + self.spread(tx, Decide(tx.id, False, "deadline", reason), now)

    def decision_path(self, tx: DynamicState) -> str:
        """Where the decision has to come from, as a person is told."""
        missing = inspection.missing(self.broker.reach, [tx.upstream])
        decider = self._decider(tx)
        way = f"the decision from {decider}"
        if decider != tx.upstream:
            way += f" via {tx.upstream}"
        return f"{way}; {missing}" if missing else way

    def _decider(self, tx: DynamicState) -> str:
        home = self.routing.crt.get(ClientName(tx.id[0]))
        return str(home.edge) if home is not None else f"the broker of {tx.id[0]}"

    # --- small things ---

    def others(self, tx: DynamicState) -> tuple[Hop, ...]:
        """The neighbours on the far side from the coordinator."""
        return tuple(hop for hop in self.routing.neighbours if hop != tx.upstream)

    @staticmethod
    def check_phase(source: Hop, tx: DynamicState, message: AnyDynamicMessage) -> None:
        """Raises ProtocolError if a neighbour may not send that of a transaction now (`PHASES`)."""
        if tx.status not in PHASES[type(message)]:
            kind = type(message).__name__
            raise ProtocolError(f"{source} sent {kind} for {tx_text(tx.id)}, which is {tx.status}")

    @staticmethod
    def check_awaited(source: Hop, tx: DynamicState, message: AnyDynamicMessage) -> None:
        """Raises ProtocolError if a neighbour answers what it was not asked, or a second time."""
        if source not in tx.awaited:
            kind = type(message).__name__
            raise ProtocolError(f"{source} sent {kind} for {tx_text(tx.id)}, and was not asked")

    def _known(self, tx_id: TxID, source: Hop) -> DynamicState:
        tx = self.txs.get(tx_id)
        if tx is None or tx.upstream != source:
            raise ProtocolError(f"{source} does not speak for {tx_text(tx_id)}")
        return tx

    def send(self, hops: tuple[Hop, ...], message: AnyDynamicMessage) -> list[Effect]:
        if not hops:
            return []
        return [Send(hops, engine_message(self.name, codec.encode(message)))]

    def tell(self, hop: Hop, message: ToClient) -> Effect:
        return Send((hop,), engine_message(self.name, to_client.encode(message)))

    def _trace(self, kind: Any, tx: DynamicState, now: float) -> list[Effect]:
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


def cannot_begin(broker: Broker, source: Hop, tx: TxID, known: int) -> str:
    """Why a neighbour's transaction cannot begin at a broker that knows so many; "" if it can."""
    if is_elsewhere(broker, source, tx):
        return f"{tx[0]} is not behind {source}"
    return f"{broker.name} knows {TX_LIMIT} transactions already" if known >= TX_LIMIT else ""


def is_elsewhere(broker: Broker, source: Hop, tx: TxID) -> bool:
    """Whether a transaction's coordinator is here, or behind another neighbour than this one.

    That is no proof of a mistake of the neighbour, not even for a client of this broker: a broker
    knows only from its neighbours where clients are, and passes on what another one has made up as
    long as it does not know better. So nothing comes of it, and no link is closed for it.
    """
    home = broker.routing.crt.get(ClientName(tx[0]))
    return home is not None and home.life == tx[1] and home.hop != source
