"""The workloads of experiments: the scenarios of the paper.

    dispatching     Figure 1b: E begins a workflow instance, D assigns it to A1 and A2 in turn
    consolidation   Figure 1c, and back: C takes over the instances of A1 and A2, then returns them
    stream          plain events for the instances of A1 and A2; at intervals some new ones are
                    dispatched

A workload of your own is an importable class, `package.module:Class` in a spec:

    class Mine(Workload):
        roles = {"E": Environment, "D": Dispatcher, "A1": Agent, "A2": Agent}

The same program runs with every engine. There are two differences, both in this module: in a
static transaction the coordinator submits the operations of all clients; and with an engine that
waits, the receiver of a dispatched instance's first event acknowledges it, as the paper measures
BL-WAIT.

`roles` defines what roles and workloads are. Processes and files must not be known here.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
from collections.abc import Awaitable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Self, TypeAlias

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from bench.experiments.roles import NoOptions, Role, ScenarioInstance, Workload
from padres_tx import Notification, Part, Transaction, static
from padres_tx.static import Op

#: How long the acknowledgement of a publication may take. It has to cross the overlay twice; after
#: this time the publication is recorded as lost, and the experiment continues.
ACKNOWLEDGED_S = 5.0

#: The shortest pause that an event loop keeps; a publisher with a rate sends the events that are
#: due within it at once.
PAUSE_S = 0.001


Roles: TypeAlias = Mapping[str, type[Role]]


class WorkloadError(Exception):
    """There is no such workload; the message is one line."""


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
            f"unknown workload {name!r}: expected one of {known}, or 'package.module:Class'"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # A user's module may raise anything when it is imported.
        raise WorkloadError(
            f"cannot import {name!r} ({type(error).__name__}: {error}); "
            "its directory has to be in PYTHONPATH"
        ) from None
    if not (isinstance(found, type) and issubclass(found, Workload)):
        raise WorkloadError(f"{name!r} is not a subclass of bench.experiments.roles.Workload")
    return found


# --- dispatching (Figure 1b) --------------------------------------------------------------------


class Environment(Role):
    """E: begins instances, each by a transaction, and publishes their first events."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        #: By instance, the client that has acknowledged its first event.
        self._acknowledged: dict[int, asyncio.Future[str]] = {}
        #: The number of its latest event.
        self.n = 0

    async def prepare(self) -> None:
        await super().prepare()
        await self.client.advertise(self.scenario.filter("event"))
        if self.scenario.waits:
            await self.client.subscribe(self.scenario.filter("ack"))

    async def run(self) -> None:
        numbers = iter(range(1, self.scenario.transactions + 1))
        async with asyncio.TaskGroup() as group:
            for _ in range(self.scenario.concurrency):
                group.create_task(self._work(numbers))
        await self.finish()

    async def _work(self, numbers: Iterator[int]) -> None:
        for x in numbers:
            await self.dispatch(x)
            self.done += 1

    async def dispatch(self, x: int) -> bool:
        """Begin an instance; returns whether its agent has it now."""
        owner = agent_of(self.scenario, x)
        outcome = None
        if self.scenario.waits:
            self._acknowledged[x] = asyncio.get_running_loop().create_future()
            outcome = partial(self._acknowledgement, x, owner)
        operate = partial(self._operate, x, owner)
        committed = await self.transact(operate, outcome=outcome, x=x, owner=owner)
        self._acknowledged.pop(x, None)
        return committed

    def _operate(self, x: int, owner: str, tx: Transaction) -> None:
        """Operations 1 and 5 of Figure 1b; in a static transaction also those in between."""
        scenario = self.scenario
        ops: Mapping[str, list[Op]] | None = None
        if scenario.is_static:
            mine = scenario.filter("event", x=x)
            assign = static.tcm(
                scenario.point("assign", to=owner, x=x), ops={owner: [static.sub(mine)]}
            )
            ops = {scenario.names["D"]: [assign, static.usub(mine)]}
        tx.tcm(scenario.point("event", x=x, n=0), ops=ops)
        self.n += 1
        tx.pub(scenario.point("event", x=x, n=self.n, first=1))
        self.writer.write(
            "sent",
            tx=tx.id,
            engine=scenario.engine,
            publisher=self.client.name,
            n=self.n,
            x=x,
            owner=owner,
            at_ns=self.writer.now_ns(),
        )

    async def _acknowledgement(self, x: int, owner: str) -> str:
        """The status of the transaction, which only the receiver of the first event can tell."""
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


class Receiver(Role):
    """A client that may receive an instance's first event; acknowledges it if the engine waits."""

    async def prepare(self) -> None:
        await super().prepare()
        if self.scenario.waits:
            await self.client.advertise(self.scenario.filter("ack"))

    def received(self, notification: Notification) -> Awaitable[None] | None:
        if self.scenario.waits and "first" in notification.point:
            acknowledgement = self.scenario.point(
                "ack", x=int(notification["x"]), by=self.client.name
            )
            return self.client.publish(acknowledgement)
        return None


