"""What a workload is made of: players in their roles, and the scene that they play in.

A workload is a scenario with roles. An experiment has one or more instances of it, each with
clients of its own, one in each role, and with an event space of its own (Section 7). A `Player` is
one client in its role, in whatever process it was put: it prepares (advertises, subscribes, says
what it does on a tcm), and when all players of the run have, it plays. Players of one instance
meet in the overlay alone. The first role ends the play by saying "bye"; links are FIFO and brokers
form a tree, so everybody has received by then what it knew to be published.

A player bounds only what an engine may fail to bring about. If it waits in vain for another
player, nothing moves any more, and whoever runs the experiment sees that (`runner`).

The scenarios are in `workloads`. This module must not know processes or files.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

import msgspec
from pydantic import BaseModel, ConfigDict

from bench.records import Book
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
    # Looking an engine up searches the installed packages; that is not for every transaction.
    return bool(registry.load(engine).client == "static")


class Scene(msgspec.Struct, frozen=True):
    """One instance of a scenario in one run."""

    #: From 1.
    instance: int
    engine: str
    #: What the engine waits between operations; None if it does not wait.
    wait_s: float | None
    #: Of each coordinator: how many in all, and how many at once.
    transactions: int
    concurrency: int
    #: Role -> client.
    names: dict[str, str]
    options: dict[str, Any]

    @property
    def is_static(self) -> bool:
        """Whether a coordinator has to say beforehand what everybody does."""
        return _is_static(self.engine)

    @property
    def waits(self) -> bool:
        return self.wait_s is not None

    def point(self, kind: str, **attributes: str | int) -> dict[str, str | int]:
        """A publication in this instance's event space."""
        return {"class": kind, "p": self.instance, **attributes}

    def filter(self, kind: str, **attributes: str | int) -> Filter:
        return Filter(self.point(kind, **attributes))


class Player:
    """One client in its role."""

    def __init__(
        self, role: str, client: Client, scene: Scene, book: Book, options: BaseModel
    ) -> None:
        self.role = role
        self.client = client
        self.scene = scene
        self.book = book
        self.options: Any = options
        #: How far it is, in the steps that its workload counts.
        self.done = 0
        self._bye = asyncio.Event()

    @property
    def leads(self) -> bool:
        return self.role == next(iter(self.scene.names))

    # --- what a scenario is about ---

    async def prepare(self) -> None:
        """Advertise, subscribe, register handlers; nobody plays before all have returned."""
        self.client.notify(self._notified)
        if self.leads:
            await self.client.advertise(self.scene.filter("bye"))
        else:
            await self.client.subscribe(self.scene.filter("bye"))

    async def play(self) -> None:
        """Play to the end. Who only answers waits for the end that the first role declares."""
        assert not self.leads, "the first role says when it is over"
        await self._bye.wait()

    def received(self, notification: Notification) -> Awaitable[None] | None:
        """Something came; what is to be awaited before the next is the answer."""
        return None

    # --- what players do ---

    async def say_bye(self) -> None:
        """End the play for everybody."""
        await self.client.publish(self.scene.point("bye"))

    async def transact(
        self,
        operate: Callable[[Transaction], None],
        *,
        outcome: Callable[[], Awaitable[str]] | None = None,
        **fields: Any,
    ) -> bool:
        """Make a transaction and record it, with these fields; answers whether it is committed.

        `outcome` is asked, before the time is taken, where the engine itself cannot tell.
        """
        scene, book = self.scene, self.book
        waiting: dict[str, Any] = {} if scene.wait_s is None else {"wait_s": scene.wait_s}
        status, code, reason = "committed", "", ""
        begin_ns = book.now_ns()
        try:
            async with self.client.transaction(scene.engine, **waiting) as tx:
                operate(tx)
            if outcome is not None:
                status = await outcome()
        except TransactionAborted as aborted:
            status, code, reason = "aborted", aborted.code, aborted.reason
        book.write(
            "tx",
            tx=tx.id,
            engine=scene.engine,
            status=status,
            code=code,
            reason=reason,
            begin_ns=begin_ns,
            end_ns=book.now_ns(),
            **fields,
        )
        return status == "committed"

    def _notified(self, notification: Notification) -> Awaitable[None] | None:
        match notification["class"]:
            case "bye":
                self._bye.set()
            case "event":
                self.book.write(
                    "event",
                    publisher=notification.publisher,
                    op_id=notification.name,
                    n=notification["n"],
                    x=notification["x"],
                    at_ns=self.book.now_ns(),
                )
        return self.received(notification)


class NoOptions(BaseModel):
    """A workload without options."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Workload:
    """A scenario: a class of players for each role, the first of which ends the play."""

    roles: ClassVar[Mapping[str, type[Player]]]

    #: Which roles of an instance share a process, where one process would have too much to do.
    apart: ClassVar[tuple[tuple[str, ...], ...]] = ()

    Options: ClassVar[type[BaseModel]] = NoOptions

    @classmethod
    def steps(cls, transactions: int, options: Any) -> int:
        """What `Player.done` of all players of one instance adds up to in the end."""
        return transactions

    @classmethod
    def problem(cls, transactions: int, options: Any) -> str:
        """Why so many transactions do not go with these options, or ""."""
        return ""

    @classmethod
    def probe(cls, options: Any) -> tuple[int, Any] | None:
        """A run that has to come first: so many transactions, with these options.

        How many events a second its players have received is then given to `settle`.
        """
        return None

    @classmethod
    def settle(cls, options: Any, events_per_s: float) -> Any:
        """The options, now that the probe has been run."""
        return options

    @classmethod
    def processes(cls) -> tuple[tuple[str, ...], ...]:
        """The roles of an instance, by process."""
        return cls.apart or (tuple(cls.roles),)
