"""The clients of the handover scenario: publishers, two workers, and the coordinator.

Programs read in two ways, and so do the workers: ann with the callback that it subscribes with, ben
with its client's iterator. An event that reaches a worker in the other way counts as lost. (A
static transaction subscribes on a worker's behalf, without a callback; then ann reads in both
ways.)

This module must not know how a run is set up or judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from padres_tx import registry, static
from padres_tx.client.asyncio.client import Client
from padres_tx.client.session import Notification
from padres_tx.errors import CallTimeout, TransactionAborted
from padres_tx.scenarios.handover_judge import EventStream, StreamEvent

#: Attempts of a handover that is aborted by a conflict. Only the leaving clients of the run before
#: can conflict with it, so a handover that loses so often makes no progress at all.
RETRIES = 10

#: How long a handover waits for an event of its segment. The events are already on their way; if
#: none arrives, the engine has lost them all, and the run continues in order to report that.
ARRIVAL_S = 10.0

#: How long all published events may take to arrive, and a worker to learn that it may leave.
DRAIN_S = 60.0

#: The time that a publisher spends on a segment during its handover, in durations of the last
#: handover: so events are published throughout the handover. The first duration is a guess.
OUTLASTS = 2.0
FIRST_HANDOVER_S = 0.02

#: The pause after each event in the last quarter of a segment whose handover is not over. It is
#: also the shortest pause that an event loop can keep.
TRICKLE_S = 0.001

#: Notifications that a worker takes from its client's iterator at once.
READ = 256


class Changed:
    """A condition variable: clients wait until a shared state has changed as they need it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        self._event.set()
        self._event.clear()

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a condition; False if it does not hold in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await self._event.wait()
        except TimeoutError:
            return False
        return True


class Topics(NamedTuple):
    """The publications and filters of one engine's run, distinct from those of other runs."""

    engine: str

    def point(self, kind: str, **attributes: Any) -> dict[str, Any]:
        return {"class": kind, "engine": self.engine, **attributes}

    def filter(self, kind: str, worker: str = "") -> str:
        text = f"[class,eq,'{kind}'],[engine,eq,'{self.engine}']"
        return f"{text},[worker,eq,'{worker}']" if worker else text

    @property
    def work(self) -> str:
        return self.filter("work")


class Worker:
    """A client that takes over the stream and gives it away."""

    def __init__(
        self, client: Client, topics: Topics, changed: Changed, *, by_callback: bool
    ) -> None:
        self.client = client
        self.received: list[StreamEvent] = []
        #: By publisher, the number of the latest event received here.
        self.latest: dict[str, int] = {}
        #: The publishers whose last publication has arrived.
        self.finished_publishers: set[str] = set()
        #: Transactions that have ended, and those from before which no event will come any more.
        self.ended: set[str] = set()
        self.drained: set[str] = set()
        #: Events received after the stream had been given away and drained.
        self.late = 0
        self._topics = topics
        self._changed = changed
        #: The callback that it subscribes with; and whether it reads the iterator.
        self._callback = self._notified if by_callback else None
        self._iterates = not by_callback or is_static(topics.engine)
        #: The transaction in which it gave the stream away, until it takes it over again.
        self.gave = ""

    @property
    def name(self) -> str:
        return self.client.name

    async def start(self) -> None:
        self.client.on_end(lambda result: self._add(self.ended, result.tx))
        self.client.on_drained(self._is_drained)
        self.client.on_tcm(self._topics.filter("call"), self._called)
        await self.client.subscribe(self._topics.filter("call", self.name))
        await self.client.subscribe(self._topics.filter("notice"), self._callback)

    async def own(self) -> None:
        """Own the stream from the beginning."""
        await self.client.subscribe(self._topics.work, self._callback)

    async def read(self) -> None:
        """Read the iterator until the client is closed."""
        if self._iterates:
            async for notification in self.client:
                self._notified(notification)

    def _called(self, tx: Any, call: Notification) -> None:
        """React to a tcm: take over the stream, or give it away."""
        if call["do"] == "take":
            self.gave = ""
            tx.sub(self._topics.work, self._callback)
        else:
            self.gave = tx.id
            tx.usub(self._topics.work)

    def _notified(self, notification: Notification) -> None:
        publisher = notification.publisher
        if notification["class"] == "work":
            number = notification["n"]
            assert isinstance(number, int)
            self.received.append((publisher, number))
            self.latest[publisher] = number
            self.late += bool(self.gave) and self.gave in self.drained
        elif notification["what"] == "finished":
            self.finished_publishers.add(publisher)
        self._changed.notify()

    async def _is_drained(self, tx: str) -> None:
        """Read the events that are already here, and note that no older ones will come."""
        with contextlib.suppress(CallTimeout):
            while self._iterates:
                for notification in await self.client.take(READ, timeout_s=0):
                    self._notified(notification)
        self._add(self.drained, tx)

    def _add(self, transactions: set[str], tx: str) -> None:
        transactions.add(tx)
        self._changed.notify()

    def may_leave(self, tx: str) -> bool:
        """Whether the engine has reported that no event from before `tx` will come any more."""
        return tx in (self.drained if self.gave else self.ended)