class Dispatcher(Receiver):
    """D: receives the events of all instances, and hands new ones over to the agents."""

    async def prepare(self) -> None:
        await super().prepare()
        await self.client.advertise(self.scenario.filter("assign"))
        self.client.on_tcm(self.scenario.filter("event"), self._dispatch)
        await self.client.subscribe(self.scenario.filter("event"))

    def _dispatch(self, tx: Part, begun: Notification) -> None:
        x = int(begun["x"])
        tx.tcm(self.scenario.point("assign", to=agent_of(self.scenario, x), x=x))
        tx.usub(self.scenario.filter("event", x=x))


class Agent(Receiver):
    """A1 and A2: take over the instances assigned to them."""

    async def prepare(self) -> None:
        await super().prepare()
        self.client.on_tcm(self.scenario.filter("assign"), self._take_over)
        await self.client.subscribe(self.scenario.filter("assign", to=self.client.name))

    def _take_over(self, tx: Part, assigned: Notification) -> None:
        tx.sub(self.scenario.filter("event", x=int(assigned["x"])))


class DispatchingWorkload(Workload):
    """Instance dispatching; a step is a transaction."""

    roles: ClassVar[Roles] = {"E": Environment, "D": Dispatcher, "A1": Agent, "A2": Agent}


def agent_of(scenario: ScenarioInstance, x: int) -> str:
    """The client that an instance is assigned to, by D, or by E in a static transaction."""
    return scenario.names["A1" if x % 2 else "A2"]


# --- a stream with dispatching at intervals (Figure 9) ------------------------------------------


class StreamOptions(NoOptions):
    """The number and rate of events, and how often instances are added."""

    #: Plain events before, between and after dispatchings.
    events_between: PositiveInt = 20_000
    #: How many are dispatched each time, one after the other, while the stream continues.
    new_instances: PositiveInt = 4
    #: How many the agents have at the start.
    first_instances: PositiveInt = 4
    #: Events per second, or the share of the throughput of a publisher without a rate. With
    #: neither, the publisher has no rate.
    rate_per_s: float | None = Field(default=None, gt=0)
    share: float | None = Field(default=None, gt=0, le=1)
    #: Events of the run that measures the throughput.
    probe_events: PositiveInt = 40_000
    #: If false, the same events are published and nothing is dispatched: for comparison.
    dispatch: bool = True

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if self.rate_per_s is not None and self.share is not None:
            raise ValueError("rate_per_s cannot be combined with share")
        return self


class StreamSource(Environment):
    """E with a stream: publishes plain events for the dispatched instances in turn."""

    async def prepare(self) -> None:
        await super().prepare()
        self._instances = list(range(1, self.options.first_instances + 1))
        self._dispatching = asyncio.Lock()

    async def run(self) -> None:
        rounds = self.scenario.transactions // self.options.new_instances
        began_at = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for number in range(rounds + 1):
                await self._publish(began_at)
                if self.options.dispatch and number < rounds:
                    group.create_task(self._dispatch_some(number))
        await self.finish()

    async def _publish(self, began_at: float) -> None:
        clock = asyncio.get_running_loop().time
        writer, rate = self.writer, self.options.rate_per_s
        for _ in range(self.options.events_between):
            # Kept: while `publish` blocks, a dispatching may take the next number.
            self.n = n = self.n + 1
            self.done += 1
            x = self._instances[self.done % len(self._instances)]
            await self.client.publish(self.scenario.point("event", x=x, n=n))
            writer.write(
                "sent",
                publisher=self.client.name,
                n=n,
                x=x,
                owner=agent_of(self.scenario, x),
                at_ns=writer.now_ns(),
            )
            if rate is not None:
                early_s = began_at + self.done / rate - clock()
                if early_s >= PAUSE_S:
                    await asyncio.sleep(early_s)

    async def _dispatch_some(self, number: int) -> None:
        first = 1 + self.options.first_instances + number * self.options.new_instances
        # Those of the previous interval come first, however slow they are.
        async with self._dispatching:
            for x in range(first, first + self.options.new_instances):
                if await self.dispatch(x):
                    self._instances.append(x)


class StreamDispatcher(Dispatcher):
    """D, where the agents have some instances from the start."""

    async def prepare(self) -> None:
        await super().prepare()
        for x in range(1, self.options.first_instances + 1):
            await self.client.unsubscribe(self.scenario.filter("event", x=x))


class StreamAgent(Agent):
    """An agent that has some instances from the start."""

    async def prepare(self) -> None:
        await super().prepare()
        first = 1 if self.name == "A1" else 2
        for x in range(first, self.options.first_instances + 1, 2):
            await self.client.subscribe(self.scenario.filter("event", x=x))


