"""What the clients of an experiment do: the scenarios of the paper.

    dispatching     Figure 1b: E begins an instance, D assigns it to A1 and A2 in turn
    consolidation   Figure 1c, there and back: C takes over what A1 and A2 have, and returns it
    stream          plain events for the instances that A1 and A2 have; every so often some new
                    ones are dispatched

One of your own is a class that can be imported, `package.module:Class` in a spec:

    class Mine(Workload):
        roles = {"E": Environment, "D": Dispatcher, "A1": Agent, "A2": Agent}

The same program runs with every engine. What differs is said here alone: in a static transaction
the coordinator speaks for all, and where an engine waits, the receiver of a dispatched instance's
first event acknowledges it, as the paper measures BL-WAIT.

What players and workloads are is said in `players`. Processes and files must not be known here.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
from collections.abc import Awaitable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Self, TypeAlias

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from bench.experiments.roles import NoOptions, Player, Scene, Workload
from padres_tx import Notification, Part, Transaction, static
from padres_tx.static import Op

#: How long the acknowledgement of a publication may take. It has to cross the overlay twice; what
#: takes longer is lost, and then the experiment goes on to say so.
ACKNOWLEDGED_S = 5.0

#: The shortest pause that an event loop is good for; a publisher with a rate sends what is due
#: within it at once.
PAUSE_S = 0.001


Roles: TypeAlias = Mapping[str, type[Player]]


class WorkloadError(Exception):
    """There is no such workload; the message is a line for the person who asked."""


def load(name: str) -> type[Workload]:
    """The workload of that name, or at "package.module:Class".

    Raises WorkloadError.
    """
    if name in WORKLOADS:
        return WORKLOADS[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        known = ", ".join(WORKLOADS)
        raise WorkloadError(
            f"no workload is called {name!r}; there are {known}, or 'package.module:Class'"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # Whatever a stranger's module does at import.
        raise WorkloadError(
            f"{name!r} cannot be imported ({type(error).__name__}: {error}); "
            "its directory has to be in PYTHONPATH"
        ) from None
    if not (isinstance(found, type) and issubclass(found, Workload)):
        raise WorkloadError(f"{name!r} is no bench.experiments.roles.Workload")
    return found


# --- dispatching (Figure 1b) --------------------------------------------------------------------


class Environment(Player):
    """E: begins instances, each by a transaction, and publishes their first events."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        #: By instance, who has acknowledged its first event.
        self._acknowledged: dict[int, asyncio.Future[str]] = {}
        #: The number of its latest event.
        self.n = 0

    async def prepare(self) -> None:
        await super().prepare()
        await self.client.advertise(self.scene.filter("event"))
        if self.scene.waits:
            await self.client.subscribe(self.scene.filter("ack"))

    async def play(self) -> None:
        numbers = iter(range(1, self.scene.transactions + 1))
        async with asyncio.TaskGroup() as group:
            for _ in range(self.scene.concurrency):
                group.create_task(self._work(numbers))
        await self.say_bye()

    async def _work(self, numbers: Iterator[int]) -> None:
        for x in numbers:
            await self.dispatch(x)
            self.done += 1

    async def dispatch(self, x: int) -> bool:
        """Begin an instance; answers whether it is with its agent now."""
        owner = agent_of(self.scene, x)
        outcome = None
        if self.scene.waits:
            self._acknowledged[x] = asyncio.get_running_loop().create_future()
            outcome = partial(self._acknowledgement, x, owner)
        operate = partial(self._operate, x, owner)
        committed = await self.transact(operate, outcome=outcome, x=x, owner=owner)
        self._acknowledged.pop(x, None)
        return committed

    def _operate(self, x: int, owner: str, tx: Transaction) -> None:
        """Operations 1 and 5, and where E has to say it, those in between."""
        scene = self.scene
        ops: Mapping[str, list[Op]] | None = None
        if scene.is_static:
            mine = scene.filter("event", x=x)
            assign = static.tcm(
                scene.point("assign", to=owner, x=x), ops={owner: [static.sub(mine)]}
            )
            ops = {scene.names["D"]: [assign, static.usub(mine)]}
        tx.tcm(scene.point("event", x=x, n=0), ops=ops)
        self.n += 1
        tx.pub(scene.point("event", x=x, n=self.n, first=1))
        self.book.write(
            "sent",
            tx=tx.id,
            engine=scene.engine,
            publisher=self.client.name,
            n=self.n,
            x=x,
            owner=owner,
            at_ns=self.book.now_ns(),
        )

    async def _acknowledgement(self, x: int, owner: str) -> str:
        """What became of the first event, where nobody but its receiver can tell."""
        try:
            async with asyncio.timeout(ACKNOWLEDGED_S):
                receiver = await self._acknowledged[x]
        except TimeoutError:
            return "lost"
        return "committed" if receiver == owner else "misrouted"

    def received(self, notification: Notification) -> None:
        if notification["class"] == "ack":
            future = self._acknowledged.get(int(notification["x"]))
            if future is not None and not future.done():
                future.set_result(str(notification["by"]))


