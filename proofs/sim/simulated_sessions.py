"""A simulated overlay whose clients are real sessions, and a check of what they believe they hold.

The clients of `simulated_overlay` are too simple to be wrong. Here each client is what a user's
program has: a `Session` and its `Transactions`, with callbacks. Half of the clients subscribe with
callbacks and read nothing else; the others read what no callback takes. A publication that reaches
the wrong reader therefore counts as lost (`SimulatedOverlay.got`).

At rest, a client's session has to agree with the tables of its edge broker, and its callbacks have
to be those of its live subscriptions (`disagreements`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import networkx as nx

from overlay.errors import NotHeld, OverlayError
from overlay.filters import Filter, Value
from overlay.hosts.simulator import Choose
from overlay.messages import (
    AnyMessage,
    BrokerName,
    Done,
    EngineMessage,
    Kind,
    Operation,
    Pub,
    client_hop,
)
from overlay.notation import format_filter, format_publication, parse_filter
from padres_tx.client.engine_halves import BrokerDecidedHalf
from padres_tx.client.holdings import Holdings
from padres_tx.client.session import Answered, Event, Notification, SendMessage, Session
from padres_tx.client.transactions import (
    TCM_MARK,
    ClientTransaction,
    CommitDrained,
    SendForOperation,
    SetTransactionTimer,
    TcmReceived,
    TransactionEnded,
    Transactions,
)
from padres_tx.client_messages import Began, Ended, Step, TxID, to_client
from padres_tx.static import Op
from proofs.history import LATE
from proofs.oracle import IssuedOperation, live
from proofs.sim.simulated_overlay import DEADLINE_S, ClientStep, IfHeld, SimulatedOverlay


class Delivery(NamedTuple):
    """A publication that a client received, and the callbacks that it was given to."""

    pub: Pub
    callbacks: tuple[str, ...]
    #: How many of its un-subscriptions the client knew to have taken effect by then.
    after: int = 0


class SessionClient:
    """One client: a session, its transactions, and what it received."""

    def __init__(self, world: SimulatedSessions, name: str, edge: str) -> None:
        self.world = world
        self.name = name
        self.edge = edge
        #: Whether it subscribes with callbacks and reads nothing else.
        self.calls_back = world.calls_back(name)
        self.session = Session(name)
        self.transactions = Transactions(self.session)
        self.deliveries: list[Delivery] = []
        self.drained: list[str] = []
        #: Its un-subscriptions that have taken effect, in the order in which it learned of them,
        #: each with its transaction.
        self.ended: list[tuple[IssuedOperation, TxID | None]] = []
        #: The number of each subscription with a callback that has taken effect.
        self.numbered: dict[str, int] = {}
        #: Whether another client's plan has subscribed it, and so without a callback.
        self.was_planned = False
        self._named: dict[tuple[TxID | None, int], str] = {}
        self._unsubscribing: dict[int, Filter] = {}
        self._names = itertools.count(1)

    # --- calls ---

    def operate(self, kind: Kind, filter: Filter) -> int:
        """A plain operation; 0 if the session refuses it at the call."""
        callback = self._callback(kind)
        try:
            operation = self.session.operate(kind, filter, callback)
        except OverlayError:
            return 0
        if callback:
            self._named[None, operation.req] = callback
        if kind == "usub":
            self._unsubscribing[operation.req] = filter
        self.world.sim.send(self.name, operation)
        return operation.req

    def publish(self, point: Mapping[str, Value]) -> int:
        try:
            pub = self.session.publish(dict(point))
        except OverlayError:
            return 0
        self.world.sim.send(self.name, pub)
        return pub.seq

    def begin(
        self, engine: str, ops: Iterable[Op | ClientStep], *, commit: bool = True, **terms: Any
    ) -> TxID:
        """A transaction as a program runs it: an error at a call aborts it."""
        tx, events = self.transactions.begin(engine, **terms)
        self.carry_out(events)
        try:
            for op in ops:
                self._do(tx, 0, op)
        except OverlayError as error:
            self.carry_out(self.transactions.abort(tx, str(error)))
        else:
            if commit:
                self.carry_out(self.transactions.commit(tx))
        return tx.id

    def _do(self, tx: ClientTransaction, frame: int, does: Op | ClientStep) -> None:
        """Issue an operation in a transaction. Raises what `Transactions.operate` raises."""
        if isinstance(does, IfHeld):
            with contextlib.suppress(NotHeld):
                self._do(tx, frame, does.step)
            return
        op = planned_operation(does) if isinstance(does, Step) else does
        callback = self._callback(op.kind)
        number, events = self.transactions.operate(tx, frame, op, callback)
        if callback:
            self._named[tx.id, number] = callback
        self.carry_out(events)

    def _callback(self, kind: str) -> str | None:
        """The name of a callback of its own for each subscription."""
        if kind != "sub" or not self.calls_back:
            return None
        return f"{self.name}-{next(self._names)}"

    # --- messages ---

    def receive(self, message: AnyMessage) -> None:
        match message:
            case Done(req, "", _, number) if (None, req) in self._named:
                self.numbered[self._named[None, req]] = number
            case Done(req, "", _, number) if req in self._unsubscribing:
                self.ended.append((IssuedOperation(number, "usub", self._unsubscribing[req]), None))
            case EngineMessage(_, body):
                told = to_client.decode(body)
                if isinstance(told, Ended):
                    self._told_numbers(told)
        self.carry_out(self.session.receive(message))

    def _told_numbers(self, ended: Ended) -> None:
        for kind, filter, number, call, _ in ended.effective:
            callback = self._named.get((ended.tx, call))
            if kind == "usub":
                self.ended.append((IssuedOperation(number, kind, filter), ended.tx))
            elif kind == "sub" and callback:
                self.numbered[callback] = number
            elif kind == "sub":
                self.was_planned = True

    def carry_out(self, events: Iterable[Event]) -> None:
        for event in events:
            self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case SendMessage(message) | SendForOperation(message=message):
                if isinstance(event, SendForOperation) and isinstance(message, Operation):
                    # A plain operation of a transaction that consists of plain operations.
                    callback = self._named.get((event.tx.id, event.number))
                    if callback:
                        self._named[None, message.req] = callback
                if self.world.sim.connected(self.name):
                    self.world.sim.send(self.name, message)
            case Answered():
                self.carry_out(self.transactions.answered(event.req, event.error))
            case Notification():
                self._notified(event)
            case TcmReceived(tx, frame, notification):
                self._called(tx, frame, notification)
            case SetTransactionTimer(tx, delay_s):
                self.world.sim.at(delay_s, lambda: self.carry_out(self.transactions.wake(tx)))
            case TransactionEnded(tx, result) if tx.coordinator or isinstance(
                tx.half, BrokerDecidedHalf
            ):
                # With an engine that runs in the client alone, each participant has an outcome of
                # its own.
                ended = Ended(tx.id, result.committed, result.code, result.reason)
                self.world.decided(self.name, ended)
            case CommitDrained(name):
                self.drained.append(name)

    def _notified(self, event: Notification) -> None:
        if TCM_MARK in event.point:
            self.carry_out(self.transactions.notified(event) or [])
            return
        callbacks = tuple(self.session.callbacks(event))
        pub = Pub(event.publisher, event.seq, event.point, event.payload, event.hidden, event.life)
        self.deliveries.append(Delivery(pub, callbacks, len(self.ended)))
        if callbacks or not self.calls_back or self.was_planned:
            self.world.got[self.name].append(pub)

    def _called(self, tx: ClientTransaction, frame: int, notification: Notification) -> None:
        reaction = self.world.reactions.get(self.name)
        steps = reaction(notification.point) if reaction else []
        error = steps if isinstance(steps, str) else ""
        try:
            for step in () if isinstance(steps, str) else steps:
                self._do(tx, frame, step)
        except OverlayError as refused:
            error = str(refused)
        self.carry_out(self.transactions.finish(tx, frame, error))


def planned_operation(step: Step) -> Op:
    return Op(step.kind, filter=step.filter, point=step.point, payload=step.payload)


class SimulatedSessions(SimulatedOverlay):
    """The overlay, and a session for each client."""

    def __init__(self, tree: nx.Graph[str], choose: Choose, **more: Any) -> None:
        super().__init__(tree, choose, **more)
        self.sessions: dict[str, SessionClient] = {}

    @staticmethod
    def calls_back(client: str) -> bool:
        """Whether a client subscribes with callbacks: every other one, by the end of its name."""
        return client[-1:] in "02468"

    def connect(
        self, client: str, edge: str, joined: Callable[[str], object] | None = None
    ) -> None:
        made = self.sessions[client] = SessionClient(self, client, edge)

        def receive(message: AnyMessage, now: float) -> list[AnyMessage]:
            self._note(client, message)
            made.receive(message)
            self._answered(client, message)
            return []

        self.sim.connect(client, edge, receive)
        join = made.session.join()
        if joined is not None:
            self.answers[client, join.req] = joined
        self.sim.send(client, join)

    def plain(self, client: str, kind: Kind, filter: Filter) -> int:
        return self.sessions[client].operate(kind, filter)

    def publish(self, client: str, point: Mapping[str, Value]) -> int:
        return self.sessions[client].publish(point)

    def begin(
        self,
        engine: str,
        client: str,
        steps: Iterable[ClientStep],
        *,
        commit: bool = True,
        **terms: Any,
    ) -> TxID:
        tx = self.sessions[client].begin(engine, steps, commit=commit, **terms)
        self.clients.note_begin(engine, tx)
        return tx

    def submit(
        self,
        client: str,
        steps: Iterable[Step],
        *,
        deadline_s: float = DEADLINE_S,
        engine: str = "s-tx",
    ) -> TxID:
        """A static transaction, one step after the other; a tcm asks for each step of another."""
        ops: list[Op] = []
        for step in steps:
            op = planned_operation(step)
            if step.client != client:
                control: dict[str, Value] = {"class": "ctl", "to": step.client}
                op = Op("tcm", point=control, ops={step.client: [op]})
            ops.append(op)
        tx = self.sessions[client].begin(engine, ops, deadline_s=deadline_s)
        if tx not in self.ended:
            self.clients.note_begin(engine, tx)
        return tx

    def carried_out(self) -> dict[str, list[IssuedOperation]]:
        """The operations that edge brokers have applied for each client, without aborted ones."""
        committed = {record.tx for record in self.sim.records if record.outcome == "committed"}
        found: dict[str, list[IssuedOperation]] = {}
        for record in self.sim.records:
            if record.source != client_hop(record.client):
                continue
            if record.kind == "begin" and not record.tx:
                found[record.client] = []  # The client has joined, or joined again.
            elif record.kind == "apply" and (not record.tx or record.tx in committed):
                number = int(record.op_id.rpartition("#")[2])
                issued = IssuedOperation(number, record.op_kind, parse_filter(record.filter))
                found[record.client].append(issued)
        return found

    # --- the log ---

    def _note(self, client: str, message: AnyMessage) -> None:
        match message:
            case Pub():
                self.clients.observe(client, message)
                self.log[client].append(message)
            case EngineMessage(_, body):
                told = to_client.decode(body)
                self.log[client].append(told)
                if isinstance(told, Began):
                    self.ages[told.tx] = told.age
                elif isinstance(told, Ended) and told.code not in LATE:
                    self.clients.observe(client, message)

    def _answered(self, client: str, message: AnyMessage) -> None:
        if isinstance(message, Done):
            self.done[client, message.req] = message.code
            if (client, message.req) in self.answers:
                self.answers.pop((client, message.req))(message.code)

    def decided(self, client: str, ended: Ended) -> None:
        """Record that a client's session has learned the outcome of a transaction."""
        self._ended(client, ended)


