"""The asyncio client where somebody waits: cancelling, time-outs, bounded queues, and the end."""

from __future__ import annotations

import asyncio

import pytest

from overlay.errors import (
    NotHeld,
    OperationError,
    SlowReader,
)
from overlay.messages import Done, Pub, PubRefused, client_hop
from padres_tx.client.asyncio.client import Client
from padres_tx.client.asyncio.connecting import Connecting
from padres_tx.client.session import Notification, Session
from padres_tx.errors import CallTimeout, ClientClosed, ConnectionLost
from padres_tx.testing.inprocess import InProcessOverlay, LocalChannel
from tests.client.asyncio.two_clients import (
    P1,
    X1,
    ManualChannel,
    alone,
    asynchronous,
    on_channel,
    received,
    two_clients,
)

# --- cancelling and time-outs ---


@asynchronous
async def test_a_cancelled_operation_is_still_settled_by_its_late_answer() -> None:
    async with alone() as (a1, _):
        subscribing = asyncio.create_task(a1.subscribe(P1))
        await asyncio.sleep(0)
        subscribing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await subscribing
        assert a1._session.pending == 1
        a1._requests.receive(Done(2, "operation", "no"))
        assert a1._session.pending == 0
        with pytest.raises(NotHeld):
            await a1.unsubscribe(P1)


@asynchronous
async def test_an_operation_that_is_not_answered_times_out() -> None:
    async with alone() as (a1, _):
        with pytest.raises(CallTimeout, match="no answer to the operation of A1 within 0 s"):
            await a1.subscribe(P1, timeout_s=0)
        with pytest.raises(TimeoutError):
            await a1.subscribe(P1, timeout_s=0)


@asynchronous
async def test_a_join_that_is_not_answered_times_out() -> None:
    channel = ManualChannel()
    channel.sent.append("so that the join is not the first")
    with pytest.raises(CallTimeout, match="no answer to the join of A1"):
        await Connecting(on_channel(channel), 0.001)
    assert channel.closed


@asynchronous
async def test_a_refused_operation_raises_its_reason() -> None:
    async with alone() as (a1, _):
        subscribing = asyncio.create_task(a1.subscribe(P1))
        await asyncio.sleep(0)
        a1._requests.receive(Done(2, "operation", "A1 holds enough"))
        with pytest.raises(OperationError, match="A1 holds enough"):
            await subscribing


@asynchronous
async def test_publishing_waits_while_the_window_is_full_and_can_be_cancelled() -> None:
    async with alone() as (a1, channel):
        advertising = asyncio.create_task(a1.advertise(P1))
        await asyncio.sleep(0)
        a1._requests.receive(Done(2, number=1))
        await advertising
        channel.full = True
        cancelled = asyncio.create_task(a1.publish(P1, b"cancelled"))
        publishing = asyncio.create_task(a1.publish(P1, b"published"))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert len(channel.sent) == 2
        channel.full = False
        a1._requests.writable()
        await publishing
        assert channel.sent[2:] == [Pub("A1", 3, P1, b"published")]


@asynchronous
async def test_a_publisher_lets_others_have_a_turn() -> None:
    async with two_clients() as (_, e):
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        for _ in range(1000):
            await e.publish(P1)
        task.cancel()
        assert turns >= 3