class Receiver(Player):
    """Who may receive an instance's first event, and acknowledges it if the engine waits."""

    async def prepare(self) -> None:
        await super().prepare()
        if self.scene.waits:
            await self.client.advertise(self.scene.filter("ack"))

    def received(self, notification: Notification) -> Awaitable[None] | None:
        if self.scene.waits and "first" in notification.point:
            acknowledgement = self.scene.point("ack", x=int(notification["x"]), by=self.client.name)
            return self.client.publish(acknowledgement)
        return None


class Dispatcher(Receiver):
    """D: holds all instances, and hands new ones to the agents."""

    async def prepare(self) -> None:
        await super().prepare()
        await self.client.advertise(self.scene.filter("assign"))
        self.client.on_tcm(self.scene.filter("event"), self._dispatch)
        await self.client.subscribe(self.scene.filter("event"))

    def _dispatch(self, tx: Part, begun: Notification) -> None:
        x = int(begun["x"])
        tx.tcm(self.scene.point("assign", to=agent_of(self.scene, x), x=x))
        tx.usub(self.scene.filter("event", x=x))


class Agent(Receiver):
    """A1 and A2: take over what they are assigned."""

    async def prepare(self) -> None:
        await super().prepare()
        self.client.on_tcm(self.scene.filter("assign"), self._take_over)
        await self.client.subscribe(self.scene.filter("assign", to=self.client.name))

    def _take_over(self, tx: Part, assigned: Notification) -> None:
        tx.sub(self.scene.filter("event", x=int(assigned["x"])))


class Dispatching(Workload):
    """Instance dispatching; a transaction's step is the transaction."""

    roles: ClassVar[Roles] = {"E": Environment, "D": Dispatcher, "A1": Agent, "A2": Agent}


def agent_of(scene: Scene, x: int) -> str:
    """The client that an instance is assigned to, by D, or by E if that has to speak for all."""
    return scene.names["A1" if x % 2 else "A2"]


# --- a stream with dispatching now and then (Figure 9) ------------------------------------------


class StreamOptions(NoOptions):
    """How many events, how fast, and how often instances are added."""

    #: Plain events before, between and after dispatchings.
    events_between: PositiveInt = 20_000
    #: How many are dispatched each time, one after the other, while the stream goes on.
    new_instances: PositiveInt = 4
    #: How many the agents have in the beginning.
    first_instances: PositiveInt = 4
    #: Events a second, or the share of what goes through if nothing holds the publisher back. With
    #: neither, nothing does.
    rate_per_s: float | None = Field(default=None, gt=0)
    share: float | None = Field(default=None, gt=0, le=1)
    #: Events of the run that finds out how many go through.
    probe_events: PositiveInt = 40_000
    #: Without it the same events are published, and nothing is dispatched: for comparison.
    dispatch: bool = True

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if self.rate_per_s is not None and self.share is not None:
            raise ValueError("give rate_per_s or share, not both")
        return self


