"""Who has given a stream away gets the rest of it by its callback, and may go when that is done.

The broker is the test: it says the end of the transaction, then events from before it, and then
that it is drained.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from overlay.messages import Pub
from padres_tx import client_messages, sync
from padres_tx.client.asyncio.client import Client
from padres_tx.client.asyncio.connecting import Connecting
from padres_tx.client.asyncio.futures import TransactionFutures
from padres_tx.client.asyncio.handles import Part
from padres_tx.client.session import Notification, Session
from padres_tx.client.transactions import Result
from padres_tx.errors import ClientClosed, ConnectionLost
from tests.client.dispatching_clients import X1, ManualBroker, asynchronous

TX = ("C", 0, 7)

#: What comes after the commit and was published before it.
OLD = range(1, 6)

#: A test that hangs has failed.
LIMIT_S = 30


class StampedStream(ManualBroker):
    """W's broker: W gives its stream away, and the rest of the stream comes."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = self._commit

    def call(self) -> None:
        self.tell(client_messages.Tcm(TX, 1, "C", 1, {"class": "ctl"}, b""))

    def _commit(self, said: Any) -> list[Any]:
        """When W's part is over: the end, and what is still on its way."""
        if isinstance(said, client_messages.Operate):
            self.call_number = said.number
        if not isinstance(said, client_messages.Finish):
            return []
        self.numbers += 1
        given = client_messages.Effective("usub", self.filter, self.numbers, self.call_number)
        asyncio.get_running_loop().call_soon(self.rest, given)
        return []

    def rest(self, given: client_messages.Effective) -> None:
        self.tell(client_messages.Ended(TX, True, effective=(given,)))
        for n in OLD:
            self.end.receive(Pub("P", n, {**X1, "n": n}, hidden=(TX,)))
        self.tell(client_messages.Drained(TX))

    def send(self, message: Any) -> None:
        if hasattr(message, "filter"):
            self.filter = message.filter
        super().send(message)


@asynccontextmanager
async def worker() -> AsyncIterator[tuple[Client, StampedStream]]:
    stream = StampedStream()
    stand_in: Any = stream
    async with Connecting(Client(Session("W"), stand_in), 1) as client:
        yield client, stream


async def give(client: Client, stream: StampedStream) -> Part:
    """W un-subscribes in C's transaction; its part of it."""
    parts: list[Part] = []

    def act(tx: Part, notification: Notification) -> None:
        parts.append(tx)
        tx.usub(X1)

    client.on_tcm(None, act)
    stream.call()
    while not parts:
        await asyncio.sleep(0)
    return parts[0]


@asynchronous
async def test_a_worker_that_goes_when_it_may_has_all_of_its_stream() -> None:
    """Its slow callback is done with the last event when `drained` returns."""
    async with asyncio.timeout(LIMIT_S), worker() as (w, stream):
        done: list[object] = []

        async def work(notification: Notification) -> None:
            for _ in range(5):
                await asyncio.sleep(0)
            done.append(notification["n"])

        await w.subscribe(X1, work)
        tx = await give(w, stream)
        await tx.drained
        await w.close()
        assert done == list(OLD)


@asynchronous
async def test_notify_is_no_different() -> None:
    async with asyncio.timeout(LIMIT_S), worker() as (w, stream):
        done: list[object] = []

        async def work(notification: Notification) -> None:
            await asyncio.sleep(0)
            done.append(notification["n"])

        w.notify(work)
        await w.subscribe(X1)
        tx = await give(w, stream)
        await tx.drained
        await w.close()
        assert done == list(OLD)


@asynchronous
async def test_without_a_callback_the_rest_waits_for_the_iterator() -> None:
    async with asyncio.timeout(LIMIT_S), worker() as (w, stream):
        await w.subscribe(X1)
        tx = await give(w, stream)
        await tx.drained
        await w.close()
        assert [notification["n"] async for notification in w] == list(OLD)


@asynchronous
@pytest.mark.parametrize("how", ["itself", "a task", "several"])
async def test_a_callback_does_not_wait_for_itself(how: str) -> None:
    """Nor in tasks that it waits for: all that was published has come then."""
    async with asyncio.timeout(LIMIT_S), worker() as (w, stream):
        seen: list[object] = []

        async def work(notification: Notification) -> None:
            seen.append(notification["n"])
            if notification["n"] == 2:
                tx = await part
                if how == "itself":
                    await tx.drained
                elif how == "a task":
                    await asyncio.wait_for(tx.drained, LIMIT_S)
                else:
                    await asyncio.gather(tx.drained, tx.drained)
                seen.append("drained")

        await w.subscribe(X1, work)
        part = asyncio.ensure_future(give(w, stream))
        tx = await part
        await tx.drained
        assert seen == [1, 2, "drained", 3, 4, 5]


@asynchronous
async def test_what_a_callback_has_started_and_left_waits_as_everybody() -> None:
    async with asyncio.timeout(LIMIT_S), worker() as (w, stream):
        seen: list[object] = []

        async def go(tx: Part) -> None:
            await tx.drained
            seen.append("gone")
            await w.close()

        tasks: list[asyncio.Task[None]] = []

        async def work(notification: Notification) -> None:
            await asyncio.sleep(0)
            seen.append(notification["n"])
            if notification["n"] == 1:
                tasks.append(asyncio.create_task(go(await part)))

        await w.subscribe(X1, work)
        part = asyncio.ensure_future(give(w, stream))
        await part
        while not tasks:
            await asyncio.sleep(0)
        await tasks[0]
        assert seen == [*OLD, "gone"]


