"""From a submitted plan to the vote: how a broker reads a static transaction, and admits it.

The first half of S-TX at one broker; what is done with the decision is in
`padres_tx.engines.s_tx.broker`, which explains both. A plan is read, and the steps of this broker's
clients are admitted, slice by slice (`overlay.broker.turns`): each slice goes on where the one
before has ended, and a short plan takes one, in the turn in which it came.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import msgspec

from overlay.broker.core import Broker
from overlay.broker.limits import DROPS_PER_OPERATION
from overlay.broker.turns import SLICE, Worked
from overlay.effects import CancelTimer, Effect, Send, SetTimer
from overlay.errors import FilterError, LimitReached, OperationError, ProtocolError
from overlay.filters import check_point
from overlay.messages import ClientName, Hop, Operation, client_hop, is_client
from overlay.stored import stored
from padres_tx.client_messages import (
    DEADLINE_LIMIT_S,
    DEPENDENCY_LIMIT,
    STEP_LIMIT,
    TX_LIMIT,
    Ended,
    Step,
    ToClient,
    TxID,
    engine_message,
    to_client,
    tx_text,
)
from padres_tx.protocol import static_state
from padres_tx.protocol.admission import Conflict, PlannedEntries, in_order
from padres_tx.protocol.broker_messages import shortened
from padres_tx.protocol.compensation import Reservations, Undo, reserved_by_others
from padres_tx.protocol.outcomes import REUSED
from padres_tx.protocol.questions import OutcomeEngine
from padres_tx.protocol.static_state import (
    Admitted,
    AnyStaticMessage,
    DecidePlan,
    Preparation,
    Refusal,
    StaticState,
    UnreadPlan,
    UnreadSubmit,
)
from padres_tx.protocol.two_phase import OVERDUE_AFTER_S, cannot_begin

#: Attributes that the filters and points of one plan may name, and receivers of its tcms, ten for
#: each of the most steps: a client is told all of its filters at once, which takes some
#: microseconds for each attribute.
ATTRIBUTE_LIMIT = 10 * STEP_LIMIT

#: Attributes of a step that take as long to decode as one unit of work.
ATTRIBUTES_PER_UNIT = 4

#: What it takes to admit a step that meets nothing: it enters three indexes and two footprints.
ADMISSION_UNITS = 2

#: Entries of its client that are looked at for a unit of work.
LOOKS_PER_UNIT = 8

#: Operations that wait, through which a step has to be compared, that take as long as one unit.
WAITING_PER_UNIT = 50

#: Publications that an edge broker makes for a client are numbered from here on: no client will
#: ever have published so much itself.
PLANNED = 1 << 48


@stored("planning", fields=("routing", "reserved", "_admitting"))
class Planning(OutcomeEngine[StaticState]):
    """Static transactions at one broker, up to the vote."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.routing = broker.routing
        #: What was admitted for clients of this broker and is not carried out yet.
        self.reserved = Reservations()
        #: Those whose steps are being admitted here, slice by slice.
        self._admitting: dict[TxID, StaticState] = {}

    @abstractmethod
    def spread(self, tx: StaticState, decide: DecidePlan, now: float) -> list[Effect]:
        """Take the decision, and pass it on. Called when all edge brokers have answered."""

    @abstractmethod
    def carry_on(self, tx: StaticState, now: float) -> list[Effect]:
        """Carry out what can be, if it is committed and all its steps are known."""

    def _submit(self, source: Hop, submit: UnreadSubmit, now: float) -> list[Effect]:
        client = source[1:]
        known = self.txs.get(submit.tx)
        is_own = submit.tx[:2] == (client, self.broker.life_of(source))
        if not is_own or (known is not None and known.upstream == source):
            raise ProtocolError(f"{source} cannot begin {tx_text(submit.tx)}")
        reason = ""
        if known is not None or self.ended.get(submit.tx, now) is not None:
            reason = REUSED
        elif len(self.txs) >= TX_LIMIT:
            reason = f"{self.broker.name} knows {TX_LIMIT} transactions already"
        elif not submit.steps or len(submit.steps) > STEP_LIMIT:
            reason = f"a static transaction has 1 to {STEP_LIMIT} operations"
        elif not 0 < submit.deadline_s <= DEADLINE_LIMIT_S:
            reason = f"a deadline is at most {DEADLINE_LIMIT_S:g} s"
        if reason:
            return [self._tell(source, Ended(submit.tx, False, "refused", reason))]
        edges = {client: str(self.broker.name)}
        tx = self._new(submit.tx, submit.steps, edges, submit.deadline_s, source, now)
        timer = SetTimer(f"{self.name}/{tx_text(tx.id)}", submit.deadline_s)
        return [timer, *self._begin(tx, now)]

    def _plan(self, source: Hop, plan: UnreadPlan, now: float) -> list[Effect]:
        if not 0 < len(plan.steps) <= STEP_LIMIT:
            raise ProtocolError(f"{source} sent a plan of {len(plan.steps)} steps")
        if not 0 <= plan.deadline_s <= DEADLINE_LIMIT_S or plan.tx[0] not in plan.edges:
            raise ProtocolError(f"{source} has no such plan to forward: {tx_text(plan.tx)}")
        if plan.tx in self.txs:
            raise ProtocolError(f"{source} sent the plan of {tx_text(plan.tx)} twice")
        if reason := cannot_begin(self.broker, source, plan.tx, len(self.txs)):
            refused = Admitted(plan.tx, self.broker.name, {}, code="refused", reason=reason)
            return self._send((source,), refused)
        tx = self._new(plan.tx, plan.steps, plan.edges, plan.deadline_s, source, now)
        effects = self._announce(tx, now)
        return effects + self._begin(tx, now)

    def _new(
        self,
        tx_id: TxID,
        steps: tuple[msgspec.Raw, ...],
        edges: dict[str, str],
        deadline_s: float,
        source: Hop,
        now: float,
    ) -> StaticState:
        long = len(steps) > self.broker.slice
        tx = StaticState(tx_id, steps, edges, source, now, long=long, deadline_s=deadline_s)
        self.txs[tx_id] = tx
        return tx

    def _begin(self, tx: StaticState, now: float) -> list[Effect]:
        """Do the first slice of reading and admitting a plan.

        Raises ProtocolError if it cannot be read.
        """
        worked = self._prepare(tx, now)
        if not worked.more:
            return worked.effects
        return worked.effects + self.broker.later(self.name, Preparation(tx))

    def _prepare(self, tx: StaticState, now: float) -> Worked:
        """Read some steps of a plan; when all are read, admit some of this broker's clients.

        Raises ProtocolError if it cannot be read; it is not known here then.
        """
        if self.txs.get(tx.id) is not tx or tx.status == "aborted":
            return Worked([])  # Its steps are not needed any more.
        units = 0
        while len(tx.steps) < len(tx.unread):
            if units >= self.broker.slice:
                return Worked([], units, True)
            units += self._read(tx)
        effects: list[Effect] = []
        if not tx.order:
            effects += self._have_read(tx, now)
        if tx.planned is None or not tx.open:
            return Worked(effects, units)
        if units >= self.broker.slice:
            return Worked(effects, units, True)
        admitted = self._admit(tx, units, now)
        return admitted._replace(effects=effects + admitted.effects)

    def _read(self, tx: StaticState) -> int:
        """Decode the next step. Returns the units that it took."""
        try:
            step = static_state.steps.decode(tx.unread[len(tx.steps)])
        except ProtocolError:
            self._drop(tx)
            raise
        named = len(step.filter.predicates) if step.filter is not None else 0
        named += len(step.point) if step.point is not None else 0
        named += len(step.receivers)
        tx.steps.append(step)
        tx.attributes += named
        if tx.attributes > ATTRIBUTE_LIMIT:
            tx.unread = tx.unread[: len(tx.steps)]  # No more need be read of what is refused.
        return 1 + named // ATTRIBUTES_PER_UNIT

    def _have_read(self, tx: StaticState, now: float) -> list[Effect]:
        """All steps are known: put them in order; a client's plan is announced now."""
        order: list[int] = []
        code, reason = "refused", self._impossible(tx)
        if not reason and (reason := _invalid_point(tx)):
            code = FilterError.code
        if not reason:
            found = in_order(tx.steps)
            if found is None:
                reason = (
                    "the operations depend on each other in a circle, or on one that is not there"
                )
            else:
                order = found
        if reason:
            self._drop(tx)
            if not tx.at_edge:
                raise ProtocolError(f"{tx.upstream} sent a plan that cannot be: {reason}")
            return self._not_begun(tx, Refusal(code, reason))
        asked = [name for step in tx.steps for name in (step.client, *step.receivers)]
        clients = dict.fromkeys([*tx.edges, *asked])
        if not tx.at_edge:
            if len(clients) > len(tx.edges):
                self._drop(tx)
                raise ProtocolError(f"{tx.upstream} sent a plan of clients without their brokers")
            tx.order = order
            return []
        tx.order = order
        unknown = [name for name in clients if ClientName(name) not in self.routing.crt]
        if unknown:
            del self.txs[tx.id]
            return self._not_begun(tx, Refusal("left", f"{', '.join(unknown)} not connected"))
        tx.edges = {name: str(self.routing.crt[ClientName(name)].edge) for name in clients}
        return self._announce(tx, now)

    def _drop(self, tx: StaticState) -> None:
        """Know nothing of a plan any more that cannot be carried out."""
        self._stop_admitting(tx)
        del self.txs[tx.id]

    def _not_begun(self, tx: StaticState, refusal: Refusal) -> list[Effect]:
        """Tell the coordinator that its plan is not begun; no other broker knows of it."""
        timer = CancelTimer(f"{self.name}/{tx_text(tx.id)}")
        return [timer, self._tell(tx.upstream, Ended(tx.id, False, *refusal))]

    @staticmethod
    def _impossible(tx: StaticState) -> str:
        """Why a plan cannot be carried out, if so."""
        if tx.attributes > ATTRIBUTE_LIMIT:
            return (
                f"the filters and points of a plan, and the receivers of its tcms, name at most "
                f"{ATTRIBUTE_LIMIT} attributes or clients"
            )
        if sum(len(step.after) for step in tx.steps) > DEPENDENCY_LIMIT:
            return f"the operations of a plan name at most {DEPENDENCY_LIMIT} that come before"
        for step in tx.steps:
            if (step.filter is None) == (step.kind not in ("pub", "tcm")):
                return f"a {step.kind} of {step.client} without what it is about"
            if step.kind == "tcm" and not step.receivers:
                return "a tcm in a static transaction names the clients that act on it"
        return ""

    def _announce(self, tx: StaticState, now: float) -> list[Effect]:
        """Send a plan over its span, and see whether this broker has something to admit."""
        homes = {name: self.routing.crt.get(ClientName(name)) for name in tx.edges}
        span = {home.hop for home in homes.values() if home and not is_client(home.hop)}
        if not tx.at_edge:
            span.add(tx.upstream)
        tx.span = tuple(hop for hop in self.routing.neighbours if hop in span)
        tx.unanswered = set(tx.edges.values())
        tx.towards = {str(home.edge): home.hop for home in homes.values() if home}
        effects = self._trace("begin", tx, now)
        plan = UnreadPlan(tx.id, tx.unread, tx.edges, tx.deadline_s)
        effects += self._send(self._beyond(tx, tx.upstream), plan)
        if tx.deadline_s and not tx.at_edge and self.broker.name in tx.edges.values():
            delay_s = tx.deadline_s + OVERDUE_AFTER_S
            effects.append(SetTimer(f"{self.name}/{tx_text(tx.id)}", delay_s))
        moved = [
            client
            for client, home in homes.items()
            if home is None
            or home.edge != tx.edges[client]
            or (is_client(home.hop) and not self.broker.is_here(home.hop))
        ]
        if moved:
            refusal = Refusal("left", f"{', '.join(sorted(moved))} not connected")
            return effects + self._refuse(tx, refusal, now)
        name = self.broker.name
        here = [client for client, edge in tx.edges.items() if edge == name]
        if here:
            tx.planned = {c: PlannedEntries(self.broker, client_hop(c)) for c in here}
            self._admitting[tx.id] = tx
        return effects

    def _refuse(self, tx: StaticState, refusal: Refusal, now: float) -> list[Effect]:
        """Vote no on behalf of this broker's clients."""
        self._stop_admitting(tx)
        self.reserved.release(tx.id)
        answer = Admitted(tx.id, self.broker.name, {}, {}, refusal.code, shortened(refusal.reason))
        return self._admitted(Hop(""), answer, now)

    def _stop_admitting(self, tx: StaticState) -> None:
        tx.planned = None
        self._admitting.pop(tx.id, None)

    def _admit(self, tx: StaticState, units: int, now: float) -> Worked:
        """Work out, on behalf of this broker's clients, what some of their steps change."""
        operations: dict[int, Operation] = {}
        numbers: dict[int, tuple[int, int]] = {}
        try:
            while tx.admitted < len(tx.order) and units < self.broker.slice:
                at = tx.order[tx.admitted]
                tx.admitted += 1
                units += self._admit_step(tx, at, operations, numbers)
        except (OperationError, FilterError) as error:
            return Worked(self._refuse(tx, Refusal(error.code, str(error)), now), units)
        more = tx.admitted < len(tx.order)
        if not more:
            self._stop_admitting(tx)
        elif not (operations or numbers):
            return Worked([], units, more)
        part = Admitted(tx.id, self.broker.name, operations, numbers, more=more)
        return Worked(self._admitted(Hop(""), part, now), units, more)

    def _admit_step(
        self,
        tx: StaticState,
        at: int,
        operations: dict[int, Operation],
        numbers: dict[int, tuple[int, int]],
    ) -> int:
        """Work out what one step changes. Returns the units that it took.

        Raises OperationError or FilterError.
        """
        step, units = tx.steps[at], ADMISSION_UNITS
        assert tx.planned is not None
        planned = tx.planned.get(step.client)
        before = planned.looked_at if planned is not None else 0
        if planned is not None:
            if step.kind not in ("pub", "tcm"):
                undo = planned.add(step)
                self._check_free(tx, undo)
                self.reserved.add(tx.id, undo)
                tx.own_footprint.operation(undo.operation)
                operations[at] = undo.operation
                units += self.broker.count_waiting(undo.source) // WAITING_PER_UNIT
            else:
                planned.check_publication(step)
                numbers[at] = self._numbered(tx, step)
        for receiver in step.receivers:
            if receiver in tx.planned:
                tx.planned[receiver].check_hears(step)
                units += 1
        if planned is not None:
            units += planned.looked_at - before
        return units

    def _numbered(self, tx: StaticState, step: Step) -> tuple[int, int]:
        """The life and number of a publication: only its own client knows which come next there."""
        hop = client_hop(step.client)
        own = step.seq if step.client == tx.id[0] else 0
        return self.broker.life_of(hop), own or PLANNED + self.broker.next_number(hop)

    def _check_free(self, tx: StaticState, undo: Undo) -> None:
        """Raises OperationError if an undecided transaction uses the same entries."""
        client = undo.operation.client
        other = reserved_by_others(self.broker, tx.id, undo.operation)
        if other is not None:
            raise Conflict(f"{client} uses the same part in {tx_text(other)}")
        if any(undo.concerns(before) for before in self.broker.sent_before(undo.source)):
            # It gets its number when it is done, later than what is admitted now, but comes first.
            raise Conflict(f"an operation of {client} on the same part has to wait")
        for name, engine in self.broker.engines.items():
            if name == self.name:
                continue
            if engine.holds(undo.source, undo.operation):
                raise Conflict(f"an undecided {name} transaction concerns the same part")
            if engine.reserves(undo.source, undo.operation):
                raise Conflict(f"a {name} transaction has precedence after many losses")

    def _answered(self, source: Hop, admitted: Admitted, now: float) -> list[Effect]:
        """A neighbour sends the answer of an edge broker behind it.

        Raises ProtocolError if that is none.
        """
        tx = self.txs.get(admitted.tx)
        if tx is None or not tx.open:
            return []
        if not admitted.code:
            self._check_answer(source, tx, admitted)
        elif admitted.operations or admitted.numbers:
            raise ProtocolError(f"{source} refuses {tx_text(tx.id)} and admits steps of it")
        return self._admitted(source, admitted, now)

    def _check_answer(self, source: Hop, tx: StaticState, admitted: Admitted) -> None:
        edge, name = admitted.edge, tx_text(tx.id)
        if edge not in tx.unanswered or tx.towards.get(edge, source) != source:
            raise ProtocolError(f"{source} answers for {edge} in {name}, which it may not")
        for at in (*admitted.operations, *admitted.numbers):
            if at >= len(tx.unread):
                raise ProtocolError(f"{source} admits step {at} of {name}, which is not there")
        for operation in admitted.operations.values():
            if tx.edges.get(operation.client) != edge:
                raise ProtocolError(f"{edge} admits a step of {operation.client} in {name}")

    def check_complete(self, tx: StaticState, edge: str = "") -> None:
        """Raises ProtocolError if a step was not admitted by its edge broker, or not as it is; all
        steps have to be read. With `edge` only those of that broker's clients are looked at."""
        for at, step in enumerate(tx.steps):
            if edge and tx.edges[step.client] != edge:
                continue
            done = tx.operations.get(at)
            if step.kind in ("pub", "tcm"):
                admitted = at in tx.numbers and done is None
            else:
                admitted = done is not None and (
                    (done.client, done.kind, done.filter) == (step.client, step.kind, step.filter)
                )
            if not admitted:
                raise ProtocolError(f"step {at} of {tx_text(tx.id)} was not admitted")

    def _admitted(self, source: Hop, admitted: Admitted, now: float) -> list[Effect]:
        tx = self.txs.get(admitted.tx)
        if tx is None or not tx.open:
            return []
        tx.operations.update(admitted.operations)
        tx.numbers.update(admitted.numbers)
        for operation in admitted.operations.values():
            tx.footprint.operation(operation)
            tx.entries.update((operation.client, seq) for seq in (operation.seq, *operation.drop))
        if not admitted.more and not admitted.code:
            if tx.order:
                self.check_complete(tx, admitted.edge)
            tx.unanswered.discard(admitted.edge)
        effects = self._send(self._beyond(tx, source), admitted)
        if tx.at_edge and (admitted.code or not tx.unanswered):
            refusal = Refusal(admitted.code, admitted.reason)
            if not refusal.code:
                refusal = self._too_much_for_a_turn(tx)
            effects += self.spread(tx, DecidePlan(tx.id, not refusal.code, *refusal), now)
        return effects

    @staticmethod
    def _too_much_for_a_turn(tx: StaticState) -> Refusal:
        """Why a plan that brokers carry out in one turn drops too many entries for that, if so.

        A long one is carried out in slices, and each of its steps has a limit of its own.
        """
        dropped = 0 if tx.long else sum(len(done.drop) for done in tx.operations.values())
        if dropped <= DROPS_PER_OPERATION:
            return Refusal("", "")
        return Refusal(
            LimitReached.code,
            f"it replaces or takes back {dropped} entries, and a plan of at most {SLICE} steps "
            f"{DROPS_PER_OPERATION} of them: use several transactions",
        )

    # --- small things ---

    def _beyond(self, tx: StaticState, source: Hop) -> tuple[Hop, ...]:
        """The neighbours in the span on the far side from the source."""
        return tuple(hop for hop in tx.span if hop != source)

    def _send(self, hops: tuple[Hop, ...], message: AnyStaticMessage | UnreadPlan) -> list[Effect]:
        if not hops:
            return []
        return [Send(hops, engine_message(self.name, static_state.unread.encode(message)))]

    def _tell(self, hop: Hop, message: ToClient) -> Effect:
        return Send((hop,), engine_message(self.name, to_client.encode(message)))

    def _trace(self, kind: Any, tx: StaticState, now: float) -> list[Effect]:
        if not self.broker.trace:
            return []
        outcome = {"finished": "committed", "planned": ""}.get(tx.status, tx.status)
        name = tx_text(tx.id)
        return [
            self.broker.record(
                kind, now, None, tx.upstream, tx.span, tx=name, engine=self.name, outcome=outcome
            )
        ]


def _invalid_point(tx: StaticState) -> str:
    """Why a publication of a plan is none, if so."""
    for step in tx.steps:
        if step.kind in ("pub", "tcm"):
            try:
                check_point(step.point)
            except FilterError as error:
                return f"a {step.kind} of {step.client}: {error}"
    return ""