class Source(Environment):
    """E with a stream: plain events for the dispatched instances in turn."""

    async def prepare(self) -> None:
        await super().prepare()
        self._instances = list(range(1, self.options.first_instances + 1))
        self._dispatching = asyncio.Lock()

    async def play(self) -> None:
        rounds = self.scene.transactions // self.options.new_instances
        began_at = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for number in range(rounds + 1):
                await self._publish(began_at)
                if self.options.dispatch and number < rounds:
                    group.create_task(self._dispatch_some(number))
        await self.say_bye()

    async def _publish(self, began_at: float) -> None:
        clock = asyncio.get_running_loop().time
        book, rate = self.book, self.options.rate_per_s
        for _ in range(self.options.events_between):
            # Kept: while the publisher is held back, what is dispatched counts on.
            self.n = n = self.n + 1
            self.done += 1
            x = self._instances[self.done % len(self._instances)]
            await self.client.publish(self.scene.point("event", x=x, n=n))
            book.write(
                "sent",
                publisher=self.client.name,
                n=n,
                x=x,
                owner=agent_of(self.scene, x),
                at_ns=book.now_ns(),
            )
            if rate is not None:
                early_s = began_at + self.done / rate - clock()
                if early_s >= PAUSE_S:
                    await asyncio.sleep(early_s)

    async def _dispatch_some(self, number: int) -> None:
        first = 1 + self.options.first_instances + number * self.options.new_instances
        # Those of the last time come first, however slow they are.
        async with self._dispatching:
            for x in range(first, first + self.options.new_instances):
                if await self.dispatch(x):
                    self._instances.append(x)


class StreamDispatcher(Dispatcher):
    """D, when the agents have some instances already."""

    async def prepare(self) -> None:
        await super().prepare()
        for x in range(1, self.options.first_instances + 1):
            await self.client.unsubscribe(self.scene.filter("event", x=x))


class StreamAgent(Agent):
    """An agent that has some instances already."""

    async def prepare(self) -> None:
        await super().prepare()
        first = 1 if self.role == "A1" else 2
        for x in range(first, self.options.first_instances + 1, 2):
            await self.client.subscribe(self.scene.filter("event", x=x))


