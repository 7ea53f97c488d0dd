"""The building blocks of workloads: roles, and the scenario instance that a role belongs to.

A workload is a scenario with roles. An experiment runs one or more instances of it, each with its
own clients, one for each role, and its own event space (Section 7). A `Role` is one client in
one instance, in whichever process it was placed: it prepares (advertises, subscribes, registers
tcm handlers), and runs when all roles of the run are prepared. The roles of an instance communicate
through the overlay only. The first role ends the instance with a "finished" publication; links are
FIFO and brokers form a tree, so by then every other role has received everything that the first
role knew to be published.

A role limits only the waits for what an engine may fail to do. If it waits for another role that
never answers, the run makes no progress, and `single_run` fails it.

The scenarios are in `workloads`. Processes and files must not be known here.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

import msgspec
from pydantic import BaseModel, ConfigDict

from bench.records import RecordWriter
from overlay.filters import Filter
from padres_tx import (
    Client,
    Notification,
    Transaction,
    TransactionAborted,
    registry,
)


@functools.cache
def _is_static(engine: str) -> bool:
    # Loading an engine searches the installed packages, which is too slow for each transaction.
    return registry.load(engine).is_static


class ScenarioInstance(msgspec.Struct, frozen=True):
    """One instance of a scenario in one run."""

    #: From 1.
    number: int
    engine: str
    #: How long the engine waits between operations; None if it does not wait.
    wait_s: float | None
    #: Of each coordinator: how many in all, and how many at once.
    transactions: int
    concurrency: int
    #: Role -> client.
    names: dict[str, str]
    options: dict[str, Any]

    @property
    def is_static(self) -> bool:
        """Whether a coordinator has to submit the operations of all clients as a plan."""
        return _is_static(self.engine)

    @property
    def waits(self) -> bool:
        return self.wait_s is not None

    def point(self, kind: str, **attributes: str | int) -> dict[str, str | int]:
        """A publication in this instance's event space."""
        return {"class": kind, "p": self.number, **attributes}

    def filter(self, kind: str, **attributes: str | int) -> Filter:
        return Filter(self.point(kind, **attributes))


class Role:
    """One client in its role."""

    def __init__(
        self,
        name: str,
        client: Client,
        scenario: ScenarioInstance,
        writer: RecordWriter,
        options: BaseModel,
    ) -> None:
        self.name = name
        self.client = client
        self.scenario = scenario
        self.writer = writer
        self.options: Any = options
        #: Completed steps; the workload defines what a step is.
        self.done = 0
        self._finished = asyncio.Event()

    @property
    def is_first(self) -> bool:
        return self.name == next(iter(self.scenario.names))

    # --- for a scenario to override ---

    async def prepare(self) -> None:
        """Advertise, subscribe, register handlers; all roles are prepared before any runs."""
        self.client.notify(self._notified)
        if self.is_first:
            await self.client.advertise(self.scenario.filter("finished"))
        else:
            await self.client.subscribe(self.scenario.filter("finished"))

    async def run(self) -> None:
        """Run to the end. A role that only reacts waits until the first role has finished."""
        assert not self.is_first, "the first role has to call finish"
        await self._finished.wait()

    def received(self, notification: Notification) -> Awaitable[None] | None:
        """A notification has arrived; the client awaits what this returns before the next one."""
        return None

    # --- for a scenario to call ---

    async def finish(self) -> None:
        """End the instance for all its roles."""
        await self.client.publish(self.scenario.point("finished"))

    async def transact(
        self,
        operate: Callable[[Transaction], None],
        *,
        outcome: Callable[[], Awaitable[str]] | None = None,
        **fields: Any,
    ) -> bool:
        """Run a transaction and record it with these fields; returns whether it committed.

        `outcome`, for an engine that cannot know it, is awaited before the end time is taken.
        """
        scenario, writer = self.scenario, self.writer
        waiting: dict[str, Any] = {} if scenario.wait_s is None else {"wait_s": scenario.wait_s}
        status, code, reason = "committed", "", ""
        begin_ns = writer.now_ns()
        try:
            async with self.client.transaction(scenario.engine, **waiting) as tx:
                operate(tx)
            if outcome is not None:
                status = await outcome()
        except TransactionAborted as aborted:
            status, code, reason = "aborted", aborted.code, aborted.reason
        writer.write(
            "tx",
            tx=tx.id,
            engine=scenario.engine,
            status=status,
            code=code,
            reason=reason,
            begin_ns=begin_ns,
            end_ns=writer.now_ns(),
            **fields,
        )
        return status == "committed"

    def _notified(self, notification: Notification) -> Awaitable[None] | None:
        match notification["class"]:
            case "finished":
                self._finished.set()
            case "event":
                self.writer.write(
                    "event",
                    publisher=notification.publisher,
                    op_id=notification.name,
                    n=notification["n"],
                    x=notification["x"],
                    at_ns=self.writer.now_ns(),
                )
        return self.received(notification)


class NoOptions(BaseModel):
    """The options of a workload without any."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Workload:
    """A scenario: a class for each role; the first role ends the instance."""

    roles: ClassVar[Mapping[str, type[Role]]]

    #: Groups of roles that get a process each, where one process for all would be the bottleneck.
    apart: ClassVar[tuple[tuple[str, ...], ...]] = ()

    Options: ClassVar[type[BaseModel]] = NoOptions

    @classmethod
    def steps(cls, transactions: int, options: Any) -> int:
        """The sum of `Role.done` over all roles of one instance when it has finished."""
        return transactions

    @classmethod
    def problem(cls, transactions: int, options: Any) -> str:
        """Why this number of transactions is invalid with these options, or ""."""
        return ""

    @classmethod
    def probe(cls, options: Any) -> tuple[int, Any] | None:
        """A run that has to come first: its number of transactions, and its options.

        The rate at which its roles received events is then passed to `with_rate`.
        """
        return None

    @classmethod
    def with_rate(cls, options: Any, events_per_s: float) -> Any:
        """The options for the runs, given the result of the probe."""
        return options

    @classmethod
    def processes(cls) -> tuple[tuple[str, ...], ...]:
        """The roles of an instance, by process."""
        return cls.apart or (tuple(cls.roles),)