class StreamPublisher:
    """A client that publishes its stream as fast as the overlay accepts it, or at a rate."""

    def __init__(
        self, client: Client, stream: EventStream, topics: Topics, rate: float | None
    ) -> None:
        self.client = client
        self.stream = stream
        self.published = 0
        self._topics = topics
        self._rate = rate

    async def run(self, coordinator: Coordinator) -> None:
        began_at = time.monotonic()
        for segment in range(self.stream.handovers + 2):
            await coordinator.until_open(segment)
            first, end = self.stream.first(segment), self.stream.first(segment + 1)
            opened_at = time.monotonic()
            for number in range(first, end):
                await self.client.publish(self._topics.point("work", n=number))
                self.published = number
                pause_s = 0.0
                if self._rate is not None:
                    pause_s = began_at + number / self._rate - time.monotonic()
                if not coordinator.is_over(segment):
                    share = (number - first) / (end - first)
                    due_at = opened_at + share * OUTLASTS * coordinator.handover_s
                    ahead_s = due_at - time.monotonic()
                    pause_s = max(pause_s, ahead_s, TRICKLE_S if share > 3 / 4 else 0.0)
                if pause_s >= TRICKLE_S:
                    await asyncio.sleep(pause_s)
        await self.client.publish(self._topics.point("notice", what="finished"))


class Coordinator:
    """The client that hands the stream over, and tells publishers which segments are open."""

    def __init__(
        self,
        topics: Topics,
        client: Client,
        handovers: int,
        changed: Changed,
        steady: Callable[[], Awaitable[None]],
    ) -> None:
        """`steady` waits until a worker that leaves will find its broker there."""
        self.engine = topics.engine
        self.client = client
        self._topics = topics
        self._handovers = handovers
        self._changed = changed
        self._steady = steady
        self._over = 0
        #: The duration of the last handover.
        self.handover_s = FIRST_HANDOVER_S
        self.committed: list[bool] = []
        #: Why handovers were aborted.
        self.aborted: list[str] = []

    def is_over(self, handover: int) -> bool:
        return handover <= self._over or handover > self._handovers

    async def until_open(self, segment: int) -> None:
        """Wait until events of this segment may be published."""
        while not self.is_over(segment - 1):
            # Each handover has a deadline, so this ends.
            await self._changed.until(lambda: self.is_over(segment - 1), DRAIN_S)

    async def run(
        self,
        streams: Sequence[EventStream],
        workers: tuple[Worker, Worker],
        options: dict[str, Any],
    ) -> str:
        """Perform all handovers; returns what did not happen in time, or ""."""
        old, new = workers
        timed_out = ""
        for handover in range(1, self._handovers + 1):
            await self._changed.until(partial(_arrived, streams, workers, handover), ARRIVAL_S)
            began_at = time.monotonic()
            tx = await self._hand_over(old, new, options)
            self.handover_s = time.monotonic() - began_at
            self.committed.append(bool(tx))
            if tx:
                old, new = new, old
            if tx and handover == self._handovers and not await self._retire(new, tx):
                timed_out = f"{new.name} did not learn within {DRAIN_S:g} s that it may leave"
            self._over = handover
            self._changed.notify()
        return timed_out

    async def _hand_over(self, old: Worker, new: Worker, options: dict[str, Any]) -> str:
        """Perform one handover; returns the transaction's name, or "" if it was aborted."""
        topics = self._topics
        planned = is_static(topics.engine)
        take = {new.name: [static.sub(topics.work)]} if planned else None
        give = {old.name: [static.usub(topics.work)]} if planned else None
        name = ""
        try:
            async for tx in self.client.transaction(
                topics.engine, retries=RETRIES, wait="applied", **options
            ):
                async with tx:
                    name = tx.id
                    tx.tcm(topics.point("call", worker=new.name, do="take"), ops=take)
                    tx.tcm(topics.point("call", worker=old.name, do="give"), ops=give)
                    tx.pub(topics.point("notice", what="handed over", to=new.name))
        except TransactionAborted as aborted:
            self.aborted.append(aborted.reason)
            return ""
        return name

    async def _retire(self, worker: Worker, tx: str) -> bool:
        """Close a worker that has given the stream away, as soon as it may leave."""
        in_time = await self._changed.until(lambda: worker.may_leave(tx), DRAIN_S)
        await self._steady()
        await worker.client.close()
        return in_time


def is_static(engine: str) -> bool:
    """Whether the coordinator of a transaction plans the operations of the other clients."""
    return registry.load(engine).is_static


def _arrived(streams: Sequence[EventStream], workers: Iterable[Worker], segment: int) -> bool:
    """Whether an event of this segment or a later one of each stream has reached a worker."""
    return all(
        max(worker.latest.get(stream.publisher, 0) for worker in workers) >= stream.first(segment)
        for stream in streams
    )