class Stream(Workload):
    """Regular traffic; its steps are the plain events."""

    roles: ClassVar[Roles] = {
        "E": Source,
        "D": StreamDispatcher,
        "A1": StreamAgent,
        "A2": StreamAgent,
    }
    # Who publishes thousands of events a second must not share a core with who receives them.
    apart = (("E",), ("D", "A1", "A2"))
    Options = StreamOptions

    @classmethod
    def steps(cls, transactions: int, options: Any) -> int:
        return int((transactions // options.new_instances + 1) * options.events_between)

    @classmethod
    def problem(cls, transactions: int, options: Any) -> str:
        if transactions % options.new_instances:
            return f"should be a multiple of new_instances ({options.new_instances})"
        return ""

    @classmethod
    def probe(cls, options: Any) -> tuple[int, Any] | None:
        if options.share is None:
            return None
        changed = {"share": None, "dispatch": False, "events_between": options.probe_events}
        return 0, options.model_copy(update=changed)

    @classmethod
    def settle(cls, options: Any, events_per_s: float) -> Any:
        rate_per_s = round(options.share * events_per_s, 1)
        return options.model_copy(update={"share": None, "rate_per_s": rate_per_s})


# --- consolidation (Figure 1c) ------------------------------------------------------------------


class ConsolidationOptions(NoOptions):
    """The plain events meanwhile."""

    #: Events a second, of all instances in turn.
    rate_per_s: float = Field(default=100.0, gt=0, le=100_000)
    #: Events that go on after the last transaction, so that all have crossed one.
    events_after: NonNegativeInt = 10


class Consolidator(Player):
    """C: takes the agents' instances over, and gives them back the next time.

    Each of its concurrent transactions has two instances of its own, one of each agent.
    """

    async def prepare(self) -> None:
        await super().prepare()
        await self.client.advertise(self.scene.filter("call"))
        await self.client.advertise(self.scene.filter("over"))
        await self.client.subscribe(self.scene.filter("end"))
        self._ended = asyncio.Event()

    async def play(self) -> None:
        numbers = iter(range(self.scene.transactions))
        async with asyncio.TaskGroup() as group:
            for worker in range(self.scene.concurrency):
                group.create_task(self._work(worker, numbers))
        await self.client.publish(self.scene.point("over"))
        await self._ended.wait()
        await self.say_bye()

    async def _work(self, worker: int, numbers: Iterator[int]) -> None:
        holds = False
        for _ in numbers:
            operate = partial(self._operate, worker, not holds)
            if await self.transact(operate, owner="" if holds else self.client.name):
                holds = not holds
            self.done += 1

    def _operate(self, worker: int, take: bool, tx: Transaction) -> None:
        scene = self.scene
        theirs = instances_of(scene, worker)
        for agent, x in theirs.items():
            call = scene.point("call", to=agent, x=x, do="give" if take else "take")
            let = static.usub if take else static.sub
            ops = {agent: [let(scene.filter("event", x=x))]} if scene.is_static else None
            tx.tcm(call, ops=ops)
        for x in theirs.values():
            do = tx.sub if take else tx.usub
            do(scene.filter("event", x=x))

    def received(self, notification: Notification) -> None:
        if notification["class"] == "end":
            self._ended.set()


class Giver(Player):
    """A1 and A2: have instances, give them away and take them back as they are told."""

    async def prepare(self) -> None:
        await super().prepare()
        for worker in range(self.scene.concurrency):
            x = instances_of(self.scene, worker)[self.client.name]
            await self.client.subscribe(self.scene.filter("event", x=x))
        self.client.on_tcm(self.scene.filter("call"), self._called)
        await self.client.subscribe(self.scene.filter("call", to=self.client.name))

    def _called(self, tx: Part, call: Notification) -> None:
        mine = self.scene.filter("event", x=int(call["x"]))
        if call["do"] == "give":
            tx.usub(mine)
        else:
            tx.sub(mine)


class Talker(Player):
    """E: publishes events of all instances until it is over."""

    async def prepare(self) -> None:
        await super().prepare()
        await self.client.advertise(self.scene.filter("event"))
        await self.client.advertise(self.scene.filter("end"))
        await self.client.subscribe(self.scene.filter("over"))
        self._over = False

    async def play(self) -> None:
        loop, book = asyncio.get_running_loop(), self.book
        began_at, left = loop.time(), int(self.options.events_after)
        for n in itertools.count(1):
            if self._over and not left:
                break
            left -= self._over
            x = 1 + n % (2 * self.scene.concurrency)
            await self.client.publish(self.scene.point("event", x=x, n=n))
            book.write("sent", publisher=self.client.name, n=n, x=x, at_ns=book.now_ns())
            await asyncio.sleep(max(0.0, began_at + n / self.options.rate_per_s - loop.time()))
        # What it has published comes before this at everybody who hears both.
        await self.client.publish(self.scene.point("end"))
        await super().play()

    def received(self, notification: Notification) -> None:
        self._over = self._over or notification["class"] == "over"


class Consolidation(Workload):
    """Instance consolidation, and back, while events go on."""

    roles: ClassVar[Roles] = {"C": Consolidator, "E": Talker, "A1": Giver, "A2": Giver}
    Options = ConsolidationOptions


def instances_of(scene: Scene, worker: int) -> dict[str, int]:
    """Which instance each agent shares with a worker of C."""
    return {scene.names["A1"]: 2 * worker + 1, scene.names["A2"]: 2 * worker + 2}


WORKLOADS: dict[str, type[Workload]] = {
    "dispatching": Dispatching,
    "consolidation": Consolidation,
    "stream": Stream,
}
