"""S-TX: static transactions, known as a whole to the coordinator (Section 6, with corrections).

Guessing from the tables which of the operations that one depends on will come to a broker fails
(on publications, on concurrent (un-)advertisements, on triggered subscriptions). So here nobody
guesses. The *span* of a transaction is the subtree that joins the edge brokers of its clients:

    Plan      goes over the span: every broker in it knows all operations and their order.
    Admitted  each edge broker works out at once what the operations of its clients change, on
              their behalf, and says so over the span; or it refuses: a client is not there, holds
              no part of what it is to un-subscribe, does not hear its tcm. This is the vote.
    Decide    by the coordinator's edge broker, when all have answered: over the span. Links are
              FIFO and the span is a tree, so whoever hears it has heard all that was admitted.

Only then are the operations carried out, at each broker of the span at once and in the order of
their dependencies, so that no broker ever sees one without what comes before it, and a publication
after the commit finds all of them. An abort has nothing to undo: nothing was done. (The paper
works on the tables from the start and compensates. Its clients see publications at commit anyway,
so waiting costs no delay, and saves every observer from what is later taken back.)

What the overlay itself triggers is ordered as well: an (un-)advertisement goes out from its
client's edge broker as a plain one does, and is complete when every broker and every subscription
that it attracts or sends back have answered; `Complete` says so over the span, and what depends on
it waits for that.

`Decided` converges when all is done, outside the span as well, and `Settled` floods the span: until
then a D-TX that reads these operations in one place might not find them in another, and loses.

The routing state is the shared one, per-client numbered, so it converges whatever else goes on.
While a transaction is undecided, the words that its clients have admitted are theirs alone: plain
operations of these clients that overlap them wait, other transactions on them are refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from overlay.broker import Broker
from overlay.effects import CancelTimer, Effect, Send, SetTimer
from overlay.errors import FilterError, OperationError, ProtocolError
from overlay.messages import ClientName, Hop, Leave, Operation, Pub, client_hop, is_client
from overlay.routing import Outcome
from padres_tx import inspection
from padres_tx.admission import Conflict, Words, in_order
from padres_tx.broker_wire import Answer, Ask, Between
from padres_tx.compensation import Undo, reserved_by_others, reserves
from padres_tx.conflicts import Footprint
from padres_tx.outcomes import REUSED, EndedTx, Outcomes
from padres_tx.questions import Questions
from padres_tx.static_tx import (
    Admitted,
    AnyBetween,
    Complete,
    Decide,
    Decided,
    Plan,
    Refusal,
    Settled,
    Tx,
    codec,
)
from padres_tx.two_phase import OVERDUE_AFTER_S, something_decided
from padres_tx.wire import (
    DEADLINE_LIMIT_S,
    TX_LIMIT,
    Abort,
    Applied,
    AskOutcome,
    Effective,
    Ended,
    InDoubt,
    Step,
    Submit,
    ToClient,
    TxID,
    engine_message,
    parse_tx,
    to_client,
    tx_text,
)

#: Operations that one static transaction may have: it must fit in a frame, and be handled at once.
STEP_LIMIT = 1000

#: Publications that an edge broker makes for a client are numbered from here on: no client will
#: ever have published so much itself.
PLANNED = 1 << 48


class STx:
    """S-TX at one broker."""

    name = "s-tx"

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.routing = broker.routing
        self.txs: dict[TxID, Tx] = {}
        #: What was admitted for clients of this broker and is not carried out yet.
        self.reserved: dict[TxID, list[Undo]] = {}
        self.ended = Outcomes()
        self.questions = Questions(self)
        #: The (un-)advertisements of what is committed and not settled, by client and number.
        self._spreading: dict[tuple[str, int], Tx] = {}

    # --- the broker's inputs (overlay.engine.Engine) ---

    def receive(self, source: Hop, body: msgspec.Raw, now: float) -> list[Effect]:
        message = codec.decode(body)
        if isinstance(message, Between) == is_client(source):
            raise ProtocolError(f"{source} may not say {type(message).__name__}")
        if is_client(source):
            self.broker.check_client(source, source[1:])
        match message:
            case Submit():
                return self._submit(source, message, now)
            case Abort():
                return self._abort(source, message, now)
            case Plan():
                return self._plan(source, message, now)
            case Admitted():
                return self._admitted(source, message, now)
            case Decide():
                return self._decide(source, message, now)
            case Complete():
                return self._complete(source, message, now)
            case Decided():
                return self._decided(source, message, now)
            case Settled():
                return self._settled(source, message, now)
            case Ask() | AskOutcome():
                return self.questions.ask(source, message.tx, now)
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
        reason = f"no answer from {self._unanswered(tx)}"
        return self._spread(tx, Decide(tx.id, False, "deadline", reason), now)

    def _overdue(self, tx: Tx) -> list[Effect]:
        """The deadline has passed. What is admitted here may be committed elsewhere, and what is
        committed has its order: so clients can only be told whom they wait for."""
        if tx.status not in ("planned", "committed"):
            return []
        edge = tx.edges[tx.id[0]]
        missing = inspection.missing(self.broker.reach, tx.span)
        waits = f"committed, waits for {len(tx.steps) - len(tx.handled)} operations"
        if tx.open:
            missing = inspection.missing(self.broker.reach, [tx.upstream])
            waits = f"admitted its part, waits for the decision from {edge}"
            if edge != tx.upstream:
                waits += f" via {tx.upstream}"
        told = InDoubt(tx.id, edge, f"{waits}; {missing}" if missing else waits)
        here = [client for client, at in tx.edges.items() if at == self.broker.name]
        return [self._tell(client_hop(client), told) for client in here]

    def client_left(self, client: str, now: float) -> list[Effect]:
        # What was admitted for it is decided without it; `holds` keeps its words until then.
        self.questions.client_left(client)
        return []

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
                effects += self._spread(tx, Decide(tx.id, False, "broker", reason), now)
            elif tx.open:
                refused = Admitted(tx.id, self.broker.name, {}, code="broker", reason=reason)
                effects += self._send((tx.upstream,), refused)
            elif tx.acknowledged:
                if tx.upstream == neighbour:  # Nobody else will say that it is settled.
                    effects += self._settle(tx, now)
            else:
                tx.awaited.discard(neighbour)
                for at in tx.order if tx.status == "committed" else ():
                    if at not in tx.handled and not self._home(tx, at):
                        effects += self._complete(neighbour, Complete(tx.id, at), now)
                effects += self._acknowledge(tx, now)
        return effects

    def reserves(self, source: Hop, message: Operation | Leave) -> bool:
        return reserves(self.reserved, source, message)

    def holds(self, source: Hop, message: Operation | Leave) -> bool:
        return False

    def passed(self, source: Hop, message: Operation | Leave, outcome: Outcome | None) -> None:
        """Who leaves when its steps are admitted was lost with a broker or a link. Should it be
        known again when they are carried out: its edge broker has given them up."""
        if isinstance(message, Leave):
            for tx in self.txs.values():
                edge = tx.edges.get(message.client)
                if edge is not None and edge not in tx.unanswered:
                    tx.lost.add(message.client)

    def insists(self, operation: Operation) -> Collection[Hop]:
        """What depends on an (un-)advertisement is carried out at all brokers of the span, and what
        it moves there comes first; so nobody of the span is left out."""
        tx = self._spreading.get((operation.client, operation.seq))
        return tx.span if tx is not None else ()

    def keeps(self, neighbour: Hop) -> bool:
        return False

    def undecided(self) -> list[tuple[str, Footprint]]:
        """What is admitted here, and what may not be carried out everywhere yet: an isolated
        transaction that reads it here might not find it elsewhere, and has to wait its turn."""
        found: list[tuple[str, Footprint]] = []
        for tx in self.txs.values():
            if tx.status == "aborted":
                continue
            footprint = Footprint()
            if tx.open:
                for undo in self.reserved.get(tx.id, ()):
                    footprint.operation(undo.operation)
            else:
                for operation in tx.operations.values():
                    footprint.operation(operation)
            found.append((tx_text(tx.id), footprint))
        return found

    def inspect(self, argument: str, now: float) -> tuple[Any, list[Effect]]:
        return inspection.answer(
            argument,
            self.txs.values(),
            self.ended,
            engine=self.name,
            broker=self.broker.name,
            now=now,
            describe=lambda tx: self._describe(tx, now),
            abort=lambda tx, code, reason: self._spread(
                tx, Decide(tx.id, False, code, reason), now
            ),
        )

    def _describe(self, tx: Tx, now: float) -> dict[str, Any]:
        waits = "the decision"
        if not tx.open:
            left = len(tx.steps) - len(tx.handled)
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

    def _unanswered(self, tx: Tx) -> str:
        """The edge brokers that have not answered, and who cannot be reached on the way there."""
        homes = (self.routing.crt.get(ClientName(name)) for name in tx.edges)
        hops = {home.hop for home in homes if home and home.edge in tx.unanswered}
        names = ", ".join(sorted(tx.unanswered))
        missing = inspection.missing(self.broker.reach, hops)
        return f"{names}; {missing}" if missing else names

    # --- planning ---

    def _submit(self, source: Hop, submit: Submit, now: float) -> list[Effect]:
        client = source[1:]
        if submit.tx[:2] != (client, self.broker.life_of(source)) or submit.tx in self.txs:
            raise ProtocolError(f"{source} cannot begin {tx_text(submit.tx)}")
        reason = REUSED if self.outcome(submit.tx, now) else self._impossible(submit)
        if reason:
            return [self._tell(source, Ended(submit.tx, False, "refused", reason))]
        asked = [name for step in submit.steps for name in (step.client, *step.receivers)]
        clients = dict.fromkeys([client, *asked])
        unknown = [name for name in clients if ClientName(name) not in self.routing.crt]
        if unknown:
            reason = f"{', '.join(unknown)} not connected"
            return [self._tell(source, Ended(submit.tx, False, "left", reason))]
        edges = {name: str(self.routing.crt[ClientName(name)].edge) for name in clients}
        plan = Plan(submit.tx, submit.steps, edges, submit.deadline_s)
        timer = SetTimer(f"{self.name}/{tx_text(submit.tx)}", submit.deadline_s)
        return [timer, *self._plan(source, plan, now)]

    def _impossible(self, submit: Submit) -> str:
        if len(self.txs) >= TX_LIMIT:
            return f"{self.broker.name} knows {TX_LIMIT} transactions already"
        if not submit.steps or len(submit.steps) > STEP_LIMIT:
            return f"a static transaction has 1 to {STEP_LIMIT} operations"
        if not 0 < submit.deadline_s <= DEADLINE_LIMIT_S:
            return f"a deadline is at most {DEADLINE_LIMIT_S:g} s"
        if in_order(submit.steps) is None:
            return "the operations depend on each other in a circle, or on one that is not there"
        for step in submit.steps:
            if (step.filter is None) == (step.kind not in ("pub", "tcm")):
                return f"a {step.kind} of {step.client} without what it is about"
            if step.kind == "tcm" and not step.receivers:
                return "a tcm in a static transaction names the clients that act on it"
        return ""

    def _plan(self, source: Hop, plan: Plan, now: float) -> list[Effect]:
        if not 0 <= plan.deadline_s <= DEADLINE_LIMIT_S or plan.tx[0] not in plan.edges:
            raise ProtocolError(f"{source} has no such plan to forward: {tx_text(plan.tx)}")
        tx = self.txs[plan.tx] = Tx(plan, source, now)
        homes = {name: self.routing.crt.get(ClientName(name)) for name in plan.edges}
        span = {home.hop for home in homes.values() if home and not is_client(home.hop)}
        if not is_client(source):
            span.add(source)
        tx.span = tuple(hop for hop in self.routing.neighbours if hop in span)
        tx.unanswered = set(plan.edges.values())
        effects = self._trace("begin", tx, now)
        effects += self._send(self._beyond(tx, source), plan)
        if plan.deadline_s and not tx.at_edge and self.broker.name in plan.edges.values():
            delay_s = plan.deadline_s + OVERDUE_AFTER_S
            effects.append(SetTimer(f"{self.name}/{tx_text(tx.id)}", delay_s))
        moved = [
            client
            for client, home in homes.items()
            if home is None
            or home.edge != plan.edges[client]
            or (is_client(home.hop) and not self.broker.is_here(home.hop))
        ]
        if moved:
            refusal = Refusal("left", f"{', '.join(sorted(moved))} not connected")
            answer = Admitted(tx.id, self.broker.name, {}, {}, *refusal)
        elif self.broker.name in plan.edges.values():
            answer = self._admit(tx)
        else:
            return effects
        return [*effects, *self._admitted(Hop(""), answer, now)]

    def _admit(self, tx: Tx) -> Admitted:
        """Work out, on behalf of this broker's clients, what their steps change."""
        name = self.broker.name
        words = {c: Words(self.broker, client_hop(c)) for c, e in tx.edges.items() if e == name}
        operations: dict[int, Operation] = {}
        numbers: dict[int, tuple[int, int]] = {}
        undos = self.reserved[tx.id] = []
        try:
            for at in tx.order:
                step = tx.steps[at]
                if step.client in words and step.kind not in ("pub", "tcm"):
                    undo = words[step.client].say(step)
                    self._check_free(tx, undo)
                    undos.append(undo)
                    operations[at] = undo.operation
                elif step.client in words:
                    words[step.client].check_publication(step)
                    numbers[at] = self._numbered(tx, step)
                for receiver in step.receivers:
                    if receiver in words:
                        words[receiver].check_hears(step)
        except (OperationError, FilterError) as error:
            del self.reserved[tx.id]
            return Admitted(tx.id, name, {}, {}, error.code, str(error))
        return Admitted(tx.id, name, operations, numbers)

    def _numbered(self, tx: Tx, step: Step) -> tuple[int, int]:
        """The life and number of a publication: only its own client knows which come next there."""
        hop = client_hop(step.client)
        own = step.seq if step.client == tx.id[0] else 0
        return self.broker.life_of(hop), own or PLANNED + self.broker.next_number(hop)

    def _check_free(self, tx: Tx, undo: Undo) -> None:
        """Raises OperationError if somebody undecided uses the same words."""
        client = undo.operation.client
        other = reserved_by_others(self.broker, tx.id, undo.operation)
        if other is not None:
            raise Conflict(f"{client} uses the same part in {tx_text(other)}")
        if any(undo.concerns(before) for before in self.broker.said_before(undo.source)):
            # It gets its number when it is done, later than what is admitted now, but comes first.
            raise Conflict(f"an operation of {client} on the same part has to wait")
        for name, engine in self.broker.engines.items():
            if name == self.name:
                continue
            if engine.holds(undo.source, undo.operation):
                raise Conflict(f"an undecided {name} transaction concerns the same part")
            if engine.reserves(undo.source, undo.operation):
                raise Conflict(f"a {name} transaction has precedence after many losses")

    def _admitted(self, source: Hop, admitted: Admitted, now: float) -> list[Effect]:
        tx = self.txs.get(admitted.tx)
        if tx is None or not tx.open:
            return []
        tx.operations.update(admitted.operations)
        tx.numbers.update(admitted.numbers)
        tx.unanswered.discard(admitted.edge)
        effects = self._send(self._beyond(tx, source), admitted)
        if tx.at_edge and (admitted.code or not tx.unanswered):
            decide = Decide(tx.id, not admitted.code, admitted.code, admitted.reason)
            effects += self._spread(tx, decide, now)
        return effects

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
        return self._spread(tx, Decide(tx.id, False, "aborted", reason), now)

    def _decide(self, source: Hop, decide: Decide, now: float) -> list[Effect]:
        tx = self.txs.get(decide.tx)
        if tx is None:
            return self._send((source,), Decided(decide.tx))
        if not tx.open or tx.upstream != source:
            raise ProtocolError(f"{source} does not decide {tx_text(decide.tx)}")
        return self._spread(tx, decide, now)

    def _spread(self, tx: Tx, decide: Decide, now: float) -> list[Effect]:
        """Make a decision count here, and pass it on."""
        assert tx.open, "a decision is final"
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
            return effects + self._carry_on(tx, now)
        self.reserved.pop(tx.id, None)
        effects += self._tell_clients(tx, decide)
        effects += self.broker.release(now)
        effects += something_decided(self.broker, now)
        return effects + self._acknowledge(tx, now)

    def _tell_clients(self, tx: Tx, decide: Decide | None = None) -> list[Effect]:
        effects: list[Effect] = []
        for client in tx.edges:
            hop = client_hop(client)
            if tx.edges[client] != self.broker.name or (decide and hop != tx.upstream):
                continue  # Who was not asked to do anything need not hear that nothing happened.
            own = client == tx.id[0]
            words = tuple(
                Effective(
                    done.kind,
                    done.filter,
                    done.seq,
                    tx.steps[at].seq if own else 0,
                    done.events,
                )
                for at in tx.order
                if (done := tx.operations.get(at)) is not None and done.client == client
            )
            if decide is None:
                effects.append(self._tell(hop, Ended(tx.id, True, words=words)))
            else:
                effects.append(self._tell(hop, Ended(tx.id, False, decide.code, decide.reason)))
        return effects

    # --- carrying out, in the order of dependencies ---

    def _carry_on(self, tx: Tx, now: float) -> list[Effect]:
        """Carry out what has all its dependencies behind it, here."""
        effects: list[Effect] = []
        if tx.running:
            return effects  # Called from below, by a step that was carried out at once.
        tx.running = True
        # One pass is enough: the order has every step after those that it depends on.
        for at in tx.order:
            step = tx.steps[at]
            if at not in tx.started and tx.handled.issuperset(step.after):
                tx.started.add(at)
                effects += self._handle(tx, at, step, now)
        tx.running = False
        return effects + self._finish(tx, now)

    def _handle(self, tx: Tx, at: int, step: Step, now: float) -> list[Effect]:
        if step.kind in ("pub", "tcm"):
            tx.handled.add(at)
            return self._publish(tx, at, now)
        source = self._home(tx, at)
        if source is None:  # A broker was lost, and the client with it: nobody else will say so.
            tx.handled.add(at)
            return self._send(tx.span, Complete(tx.id, at))
        here = tx.edges[step.client] == self.broker.name
        if step.kind in ("adv", "uadv") and not here:
            return []  # Its own edge broker sends it out, and says when it is complete.
        return self.broker.submit(self.name, source, tx.operations[at], (tx, at), now)

    def resume(self, source: Hop, operation: Operation, context: Any, now: float) -> list[Effect]:
        tx, at = context
        if self._home(tx, at) is None:
            return self._complete(Hop(""), Complete(tx.id, at), now)  # It has waited too long.
        name, after = tx_text(tx.id), self._before(tx, at)
        if operation.kind in ("adv", "uadv"):
            return self.broker.start(
                self.name, source, operation, (tx, at), now, tx=name, after=after
            )
        view = self.broker.versions.view()
        footprint = Outcome([], [], [])
        for engine in self.broker.engines.values():
            if engine is not self:
                engine.passed(source, operation, footprint)
        sent = self.routing.apply_here(operation, tx.span, view)
        effects: list[Effect] = []
        if self.broker.trace:
            # Whether it belongs into the table here was worked out by `apply_here`.
            kept = self.routing.prt.copy(operation.client, operation.seq, None) is not None
            effects.append(
                self.broker.record_change(
                    "apply",
                    now,
                    source,
                    msgspec.structs.replace(operation, store=kept),
                    Outcome(sent, [], []),
                    view,
                    name,
                    self.name,
                    after if is_client(source) else (),
                )
            )
        if sent:
            tx.outside += 1
            effects += self.broker.tell(self.name, source, operation, sent, (tx, None), now)
        tx.handled.add(at)
        return effects + self._carry_on(tx, now)

    def completed(self, context: Any, now: float) -> list[Effect]:
        tx, at = context
        if at is None:
            tx.outside -= 1
            return self._acknowledge(tx, now)
        return self._complete(Hop(""), Complete(tx.id, at), now)

    def _complete(self, source: Hop, complete: Complete, now: float) -> list[Effect]:
        tx = self.txs.get(complete.tx)
        if tx is None or tx.status == "aborted":
            return []  # On this side of a link that was lost it has ended differently.
        tx.started.add(complete.step)
        tx.handled.add(complete.step)
        effects = self._send(self._beyond(tx, source), complete)
        return effects if tx.open else effects + self._carry_on(tx, now)

    def _publish(self, tx: Tx, at: int, now: float) -> list[Effect]:
        """Hand a publication to this broker's clients, and to brokers outside the span.

        A tcm has done its work: what it asks for is in the plan.
        """
        step = tx.steps[at]
        assert step.point is not None
        life, number = tx.numbers[at]
        pub = Pub(step.client, number, step.point, step.payload, life=life)
        hops: tuple[Hop, ...] = ()
        view = self.broker.versions.view()
        if step.kind == "pub":
            found = self.routing.prt.hops(pub.point, view)
            hops = tuple(hop for hop in found if hop not in tx.span)
        effects: list[Effect] = []
        if self.broker.trace:
            kinds: list[Any] = ["match"]
            if tx.edges[step.client] == self.broker.name:
                kinds.insert(0, "publish")
            clients = tuple(hop for hop in hops if is_client(hop))
            if clients:
                kinds.append("deliver")
            for kind in kinds:
                dests = {"publish": (), "match": hops}.get(kind, clients)
                effects.append(
                    self.broker.record(
                        kind,
                        now,
                        pub,
                        dests=dests,
                        tx=tx_text(tx.id),
                        engine=self.name,
                        op_kind=step.kind,
                        view=view,
                        after=self._before(tx, at) if kind == "publish" else (),
                    )
                )
        return [*effects, Send(hops, pub)] if hops else effects

    def _finish(self, tx: Tx, now: float) -> list[Effect]:
        """When all is carried out here, the clients may know, and what waited may go on."""
        if not tx.complete or tx.status != "committed":
            return []
        tx.status = "finished"
        timer = CancelTimer(f"{self.name}/{tx_text(tx.id)}")
        self.reserved.pop(tx.id, None)
        effects = [timer, *self._tell_clients(tx)]
        effects += self.broker.release(now)
        effects += something_decided(self.broker, now)
        return effects + self._acknowledge(tx, now)

    def _decided(self, source: Hop, decided: Decided, now: float) -> list[Effect]:
        tx = self.txs.get(decided.tx)
        if tx is None:
            return []
        tx.awaited.discard(source)
        return self._acknowledge(tx, now)

    def _acknowledge(self, tx: Tx, now: float) -> list[Effect]:
        """When all behind this broker have carried the decision out, say so."""
        if tx.awaited or tx.outside or tx.acknowledged:
            return []
        if tx.status not in ("aborted", "finished"):
            return []
        tx.acknowledged = True
        effects = self._trace("end", tx, now)
        if tx.upstream in tx.span:
            effects += self._send((tx.upstream,), Decided(tx.id))
            if tx.status == "aborted":
                del self.txs[tx.id]
            return effects
        if tx.at_edge and tx.status == "finished":
            effects.append(self._tell(tx.upstream, Applied(tx.id)))
        return effects + self._settle(tx, now)

    def _settled(self, source: Hop, settled: Settled, now: float) -> list[Effect]:
        tx = self.txs.get(settled.tx)
        if tx is None or tx.upstream != source or not tx.acknowledged:
            return []  # This broker was restarted since.
        return self._settle(tx, now)

    def _settle(self, tx: Tx, now: float) -> list[Effect]:
        """Let a transaction go, and say so to those behind; an abort they have let go before."""
        del self.txs[tx.id]
        if tx.ended is not None:
            self.ended.keep(tx.ended, now)  # From here on nothing else tells of it.
        if tx.status == "aborted":
            return []
        for operation in tx.operations.values():
            self._spreading.pop((operation.client, operation.seq), None)
        effects = self._send(self._beyond(tx, tx.upstream), Settled(tx.id))
        return effects + something_decided(self.broker, now)

    # --- questions for the outcome (padres_tx.questions.Asked) ---

    def outcome(self, tx: TxID, now: float) -> EndedTx | None:
        known = self.txs.get(tx)
        return known.ended if known is not None else self.ended.get(tx, now)

    def stands(self, tx: TxID, asker: Hop) -> str:
        known = self.txs.get(tx)
        if known is None or not known.open:
            return ""
        return "cut off" if known.upstream == asker and not known.at_edge else "open"

    def learned(self, answer: Answer, now: float) -> list[Effect]:
        raise AssertionError(f"{self.name} asks no questions of its own")

    # --- small things ---

    def _home(self, tx: Tx, at: int) -> Hop | None:
        """Where a step's client is; None if it was lost with a broker."""
        client = tx.steps[at].client
        home = self.routing.crt.get(ClientName(client))
        return home.hop if home and client not in tx.lost else None

    @staticmethod
    def _before(tx: Tx, at: int) -> tuple[str, ...]:
        """What a step comes after, as records call it."""

        def named(before: int) -> str:
            step = tx.steps[before]
            if step.kind in ("pub", "tcm"):
                return tx.named(before)
            return f"{step.client}#{tx.operations[before].seq}"

        return tuple(named(before) for before in tx.steps[at].after)

    def _beyond(self, tx: Tx, source: Hop) -> tuple[Hop, ...]:
        """The neighbours in the span on the far side from the source."""
        return tuple(hop for hop in tx.span if hop != source)

    def _send(self, hops: tuple[Hop, ...], message: AnyBetween) -> list[Effect]:
        if not hops:
            return []
        return [Send(hops, engine_message(self.name, codec.encode(message)))]

    def _tell(self, hop: Hop, message: ToClient) -> Effect:
        return Send((hop,), engine_message(self.name, to_client.encode(message)))

    def _trace(self, kind: Any, tx: Tx, now: float) -> list[Effect]:
        if not self.broker.trace:
            return []
        outcome = {"finished": "committed", "planned": ""}.get(tx.status, tx.status)
        name = tx_text(tx.id)
        return [
            self.broker.record(
                kind, now, None, tx.upstream, tx.span, tx=name, engine=self.name, outcome=outcome
            )
        ]


broker = STx
client = "static"
