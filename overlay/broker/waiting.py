"""Operations that have to wait at a broker, in which order they go on, and what passes them.

A client's operation waits while words of it are reserved, and the client's later ones behind it.
An operation on the shared tables waits while it conflicts with an undecided transaction, and all
later ones here behind it, in one queue. In that queue stands as well an engine that changes the
tables slice by slice (`overlay.broker.turns`); what it makes no difference to may pass.

This is a part of the broker (`overlay.broker.core`), which knows how operations are carried out;
who conflicts with what, the engines know.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

from overlay.broker.engine import Engine
from overlay.broker.limits import WAITING_PER_BROKER, WAITING_PER_CLIENT, Usage
from overlay.broker.long_work import LongOperation, LongWork
from overlay.broker.recording import Recorder
from overlay.broker.requests import Task
from overlay.broker.service import RouteChange, Service
from overlay.broker.turns import RELEASE, SLICE, Jobs
from overlay.effects import Close, Effect, Send
from overlay.errors import LimitReached, OverlayError, PeerError
from overlay.messages import BrokerName, Done, Hop, Join, Leave, Operation, Pub, is_client
from overlay.tables.versions import Versions

#: Units of work (`overlay.broker.turns`) of an operation that a decision releases: with entries of
#: many clients around it, it takes three times as long as a look at one entry.
OPERATION_UNITS = 3

#: Waiting operations that another one may pass; to look through more of them would take long.
PASSED_LIMIT = 64

#: Stands with an operation behind which its neighbour's publications wait.
STALLS = "stalls"


class WaitingOperations(Recorder):
    """The part of a broker that lets operations wait."""

    #: Units of work that one input may take before the rest is left for the next slice.
    slice = SLICE

    def __init__(self, name: BrokerName, versions: Versions) -> None:
        super().__init__(name, versions)
        self.engines: dict[str, Engine] = {}
        self.services: dict[str, Service] = {}
        #: What clients have said while words of theirs are reserved, in each client's order.
        self._waiting: dict[Hop, deque[Operation | Leave]] = {}
        #: Plain operations that wait for a transaction's decision, in the order of their arrival.
        #: Those of an engine's transaction come with the engine's name and what it wants back;
        #: those that undo something with their task. A client that comes back waits behind its own
        #: leaving. Without a message: an engine that changes the tables in slices, in its turn.
        self._held: deque[tuple[Hop, Operation | Leave | Join | Pub | None, str, Any]] = deque()
        #: Those that stand in the queue without a message.
        self._turns: list[tuple[str, Any]] = []
        #: While one that has waited is carried out: how many that came with it wait in its place.
        self._in_its_place: int | None = None
        #: Whether something in the queue waits for a decision: then all that comes waits behind it.
        self._decision_awaited = False
        #: Neighbours whose operations wait only for the next slices. Their publications do, too:
        #: the two may be of one transaction, which had no reason to wait for an answer.
        self._stalled: set[Hop] = set()
        #: While `release` goes through the queue.
        self._releasing = False
        self._jobs = Jobs()
        #: Long work that a hop waits for (`overlay.broker.long_work`).
        self._long: dict[Hop, LongWork] = {}
        #: Long work that waits for neighbours to answer, by its task.
        self._awaiting: dict[Task, LongWork] = {}

    @abstractmethod
    def _carry_out(self, source: Hop, message: Operation | Leave, now: float) -> list[Effect]:
        """Carry out a plain operation that need not wait."""

    @abstractmethod
    def _undo(self, task: Task, operation: Operation, now: float) -> list[Effect]:
        """Carry out an operation that takes another one back."""

    @abstractmethod
    def _give_up(self, now: float) -> list[Effect]:
        """Wait no more for what neighbours were asked before they were lost, if nobody minds."""

    @abstractmethod
    def _publish(self, source: Hop, pub: Pub, now: float) -> list[Effect]:
        """Route a publication."""

    @abstractmethod
    def _join(self, source: Hop, join: Join, now: float) -> list[Effect]:
        """Let a client in that is not leaving here any more."""

    def _plain(self, source: Hop, message: Operation | Leave, now: float) -> list[Effect]:
        """Carry out a plain operation, or let it wait for the transactions it conflicts with."""
        if is_client(source) and (source in self._waiting or self._is_reserved(source, message)):
            waiting = self._waiting.get(source, ())
            if isinstance(message, Operation) and (error := self._no_room(source, len(waiting))):
                return answer(source, message.req, error)
            self._waiting.setdefault(source, deque()).append(message)
            return []
        return self._unreserved(source, message, now)

    @abstractmethod
    def _unreserved(self, source: Hop, message: Operation | Leave, now: float) -> list[Effect]:
        """Carry out a plain operation that waits for no words of its own client any more."""

    def _shared(self, source: Hop, message: Operation | Leave, now: float) -> list[Effect]:
        if self._must_wait(source, message):
            if (
                is_client(source)
                and isinstance(message, Operation)
                and (error := self._no_room(source))
            ):
                return answer(source, message.req, error)
            stalls = self._stalls(source, message)
            if stalls:
                self._stalled.add(source)
            self._held.append((source, message, "", STALLS if stalls else None))
            return []
        return self._carry_out(source, message, now)

    @property
    def waiting_operations(self) -> Usage:
        """The operations that wait, for a decision or for words of their own client."""
        own = sum(map(len, self._waiting.values()))
        return Usage("waiting operations", len(self._held) + own, WAITING_PER_BROKER)

    def _no_room(self, source: Hop, own: int = 0) -> LimitReached | None:
        """Why not one more operation of a client may wait for its own words, or for others."""
        if own >= WAITING_PER_CLIENT:
            return LimitReached(f"{own} operations of {source[1:]} wait already")
        try:
            self.waiting_operations.check(self.name)
        except LimitReached as error:
            return error
        return None

    def _stalls(self, source: Hop, message: Operation | Leave) -> bool:
        """Whether publications of a neighbour have to wait behind this."""
        if is_client(source) or self._decision_awaited or not isinstance(message, Operation):
            return False
        return not any(self.engines[name].owns(context, message) for name, context in self._turns)

    def _wait_behind(self, source: Hop, pub: Pub) -> bool:
        """Let a neighbour's publication wait, if it has to."""
        if source not in self._stalled or not self._held:
            return False
        self._held.append((source, pub, "", None))
        return True

    def submit(
        self, engine: str, source: Hop, operation: Operation, context: Any, now: float
    ) -> list[Effect]:
        """Let an engine change the tables for everybody at once, when a plain operation might.

        `Engine.resume` is called, now or later. What an engine submits while it resumes one that
        has waited takes the place of that one: it does not go behind what came meanwhile, which
        may be a consequence of it, from another broker that did not have to wait.
        """
        place = self._in_its_place
        if place is None and self._must_wait(source, operation, engine):
            self._held.append((source, operation, engine, context))
            return []
        if place is not None and (place or self._conflicts(source, operation, engine)):
            self._decision_awaited = True
            self._held.insert(place, (source, operation, engine, context))
            self._in_its_place = place + 1
            return []
        return self.engines[engine].resume(source, operation, context, now)

    def put_back(
        self, engine: str, source: Hop, operation: Operation, context: Any, now: float
    ) -> list[Effect]:
        """Carry out an operation whose effect is worked out already (`store`, `drop`), in its turn.

        For undoing: it takes entries out, or brings them back under their old numbers.
        `Engine.completed` is called when it is done everywhere.
        """
        task = Task(source, 0, engine, context)
        if self._must_wait(source, operation):
            self._held.append((source, operation, "", task))
            return []
        return self._undo(task, operation, now)

    def part_of_long(self, long: LongWork, part: Operation, now: float) -> list[Effect]:
        """Carry out a part of a long operation in its turn; it pauses if that is not now."""
        if self._must_wait(long.source, part):
            long.pauses = True
            self._held.append((long.source, part, "", long))
            return []
        return long.resumed(part, now)

    def _answers_came(self, *tasks: Task) -> list[Effect]:
        """Go on with long work that has waited for answers, of these tasks or of any."""
        effects: list[Effect] = []
        for task in tasks or list(self._awaiting):
            long = self._awaiting.get(task)
            if long is not None and long.may_go_on:
                del self._awaiting[task]
                effects += self._jobs.add("", long)
        return effects

    def in_turn(self, engine: str, context: Any, now: float) -> list[Effect]:
        """Let an engine change the tables slice by slice, in its turn among operations.

        `Engine.work` is called, now or later, until there is no more. Operations that come
        meanwhile wait behind it, as they would if it were done at once, but for those that it
        `lets_pass`; publications do not.
        """
        if self._in_its_place is None:
            self._held.append((Hop(""), None, engine, context))
        else:
            self._held.insert(self._in_its_place, (Hop(""), None, engine, context))
            self._in_its_place += 1
        self._turns.append((engine, context))
        return self.release(now)

    def later(self, engine: str, context: Any) -> list[Effect]:
        """Let an engine go on with something in slices of its own: `Engine.work` is called until
        there is no more. A context that waits already is not taken twice."""
        return self._jobs.add(engine, context)

    def _work(self, now: float) -> list[Effect]:
        """Do the next slice of what takes long."""
        engine, context = self._jobs.next()
        if isinstance(context, LongWork):
            if context.awaits_answers:
                self._awaiting[context.task] = context
                return self._jobs.again()
            worked = context.work(now)
        elif not engine:
            return [*self.release(now), *self._jobs.again()]
        else:
            service = self.service(engine)
            assert service is not None
            worked = service.work(context, now)
        effects = [*worked.effects, *(self._jobs.add(engine, context) if worked.more else ())]
        return [*effects, *self._jobs.again()]

    def release(self, now: float) -> list[Effect]:
        """Carry out what has waited for a decision and need not wait any more.

        What is more than a slice follows in the next ones, in its order. When all is done, the
        engines are told (`Engine.released`).
        """
        effects: list[Effect] = []
        if self._releasing:
            return effects  # Called from below; the loop goes on.
        self._releasing = True
        effects += self._give_up(now)
        units = 0
        while self._held and units < self.slice:
            source, message, engine, context = self._held[0]
            if isinstance(message, Operation | Leave) and self._conflicts(source, message, engine):
                effects += self._let_publications_go(now)
                break
            units += OPERATION_UNITS
            if message is None:
                units += self._slice_in_turn(engine, context, now, effects)
                continue
            self._held.popleft()
            try:
                effects += self._resume(source, message, engine, context, now)
            except PeerError as error:  # Not the mistake of whoever has set us going.
                effects.append(Close(source, error.code, str(error)))
        for source in list(self._waiting):
            waiting = self._waiting[source]
            while (
                waiting
                and units < self.slice
                and source not in self._long
                and not self._is_reserved(source, waiting[0])
            ):
                units += OPERATION_UNITS
                effects += self._unreserved(source, waiting.popleft(), now)
            if not waiting:
                del self._waiting[source]
        self._releasing = False
        if not self._held:
            self._decision_awaited = False
        # Publications that wait are not overtaken, whatever has become of the operation before.
        self._stalled = {
            hop
            for hop, said, _, context in self._held
            if isinstance(said, Pub) or (context is STALLS and not self._decision_awaited)
        }
        if units >= self.slice:
            return effects + self._jobs.add(*RELEASE)
        return effects + self.settled(now)

    def settled(self, now: float) -> list[Effect]:
        """Let the engines go on with what has waited for something that is settled here."""
        effects: list[Effect] = []
        for engine in self.engines.values():
            effects += engine.released(now)
        return effects

    def _let_publications_go(self, now: float) -> list[Effect]:
        """What they wait behind waits for a decision now, and for that no publication waits."""
        self._decision_awaited = True
        self._stalled.clear()
        gone = [(hop, said) for hop, said, _, _ in self._held if isinstance(said, Pub)]
        if gone:
            self._held = deque(item for item in self._held if not isinstance(item[1], Pub))
        return [effect for hop, pub in gone for effect in self._publish(hop, pub, now)]

    def _resume(
        self,
        source: Hop,
        message: Operation | Leave | Join | Pub,
        engine: str,
        context: Any,
        now: float,
    ) -> list[Effect]:
        """Carry out what has waited."""
        if isinstance(message, Pub):
            return self._publish(source, message, now)
        if isinstance(message, Join):
            return self._join(source, message, now)
        if engine:
            assert isinstance(message, Operation)
            self._in_its_place = 0
            try:
                return self.engines[engine].resume(source, message, context, now)
            finally:
                self._in_its_place = None
        if isinstance(context, Task):
            assert isinstance(message, Operation)
            return self._undo(context, message, now)
        if isinstance(context, LongWork):
            assert isinstance(message, Operation)
            return [*context.resumed(message, now), *self._jobs.add("", context)]
        return self._carry_out(source, message, now)

    def _slice_in_turn(self, engine: str, context: Any, now: float, effects: list[Effect]) -> int:
        """One slice of what stands first in the queue; it leaves when there is no more. Returns
        the units that it took."""
        self._in_its_place = 0
        try:
            worked = self.engines[engine].work(context, now)
        finally:
            place, self._in_its_place = self._in_its_place, None
        effects += worked.effects
        if not worked.more:
            del self._held[place]  # Behind what it has to wait for.
            self._turns = [turn for turn in self._turns if turn[1] is not context]
        return worked.units if place or not worked.more else self.slice

    def _is_reserved(self, source: Hop, message: Operation | Leave) -> bool:
        return any(engine.reserves(source, message) for engine in self.engines.values())

    def _must_wait(self, source: Hop, message: Operation | Leave, engine: str = "") -> bool:
        if self._conflicts(source, message, engine):
            self._decision_awaited = True
            return True
        if not self._held:
            self._decision_awaited = False
            return False
        return self._decision_awaited or not self._may_pass(source, message)

    def _may_pass(self, source: Hop, message: Operation | Leave) -> bool:
        """Whether an operation need not wait for the next slices, in which what stands in the queue
        will be carried out: it makes no difference which comes first."""
        if not isinstance(message, Operation) or len(self._held) > PASSED_LIMIT:
            return False
        for name, context in self._turns:
            if not self.engines[name].lets_pass(context, source, message):
                return False
        return not any(
            _meet(source, message, before, other)
            for before, other, _, _ in self._held
            if other is not None and not isinstance(other, Pub)
        )

    def _conflicts(self, source: Hop, message: Operation | Leave, engine: str) -> bool:
        others = (other for name, other in self.engines.items() if name != engine)
        return any(other.holds(source, message) for other in others)

    # --- engines and services ---

    def service(self, name: str) -> Service | None:
        """The engine or service of that name, if this broker has it."""
        return self.engines.get(name) or self.services.get(name)

    def hosted(self) -> list[Service]:
        """The engines and the services of this broker, in the order in which they are told."""
        return [*self.engines.values(), *self.services.values()]

    def routes_changed(self, changes: Sequence[RouteChange], now: float) -> list[Effect]:
        """Report changes of the tables that have become visible together.

        An engine that changes the tables by itself calls this when all traffic sees the changes.
        """
        effects: list[Effect] = []
        for service in self.hosted():
            effects += service.routes_changed(changes, now)
        return effects

    # --- what waits ---

    @property
    def held(self) -> list[tuple[Hop, Operation | Leave]]:
        """The operations on the shared tables that wait for a decision."""
        return [
            (hop, said) for hop, said, _, _ in self._held if isinstance(said, Operation | Leave)
        ]

    def said_before(self, source: Hop, *, held: bool = True) -> list[Operation]:
        """What a client has said that waits, and so will be numbered after what it says now; with
        or without what is held for others."""
        waiting = list(self._waiting.get(source, ()))
        long = self._long.get(source)
        if isinstance(long, LongOperation):
            waiting.append(long.operation)
        if held:
            waiting += [said for hop, said in self.held if hop == source]
        return [said for said in waiting if isinstance(said, Operation)]

    def count_waiting(self, source: Hop) -> int:
        """How many operations wait for a decision, or for words of this client."""
        return len(self._held) + len(self._waiting.get(source, ()))

    @property
    def is_releasing(self) -> bool:
        """Whether operations wait only for the next slice: nothing else is in their way."""
        return RELEASE in self._jobs


def _meet(source: Hop, operation: Operation, before: Hop, other: Operation | Leave | Join) -> bool:
    """Whether it matters that an operation is carried out after another one that came before it.

    What different hops send about different entries can change places.
    """
    if before == source:
        return True
    if other.client != operation.client:
        return False
    if not isinstance(other, Operation):
        return True
    return not {operation.seq, *operation.drop}.isdisjoint((other.seq, *other.drop))


def answer(hop: Hop, req: int, error: OverlayError) -> list[Effect]:
    return [Send((hop,), Done(req, error.code, str(error)))] if req else []