@asynchronous
async def test_a_cancelled_next_loses_nothing() -> None:
    async with two_clients() as (a1, e):
        await a1.subscribe(P1)
        waiting = asyncio.create_task(a1.next())
        await asyncio.sleep(0)
        await e.publish(P1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert len(await received(a1)) == 1


@asynchronous
async def test_next_has_a_timeout_of_its_own() -> None:
    async with two_clients() as (a1, _):
        with pytest.raises(CallTimeout, match="nothing came to A1 within 0 s"):
            await a1.next(timeout_s=0)


# --- bounded queues ---


@asynchronous
async def test_a_client_that_does_not_read_is_cut_off_and_loses_nothing_before_that() -> None:
    overlay = InProcessOverlay("one")
    session = Session("A1")
    channel = LocalChannel(overlay.core, "B1", client_hop("A1"), inbox_messages=20)
    async with overlay.connect_async("E") as e:
        await e.advertise(P1)
        a1 = await Connecting(Client(session, channel, queue_messages=10), 1)
        await a1.subscribe(P1)
        published = 0
        while not a1.closed:
            await e.publish({"class": "p1", "x": published})
            published += 1
            await asyncio.sleep(0)
        with pytest.raises(SlowReader):
            await a1.subscribe(X1)
        got: list[object] = []
        with pytest.raises(SlowReader, match="A1 has 20 messages to read"):
            async for n in a1:
                got.append(n["x"])
        assert got == list(range(30))
        await a1.close()


@asynchronous
async def test_reading_makes_room() -> None:
    overlay = InProcessOverlay("one")
    async with (
        overlay.connect_async("E") as e,
        overlay.connect_async("A1", queue_messages=3) as a1,
    ):
        await e.advertise(P1)
        await a1.subscribe(P1)
        for x in range(20):
            await e.publish({"class": "p1", "x": x})
        assert [n["x"] for n in await received(a1)] == list(range(20))


@asynchronous
async def test_an_answer_behind_unread_notifications_says_so() -> None:
    overlay = InProcessOverlay("one")
    async with (
        overlay.connect_async("E") as e,
        overlay.connect_async("A1", queue_messages=3) as a1,
    ):
        await e.advertise(P1)
        await a1.subscribe(P1)
        for _ in range(4):
            await e.publish(P1)
        with pytest.raises(CallTimeout, match="3 notifications wait to be read first"):
            await a1.subscribe(X1, timeout_s=0.001)
        assert len(await received(a1)) == 4
        await a1.subscribe(X1)


@asynchronous
async def test_payloads_count_as_well() -> None:
    channel = ManualChannel()
    client = on_channel(channel, queue_bytes=100)
    async with Connecting(client, 1) as a1:
        a1._requests.receive(Pub("E", 1, P1, bytes(99)))
        assert a1._requests.ready
        a1._requests.receive(Pub("E", 2, P1, bytes(1)))
        assert not a1._requests.ready
        await a1.next()
        assert a1._requests.ready


@asynchronous
async def test_slow_callbacks_hold_back_as_well() -> None:
    overlay = InProcessOverlay("one")
    async with (
        overlay.connect_async("E") as e,
        overlay.connect_async("A1", queue_messages=3) as a1,
    ):
        await e.advertise(P1)
        go_on = asyncio.Event()
        seen: list[object] = []

        async def slow(n: Notification) -> None:
            await go_on.wait()
            seen.append(n["x"])

        await a1.subscribe(P1, slow)
        for x in range(20):
            await e.publish({"class": "p1", "x": x})
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not a1._requests.ready
        go_on.set()
        while len(seen) < 20:
            await asyncio.sleep(0)
        assert seen == list(range(20))


# --- the end ---


@asynchronous
async def test_iterating_ends_when_the_client_is_closed() -> None:
    async with two_clients() as (a1, e):
        await a1.subscribe(P1)
        got: list[Notification] = []

        async def read() -> None:
            async for n in a1:
                got.append(n)

        reading = asyncio.create_task(read())
        await e.publish(P1)
        await asyncio.sleep(0)
        await a1.close()
        await reading
        assert len(got) == 1
        await a1.wait_closed()
        assert [n async for n in a1] == []


@asynchronous
async def test_what_has_arrived_can_be_read_after_closing() -> None:
    async with two_clients() as (a1, e):
        await a1.subscribe(P1)
        await e.publish(P1)
        await asyncio.sleep(0)
        await a1.close()
        assert len([n async for n in a1]) == 1
        with pytest.raises(ClientClosed):
            await a1.next()


@asynchronous
async def test_a_closed_client_says_so() -> None:
    async with two_clients() as (a1, _):
        pending = asyncio.create_task(a1.next())
        await asyncio.sleep(0)
        await a1.close()
        await a1.close()
        assert a1.closed
        assert repr(a1) == "<Client A1, closed>"
        with pytest.raises(ClientClosed, match="A1 has been closed"):
            await pending
        for call in (a1.subscribe(P1), a1.publish(P1), a1.advertise(P1), a1.unsubscribe(P1)):
            with pytest.raises(ClientClosed):
                await call


@asynchronous
async def test_closing_ends_a_call_that_waits() -> None:
    async with alone() as (a1, channel):
        subscribing = asyncio.create_task(a1.subscribe(P1))
        await asyncio.sleep(0)
        await a1.close()
        with pytest.raises(ClientClosed):
            await subscribing
        assert channel.closed


@asynchronous
async def test_a_callback_may_close_its_client() -> None:
    async with two_clients() as (a1, e):

        async def last(n: Notification) -> None:
            await a1.close()

        await a1.subscribe(P1, last)
        await e.publish(P1)
        await a1.wait_closed()
        assert a1.closed


@asynchronous
async def test_closing_before_a_callback_has_begun_is_an_end_as_well() -> None:
    """A task that is cancelled before its first step never runs."""
    async with two_clients() as (a1, _):
        await a1.subscribe(P1, print)
        a1._requests.receive(Pub("E", 1, P1))
        await a1.close()
        async with asyncio.timeout(20):
            await a1.wait_closed()


@asynchronous
async def test_an_overlay_that_stops_is_a_lost_connection_for_everybody() -> None:
    overlay = InProcessOverlay("three")
    a1 = await overlay.connect_async("A1", at="B1")
    e = await overlay.connect_async("E", at="B3")
    await e.advertise(P1)
    await a1.subscribe(P1)
    await e.publish(P1)
    iterating = asyncio.create_task(_all(a1))
    waiting = asyncio.create_task(e.wait_closed())
    await asyncio.sleep(0)
    overlay.stop()
    got, error = await iterating
    assert len(got) == 1
    assert isinstance(error, ConnectionLost)
    with pytest.raises(ConnectionError):
        await waiting
    with pytest.raises(ConnectionLost, match="the overlay has been stopped"):
        await a1.subscribe(P1)
    await a1.close()
    await e.close()


async def _all(client: Client) -> tuple[list[Notification], Exception | None]:
    got: list[Notification] = []
    try:
        async for n in client:
            got.append(n)
    except ConnectionLost as error:
        return got, error
    return got, None


@asynchronous
async def test_an_error_in_the_block_is_not_hidden_by_closing() -> None:
    overlay = InProcessOverlay("one")
    with pytest.raises(ZeroDivisionError):
        async with overlay.connect_async("A1") as a1:
            a1._requests.receive(PubRefused(7, "not-advertised", "A1 has not advertised that"))
            raise ZeroDivisionError
