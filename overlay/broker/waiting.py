"""Operations that wait at a broker, in which order they go on, and what may pass them.

A client's operation waits while an undecided transaction has reserved subscriptions or
advertisements that it touches, and the client's later ones wait behind it. An operation on the
shared tables waits while it conflicts with an undecided transaction, and all later ones here wait
behind it, in one queue. An engine that changes the tables slice by slice (`overlay.broker.turns`)
has its turn in that queue as well; an operation to which that makes no difference may pass.

A part of the broker (`overlay.broker.core`). How an operation is carried out is in
`overlay.broker.operations`; who conflicts with what, the engines know.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overlay.broker.limits import WAITING_PER_BROKER, WAITING_PER_CLIENT, Usage
from overlay.broker.long_work import LongLeave, LongWork
from overlay.broker.requests import Task
from overlay.broker.turns import RELEASE
from overlay.effects import Close, Effect, Send
from overlay.errors import LimitReached, OverlayError, PeerError
from overlay.messages import Done, Hop, Join, Leave, Operation, Pub, is_client
from overlay.stored import stored

if TYPE_CHECKING:
    from overlay.broker.core import Broker

#: Units of work (`overlay.broker.turns`) of an operation that a decision releases: with entries of
#: many clients around it, it takes three times as long as a look at one entry.
OPERATION_UNITS = 3

#: Waiting operations that another one may pass; to look through more of them would take long.
PASSED_LIMIT = 64


@stored("held-item")
@dataclass(slots=True, eq=False)
class HeldItem:
    """What waits in the queue of a broker, with what is to become of it when its turn has come.

    If no engine, task or long work is given, it is a plain message of its source.
    """

    source: Hop
    #: None if an engine changes the tables in slices (`Broker.in_turn`).
    message: Operation | Leave | Join | Pub | None
    #: The engine whose turn it is, or that has submitted the operation, and what it wants back.
    engine: str = ""
    context: Any = None
    #: The task of an operation that undoes another one.
    task: Task | None = None
    #: The long work that the operation is a part of.
    long: LongWork | None = None
    #: Whether publications of its source wait behind it.
    stalls: bool = False

    @property
    def is_plain(self) -> bool:
        return not self.engine and self.task is None and self.long is None


@stored(
    "waiting-operations",
    fields=(
        *("_reserved", "queue", "_turns", "_in_its_place", "_decision_awaited", "stalled"),
        "_releasing",
    ),
    derived=("_broker",),
)
class WaitingOperations:
    """The part of a broker that lets operations wait."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: What clients have sent that touches something reserved, in each client's order.
        self._reserved: dict[Hop, deque[Operation | Leave]] = {}
        #: What waits for a transaction's decision, in the order of arrival.
        self.queue: deque[HeldItem] = deque()
        #: The engines that change the tables in slices, in their turns in the queue.
        self._turns: list[tuple[str, Any]] = []
        #: While one that has waited is carried out: how many that came with it wait in its place.
        self._in_its_place: int | None = None
        #: Whether something in the queue waits for a decision: then all that comes waits behind it.
        self._decision_awaited = False
        #: Neighbours whose operations wait only for the next slices. Their publications do, too:
        #: the two may be of one transaction, which had no reason to wait for an answer.
        self.stalled: set[Hop] = set()
        #: While `release` goes through the queue.
        self._releasing = False

    # --- what comes in ---

    def after_reserved(self, source: Hop, message: Operation | Leave, now: float) -> list[Effect]:
        """Carry out a plain operation, when nothing that it touches is reserved and no transaction
        conflicts with it."""
        if is_client(source) and (source in self._reserved or self._is_reserved(source, message)):
            waiting = self._reserved.get(source, ())
            if isinstance(message, Operation) and (error := self._no_room(source, len(waiting))):
                return answer(source, message.req, error)
            self._reserved.setdefault(source, deque()).append(message)
            return []
        return self._unreserved(source, message, now)

    def _unreserved(self, source: Hop, message: Operation | Leave, now: float) -> list[Effect]:
        broker = self._broker
        if isinstance(message, Leave) and broker.membership.is_long_leave(source, message):
            return broker.busy.begin(LongLeave(broker, source, message))
        return self.after_undecided(source, message, now)

    def after_undecided(self, source: Hop, message: Operation | Leave, now: float) -> list[Effect]:
        """Carry out an operation on the shared tables, when no transaction conflicts with it."""
        if self._must_wait(source, message):
            if (
                is_client(source)
                and isinstance(message, Operation)
                and (error := self._no_room(source))
            ):
                return answer(source, message.req, error)
            stalls = self._makes_stalled(source, message)
            if stalls:
                self.stalled.add(source)
            self.queue.append(HeldItem(source, message, stalls=stalls))
            return []
        return self._broker.operations.carry_out(source, message, now)

    def wait_again(self, items: deque[HeldItem]) -> bool:
        """Let operations wait again that have had their turn here and then found their source busy,
        if the first has to; and say whether it does. All come before what waits here by now: each
        for itself, behind the others, they would take turns for ever."""
        first = items[0]
        assert isinstance(first.message, Operation | Leave)
        in_turn = bool(self.queue) and self.queue[0].message is None
        if self._conflicts(first.source, first.message, first.engine):
            self._decision_awaited = True
        elif not in_turn or self._may_pass_turns(first.source, first.message):
            return False
        at = 1 if in_turn else 0
        while items:
            self.queue.insert(at, items.pop())
        return True

    def hold(self, source: Hop, join: Join) -> None:
        """Let a client that comes back wait behind its own leaving."""
        self.queue.append(HeldItem(source, join))

    def stalls(self, source: Hop, pub: Pub) -> bool:
        """Let a neighbour's publication wait if it has to, and say whether it does."""
        if source not in self.stalled or not self.queue:
            return False
        self.queue.append(HeldItem(source, pub))
        return True

    def _makes_stalled(self, source: Hop, message: Operation | Leave) -> bool:
        """Whether publications of a neighbour have to wait behind this."""
        if is_client(source) or self._decision_awaited or not isinstance(message, Operation):
            return False
        engines = self._broker.engines
        return not any(engines[name].owns(context, message) for name, context in self._turns)

    def submit(
        self, engine: str, source: Hop, operation: Operation, context: Any, now: float
    ) -> list[Effect]:
        """An operation of an engine (`Broker.submit`)."""
        place = self._in_its_place
        if place is None and self._must_wait(source, operation, engine):
            self.queue.append(HeldItem(source, operation, engine, context))
            return []
        if place is not None and (place or self._conflicts(source, operation, engine)):
            self._decision_awaited = True
            self.queue.insert(place, HeldItem(source, operation, engine, context))
            self._in_its_place = place + 1
            return []
        return self._broker.engines[engine].resume(source, operation, context, now)

    def put_back(self, task: Task, operation: Operation, now: float) -> list[Effect]:
        """An operation that takes another one back (`Broker.put_back`)."""
        if self._must_wait(task.origin, operation):
            self.queue.append(HeldItem(task.origin, operation, task=task))
            return []
        return self._broker.operations.undo(task, operation, now)

    def holds_part(self, long: LongWork, part: Operation) -> bool:
        """Let a part of long work wait if it has to, and say whether it does."""
        if not self._must_wait(long.source, part):
            return False
        self.queue.append(HeldItem(long.source, part, long=long))
        return True

    def in_turn(self, engine: str, context: Any, now: float) -> list[Effect]:
        """An engine changes the tables slice by slice (`Broker.in_turn`)."""
        item = HeldItem(Hop(""), None, engine, context)
        if self._in_its_place is None:
            self.queue.append(item)
        else:
            self.queue.insert(self._in_its_place, item)
            self._in_its_place += 1
        self._turns.append((engine, context))
        return self.release(now)

    # --- what does not have to wait any more ---

    def go_on(self, source: Hop) -> list[Effect]:
        """A source is not busy any more: release in the next slice what has waited for that."""
        return self._broker.jobs.add(*RELEASE) if source in self._reserved else []

    def release(self, now: float) -> list[Effect]:
        """Carry out a slice of what need not wait any more (`Broker.release`)."""
        effects: list[Effect] = []
        if self._releasing:
            return effects  # Called from below; the loop goes on.
        self._releasing = True
        effects += self._broker.requests.give_up(now)
        units = self._release_queue(now, effects)
        units = self._release_reserved(now, effects, units)
        self._releasing = False
        if not self.queue:
            self._decision_awaited = False
        # Publications that wait are not overtaken, whatever has become of the operation before.
        self.stalled = {
            item.source
            for item in self.queue
            if isinstance(item.message, Pub) or (item.stalls and not self._decision_awaited)
        }
        if units >= self._broker.slice:
            return effects + self._broker.jobs.add(*RELEASE)
        return effects + self._broker.settled(now)

    def _release_queue(self, now: float, effects: list[Effect]) -> int:
        """Go through the queue until something has to wait; returns the units that this took."""
        units = 0
        while self.queue and units < self._broker.slice:
            item = self.queue[0]
            message = item.message
            if isinstance(message, Operation | Leave) and self._conflicts(
                item.source, message, item.engine
            ):
                effects += self._let_publications_go(now)
                break
            units += OPERATION_UNITS
            if isinstance(message, Operation):
                units += len(message.drop)
            if message is None:
                units += self._slice_in_turn(item, now, effects)
                continue
            self.queue.popleft()
            try:
                effects += self.resume(item, now)
            except PeerError as error:  # Not the mistake of the peer whose message we handle.
                effects.append(Close(item.source, error.code, str(error)))
        return units

    def _release_reserved(self, now: float, effects: list[Effect], units: int) -> int:
        """Carry out what touches nothing reserved any more; returns all units of this slice."""
        for source in list(self._reserved):
            waiting = self._reserved[source]
            while (
                waiting
                and units < self._broker.slice
                and source not in self._broker.busy.long
                and not self._is_reserved(source, waiting[0])
            ):
                units += OPERATION_UNITS
                effects += self._unreserved(source, waiting.popleft(), now)
            if not waiting:
                del self._reserved[source]
        return units

    def _let_publications_go(self, now: float) -> list[Effect]:
        """What they wait behind waits for a decision now, and for that no publication waits."""
        self._decision_awaited = True
        self.stalled.clear()
        gone = [(item.source, item.message) for item in self.queue if isinstance(item.message, Pub)]
        if gone:
            self._keep(lambda item: not isinstance(item.message, Pub))
        publish = self._broker.publications.publish
        return [effect for hop, pub in gone for effect in publish(hop, pub, now)]

    def resume(self, item: HeldItem, now: float) -> list[Effect]:
        """Carry out what has waited, or let it wait until its source is not busy any more."""
        broker, source, message = self._broker, item.source, item.message
        if isinstance(message, Pub):
            return broker.publications.publish(source, message, now)
        if isinstance(message, Join):
            return broker.membership.join(source, message, now)
        assert message is not None, "an engine's turn is not resumed"
        if item.is_plain:
            return broker.operations.carry_out(source, message, now)
        assert isinstance(message, Operation)
        if item.task is not None:
            return broker.operations.undo(item.task, message, now)
        if item.long is not None:
            return [*item.long.resumed(message, now), *broker.jobs.add("", item.long)]
        if source in broker.busy.long:  # It came after what its client is busy with.
            broker.busy.defer(item)
            return []
        self._in_its_place = 0
        try:
            return broker.engines[item.engine].resume(source, message, item.context, now)
        finally:
            self._in_its_place = None

    def _slice_in_turn(self, item: HeldItem, now: float, effects: list[Effect]) -> int:
        """One slice of what is first in the queue; it leaves when there is no more. Returns the
        units that it took."""
        self._in_its_place = 0
        try:
            worked = self._broker.engines[item.engine].work(item.context, now)
        finally:
            place, self._in_its_place = self._in_its_place, None
        effects += worked.effects
        if not worked.more:
            del self.queue[place]  # Behind what it has to wait for.
            self._turns = [turn for turn in self._turns if turn[1] is not item.context]
        return worked.units if place or not worked.more else self._broker.slice

    # --- what has to wait ---

    def _is_reserved(self, source: Hop, message: Operation | Leave) -> bool:
        return any(engine.reserves(source, message) for engine in self._broker.engines.values())

    def _must_wait(self, source: Hop, message: Operation | Leave, engine: str = "") -> bool:
        if self._conflicts(source, message, engine):
            self._decision_awaited = True
            return True
        if not self.queue:
            self._decision_awaited = False
            return False
        return self._decision_awaited or not self._may_pass(source, message)

    def _may_pass(self, source: Hop, message: Operation | Leave) -> bool:
        """Whether an operation need not wait for the next slices, in which what is in the queue
        will be carried out: it makes no difference which comes first."""
        if not isinstance(message, Operation) or len(self.queue) > PASSED_LIMIT:
            return False
        if not self._may_pass_turns(source, message):
            return False
        return not any(
            _meet(source, message, item.source, item.message)
            for item in self.queue
            if item.message is not None and not isinstance(item.message, Pub)
        )

    def _may_pass_turns(self, source: Hop, message: Operation | Leave) -> bool:
        engines = self._broker.engines
        return isinstance(message, Operation) and all(
            engines[name].lets_pass(context, source, message) for name, context in self._turns
        )

    def _conflicts(self, source: Hop, message: Operation | Leave, engine: str) -> bool:
        others = (other for name, other in self._broker.engines.items() if name != engine)
        return any(other.holds(source, message) for other in others)

    def _no_room(self, source: Hop, own: int = 0) -> LimitReached | None:
        """Why not one more operation of a client may wait behind its own ones, or in the queue."""
        if own >= WAITING_PER_CLIENT:
            return LimitReached(f"{own} operations of {source[1:]} wait already")
        try:
            self.usage.check(self._broker.name)
        except LimitReached as error:
            return error
        return None

    # --- what waits no more, since its source is gone ---

    def drop_plain(self, client: Hop) -> None:
        """A client is gone: nothing that it sent itself and that waits is carried out."""
        self._reserved.pop(client, None)
        if self.queue:
            self._keep(lambda item: item.source != client or not item.is_plain)

    def drop_all(self, neighbour: Hop, now: float) -> list[Effect]:
        """A neighbour lives a new life: no operation from its former life is carried out, and its
        publications wait for none any more."""
        gone = [item.message for item in self.queue if item.source == neighbour]
        self._keep(lambda item: item.source != neighbour)
        self.stalled.discard(neighbour)
        publish = self._broker.publications.publish
        pubs = [message for message in gone if isinstance(message, Pub)]
        return [effect for pub in pubs for effect in publish(neighbour, pub, now)]

    def drop_part(self, long: LongWork) -> None:
        """Long work ends before it is done: its part that waits is not carried out."""
        self._keep(lambda item: item.long is not long)

    def _keep(self, stays: Callable[[HeldItem], bool]) -> None:
        self.queue = deque(filter(stays, self.queue))

    # --- questions about what waits ---

    @property
    def operations(self) -> list[tuple[Hop, Operation | Leave]]:
        """The operations on the shared tables that wait for a decision, or have and found their
        client busy."""
        return [
            (item.source, item.message)
            for item in (*self.queue, *self._broker.busy.deferred)
            if isinstance(item.message, Operation | Leave)
        ]

    def leaves(self, client: str) -> bool:
        """Whether the leaving of a client waits in the queue."""
        leaving = (item.message for item in self.queue if isinstance(item.message, Leave))
        return any(leave.client == client for leave in leaving)

    def sent_before(self, source: Hop, *, held: bool) -> list[Operation]:
        """Operations of a client that wait (`Broker.sent_before`)."""
        waiting = [*self._reserved.get(source, ()), *self._broker.busy.waits_for(source)]
        if held:
            waiting += [message for hop, message in self.operations if hop == source]
        return [message for message in waiting if isinstance(message, Operation)]

    def count(self, source: Hop) -> int:
        """How many operations wait in the queue, or behind what this client has sent itself."""
        return len(self.queue) + len(self._reserved.get(source, ()))

    @property
    def usage(self) -> Usage:
        """The operations that wait, for a decision or for something reserved."""
        reserved = sum(map(len, self._reserved.values()))
        return Usage("waiting operations", len(self.queue) + reserved, WAITING_PER_BROKER)

    @property
    def at_rest(self) -> bool:
        return not (self.queue or self._reserved)


def _meet(source: Hop, operation: Operation, before: Hop, other: Operation | Leave | Join) -> bool:
    """Whether it matters that an operation is carried out after another one that came before it.

    Operations from different hops about different entries can change places.
    """
    if before == source:
        return True
    if other.client != operation.client:
        return False
    if not isinstance(other, Operation):
        return True
    return not {operation.seq, *operation.drop}.isdisjoint((other.seq, *other.drop))


def answer(hop: Hop, req: int, error: OverlayError) -> list[Effect]:
    """The refusal of a request, if it wants an answer."""
    return [Send((hop,), Done(req, error.code, str(error)))] if req else []
