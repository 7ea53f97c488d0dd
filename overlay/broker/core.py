"""The broker as a function: a message in, effects out.

The same object runs over TCP, in the simulator and directly in tests. There is no clock, no
randomness and no socket in it; `now` is an argument and a timer is an effect that comes back as
`wake`. The same inputs in the same order give the same effects, byte for byte.

The way of a message: `take` routes runs of plain publications together, and gives any other message
to `receive`, which hands it to the method for its type, that method asks the tables in
`routing` what follows, and the answer leaves as effects. A request that other brokers must carry
out too is a `Task`: it is answered (`Done`) when every neighbour that was told has answered, and
all that it triggered is done as well (the nested acknowledgements of Algorithm 2, for plain
operations). A message of a transaction engine goes to that engine.

Whose mistake it is decides what happens: a refused operation is answered with its reason, a
peer that breaks the protocol raises `PeerError` and the host closes its link, and a mistake of
ours is an assertion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from overlay.broker.engine import EngineFactory
from overlay.broker.limits import ENTRIES_PER_BROKER, ENTRIES_PER_CLIENT, Usage
from overlay.broker.long_work import (
    CatchingUp,
    LongLeave,
    LongOperation,
    LongWork,
    MovingSubscriptions,
)
from overlay.broker.reach import Reach
from overlay.broker.recording import moved
from overlay.broker.requests import Task, Tasks
from overlay.broker.service import RouteChange, ServiceFactory
from overlay.broker.turns import RELEASE, WORK
from overlay.broker.waiting import WaitingOperations, answer
from overlay.effects import Close, Effect, Forward, Send
from overlay.errors import (
    FilterError,
    LimitReached,
    NameTaken,
    NotAdvertised,
    OperationError,
    PeerError,
    ProtocolError,
)
from overlay.filters import check_point, is_evidently_right
from overlay.identity import Lives
from overlay.matching.index import View, is_visible
from overlay.messages import (
    NAME_PATTERN,
    AnyMessage,
    BrokerName,
    ClientName,
    Done,
    EngineMessage,
    Hop,
    Inspect,
    Join,
    Leave,
    Operation,
    Pub,
    PubRefused,
    Reachability,
    Report,
    client_hop,
    is_client,
)
from overlay.notation import format_publication
from overlay.tables.pages import page
from overlay.tables.routing import Home, Outcome, Routing, Scope
from overlay.tables.space import Entry
from overlay.tables.versions import Versions
from overlay.trace import TraceKind

#: Plain operations of one client that may be under way, here and at other brokers, before its next
#: message is taken. They share the links with everybody's publications, so this bounds how far one
#: client can fill them: with operations of 50 us, 6 ms. Over links with a delay it bounds the
#: client's rate: 1,280 operations/s at a round trip of 100 ms.
UNDER_WAY_PER_CLIENT = 128


#: Units of work (`overlay.broker.turns`) for a message that has waited for long work.
CATCH_UP_UNITS = 4


class Taken(NamedTuple):
    """What a broker has done with some messages of a peer."""

    #: How many of them it has taken, from the first on.
    consumed: int
    effects: list[Effect]
    #: Whether these were plain publications that only had to go on.
    is_run: bool


class Broker(WaitingOperations):
    """One broker of the tree.

    Call `take` with the messages of every link, in their order, and carry the effects out in order.
    `take` raises PeerError when the source broke the protocol: close its link, and for a client
    call `client_left`.

    `salt` is a random number of the process, for the lives of clients (`overlay.identity`).
    """

    def __init__(
        self,
        name: BrokerName,
        neighbours: Iterable[BrokerName],
        *,
        engines: Mapping[str, EngineFactory] | None = None,
        services: Mapping[str, ServiceFactory] | None = None,
        trace: bool = False,
        salt: int = 0,
    ) -> None:
        super().__init__(name, Versions())
        self.routing = Routing(name, neighbours)
        self.trace = trace
        self.reach = Reach(name)
        self._tasks: Tasks[Task] = Tasks()
        #: Neighbours that cannot be reached, and whose answers to what they were asked before are
        #: still waited for.
        self._lost: dict[Hop, None] = {}
        #: Clients here whose join every broker has agreed to, with their last operation's number.
        self._joined: dict[Hop, int] = {}
        self._joining: dict[Hop, Task] = {}
        #: Clients here that leave and wait for the end of it, with their tasks once those begin.
        self._leaving: dict[Hop, Task | None] = {}
        #: The plain requests of each hop that are under way; dicts for their order.
        self._under_way: dict[Hop, dict[Task, None]] = {}
        #: What hops have said since they wait for long work, and before that what had waited for a
        #: decision.
        self._deferred: dict[Hop, deque[Operation | Leave]] = {}
        self._behind: dict[Hop, deque[AnyMessage]] = {}
        #: Hops that are not busy any more, for the host.
        self._freed: dict[Hop, None] = {}
        self.lives = Lives(salt)
        self._receivers: dict[type, Callable[[Hop, Any, float], list[Effect]]] = {
            Pub: self._published,
            Operation: self._operate,
            Done: self._done,
            Join: self._asked_to_join,
            Leave: self._leave,
            Inspect: self._inspect,
            Reachability: self._reported,
            EngineMessage: self._engine_message,
        }
        assert not set(engines or ()) & set(services or ()), "they share one name space"
        self.engines = {engine: make(self) for engine, make in sorted((engines or {}).items())}
        self.services = {
            name: make_service(self) for name, make_service in sorted((services or {}).items())
        }

    # --- inputs ---

    def take(
        self, source: Hop, messages: Sequence[AnyMessage], now: float, start: int = 0
    ) -> Taken:
        """Take messages of one peer, from index `start` on, in the order of its link.

        This is the way in for every host. It takes a run of plain publications, which are routed
        together, or one message of another kind. Carry the effects out, and call it again for the
        rest.

        Raises PeerError if the first of the messages breaks the protocol.
        """
        end = self._end_of_run(source, messages, start)
        if end > start:
            effects = self._route(source, messages, start, end, now)
            return Taken(end - start, effects, is_run=True)
        message = messages[start]
        effects = [
            Forward(effect.hops, start, 1)
            if type(effect) is Send and effect.message is message
            else effect
            for effect in self.receive(source, message, now)
        ]
        return Taken(1, effects, is_run=False)

    def receive(self, source: Hop, message: AnyMessage, now: float) -> list[Effect]:
        """Handle one message by itself; hosts call `take`.

        Raises PeerError if the message breaks the protocol.
        """
        receiver = self._receivers.get(type(message))
        if receiver is None:
            raise ProtocolError(f"a broker takes no {type(message).__name__}")
        if source in self._long:
            self._behind.setdefault(source, deque()).append(message)
            return []
        return receiver(source, message, now)

    def wake(self, key: str, now: float) -> list[Effect]:
        """A timer that `SetTimer` asked for has run out."""
        if key == WORK:
            return self._work(now)
        name, _, rest = key.partition("/")
        service = self.service(name)
        assert service is not None, f"timer {key!r} of nobody"
        return service.wake(rest, now)

    def client_left(self, client: str, now: float) -> list[Effect]:
        """The client's link is gone for good: its entries go."""
        return self._depart(client, now, waits=False)

    def client_leaves(self, client: str, now: float) -> list[Effect]:
        """The client has said goodbye, and its link is still there: its entries go.

        `Close` without a code follows when every broker has forgotten the client. Then its name is
        free everywhere.
        """
        return self._depart(client, now, waits=True)

    def _depart(self, client: str, now: float, *, waits: bool) -> list[Effect]:
        hop = client_hop(client)
        if isinstance(self._long.get(hop), LongLeave):
            # Another one of its name has come and gone, and was never let in.
            self._behind.pop(hop, None)
            if not waits:
                self._leaving.pop(hop, None)
            return [Close(hop, "", "")] if waits else []
        effects = self._silence(hop, now)
        home = self.routing.crt.get(ClientName(client))
        if home is None or home.hop != hop:
            return [*effects, Close(hop, "", "")] if waits else effects
        if waits:
            self._leaving[hop] = None
        return effects + self._plain(hop, Leave(0, client, self.name, home.life), now)

    def _silence(self, hop: Hop, now: float) -> list[Effect]:
        """A client of this broker is gone, but for its entries: it has no more to say."""
        client, effects = hop[1:], list[Effect]()
        if hop in self._joined:
            for service in self.hosted():
                effects += service.client_left(client, now)
            del self._joined[hop]
        self._joining.pop(hop, None)
        self._leaving.pop(hop, None)
        for task in self._under_way.get(hop, ()):
            task.req = 0  # A later client of the same name did not ask for this.
        # What it has said and what still waits was never done; nobody will miss it.
        self._waiting.pop(hop, None)
        self._behind.pop(hop, None)
        self._deferred.pop(hop, None)
        if self._held:
            self._held = deque(item for item in self._held if item[0] != hop or item[2] or item[3])
        long = self._long.get(hop)
        return effects + self._stop_long(long, now) if long is not None else effects

    def link_reset(self, neighbour: BrokerName, now: float) -> list[Effect]:
        """The neighbour lives a new life and knows nothing: its side goes, ours is sent anew.

        What was asked of its former life will never be answered; it counts as done, since what it
        had to know is in what is sent now.
        """
        source = Hop(neighbour)
        effects = self._record_link("up", source, now) if self.reach.is_absent(source) else []
        effects += self._tell_others(source, *self.reach.reset(source))
        for task in self._under_way.get(source, ()):
            task.req = 0
        self._held = deque(held for held in self._held if held[0] != source)
        behind = [client for client, home in self.routing.crt.items() if home.hop == source]
        for client in sorted(behind):
            home = self.routing.crt[client]
            left = self._forget(source, Leave(0, client, home.edge, home.life), now)
            # What would be taken back from it, its new life has never had.
            effects += [e for e in left if not (isinstance(e, Send) and e.hops == (source,))]
        # How things are comes first: what is done below about its loss is told as a change.
        for client, home in sorted(self.routing.crt.items()):
            effects.append(Send((source,), Join(0, client, home.edge, home.life)))
        for hop in sorted(self.routing.srt):
            if hop != source:
                for entry in self.routing.srt[hop]:
                    if is_visible(entry, self.versions.view()):
                        effects.append(Send((source,), _advertisement(entry)))
        effects += [Send((source,), report) for report in self.reach.reports(source)]
        self._lost.pop(source, None)
        for task in self._tasks.reset(source):
            effects += self._finished(task, now)
        effects += self._answers_came()
        for service in self.hosted():
            effects += service.link_reset(source, now)
        return effects

    def link_down(self, neighbour: BrokerName, now: float) -> list[Effect]:
        """The neighbour has been unreachable for a while: nothing waits for its answers any more.

        It still gets all that it has to know: its link keeps that. `link_up` or `link_reset` ends
        this.
        """
        source = Hop(neighbour)
        if self.reach.is_absent(source):
            return []
        effects = self._record_link("down", source, now)
        effects += self._tell_others(source, self.reach.lose(source))
        self._tasks.lose(source)
        self._lost[source] = None
        return effects + self._give_up(now) + self.release(now)

    def _give_up(self, now: float) -> list[Effect]:
        """Wait no more for what neighbours were asked before they were lost, if nobody minds."""
        effects: list[Effect] = []
        for hop in list(self._lost):
            if not any(engine.keeps(hop) for engine in self.engines.values()):
                del self._lost[hop]
                for task in self._tasks.give_up(hop):
                    effects += self._finished(task, now)
                effects += self._answers_came()
        return effects

    def link_up(self, neighbour: BrokerName, now: float) -> list[Effect]:
        """The neighbour can be reached again, and its link goes on where it was."""
        source = Hop(neighbour)
        self._lost.pop(source, None)
        self._tasks.find(source)
        back = self.reach.find(source)
        if back is None:
            return []
        return [*self._record_link("up", source, now), *self._tell_others(source, back)]

    def _record_link(self, kind: TraceKind, neighbour: Hop, now: float) -> list[Effect]:
        return [self.record(kind, now, None, neighbour)] if self.trace else []

    def _reported(self, source: Hop, report: Reachability, now: float) -> list[Effect]:
        if source not in self.routing.neighbours:
            raise ProtocolError(f"{source} is no neighbour of {self.name}")
        for name in (report.broker, report.neighbour):
            self._check_behind(source, name)
        if not self.reach.take(source, report):
            return []
        return [*self._tell_others(source, report), *self.release(now)]

    def _check_behind(self, source: Hop, name: str) -> None:
        """Raises ProtocolError if there can be no broker of that name behind a neighbour."""
        if not NAME_PATTERN.fullmatch(name):
            raise ProtocolError(f"invalid broker name {name!r} from {source}")
        if name == self.name or (name != source and Hop(name) in self.routing.neighbours):
            raise ProtocolError(f"{source} speaks of {name}, which is not behind it")

    def _tell_others(self, source: Hop, *reports: Reachability) -> list[Effect]:
        others = tuple(hop for hop in self.routing.neighbours if hop != source)
        return [Send(others, report) for report in reports] if others else []

    def is_late(self, neighbour: Hop) -> bool:
        """Whether a neighbour that was unreachable has not carried out all that it was sent."""
        return self._tasks.late(neighbour) > 0

    # --- publications ---

    def _end_of_run(self, source: Hop, messages: Sequence[AnyMessage], start: int) -> int:
        """Index of the first message that is not a plain publication which only has to go on.

        Such publications are valid, need no stamp, and wait for nothing.
        """
        from_client = is_client(source)
        if (from_client and self.versions.stamp) or source in self._stalled or source in self._long:
            return start
        if from_client:
            return self._admitted(source, messages, start, self.versions.view())
        return self._unhidden(messages, start)

    def _route(
        self, source: Hop, messages: Sequence[AnyMessage], start: int, end: int, now: float
    ) -> list[Effect]:
        """Where a run of plain publications goes, and with a trace their records."""
        pubs, view = cast(Sequence[Pub], messages[start:end]), self.versions.view()
        effects: list[Effect] = []
        at = start
        for matching, count in self.routing.prt.runs([pub.point for pub in pubs], view):
            hops = _without(source, matching)
            if self.trace:
                for one in range(at, at + count):
                    pub = cast(Pub, messages[one])
                    effects += self.record_publication(source, pub, now, hops, view)
                    if hops:
                        effects.append(Forward(hops, one, 1))
            elif hops:
                effects.append(Forward(hops, at, count))
            at += count
        return effects

    def _admitted(
        self, source: Hop, messages: Sequence[AnyMessage], start: int, view: View | None
    ) -> int:
        """Index of the first message that is not an obviously valid publication of this client."""
        space = self.routing.srt.get(source)
        if space is None or source not in self._joined:
            return start
        client, life, admits = source[1:], self.life_of(source), space.admission()
        for at in range(start, len(messages)):
            pub = messages[at]
            if (
                pub.__class__ is not Pub
                or pub.client != client
                or pub.life != life
                or pub.hidden
                or not (
                    admits(pub.point)
                    or (is_evidently_right(pub.point) and space.holds(pub.point, view))
                )
            ):
                return at
        return len(messages)

    def _unhidden(self, messages: Sequence[AnyMessage], start: int) -> int:
        """Index of the first message of a neighbour that is not a publication, or from which a
        version is hidden that counts here."""
        versions, trace = self.versions.committed, self.trace
        for at in range(start, len(messages)):
            pub = messages[at]
            if (
                pub.__class__ is not Pub
                or (versions and pub.hidden)
                or (trace and not is_evidently_right(pub.point))  # A record needs a valid one.
            ):
                return at
        return len(messages)

    def _published(self, source: Hop, pub: Pub, now: float) -> list[Effect]:
        if self.trace and not is_client(source):
            # A neighbour vouches for what it forwards; but a record can tell only what is right.
            try:
                check_point(pub.point)
            except FilterError as error:
                raise ProtocolError(f"{source} forwarded an invalid publication: {error}") from None
        return [] if self._wait_behind(source, pub) else self._publish(source, pub, now)

    def _publish(self, source: Hop, pub: Pub, now: float) -> list[Effect]:
        view = self.versions.view(pub.hidden)
        if is_client(source):
            refusal = self._refusal(source, pub, view)
            if refusal is not None:
                return [Send((source,), refusal)]
            life = self.life_of(source)
            if self.versions.stamp or pub.life != life:
                pub = msgspec.structs.replace(pub, hidden=self.versions.stamp, life=life)
        hops = _without(source, self.routing.prt.hops(pub.point, view))
        effects = self.record_publication(source, pub, now, hops, view) if self.trace else []
        return [*effects, Send(hops, pub)] if hops else effects

    def _refusal(self, source: Hop, pub: Pub, view: View | None) -> PubRefused | None:
        """Why a client's publication goes nowhere, if so."""
        if self._admitted(source, (pub,), 0, view):
            return None
        if source not in self._joined or source[1:] != pub.client:
            raise ProtocolError(f"{source} publishes in the name of {pub.client!r}")
        if pub.life not in (0, self.life_of(source)):
            raise ProtocolError(f"{source} publishes in a life that is not its own")
        if pub.hidden:
            raise ProtocolError("only a broker stamps publications")
        try:
            check_point(pub.point)
        except FilterError as error:
            return PubRefused(pub.seq, error.code, str(error))
        if self.routing.may_publish(source, pub.point, view):
            return None
        return PubRefused(
            pub.seq,
            NotAdvertised.code,
            f"{pub.client} has not advertised {format_publication(pub.point)}",
        )

    # --- operations ---

    def _operate(self, source: Hop, operation: Operation, now: float) -> list[Effect]:
        if is_client(source):
            self.check_client(source, operation.client)
        elif source not in self.routing.srt:
            raise ProtocolError(f"{source} is no neighbour of {self.name}")
        return self._plain(source, operation, now)

    def start(
        self,
        engine: str,
        source: Hop,
        operation: Operation,
        context: Any,
        now: float,
        *,
        tx: str = "",
        after: tuple[str, ...] = (),
    ) -> list[Effect]:
        """Carry out an admitted operation at once; `Engine.completed` is called in the end.

        `tx` and `after` are for the record: whose it is, and what it comes after.
        """
        task = Task(source, 0, engine, context)
        return self._apply(task, operation, now, tx=tx, after=after)

    def tell(
        self,
        engine: str,
        source: Hop,
        operation: Operation,
        sent: Iterable[tuple[Hop, Operation]],
        context: Any,
        now: float,
    ) -> list[Effect]:
        """Tell neighbours of an operation that an engine has carried out here by itself.

        `Engine.completed` is called when it is done everywhere behind them.
        """
        task = Task(source, 0, engine, context)
        task.operation = operation
        effects = [self._ask(task, hop, message) for hop, message in sent]
        return effects + self._finished(task, now)

    @property
    def under_way(self) -> list[tuple[Hop, Operation]]:
        """The operations that were carried out here, and are not done everywhere behind."""
        return [
            (task.origin, task.operation)
            for tasks in self._under_way.values()
            for task in tasks
            if task.operation is not None
        ]

    @property
    def at_rest(self) -> bool:
        """Whether nothing waits for anything."""
        waits = len(self._tasks) or self._held or self._waiting or self._joining
        return not (waits or self._tasks.is_late or len(self._jobs) or self._long or self._awaiting)

    def _carry_out(self, source: Hop, message: Operation | Leave, now: float) -> list[Effect]:
        if source in self._long:
            self._deferred.setdefault(source, deque()).append(message)
            return []
        if isinstance(message, Leave):
            return self._let_go(source, message, now)
        operation, task = message, Task(source, message.req)
        if is_client(source):
            try:
                self._check_room(source, operation)
                if self._is_long(source, operation):
                    return self._begin_long(LongOperation(self, source, operation, task))
                operation = self.admit(source, operation, Scope(self.versions.view()))
            except OperationError as error:
                return answer(source, operation.req, error)
            task.number = operation.seq
        return self._apply(task, operation, now)

    def _undo(self, task: Task, operation: Operation, now: float) -> list[Effect]:
        if ClientName(operation.client) not in self.routing.crt:
            # Its client was put out, and all it had done with it.
            return self._finished(task, now)
        return self._apply(task, operation, now, "undo")

    def _apply(
        self,
        task: Task,
        operation: Operation,
        now: float,
        kind: TraceKind = "apply",
        *,
        tx: str = "",
        after: tuple[str, ...] = (),
    ) -> list[Effect]:
        """Change the tables, and ask the neighbours for their part."""
        view = self.versions.view()
        task.operation = operation
        outcome = self.routing.apply(task.origin, operation, Scope(view), limit=self.slice)
        for engine in self.engines.values():
            engine.passed(task.origin, operation, outcome)
        effects: list[Effect] = []
        if self.trace:
            whose = task.engine if tx else ""
            effects.append(
                self.record_change(
                    kind, now, task.origin, operation, outcome, view, tx, whose, after
                )
            )
        needed = {hop for engine in self.engines.values() for hop in engine.insists(operation)}
        for hop, sent in outcome.forward + outcome.triggered:
            effects.append(self._ask(task, hop, sent, insist=hop in needed))
        effects += self.routes_changed((RouteChange(task.origin, operation),), now)
        if outcome.rest is not None:
            moving = MovingSubscriptions(self, task, outcome.rest, operation)
            return effects + self._begin_job(moving)
        return effects + self._finished(task, now)

    # --- long work (`overlay.broker.long_work`) ---

    def is_busy(self, hop: Hop) -> bool:
        """Whether a peer's next message has to wait: what it has said before is still being done,
        or is under way to very many."""
        return hop in self._long or (
            len(self._under_way.get(hop, ())) >= UNDER_WAY_PER_CLIENT and is_client(hop)
        )

    def take_freed(self) -> list[Hop]:
        """The hops that are not busy any more, since this was asked last."""
        freed = list(self._freed)
        self._freed.clear()
        return freed

    def _check_room(self, source: Hop, operation: Operation) -> None:
        """Raises LimitReached if the client may not have another entry."""
        if self.routing.held_by(source, operation.client) >= ENTRIES_PER_CLIENT:
            raise LimitReached(f"{operation.client} holds {ENTRIES_PER_CLIENT} entries already")
        if operation.positive:  # To take back must be possible.
            self._entries.check(self.name)

    @property
    def _entries(self) -> Usage:
        return Usage("entries", self.routing.entries, ENTRIES_PER_BROKER)

    @property
    def usage(self) -> list[Usage]:
        """What is limited for all together, and how much of it is used."""
        engines = (usage for engine in self.engines.values() for usage in engine.usage())
        return [self._entries, self.waiting_operations, *engines]

    def _is_long(self, source: Hop, operation: Operation) -> bool:
        return self.routing.is_long(source, operation, self.versions.view(), self.slice)

    def _unreserved(self, source: Hop, message: Operation | Leave, now: float) -> list[Effect]:
        if (
            isinstance(message, Leave)
            and is_client(source)
            and self.routing.held_by(source, message.client) > self.slice
            and self._is_home(source, message)
        ):
            return self._begin_long(LongLeave(self, source, message))
        return self._shared(source, message, now)

    def _begin_long(self, long: LongWork) -> list[Effect]:
        self._long[long.source] = long
        return self._begin_job(long)

    def _begin_job(self, long: LongWork) -> list[Effect]:
        long.task.waiting += 1  # For the work itself.
        self._under_way.setdefault(long.task.origin, {})[long.task] = None
        return self._jobs.add("", long)

    def apply_part(
        self, task: Task, operation: Operation, now: float, kind: TraceKind
    ) -> list[Effect]:
        """Carry out a part of a long operation."""
        return self._apply(task, operation, now, kind)

    def move(
        self,
        task: Task,
        source: Hop,
        operation: Operation | None,
        moved: list[tuple[Hop, Operation]],
        now: float,
    ) -> list[Effect]:
        """Tell a neighbour of subscriptions that an (un-)advertisement has moved, or the leaving of
        a client that had advertised."""
        if operation is None:
            return [self._ask(task, hop, sent) for hop, sent in moved]
        effects: list[Effect] = []
        if self.trace and moved:
            said = msgspec.structs.replace(operation, store=False, drop=())
            outcome = Outcome([], moved, [])
            view = self.versions.view()
            effects.append(self.record_change("undo", now, source, said, outcome, view))
        needed = {hop for engine in self.engines.values() for hop in engine.insists(operation)}
        return effects + [self._ask(task, hop, sent, insist=hop in needed) for hop, sent in moved]

    def long_done(self, long: LongWork, now: float) -> list[Effect]:
        """Long work is over: answer for it, and take what its source has said since."""
        long.task.waiting -= 1
        self._awaiting.pop(long.task, None)
        effects: list[Effect] = []
        if isinstance(long, LongLeave):
            del self._long[long.source]
            effects += self._shared(long.source, long.leave, now)
        elif self._long.get(long.source) is long:
            del self._long[long.source]
        effects += self._finished(long.task, now)
        return effects + self._catch_up(long.source, now)

    def long_failed(self, long: LongWork, error: OperationError, now: float) -> list[Effect]:
        """A long operation is refused; nothing of it was done."""
        long.task.operation = None
        long.task.error = (error.code, str(error))
        return self.long_done(long, now)

    def _stop_long(self, long: LongWork, now: float) -> list[Effect]:
        """Its client has gone, and all that it holds goes with it."""
        long.pauses = True
        self._held = deque(item for item in self._held if item[3] is not long)
        return self.long_done(long, now)

    def _catch_up(self, source: Hop, now: float) -> list[Effect]:
        """Take what a source has said that waited for long work, a slice of it."""
        effects: list[Effect] = []
        deferred, behind = self._deferred.get(source), self._behind.get(source)
        for _ in range(max(self.slice // CATCH_UP_UNITS, 1)):
            if source in self._long:
                return effects
            if deferred:
                effects += self._shared(source, deferred.popleft(), now)
            elif behind:
                try:
                    effects += self.receive(source, behind.popleft(), now)
                except PeerError as error:  # Not the mistake of whoever has set us going.
                    effects.append(Close(source, error.code, str(error)))
                    behind.clear()
        if source in self._long:
            return effects
        if deferred or behind:
            return effects + self._begin_long(CatchingUp(self, source, Task(source, 0)))
        self._deferred.pop(source, None)
        self._behind.pop(source, None)
        self._freed[source] = None
        return effects + (self._jobs.add(*RELEASE) if source in self._waiting else [])

    def check_client(self, source: Hop, client: str) -> None:
        """Raises ProtocolError unless the source is this client, and was let in."""
        if source not in self._joined or source[1:] != client:
            raise ProtocolError(f"{source} speaks in the name of {client!r}")

    def admit(self, source: Hop, operation: Operation, scope: Scope) -> Operation:
        """A client's operation as it goes on from here: numbered, and with what it changes.

        The numbers follow the order of arrival, which on a FIFO link is the client's own.

        Raises OperationError.
        """
        self._check_room(source, operation)
        admitted = self.routing.admit(source, operation, scope)
        return msgspec.structs.replace(admitted, seq=self.next_number(source))

    def next_number(self, source: Hop) -> int:
        """The number of a client's next operation."""
        self._joined[source] += 1
        return self._joined[source]

    def life_of(self, source: Hop) -> int:
        """Which life a client of this broker lives."""
        return self.routing.crt[ClientName(source[1:])].life

    def is_here(self, hop: Hop) -> bool:
        """Whether a client is connected to this broker, and let in."""
        return hop in self._joined

    # --- clients come and go ---

    def _asked_to_join(self, source: Hop, join: Join, now: float) -> list[Effect]:
        leaving = (said for _, said, _, _ in self._held if isinstance(said, Leave))
        if not is_client(source) and any(leave.client == join.client for leave in leaving):
            # It has left and come back, and its leaving waits here: that comes first.
            self._held.append((source, join, "", None))
            return []
        return self._join(source, join, now)

    def _join(self, source: Hop, join: Join, now: float) -> list[Effect]:
        client = ClientName(join.client)
        if is_client(source):
            if source[1:] != client or source in self._joined or source in self._joining:
                raise ProtocolError(f"{source} joins as {client!r}")
            if not NAME_PATTERN.fullmatch(client):
                raise ProtocolError(f"{client!r} is no name for a client")
            if client in self.routing.crt:
                return self._refuse_join(source, join.req, client)
            # One that left before and does not wait for the end of it: every link has that first.
            self._leaving.pop(source, None)
            edge, life = self.name, self.lives.issue(now)
        else:
            if source not in self.routing.srt:
                raise ProtocolError(f"{source} is no neighbour of {self.name}")
            if not NAME_PATTERN.fullmatch(client):
                raise ProtocolError(f"invalid client name {client!r} from {source}")
            self._check_behind(source, join.edge)
            edge, life = BrokerName(join.edge), join.life
            self.lives.saw(life)
        effects: list[Effect] = []
        home = self.routing.crt.get(client)
        if home is not None:
            # Two clients of one name came at once, at two brokers, and their joins have crossed.
            # Every broker decides alike: the one that came first stays.
            if (home.life, home.edge) <= (life, edge):
                return answer(source, join.req, self._name_taken(client))
            if home.edge == self.name:
                # If a broker between the two was lost meanwhile, it may have been let in already.
                loser = self._joining.get(home.hop)
                reason = "" if loser else _came_earlier(client, edge)
                effects += self._refuse_join(home.hop, loser.req if loser else 0, client, reason)
                effects += self._silence(home.hop, now)
            # Its join is on its way, and may find that the winner has left again, and look new.
            effects += self._forget(home.hop, Leave(0, client, home.edge, home.life), now)
        self.routing.crt[client] = Home(edge, source, life)
        if self.trace:
            effects.append(self.record("begin", now, None, source, client=client, outcome=edge))
        task = Task(source, join.req)
        if is_client(source):
            self._joining[source] = task
            task.number = life
        for hop in self.routing.neighbours:
            if hop != source:
                effects.append(self._ask(task, hop, Join(0, client, edge, life)))
        return effects + self._finished(task, now)

    def _refuse_join(
        self, source: Hop, req: int, client: ClientName, reason: str = ""
    ) -> list[Effect]:
        error = NameTaken(reason) if reason else self._name_taken(client)
        return [*answer(source, req, error), Close(source, error.code, str(error))]

    def _name_taken(self, client: ClientName) -> NameTaken:
        home = self.routing.crt.get(client)
        missing = self.reach.behind(home.hop) if home is not None else []
        where = f"; unreachable: {', '.join(map(str, missing))}" if missing and home else ""
        at = f" at broker {home.edge}" if home is not None else ""
        return NameTaken(f"a client named {client!r} is connected already{at}{where}")

    def _leave(self, source: Hop, leave: Leave, now: float) -> list[Effect]:
        if is_client(source):
            raise ProtocolError("a client leaves by closing its link")
        return self._plain(source, leave, now)

    def _is_home(self, source: Hop, leave: Leave) -> bool:
        """Whether a client that leaves is here; the loser of two crossing joins is not."""
        home = self.routing.crt.get(ClientName(leave.client))
        return home == Home(BrokerName(leave.edge), source, leave.life)

    def _let_go(self, source: Hop, leave: Leave, now: float) -> list[Effect]:
        """Forget a client that leaves, and have the neighbours forget it."""
        task = Task(source, leave.req)
        if source in self._leaving:
            self._leaving[source] = task
        effects = self._forget(source, leave, now, task) if self._is_home(source, leave) else []
        return effects + self._finished(task, now)

    def _forget(
        self, source: Hop, leave: Leave, now: float, task: Task | None = None
    ) -> list[Effect]:
        """Remove a client from the tables, and tell the neighbours; a task waits until they have
        done the same."""
        for engine in self.engines.values():
            engine.passed(source, leave, None)
        view = self.versions.view()
        outcome = self.routing.forget(ClientName(leave.client), view, limit=self.slice)
        triggered = outcome.triggered
        others = tuple(hop for hop in self.routing.neighbours if hop != source)
        effects: list[Effect] = []
        if self.trace:
            change = " ".join(moved(triggered))
            effects.append(
                self.record("end", now, None, source, others, client=leave.client, outcome=change)
            )
        if task is not None:
            effects += [self._ask(task, hop, leave) for hop in others]
        elif others:
            effects.append(Send(others, leave))
        effects += [Send((hop,), sent) for hop, sent in triggered]
        if outcome.rest is not None:
            moving = MovingSubscriptions(self, Task(source, 0), outcome.rest)
            effects += self._begin_job(moving)
        return effects + self.routes_changed((RouteChange(source, leave),), now)

    # --- requests and their answers ---

    def _ask(
        self, task: Task, hop: Hop, message: Operation | Join | Leave, *, insist: bool = False
    ) -> Effect:
        """Send a neighbour its part of a task; the task waits for the answer, unless the neighbour
        cannot be reached and the task does not insist."""
        req = self._tasks.ask(task, hop, insist=insist)
        if task.waiting:
            self._under_way.setdefault(task.origin, {})[task] = None
        return Send((hop,), msgspec.structs.replace(message, req=req))

    def _done(self, source: Hop, done: Done, now: float) -> list[Effect]:
        if self._tasks.came_late(source, done.req):
            return []
        task = self._tasks.answered(source, done.req)
        if done.code and not task.error[0]:
            task.error = (done.code, done.reason)
        effects = self._answers_came(task) if self._awaiting else []
        return effects + self._finished(task, now)

    def _finished(self, task: Task, now: float) -> list[Effect]:
        """Answer the task's origin if nothing is outstanding any more."""
        if task.waiting:
            return []
        self._not_under_way(task)
        if task.engine:
            return self.engines[task.engine].completed(task.context, now)
        effects: list[Effect] = []
        if self._joining.get(task.origin) is task:
            del self._joining[task.origin]
            if task.error[0]:
                client = ClientName(task.origin[1:])
                return self._refuse_join(task.origin, task.req, client)
            self._joined[task.origin] = 0
        if self._leaving.get(task.origin) is task:
            del self._leaving[task.origin]
            effects.append(Close(task.origin, "", ""))
        if task.req:
            effects.append(Send((task.origin,), Done(task.req, *task.error, task.number)))
        return effects

    def _not_under_way(self, task: Task) -> None:
        origin = task.origin
        tasks = self._under_way.get(origin)
        if tasks is None or task not in tasks:
            return
        del tasks[task]
        if len(tasks) == UNDER_WAY_PER_CLIENT // 2 and is_client(origin):
            self._freed[origin] = None
        if not tasks:
            del self._under_way[origin]

    # --- engines and operators ---

    def _engine_message(self, source: Hop, message: EngineMessage, now: float) -> list[Effect]:
        service = self.service(message.engine)
        if service is None:
            raise ProtocolError(f"{self.name} has no engine or service {message.engine!r}")
        return service.receive(source, message.body, now)

    def _inspect(self, source: Hop, inspect: Inspect, now: float) -> list[Effect]:
        if is_client(source) or source in self.routing.neighbours:
            raise ProtocolError(f"{source} is no operator, and may not inspect {inspect.what!r}")
        if inspect.what == "tables":
            body: Any = page(self.routing, self.versions.view(), inspect.argument)
        elif (service := self.service(inspect.what)) is not None:
            body, effects = service.inspect(inspect.argument, now)
            return [Send((source,), Report(inspect.req, body)), *effects]
        else:
            body = {"error": f"nothing called {inspect.what!r} to inspect"}
        return [Send((source,), Report(inspect.req, body))]


def _without(source: Hop, hops: tuple[Hop, ...]) -> tuple[Hop, ...]:
    """Where a publication goes; a client is given its own, a neighbour has it already."""
    if is_client(source) or source not in hops:
        return hops
    return tuple(hop for hop in hops if hop != source)


def _came_earlier(client: str, edge: str) -> str:
    return (
        f"a client named {client!r} joined earlier at broker {edge}, while the two brokers could "
        "not reach each other"
    )


def _advertisement(entry: Entry) -> Operation:
    return Operation(0, "adv" if entry.positive else "uadv", entry.client, entry.seq, entry.filter)