@asynchronous
async def test_a_worker_can_close_in_on_drained_and_who_awaits_it_is_told() -> None:
    async with asyncio.timeout(LIMIT_S), worker() as (w, stream):
        seen: list[object] = []
        await w.subscribe(X1, lambda notification: seen.append(notification["n"]))

        async def go(name: str) -> None:
            seen.append(name)
            await asyncio.wait_for(w.close(), LIMIT_S)
            seen.append("closed")

        w.on_drained(go)
        tx = await give(w, stream)
        await tx.drained
        while len(seen) < 7:
            await asyncio.sleep(0)
        assert seen == [*OLD, "C:0:7", "closed"]


@asynchronous
async def test_a_lost_connection_does_not_keep_callbacks_from_what_has_come() -> None:
    async with asyncio.timeout(LIMIT_S), worker() as (w, stream):
        seen: list[object] = []
        lost = asyncio.Event()

        async def work(notification: Notification) -> None:
            await lost.wait()
            seen.append(notification["n"])

        await w.subscribe(X1, work)
        tx = await give(w, stream)
        while len(w._callbacks.waiting) <= len(OLD):
            await asyncio.sleep(0)
        waiting = asyncio.ensure_future(_wait(tx))
        await asyncio.sleep(0)
        w._requests.lost(ConnectionLost("the broker has gone"))
        lost.set()
        await waiting
        assert seen == list(OLD)


@asynchronous
@pytest.mark.parametrize("is_lost", [False, True])
async def test_who_closes_while_callbacks_are_at_work_hears_so(is_lost: bool) -> None:
    async with asyncio.timeout(LIMIT_S), worker() as (w, stream):
        never = asyncio.Event()

        async def work(notification: Notification) -> None:
            await never.wait()

        await w.subscribe(X1, work)
        tx = await give(w, stream)
        while len(w._callbacks.waiting) <= len(OLD):
            await asyncio.sleep(0)
        if is_lost:
            w._requests.lost(ConnectionLost("the broker has gone"))
        waiting = asyncio.ensure_future(_wait(tx))
        await asyncio.sleep(0)
        await w.close()
        with pytest.raises(ClientClosed):
            await waiting


@asynchronous
async def test_after_a_loss_nothing_is_drained_that_was_not_before() -> None:
    """Whoever asks afterwards is not told that it may go."""
    async with asyncio.timeout(LIMIT_S), worker() as (w, stream):
        await w.subscribe(X1)
        stream.rest = lambda given: stream.tell(client_messages.Ended(TX, True, effective=(given,)))
        tx = await give(w, stream)
        assert (await tx.ended).committed
        w._requests.lost(ConnectionLost("the broker has gone"))
        with pytest.raises(ConnectionLost):
            await tx.drained


async def _wait(tx: Part) -> None:
    await tx.drained


# --- blocking ---


class Blocking:
    """The same with a blocking client: the broker runs in the client's loop."""

    def __init__(self) -> None:
        self.stream = StampedStream()
        stand_in: Any = self.stream
        self.client = sync.Client(Connecting(Client(Session("W"), stand_in), 1))

    def give(self) -> sync.Part:
        parts: list[sync.Part] = []
        called = threading.Event()

        def act(tx: sync.Part, notification: Notification) -> None:
            tx.usub(X1)
            parts.append(tx)
            called.set()

        self.client.on_tcm(None, act)
        self.client._background.loop.call_soon_threadsafe(self.stream.call)
        assert called.wait(LIMIT_S)
        return parts[0]


@pytest.mark.parametrize("how", ["callback", "notify"])
def test_a_blocking_worker_that_goes_when_it_may_has_all_of_its_stream(how: str) -> None:
    blocking = Blocking()
    done: list[object] = []
    at_work = threading.Event()

    def work(notification: Notification) -> None:
        at_work.wait(0.01)  # As long as a callback likes.
        done.append(notification["n"])

    with blocking.client as w:
        if how == "notify":
            w.notify(work)
        w.subscribe(X1, work if how == "callback" else None)
        blocking.give().wait_drained(LIMIT_S)
    assert done == list(OLD)


def test_a_blocking_callback_does_not_wait_for_itself_and_may_close() -> None:
    blocking = Blocking()
    done: list[object] = []
    parts: list[sync.Part] = []
    given, gone = threading.Event(), threading.Event()

    def work(notification: Notification) -> None:
        assert given.wait(LIMIT_S)
        done.append(notification["n"])
        if notification["n"] == 1:
            parts[0].wait_drained(LIMIT_S)
            done.append("drained")

    def go(name: str) -> None:
        blocking.client.close()
        gone.set()

    w = blocking.client
    w.subscribe(X1, work)
    w.on_drained(go)
    parts.append(blocking.give())
    given.set()
    assert gone.wait(LIMIT_S)
    assert done == [1, "drained", 2, 3, 4, 5]


def test_what_is_drained_stays_drained_when_the_client_ends() -> None:
    """Though the callbacks that are told so have not returned."""

    @asynchronous
    async def test() -> None:
        futures = TransactionFutures(asyncio.get_running_loop())
        futures.decided.set_result(Result("C:0:7", "d-tx", "committed"))
        futures.applied.set_result(None)
        futures.drained_came.set_result(None)
        futures.is_drained = True
        futures.fail(lambda: ConnectionLost("gone"))
        assert futures.drained.result() is None and futures.is_over

    test()