class StreamWorkload(Workload):
    """Regular traffic; a step is a plain event."""

    roles: ClassVar[Roles] = {
        "E": StreamSource,
        "D": StreamDispatcher,
        "A1": StreamAgent,
        "A2": StreamAgent,
    }
    # The publisher of thousands of events per second must not share a core with their receivers.
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
    def with_rate(cls, options: Any, events_per_s: float) -> Any:
        rate_per_s = round(options.share * events_per_s, 1)
        return options.model_copy(update={"share": None, "rate_per_s": rate_per_s})


# --- consolidation (Figure 1c) ------------------------------------------------------------------


class ConsolidationOptions(NoOptions):
    """The plain events that are published during the transactions."""

    #: Events per second, of all instances in turn.
    rate_per_s: float = Field(default=100.0, gt=0, le=100_000)
    #: Events published after the last transaction, so that each transaction is followed by events.
    events_after: NonNegativeInt = 10


class Consolidator(Role):
    """C: takes the agents' instances over, and returns them in the next transaction.

    Each of its concurrent transactions has two instances of its own, one of each agent.
    """

    async def prepare(self) -> None:
        await super().prepare()
        await self.client.advertise(self.scenario.filter("call"))
        await self.client.advertise(self.scenario.filter("over"))
        await self.client.subscribe(self.scenario.filter("end"))
        self._ended = asyncio.Event()

    async def run(self) -> None:
        numbers = iter(range(self.scenario.transactions))
        async with asyncio.TaskGroup() as group:
            for worker in range(self.scenario.concurrency):
                group.create_task(self._work(worker, numbers))
        await self.client.publish(self.scenario.point("over"))
        await self._ended.wait()
        await self.finish()

    async def _work(self, worker: int, numbers: Iterator[int]) -> None:
        holds = False
        for _ in numbers:
            operate = partial(self._operate, worker, not holds)
            if await self.transact(operate, owner="" if holds else self.client.name):
                holds = not holds
            self.done += 1

    def _operate(self, worker: int, take: bool, tx: Transaction) -> None:
        scenario = self.scenario
        theirs = instances_of(scenario, worker)
        for agent, x in theirs.items():
            call = scenario.point("call", to=agent, x=x, do="give" if take else "take")
            let = static.usub if take else static.sub
            ops = {agent: [let(scenario.filter("event", x=x))]} if scenario.is_static else None
            tx.tcm(call, ops=ops)
        for x in theirs.values():
            do = tx.sub if take else tx.usub
            do(scenario.filter("event", x=x))

    def received(self, notification: Notification) -> None:
        if notification["class"] == "end":
            self._ended.set()


class ConsolidatedAgent(Role):
    """A1 and A2: give their instances away and take them back as C asks."""

    async def prepare(self) -> None:
        await super().prepare()
        for worker in range(self.scenario.concurrency):
            x = instances_of(self.scenario, worker)[self.client.name]
            await self.client.subscribe(self.scenario.filter("event", x=x))
        self.client.on_tcm(self.scenario.filter("call"), self._called)
        await self.client.subscribe(self.scenario.filter("call", to=self.client.name))

    def _called(self, tx: Part, call: Notification) -> None:
        mine = self.scenario.filter("event", x=int(call["x"]))
        if call["do"] == "give":
            tx.usub(mine)
        else:
            tx.sub(mine)


class EventPublisher(Role):
    """E: publishes events of all instances until C reports that it has finished."""

    async def prepare(self) -> None:
        await super().prepare()
        await self.client.advertise(self.scenario.filter("event"))
        await self.client.advertise(self.scenario.filter("end"))
        await self.client.subscribe(self.scenario.filter("over"))
        self._over = False

    async def run(self) -> None:
        loop, writer = asyncio.get_running_loop(), self.writer
        began_at, left = loop.time(), int(self.options.events_after)
        for n in itertools.count(1):
            if self._over and not left:
                break
            left -= self._over
            x = 1 + n % (2 * self.scenario.concurrency)
            await self.client.publish(self.scenario.point("event", x=x, n=n))
            writer.write("sent", publisher=self.client.name, n=n, x=x, at_ns=writer.now_ns())
            await asyncio.sleep(max(0.0, began_at + n / self.options.rate_per_s - loop.time()))
        # Every subscriber of both receives all its events before this.
        await self.client.publish(self.scenario.point("end"))
        await super().run()

    def received(self, notification: Notification) -> None:
        self._over = self._over or notification["class"] == "over"


class ConsolidationWorkload(Workload):
    """Instance consolidation and its reverse, while events are published."""

    roles: ClassVar[Roles] = {
        "C": Consolidator,
        "E": EventPublisher,
        "A1": ConsolidatedAgent,
        "A2": ConsolidatedAgent,
    }
    Options = ConsolidationOptions


def instances_of(scenario: ScenarioInstance, worker: int) -> dict[str, int]:
    """The instance of each agent that a worker of C takes over."""
    return {scenario.names["A1"]: 2 * worker + 1, scenario.names["A2"]: 2 * worker + 2}


WORKLOADS: dict[str, type[Workload]] = {
    "dispatching": DispatchingWorkload,
    "consolidation": ConsolidationWorkload,
    "stream": StreamWorkload,
}
