"""The broker as a function: a message in, effects out.

The same object runs over TCP, in the simulator and directly in tests. There is no clock, no
randomness and no socket in it; `now` is an argument and a timer is an effect that comes back as
`wake`. The same inputs in the same order give the same effects, byte for byte.

Here are the inputs, what engines and services call, and the parts that do the work:

| part | what it does |
|---|---|
| `publications` | routes publications, and refuses those that a client may not send |
| `waiting` | lets an operation wait for undecided transactions, in its turn |
| `operations` | carries an operation out: admits it, changes the tables, asks the neighbours |
| `busy` | does long work in slices, while its source waits |
| `requests` | counts the answers of neighbours, and answers the requests of others |
| `membership` | lets clients in and forgets them |
| `resending` | holds publications for a neighbour whose link was reset, until its routes are back |
| `losses` | tells clients what may be lost with a link |
| `links` | follows the links to neighbours, and adapts the tables to a reset |
| `backlogs` | knows which links are full, so that publications for them are refused |

The way of a message: `take` routes runs of plain publications together, and gives any other message
to `receive`, which hands it to the part for its type. That part asks the tables in `routing` what
follows, and the answer leaves as effects. A request that other brokers must carry out too is a
`Task`: it is answered (`Done`) when every neighbour that was asked has answered, and all that it
triggered is done as well (the nested acknowledgements of Algorithm 2, for plain operations). A
message of a transaction engine goes to that engine.

Whose mistake it is decides what happens: a refused operation is answered with its reason, a
peer that breaks the protocol raises `PeerError` and the host closes its link, and a mistake of
ours is an assertion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from overlay.broker.backlogs import Backlogs
from overlay.broker.busy import BusySources
from overlay.broker.engine import Engine, EngineFactory
from overlay.broker.limits import Usage
from overlay.broker.long_work import LongWork
from overlay.broker.losses import GAPS, Losses
from overlay.broker.membership import Membership
from overlay.broker.neighbours import NeighbourLinks
from overlay.broker.operations import Operations
from overlay.broker.plain_requests import PlainRequests
from overlay.broker.publications import Publications
from overlay.broker.reach import Reach
from overlay.broker.recording import Recorder
from overlay.broker.requests import Task
from overlay.broker.resending import Resending, Restoration
from overlay.broker.service import RouteChange, Service, ServiceFactory
from overlay.broker.turns import RELEASE, SLICE, WORK, Jobs
from overlay.broker.waiting import WaitingOperations
from overlay.effects import Effect, Forward, Send
from overlay.errors import ProtocolError
from overlay.identity import Lives
from overlay.messages import (
    AnyMessage,
    Backlog,
    BrokerName,
    ClientName,
    Done,
    EngineMessage,
    Hop,
    Inspect,
    Join,
    Leave,
    LinkReset,
    Operation,
    Pub,
    Reachability,
    Report,
    is_client,
)
from overlay.stored import stored
from overlay.tables.pages import page
from overlay.tables.routing import Routing, Scope
from overlay.tables.versions import Versions


class Taken(NamedTuple):
    """What a broker has done with some messages of a peer."""

    #: How many of them it has taken, from the first on.
    consumed: int
    effects: list[Effect]
    #: Whether these were plain publications that only had to go on.
    is_run: bool


@stored(
    "broker",
    fields=("routing", "reach", "lives", "jobs"),
    parts=(
        *("publications", "waiting", "operations", "busy", "requests", "membership"),
        *("resending", "losses", "links", "backlogs"),
    ),
    derived=("trace", "slice", "engines", "services", "_receivers"),
)
class Broker(Recorder):
    """One broker of the tree.

    Call `take` with the messages of every link, in their order, and carry the effects out in order.
    `take` raises PeerError when the source broke the protocol: close its link, and for a client
    call `client_left`.

    `salt` is a random number of the process, for the lives of clients (`overlay.identity`).
    """

    #: Units of work that one input may take before the rest is left for the next slice.
    slice = SLICE

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
        self.trace = trace
        self.routing = Routing(name, neighbours)
        self.reach = Reach(name)
        self.lives = Lives(salt)
        self.jobs = Jobs()
        self.publications = Publications(self)
        self.waiting = WaitingOperations(self)
        self.operations = Operations(self)
        self.busy = BusySources(self)
        self.requests = PlainRequests(self)
        self.membership = Membership(self)
        self.resending = Resending(self)
        self.losses = Losses(self)
        self.links = NeighbourLinks(self)
        self.backlogs = Backlogs(self)
        self._receivers: dict[type, Callable[[Hop, Any, float], list[Effect]]] = {
            Pub: self.publications.receive,
            Operation: self.operations.receive,
            Done: self.requests.receive_done,
            Join: self.membership.receive_join,
            Leave: self.membership.receive_leave,
            Reachability: self.links.receive_report,
            Backlog: self.backlogs.receive,
            LinkReset: self.losses.receive,
            Inspect: self._inspect,
            EngineMessage: self._engine_message,
        }
        assert not set(engines or ()) & set(services or ()), "they share one name space"
        self.engines: dict[str, Engine] = {}
        self.services: dict[str, Service] = {}
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
        end = self.publications.end_of_run(source, messages, start)
        if end > start:
            effects = self.publications.route(source, messages, start, end, now)
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
        if source in self.busy.long:
            self.busy.keep(source, message)
            return []
        return receiver(source, message, now)

    def wake(self, key: str, now: float) -> list[Effect]:
        """A timer that `SetTimer` asked for has run out."""
        if key == WORK:
            return self._work(now)
        if key == GAPS:
            return self.losses.wake()
        name, _, rest = key.partition("/")
        service = self.service(name)
        assert service is not None, f"timer {key!r} has no service"
        return service.wake(rest, now)

    def client_left(self, client: str, now: float) -> list[Effect]:
        """The client's link is gone for good: its entries go."""
        return self.membership.depart(client, now, waits=False)

    def client_leaves(self, client: str, now: float) -> list[Effect]:
        """The client has said goodbye, and its link is still there: its entries go.

        `Close` without a code follows when every broker has forgotten the client. Then its name is
        free everywhere.
        """
        return self.membership.depart(client, now, waits=True)

    def link_reset(self, neighbour: BrokerName, now: float) -> list[Effect]:
        """The neighbour lives a new life and knows nothing: its side goes, ours is sent anew."""
        return self.links.reset(neighbour, now)

    def link_down(self, neighbour: BrokerName, now: float) -> list[Effect]:
        """The neighbour has been unreachable for a while: nothing waits for its answers any more.

        Its link still keeps all that it is sent. `link_up` or `link_reset` ends this.
        """
        return self.links.down(neighbour, now)

    def link_up(self, neighbour: BrokerName, now: float) -> list[Effect]:
        """The neighbour can be reached again, and its link goes on where it was."""
        return self.links.up(neighbour, now)

    def link_full(
        self, neighbour: BrokerName, messages: int, size: int, now: float
    ) -> list[Effect]:
        """So many messages of so many bytes wait for a neighbour that there is no room for more.

        Publications for clients behind it are refused, at every broker that can be reached, until
        `link_has_room` or `link_reset`. Everything else is still sent.
        """
        return self.backlogs.fill(neighbour, messages, size)

    def link_has_room(self, neighbour: BrokerName, now: float) -> list[Effect]:
        """There is room again for what waits for a neighbour."""
        return self.backlogs.make_room(neighbour)

    # --- what the host asks ---

    def is_busy(self, hop: Hop) -> bool:
        """Whether a peer's next message has to wait: an earlier one is still being done, or too
        much of it is under way."""
        return hop in self.busy.long or self.requests.is_full(hop)

    def take_freed(self) -> list[Hop]:
        """The hops that are not busy any more, since the last call."""
        return self.requests.take_freed()

    @property
    def at_rest(self) -> bool:
        """Whether nothing waits for anything."""
        parts_at_rest = self.requests.at_rest and self.waiting.at_rest and self.busy.at_rest
        waits = self.membership.joining or self.resending.restoring or len(self.jobs)
        return parts_at_rest and not waits

    @property
    def usage(self) -> list[Usage]:
        """What is limited for all together, and how much of it is used."""
        engines = (usage for engine in self.engines.values() for usage in engine.usage())
        return [self.operations.entries, self.waiting.usage, *engines]

    # --- engines and services, and their messages ---

    def service(self, name: str) -> Service | None:
        """The engine or service of that name, if this broker has it."""
        return self.engines.get(name) or self.services.get(name)

    def hosted(self) -> list[Service]:
        """The engines and the services of this broker, in the order in which they are called."""
        return [*self.engines.values(), *self.services.values()]

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

    def _work(self, now: float) -> list[Effect]:
        """Do the next slice of what takes long."""
        name, context = self.jobs.next()
        if isinstance(context, LongWork):
            if self.busy.pauses_for_answers(context):
                return self.jobs.again()
            worked = context.work(now)
        elif isinstance(context, Restoration):
            worked = self.resending.work(context, now)
        elif not name:
            return [*self.release(now), *self.jobs.again()]
        else:
            service = self.service(name)
            assert service is not None
            worked = service.work(context, now)
        effects = [*worked.effects, *(self.jobs.add(name, context) if worked.more else ())]
        return [*effects, *self.jobs.again()]

    # --- for engines: operations of clients here ---

    def is_here(self, hop: Hop) -> bool:
        """Whether a client is connected to this broker, and let in."""
        return hop in self.membership.joined

    def check_client(self, source: Hop, client: str) -> None:
        """Raises ProtocolError unless the source is this client, and was let in."""
        self.membership.check(source, client)

    def life_of(self, source: Hop) -> int:
        """Which life a client of this broker lives."""
        return self.routing.crt[ClientName(source[1:])].life

    def next_number(self, source: Hop) -> int:
        """The number of a client's next operation."""
        return self.membership.next_number(source)

    def admit(self, source: Hop, operation: Operation, scope: Scope) -> Operation:
        """A client's operation as it goes on from here: numbered, and with what it changes.

        The numbers follow the order of arrival, which on a FIFO link is the client's own.

        Raises OperationError: LimitReached if that concerns more entries than one turn has time for
        (`overlay.broker.limits`).
        """
        return self.operations.admit(source, operation, scope)

    # --- for engines: operations that are carried out ---

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
        return self.operations.apply(task, operation, now, tx=tx, after=after)

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
        effects = [self.requests.ask(task, hop, message) for hop, message in sent]
        return effects + self.requests.finished(task, now)

    def submit(
        self, engine: str, source: Hop, operation: Operation, context: Any, now: float
    ) -> list[Effect]:
        """Let an engine change the tables for all traffic at once, when a plain operation might.

        `Engine.resume` is called, now or later. What an engine submits while it resumes one that
        has waited takes the place of that one: it does not go behind what came meanwhile, which
        may be a consequence of it, from another broker that did not have to wait.
        """
        return self.waiting.submit(engine, source, operation, context, now)

    def put_back(
        self, engine: str, source: Hop, operation: Operation, context: Any, now: float
    ) -> list[Effect]:
        """Carry out an operation whose effect is worked out already (`store`, `drop`), in its turn.

        For undoing: it takes entries out, or brings them back under their old numbers.
        `Engine.completed` is called when it is done everywhere.
        """
        return self.waiting.put_back(Task(source, 0, engine, context), operation, now)

    def in_turn(self, engine: str, context: Any, now: float) -> list[Effect]:
        """Let an engine change the tables slice by slice, in its turn among operations.

        `Engine.work` is called, now or later, until there is no more. Operations that come
        meanwhile wait behind it, as they would if it were done at once, but for those that it
        `lets_pass`; publications do not.
        """
        return self.waiting.in_turn(engine, context, now)

    def later(self, engine: str, context: Any) -> list[Effect]:
        """Let an engine go on with something in slices of its own: `Engine.work` is called until
        there is no more. A context that waits already is not taken twice."""
        return self.jobs.add(engine, context)

    # --- for engines: reports ---

    def release(self, now: float) -> list[Effect]:
        """Carry out what has waited for a decision and need not wait any more.

        What is more than a slice follows in the next ones, in its order. When all is done,
        `Engine.released` is called.
        """
        return self.waiting.release(now)

    def settled(self, now: float) -> list[Effect]:
        """Let the engines go on with what has waited for something that is settled here."""
        effects: list[Effect] = []
        for engine in self.engines.values():
            effects += engine.released(now)
        return effects

    def routes_changed(self, changes: Sequence[RouteChange], now: float) -> list[Effect]:
        """Report changes of the tables that have become visible together.

        An engine that changes the tables by itself calls this when all traffic sees the changes.
        """
        effects: list[Effect] = []
        for service in self.hosted():
            effects += service.routes_changed(changes, now)
        return effects

    # --- for engines: questions ---

    @property
    def held(self) -> list[tuple[Hop, Operation | Leave]]:
        """The operations on the shared tables that wait for a decision."""
        return self.waiting.operations

    @property
    def under_way(self) -> list[tuple[Hop, Operation]]:
        """The operations that were carried out here, and are not done everywhere behind."""
        return self.requests.operations()

    def sent_before(self, source: Hop, *, held: bool = True) -> list[Operation]:
        """Operations of a client that wait, and so will be numbered after those that it sends now;
        with or without those that wait for others."""
        return self.waiting.sent_before(source, held=held)

    def count_waiting(self, source: Hop) -> int:
        """How many operations wait for a decision, or behind what this client has sent itself."""
        return self.waiting.count(source)

    @property
    def is_releasing(self) -> bool:
        """Whether operations wait only for the next slice: nothing else is in their way."""
        return RELEASE in self.jobs

    def is_late(self, neighbour: Hop) -> bool:
        """Whether a neighbour that was unreachable has not carried out all that it was sent."""
        return self.requests.tasks.late(neighbour) > 0