# --- at rest ---


def disagreements(
    world: SimulatedSessions, points: Iterable[Mapping[str, Value]], filters: Iterable[Filter]
) -> Iterator[tuple[str, str]]:
    """The disagreements between clients and their edge brokers at rest: the client, and a text.

    They have to agree on every entry that makes a difference, and on what the client may publish
    and take back. The client's callbacks have to be those of its subscriptions that no later
    un-subscription has ended.
    """
    done = world.carried_out()
    for name, client in world.sessions.items():
        if world.sim.connected(name) and name in done:
            for how in _disagreements(world, client, done[name], list(points), list(filters)):
                yield name, how


def _disagreements(
    world: SimulatedSessions,
    client: SessionClient,
    done: Sequence[IssuedOperation],
    points: Sequence[Mapping[str, Value]],
    filters: Sequence[Filter],
) -> Iterator[str]:
    broker = world.sim.brokers[BrokerName(client.edge)]
    hop, session = client_hop(client.name), client.session
    routing = broker.routing
    if session.pending:
        yield f"{session.pending} requests are unanswered"
    for kinds, holdings in (
        (("sub", "usub"), session.subscribed),
        (("adv", "uadv"), session.advertised),
    ):
        yes, no = kinds
        space = routing.space(yes, hop)
        table = [
            IssuedOperation(entry.seq, yes if entry.positive else no, entry.filter)
            for entry in space.of(client.name)
        ]
        believed = _held(holdings, yes, no)
        if live(believed) != live(table):
            yield f"the client has {_text(live(believed))}, {client.edge} has {_text(live(table))}"
        for filter in filters:
            reaches = space.reaches(filter, client=client.name)
            if holdings.reaches(filter) != reaches:
                wrong = "cannot" if reaches else "can"
                yield f"the client believes that it {wrong} {no} {format_filter(filter)}"
    for point in points:
        if session.advertises(point) != routing.may_publish(hop, point):
            wrong = "cannot" if routing.may_publish(hop, point) else "can"
            yield f"the client believes that it {wrong} publish {format_publication(point)}"
        meant = _meant(done, client, point)
        called = set(session.subscribed.callbacks(point))
        if called != meant:
            text = format_publication(point)
            yield f"{text} should go to callbacks {sorted(meant)}, and goes to {sorted(called)}"


def _held(holdings: Holdings, yes: str, no: str) -> list[IssuedOperation]:
    return [
        IssuedOperation(entry.number, yes if entry.positive else no, entry.filter)
        for entry in holdings.entries()
    ]


def _text(operations: Iterable[IssuedOperation]) -> str:
    texts = (f"{one.seq} {one.kind} {format_filter(one.filter)}" for one in operations)
    return ", ".join(texts) or "nothing"


def _meant(
    done: Iterable[IssuedOperation], client: SessionClient, point: Mapping[str, Value]
) -> set[str]:
    """The callbacks that a publication is for, by what the edge broker has applied."""
    ends = [one.seq for one in done if one.kind == "usub" and one.filter.matches(point)]
    filters = {one.seq: one.filter for one in done if one.kind == "sub"}
    return {
        callback
        for callback, number in client.numbered.items()
        if number in filters and filters[number].matches(point) and number > max(ends, default=0)
    }
