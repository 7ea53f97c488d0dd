"""S-TX: static transactions, known as a whole to the coordinator (Section 6, with corrections).

Guessing from the tables which of the operations that one depends on will come to a broker fails
(on publications, on concurrent (un-)advertisements, on triggered subscriptions). So here no broker
guesses. The *span* of a transaction is the subtree that joins the edge brokers of its clients:

    Plan      goes over the span: every broker in it knows all operations and their order.
    Admitted  each edge broker works out at once what the operations of its clients change, on
              their behalf, and says so over the span; or it refuses: a client is not there, holds
              no part of what it is to un-subscribe, does not hear its tcm. This is the vote.
    DecidePlan  by the coordinator's edge broker, when all have answered: over the span. Links are
              FIFO and the span is a tree, so a broker that has it has all that was admitted.

Only then are the operations carried out, at each broker of the span at once and in the order of
their dependencies, so that no broker ever sees one without what comes before it, and a publication
after the commit finds all of them. An abort has nothing to undo: nothing was done. (The paper
works on the tables from the start and compensates. Its clients see publications at commit anyway,
so waiting costs no delay, and saves every observer from what is later taken back.)

What the overlay itself triggers is ordered as well: an (un-)advertisement goes out from its
client's edge broker as a plain one does, and is complete when every broker and every subscription
that it attracts or sends back have answered; `Complete` says so over the span, and what depends on
it waits for that.

`PlanCarriedOut` converges when all is done, outside the span as well, and `PlanSettled` floods the
span: until then a D-TX that reads these operations in one place might not find them in another, and
loses.

The routing state is the shared one, per-client numbered, so it converges whatever else goes on.
While a transaction is undecided, what was admitted for its clients is reserved: plain operations
of these clients that overlap it wait, and other transactions on it are refused.

**Long plans.** A plan of more steps than a slice has units (`overlay.broker.turns`) is worked on in
slices everywhere, so that other messages need not wait:

- Plans travel as they were submitted, and each broker decodes the steps slice by slice.
- An edge broker admits some steps, reserves their entries, and sends them on as a part of its
answer.
  What happens between two parts may concern only steps that are not admitted yet, and is judged as
  if it had come before the plan. A client that leaves meanwhile makes its edge broker refuse.
- A broker carries it out in its turn in the queue of operations (`Broker.in_turn`). Operations that
  arrive meanwhile and could meet it are carried out after it, as if it had been done at once: so
  the tables converge by the same argument. Others pass.
- Publications do not wait, so at one broker they can find a part of a long plan carried out, as
  at two brokers they can of a short one. Hence clients hear nothing of it until every broker of the
  span has carried it out: the outcome, publications and `Applied` come with PlanSettled. Up to then
  its entries stay reserved. So what they do because of it still finds all of it. (Publications that
  leave the span do not wait, or operations that come after them would be there first.)
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from overlay.broker.core import Broker
from overlay.broker.engine import Undecided
from overlay.broker.turns import Worked
from overlay.effects import CancelTimer, Close, Effect
from overlay.errors import ProtocolError
from overlay.messages import ClientName, Hop, Leave, Operation, client_hop, is_client
from overlay.stored import stored
from overlay.tables.routing import Outcome
from padres_tx.client_messages import (
    Abort,
    Applied,
    AskOutcome,
    Ended,
    InDoubt,
    TxID,
    parse_tx,
    tx_text,
)
from padres_tx.protocol import inspection, static_state
from padres_tx.protocol.broker_messages import Answer, Ask, BrokerMessage, shortened
from padres_tx.protocol.plan_execution import PlanExecution
from padres_tx.protocol.static_state import (
    Admitted,
    Complete,
    DecidePlan,
    PlanCarriedOut,
    PlanSettled,
    Preparation,
    Refusal,
    StaticState,
    UnreadPlan,
    UnreadSubmit,
)


@stored("s-tx", fields=("_spreading",))
class STx(PlanExecution):
    """S-TX at one broker."""

    name = "s-tx"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        #: The (un-)advertisements of what is committed and not settled, by client and number.
        self._spreading: dict[tuple[str, int], StaticState] = {}

    # --- the broker's inputs (overlay.broker.engine.Engine) ---

    def receive(self, source: Hop, body: msgspec.Raw, now: float) -> list[Effect]:
        message = static_state.unread.decode(body)
        if isinstance(message, BrokerMessage) == is_client(source):
            raise ProtocolError(f"{source} may not say {type(message).__name__}")
        if is_client(source):
            self.broker.check_client(source, source[1:])
        match message:
            case UnreadSubmit():
                return self._submit(source, message, now)
            case Abort():
                return self._abort(source, message, now)
            case UnreadPlan():
                return self._plan(source, message, now)
            case Admitted():
                return self._answered(source, message, now)
            case DecidePlan():
                return self._decide(source, message, now)
            case Complete():
                return self._told_complete(source, message, now)
            case PlanCarriedOut():
                return self._decided(source, message, now)
            case PlanSettled():
                return self._settled(source, message, now)
            case Ask() | AskOutcome():
                return self.asked(source, message, now)
            case Answer():
                return self.questions.answered(source, message, now)
        raise ProtocolError(f"{self.name} takes no {type(message).__name__}")

    def wake(self, key: str, now: float) -> list[Effect]:
        tx_id = parse_tx(key)
        tx = self.txs.get(tx_id) if tx_id is not None else None
        if tx is None:
            return []
        if not (tx.open and tx.at_edge):
            return self._overdue(tx)
        reason = f"no answer from {self._unanswered(tx) or self.broker.name}"
        return self.spread(tx, DecidePlan(tx.id, False, "deadline", reason), now)

    def _overdue(self, tx: StaticState) -> list[Effect]:
        """The deadline has passed. What is admitted here may be committed elsewhere, and what is
        committed has its order: so clients can only be told whom they wait for."""
        if tx.status == "aborted" or (tx.status == "finished" and not tx.long):
            return []
        edge = tx.edges[tx.id[0]]
        missing = inspection.missing(self.broker.reach, tx.span)
        waits = f"committed, waits for {len(tx.unread) - len(tx.handled)} operations"
        if tx.status == "finished":
            waits = "carried out here, waits for other brokers"
        if tx.open:
            missing = inspection.missing(self.broker.reach, [tx.upstream])
            waits = f"admitted its part, waits for the decision from {edge}"
            if edge != tx.upstream:
                waits += f" via {tx.upstream}"
        told = InDoubt(tx.id, edge, f"{waits}; {missing}" if missing else waits)
        here = [client for client, at in tx.edges.items() if at == self.broker.name]
        return [self._tell(client_hop(client), told) for client in here]

    def client_left(self, client: str, now: float) -> list[Effect]:
        # What was admitted for it is decided without it; `reserves` keeps it reserved until then.
        self.questions.client_left(client)
        effects: list[Effect] = []
        for tx in list(self._admitting.values()):
            if tx.planned is not None and client in tx.planned:
                refusal = Refusal("left", f"{client} not connected")
                effects += self._refuse(tx, refusal, now)
        return effects

    def link_reset(self, neighbour: Hop, now: float) -> list[Effect]:
        """A neighbour has lost its memory: what is not decided is aborted.

        What is committed is carried out without the clients behind it, which are gone. A side
        that is cut off from the coordinator aborts alone, and the coordinator's edge broker may
        just have committed: to carry that out late, this side would lack what clients beyond the
        lost broker do in it. That is left to durable brokers.
        """
        effects = self.questions.link_reset(neighbour, now)
        for tx in list(self.txs.values()):
            if neighbour not in tx.span:
                continue
            reason = f"broker {neighbour} was restarted"
            tx.span = tuple(hop for hop in tx.span if hop != neighbour)
            # They may be back before the decision comes, but know nothing of this any more.
            tx.lost.update(name for name in tx.edges if ClientName(name) not in self.routing.crt)
            if tx.open and (tx.at_edge or tx.upstream == neighbour):
                tx.alone = not tx.at_edge
                effects += self.spread(tx, DecidePlan(tx.id, False, "broker", reason), now)
            elif tx.open:
                refused = Admitted(tx.id, self.broker.name, {}, code="broker", reason=reason)
                effects += self._send((tx.upstream,), refused)
            elif tx.acknowledged:
                if tx.upstream == neighbour:  # No other broker will say that it is settled.
                    effects += self._settle(tx, now)
            else:
                tx.awaited.discard(neighbour)
                for at in tx.order if tx.status == "committed" else ():
                    if at not in tx.handled and not self._home(tx, at):
                        effects += self._complete(neighbour, Complete(tx.id, at), now)
                effects += self.acknowledge(tx, now)
        return effects

    def reserves(self, source: Hop, message: Operation | Leave) -> bool:
        return self.reserved.reserves(source, message)

    def operation_applied(
        self, source: Hop, message: Operation | Leave, outcome: Outcome | None
    ) -> None:
        """A client that leaves when its steps are admitted was lost with a broker or a link. If it
        is known again when they are carried out, its edge broker has given them up."""
        if isinstance(message, Leave):
            for tx in self.txs.values():
                edge = tx.edges.get(message.client)
                if edge is not None and edge not in tx.unanswered:
                    tx.lost.add(message.client)

    def requires_answers(self, operation: Operation) -> Collection[Hop]:
        """What depends on an (un-)advertisement is carried out at all brokers of the span, and what
        it moves there comes first; so no broker of the span is left out."""
        tx = self._spreading.get((operation.client, operation.seq))
        return tx.span if tx is not None else ()

    def transactions(self) -> Collection[TxID]:
        return self.txs

    def undecided(self) -> list[Undecided]:
        """What is admitted here, and what may not be carried out everywhere yet."""
        return [
            Undecided(tx.id, tx.own_footprint if tx.open else tx.footprint)
            for tx in self.txs.values()
            if tx.status != "aborted"
        ]

    def reserved_by(self, operation: Operation, *, other_than: TxID) -> TxID | None:
        return self.reserved.by_others(other_than, operation)

    def lets_pass(self, context: Any, source: Hop, operation: Operation) -> bool:
        """What comes from a neighbour in the span was sent after that one had carried out the steps
        that are still to be done here. It must find them done where it could meet them: an
        (un-)advertisement, which moves subscriptions, and a message about a step's own entry."""
        tx: StaticState = context
        if source not in tx.span:
            return True
        return operation.kind in ("sub", "usub") and not self.owns(tx, operation)

    def owns(self, context: Any, operation: Operation) -> bool:
        tx: StaticState = context
        numbers = (operation.seq, *operation.drop)
        return any((operation.client, number) in tx.entries for number in numbers)

    def work(self, context: Any, now: float) -> Worked:
        tx: StaticState = context.tx if isinstance(context, Preparation) else context
        try:
            if context is tx:
                return self._run(tx, now)
            # When it is decided, the steps that are not read yet are read in its turn.
            return self._prepare(tx, now) if not tx.queued else Worked([])
        except ProtocolError as error:  # It has been forwarded; who sent it cannot be trusted.
            self._give_up(tx)
            effects: list[Effect] = [Close(tx.upstream, error.code, str(error))]
            if tx.at_edge:
                effects.append(CancelTimer(f"{self.name}/{tx_text(tx.id)}"))
            return Worked(effects)

    def _give_up(self, tx: StaticState) -> None:
        """Know nothing of a plan any more that cannot be carried out. No client of this broker is
        in it: their edge broker reads a plan before it answers."""
        if self.txs.get(tx.id) is tx:
            self._drop(tx)
        self.reserved.release(tx.id)
        self._stop_spreading(tx)

    def inspect(self, argument: str, now: float) -> tuple[Any, list[Effect]]:
        return inspection.answer(
            argument,
            self.txs.values(),
            self.ended,
            engine=self.name,
            broker=self.broker.name,
            now=now,
            describe=lambda tx: self._describe(tx, now),
            abort=lambda tx, code, reason: self.spread(
                tx, DecidePlan(tx.id, False, code, reason), now
            ),
        )

    def _describe(self, tx: StaticState, now: float) -> dict[str, Any]:
        waits = "the decision"
        if not tx.open:
            left = len(tx.unread) - len(tx.handled)
            waits = f"{left} operations" if left else "brokers that carry it out"
            if not left and tx.awaited:
                waits = inspection.awaited(self.broker.reach, tx.awaited)
            elif left and (missing := inspection.missing(self.broker.reach, tx.span)):
                waits = f"{waits}; {missing}"
        elif tx.unanswered:
            waits = f"brokers {self._unanswered(tx)}"
        return inspection.description(
            tx, engine=self.name, waits_for=waits, clients=tx.edges, now=now
        )

    def _unanswered(self, tx: StaticState) -> str:
        """The edge brokers that have not answered, and who cannot be reached on the way there."""
        homes = (self.routing.crt.get(ClientName(name)) for name in tx.edges)
        hops = {home.hop for home in homes if home and home.edge in tx.unanswered}
        names = ", ".join(sorted(tx.unanswered))
        missing = inspection.missing(self.broker.reach, hops)
        return f"{names}; {missing}" if missing else names

    # --- the decision ---

    def _abort(self, source: Hop, abort: Abort, now: float) -> list[Effect]:
        tx = self.txs.get(abort.tx)
        if tx is not None and tx.upstream == source and not tx.open:
            return []  # Too late: the outcome is on its way.
        ended = self.outcome(abort.tx, now)
        if tx is None and ended is not None and abort.tx[0] == source[1:]:
            return [self._tell(source, Ended(ended.tx, ended.committed, ended.code, ended.reason))]
        if tx is None or tx.upstream != source:
            name = tx_text(abort.tx)
            reason = f"{source[1:]} coordinates no open transaction {name}"
            return [self._tell(source, Ended(abort.tx, False, "unknown", reason))]
        reason = abort.reason or f"{source[1:]} aborted it"
        return self.spread(tx, DecidePlan(tx.id, False, "aborted", reason), now)

    def _decide(self, source: Hop, decide: DecidePlan, now: float) -> list[Effect]:
        tx = self.txs.get(decide.tx)
        if tx is None:
            return self._send((source,), PlanCarriedOut(decide.tx))
        if not tx.open or tx.upstream != source:
            raise ProtocolError(f"{source} does not decide {tx_text(decide.tx)}")
        if decide.committed and tx.unanswered:
            raise ProtocolError(f"{source} commits {tx_text(tx.id)} before all have answered")
        return self.spread(tx, decide, now)

    def spread(self, tx: StaticState, decide: DecidePlan, now: float) -> list[Effect]:
        """Make a decision count here, and pass it on."""
        assert tx.open, "a decision is final"
        decide = msgspec.structs.replace(decide, reason=shortened(decide.reason))
        self._stop_admitting(tx)
        tx.status = "committed" if decide.committed else "aborted"
        tx.ended = self.ended.add(
            tx.id,
            committed=decide.committed,
            code=decide.code,
            reason=decide.reason,
            began_at=tx.began_at,
            now=now,
            edge=tx.at_edge,
            clients=tx.edges,
            alone=tx.alone,
        )
        beyond = self._beyond(tx, tx.upstream)
        tx.awaited = set(beyond)
        effects: list[Effect] = []
        if not decide.committed:
            effects.append(CancelTimer(f"{self.name}/{tx_text(tx.id)}"))
        effects += self._trace("decide", tx, now)
        effects += self._send(beyond, decide)
        effects += self.questions.decided(tx.id, now)
        if decide.committed:
            for operation in tx.operations.values():
                if operation.kind in ("adv", "uadv"):
                    self._spreading[operation.client, operation.seq] = tx
            return effects + self.carry_on(tx, now)
        self.reserved.release(tx.id)
        effects += self._tell_clients(tx, decide)
        effects += self.broker.release(now)
        return effects + self.acknowledge(tx, now)

    def _decided(self, source: Hop, decided: PlanCarriedOut, now: float) -> list[Effect]:
        tx = self.txs.get(decided.tx)
        if tx is None:
            return []
        tx.awaited.discard(source)
        return self.acknowledge(tx, now)

    def acknowledge(self, tx: StaticState, now: float) -> list[Effect]:
        """When all behind this broker have carried the decision out, say so."""
        if tx.awaited or tx.outside or tx.acknowledged:
            return []
        if tx.status not in ("aborted", "finished"):
            return []
        tx.acknowledged = True
        effects = self._trace("end", tx, now)
        if tx.upstream in tx.span:
            effects += self._send((tx.upstream,), PlanCarriedOut(tx.id))
            if tx.status == "aborted":
                del self.txs[tx.id]
            return effects
        return effects + self._settle(tx, now)

    def _settled(self, source: Hop, settled: PlanSettled, now: float) -> list[Effect]:
        tx = self.txs.get(settled.tx)
        if tx is None or tx.upstream != source or not tx.acknowledged:
            return []  # This broker was restarted since.
        return self._settle(tx, now)

    def _settle(self, tx: StaticState, now: float) -> list[Effect]:
        """Let a transaction go, and say so to those behind; an abort they have let go before."""
        del self.txs[tx.id]
        if tx.ended is not None:
            self.ended.keep(tx.ended, now)  # From here on nothing else tells of it.
        if tx.status == "aborted":
            return []
        self._stop_spreading(tx)
        effects = self._send(self._beyond(tx, tx.upstream), PlanSettled(tx.id))
        if tx.long:
            for routed in tx.kept:
                effects += self._deliver(tx, routed, now)
            effects += self._make_known(tx, now)
        if tx.at_edge:
            effects.append(self._tell(tx.upstream, Applied(tx.id)))
        return effects + self.broker.settled(now)

    def _stop_spreading(self, tx: StaticState) -> None:
        for operation in tx.operations.values():
            self._spreading.pop((operation.client, operation.seq), None)
