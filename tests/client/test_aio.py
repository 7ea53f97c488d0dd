"""The asyncio client over an in-process overlay: B1 - B2 - B3, A1 and D receive, E publishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import msgspec
import pytest

from overlay.codec import FRAME_LIMIT
from overlay.errors import (
    FilterError,
    NameTaken,
    NotAdvertised,
    NotHeld,
    OperationError,
    ProtocolError,
    SlowReader,
)
from overlay.frames import FrameTooLarge
from overlay.messages import Done, EngineMessage, Leave, Pub, PubRefused, client_hop
from padres_tx.aio import Client
from padres_tx.errors import BadName, CallTimeout, ClientClosed, ClientError, ConnectionLost
from padres_tx.inprocess import InProcessOverlay, LocalChannel
from padres_tx.peer import Connecting
from padres_tx.session import Event, Notification, Say, Session
from topologies import TopologyError

P1 = {"class": "p1"}
X1 = {"class": "p1", "x": "x1"}


def asynchronous(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run a test in an event loop of its own."""

    @wraps(test)
    def run() -> None:
        asyncio.run(test())  # type: ignore[arg-type]

    return run


@asynccontextmanager
async def cast() -> AsyncIterator[tuple[Client, Client]]:
    """A1 at one end of the overlay, and E at the other, having advertised all of p1."""
    overlay = InProcessOverlay("three")
    async with overlay.connect_async("A1", at="B1") as a1, overlay.connect_async("E", at="B3") as e:
        await e.advertise(P1)
        yield a1, e


class ByHand:
    """A channel whose broker is the test: it sees what is sent, and says what comes."""

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.full = False
        self.waiting = 0
        self.closed = False

    async def open(self, end: Client) -> None:
        self.end = end

    def send(self, message: object) -> None:
        self.sent.append(message)
        if len(self.sent) == 1:  # The join.
            self.end.receive(Done(1))

    def pull(self) -> None: ...

    async def close(self) -> None:
        self.closed = True

    def abort(self, error: Exception) -> None:
        self.closed = True


@asynccontextmanager
async def alone() -> AsyncIterator[tuple[Client, ByHand]]:
    """A client whose broker is the test."""
    channel = ByHand()
    async with Connecting(Client(Session("A1"), channel), 1) as client:  # type: ignore[arg-type]
        yield client, channel


async def received(client: Client) -> list[Notification]:
    """All that has arrived for the iterator."""
    return [notification async for notification in client.notifications(timeout_s=0)]


# --- subscribe, publish, receive ---


@asynchronous
async def test_what_is_published_arrives_once_and_in_order() -> None:
    async with cast() as (a1, e):
        await a1.subscribe(P1)
        await a1.subscribe("[class,eq,'p1'],[x,>=,3]")
        for x in range(10):
            await e.publish({"class": "p1", "x": x}, f"payload {x}".encode())
        got = await received(a1)
        assert [(n.publisher, n["x"], n.payload) for n in got] == [
            ("E", x, f"payload {x}".encode()) for x in range(10)
        ]


@asynchronous
async def test_json_goes_in_and_comes_out() -> None:
    async with cast() as (a1, e):
        await a1.subscribe(P1)
        await e.publish(P1, json={"who": ["A1", None, 1.5]})
        await e.publish(P1, json=None)
        assert (await a1.next()).json() == {"who": ["A1", None, 1.5]}
        assert (await a1.next()).json() is None
        with pytest.raises(TypeError, match="one payload"):
            await e.publish(P1, b"x", json={})
        with pytest.raises(TypeError):
            await e.publish(P1, json=object())


@asynchronous
async def test_a_client_receives_its_own_publications() -> None:
    async with cast() as (_, e):
        await e.subscribe(P1)
        await e.publish(P1)
        assert [n.publisher for n in await received(e)] == ["E"]


@asynchronous
async def test_a_handover_by_holes() -> None:
    """D holds all of p1, hands x1 over to A1, and takes it back."""
    overlay = InProcessOverlay("three")
    async with (
        overlay.connect_async("A1", at="B1") as a1,
        overlay.connect_async("D", at="B2") as d,
        overlay.connect_async("E", at="B3") as e,
    ):
        await e.advertise(P1)
        await d.subscribe(P1)
        await a1.subscribe(X1)
        await d.unsubscribe(X1)
        await e.publish(X1)
        await e.publish({"class": "p1", "x": "x2"})
        assert [n["x"] for n in await received(a1)] == ["x1"]
        assert [n["x"] for n in await received(d)] == ["x2"]
        await a1.unsubscribe(P1)
        await d.subscribe(X1)
        await e.publish(X1)
        assert await received(a1) == []
        assert [n["x"] for n in await received(d)] == ["x1"]


@asynchronous
async def test_nobody_receives_after_unadvertising() -> None:
    async with cast() as (a1, e):
        await a1.subscribe(P1)
        await e.unadvertise(X1)
        await e.publish({"class": "p1", "x": "x2"})
        with pytest.raises(NotAdvertised):
            await e.publish(X1)
        assert [n["x"] for n in await received(a1)] == ["x2"]


@asynchronous
async def test_clients_may_change_what_they_receive() -> None:
    """Two receivers do not share a publication's dict."""
    async with cast() as (a1, e):
        await a1.subscribe(P1)
        await e.subscribe(P1)
        await e.publish(P1)
        (await a1.next()).point["class"] = "changed"
        assert (await e.next())["class"] == "p1"


# --- callbacks ---


@asynchronous
async def test_callbacks_take_what_their_subscription_wants() -> None:
    async with cast() as (a1, e):
        functions: list[object] = []
        coroutines: list[object] = []

        async def coroutine(n: Notification) -> None:
            await asyncio.sleep(0)
            coroutines.append(n["x"])

        await a1.subscribe(P1)
        await a1.subscribe(X1, lambda n: functions.append(n["x"]))
        await a1.subscribe({"class": "p1", "x": "x2"}, coroutine)
        await a1.subscribe({"class": "p1", "x": ("x2", "x3")}, coroutine)
        for x in ("x1", "x2", "x3", "x4"):
            await e.publish({"class": "p1", "x": x})
        assert (await a1.next())["x"] == "x4"
        while len(coroutines) < 2:
            await asyncio.sleep(0)
        assert functions == ["x1"]
        assert coroutines == ["x2", "x3"]
        assert await received(a1) == []


@asynchronous
async def test_callbacks_keep_the_order_even_when_they_wait() -> None:
    async with cast() as (a1, e):
        seen: list[object] = []
        done = asyncio.Event()

        async def slow_at_first(n: Notification) -> None:
            for _ in range(10 - int(n["x"])):
                await asyncio.sleep(0)
            seen.append(n["x"])
            if n["x"] == 9:
                done.set()

        await a1.subscribe(P1, slow_at_first)
        for x in range(10):
            await e.publish({"class": "p1", "x": x})
        await done.wait()
        assert seen == list(range(10))


@asynchronous
async def test_a_callback_may_use_its_client() -> None:
    async with cast() as (a1, e):

        async def reply(n: Notification) -> None:
            await a1.advertise({"class": "answer"})
            await a1.publish({"class": "answer", "to": n.publisher})

        await e.subscribe({"class": "answer"})
        await a1.subscribe(P1, reply)
        await e.publish(P1)
        assert (await e.next())["to"] == "E"


@asynchronous
async def test_unsubscribing_ends_a_callback() -> None:
    async with cast() as (a1, e):
        seen: list[object] = []
        await a1.subscribe(P1, lambda n: seen.append(n["x"]))
        await a1.unsubscribe(X1)
        await a1.subscribe(X1)
        await e.publish(X1)
        await e.publish({"class": "p1", "x": "x2"})
        assert (await a1.next())["x"] == "x1"
        while not seen:
            await asyncio.sleep(0)
        assert seen == ["x2"]


@asynchronous
async def test_until_unsubscribing_is_answered_the_callback_is_responsible() -> None:
    async with alone() as (a1, _):
        seen: list[int] = []
        subscribing = asyncio.create_task(a1.subscribe(P1, lambda n: seen.append(n.seq)))
        await asyncio.sleep(0)
        a1.receive(Done(2))
        await subscribing
        unsubscribing = asyncio.create_task(a1.unsubscribe(P1))
        await asyncio.sleep(0)
        a1.receive(Pub("E", 1, {"class": "p1"}))
        a1.receive(Done(3))
        await unsubscribing
        while not seen:
            await asyncio.sleep(0)
        assert await received(a1) == []


# --- errors ---


@asynchronous
async def test_the_callers_mistakes_raise_at_the_call() -> None:
    async with cast() as (a1, e):
        with pytest.raises(NotAdvertised):
            await a1.publish(P1)
        with pytest.raises(NotHeld):
            await a1.unsubscribe(P1)
        with pytest.raises(FilterError):
            await a1.subscribe("[class,neq,'p1']")
        with pytest.raises(FilterError):
            await e.publish({"class": "p1", "x": float("nan")})
        with pytest.raises(FrameTooLarge):
            await e.publish(P1, bytes(FRAME_LIMIT))
        ends = ("\U0001f600" * 4095, "\U0001f600" * 4096)
        too_large = {"class": "p1", **{f"a{i}": ends for i in range(63)}}
        with pytest.raises(FrameTooLarge):
            await a1.subscribe(too_large, print)
        with pytest.raises(NotHeld):
            await a1.unsubscribe(P1)
        await a1.subscribe(P1)
        await e.publish(P1)
        assert len(await received(a1)) == 1


@asynchronous
async def test_a_name_can_be_taken_once_in_the_whole_overlay() -> None:
    overlay = InProcessOverlay("three")
    async with overlay.connect_async("A1", at="B1"):
        for broker in ("B1", "B3"):
            with pytest.raises(NameTaken):
                await overlay.connect_async("A1", at=broker)
    async with overlay.connect_async("A1", at="B3"):
        pass


@asynchronous
async def test_a_client_that_leaves_takes_its_subscriptions_along() -> None:
    overlay = InProcessOverlay("three")
    async with overlay.connect_async("E", at="B3") as e:
        await e.advertise(P1)
        async with overlay.connect_async("A1", at="B1") as a1:
            await a1.subscribe(P1)
        async with overlay.connect_async("A1", at="B1") as a1:
            await e.publish(P1)
            assert await received(a1) == []


def test_a_bad_name_or_broker_raises_before_anything_else() -> None:
    overlay = InProcessOverlay("three")
    with pytest.raises(BadName):
        overlay.connect_async("no name")
    with pytest.raises(TopologyError, match="B9"):
        overlay.connect_async("A1", at="B9")


@asynchronous
async def test_a_refused_publication_raises_at_the_next_call() -> None:
    async with alone() as (a1, _):
        a1.receive(PubRefused(7, "not-advertised", "A1 has not advertised that"))
        a1.receive(PubRefused(8, "not-advertised", "nor that"))
        with pytest.raises(NotAdvertised, match="has not advertised that") as caught:
            await a1.next()
        assert caught.value.__notes__ == ["1 more errors followed that nobody has seen"]
        assert await received(a1) == []


@asynchronous
async def test_on_error_gets_what_no_call_can_raise() -> None:
    errors: list[Exception] = []
    overlay = InProcessOverlay("one")
    async with overlay.connect_async("A1", on_error=errors.append) as a1:
        mistake = RuntimeError("in the callback")

        def fails(n: Notification) -> None:
            raise mistake

        await a1.advertise(P1)
        await a1.subscribe(P1, fails)
        a1.receive(PubRefused(7, "not-advertised", "A1 has not advertised that"))
        await a1.publish(P1)
        while len(errors) < 2:
            await asyncio.sleep(0)
        assert isinstance(errors[0], NotAdvertised)
        assert errors[1] is mistake


@asynchronous
async def test_a_callbacks_exception_wakes_the_iterator_or_is_raised_by_close() -> None:
    async with cast() as (a1, e):

        def fails(n: Notification) -> None:
            raise TimeoutError(f"for {n['x']}")

        await a1.subscribe(P1, fails)
        iterating = asyncio.create_task(a1.next(timeout_s=30))
        await e.publish(X1)
        with pytest.raises(TimeoutError, match="for x1"):
            await iterating
        waiting = asyncio.create_task(a1.wait_closed())
        await e.publish(X1)
        with pytest.raises(TimeoutError, match="for x1"):
            await waiting
        await e.publish({"class": "p1", "x": "x2"})
        while a1._unraised is None:
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError, match="for x2"):
            await a1.close()


@asynchronous
async def test_an_on_error_that_fails_is_the_loops_to_report() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    worse = RuntimeError("in on_error")

    def fails(error: Exception) -> None:
        raise worse

    overlay = InProcessOverlay("one")
    async with overlay.connect_async("A1", on_error=fails) as a1:
        a1.receive(PubRefused(7, "not-advertised", "A1 has not advertised that"))
        assert [context["exception"] for context in reported] == [worse]
        await a1.subscribe(P1)


@asynchronous
async def test_a_fault_of_ours_is_not_a_hang() -> None:
    class Faulty:
        def receive(self, body: msgspec.Raw) -> list[Event]:
            raise KeyError("planted")

    async with alone() as (a1, _):
        a1._session.extend("faulty", Faulty())
        subscribing = asyncio.create_task(a1.subscribe(P1))
        await asyncio.sleep(0)
        with pytest.raises(KeyError):
            a1.receive(EngineMessage("faulty", msgspec.Raw(b"\x01")))
        with pytest.raises(ClientError, match="a fault in the client: KeyError"):
            await subscribing


@asynchronous
async def test_what_an_engine_says_is_sent() -> None:
    class Echo:
        def receive(self, body: msgspec.Raw) -> list[Event]:
            return [Say(EngineMessage("echo", body))]

    async with alone() as (a1, channel):
        a1._session.extend("echo", Echo())
        message = EngineMessage("echo", msgspec.Raw(b"\x01"))
        a1.receive(message)
        assert channel.sent[1:] == [message]


@asynchronous
async def test_a_client_is_connected_once() -> None:
    connecting = InProcessOverlay("one").connect_async("A1")
    async with connecting:
        with pytest.raises(ClientError, match="connect anew"):
            await connecting


@asynchronous
async def test_a_broker_that_may_not_say_that_is_left() -> None:
    overlay = InProcessOverlay("one")
    a1 = await overlay.connect_async("A1")
    iterating = asyncio.create_task(a1.next())
    await asyncio.sleep(0)
    a1._channel.deliver(Leave("A1", "B1"))  # type: ignore[attr-defined]
    with pytest.raises(ProtocolError, match="takes no Leave"):
        await iterating
    with pytest.raises(ProtocolError):
        await a1.subscribe(P1)
    async with overlay.connect_async("A1"):
        pass


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
        a1.receive(Done(2, "operation", "no"))
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
    channel = ByHand()
    channel.sent.append("so that the join is not the first")
    with pytest.raises(CallTimeout, match="no answer to the join of A1"):
        await Connecting(Client(Session("A1"), channel), 0.001)  # type: ignore[arg-type]
    assert channel.closed


@asynchronous
async def test_a_refused_operation_raises_its_reason() -> None:
    async with alone() as (a1, _):
        subscribing = asyncio.create_task(a1.subscribe(P1))
        await asyncio.sleep(0)
        a1.receive(Done(2, "operation", "A1 holds enough"))
        with pytest.raises(OperationError, match="A1 holds enough"):
            await subscribing


@asynchronous
async def test_publishing_waits_while_the_window_is_full_and_can_be_cancelled() -> None:
    async with alone() as (a1, channel):
        advertising = asyncio.create_task(a1.advertise(P1))
        await asyncio.sleep(0)
        a1.receive(Done(2))
        await advertising
        channel.full = True
        cancelled = asyncio.create_task(a1.publish(P1, b"cancelled"))
        publishing = asyncio.create_task(a1.publish(P1, b"published"))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert len(channel.sent) == 2
        channel.full = False
        a1.writable()
        await publishing
        assert channel.sent[2:] == [Pub("A1", 3, P1, b"published")]


@asynchronous
async def test_a_publisher_lets_others_have_a_turn() -> None:
    async with cast() as (_, e):
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
    async with cast() as (a1, e):
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
    async with cast() as (a1, _):
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
    channel = ByHand()
    client = Client(Session("A1"), channel, queue_bytes=100)  # type: ignore[arg-type]
    async with Connecting(client, 1) as a1:
        a1.receive(Pub("E", 1, P1, bytes(99)))
        assert a1.ready
        a1.receive(Pub("E", 2, P1, bytes(1)))
        assert not a1.ready
        await a1.next()
        assert a1.ready


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
        assert not a1.ready
        go_on.set()
        while len(seen) < 20:
            await asyncio.sleep(0)
        assert seen == list(range(20))


# --- the end ---


@asynchronous
async def test_iterating_ends_when_the_client_is_closed() -> None:
    async with cast() as (a1, e):
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
    async with cast() as (a1, e):
        await a1.subscribe(P1)
        await e.publish(P1)
        await asyncio.sleep(0)
        await a1.close()
        assert len([n async for n in a1]) == 1
        with pytest.raises(ClientClosed):
            await a1.next()


@asynchronous
async def test_a_closed_client_says_so() -> None:
    async with cast() as (a1, _):
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
    async with cast() as (a1, e):

        async def last(n: Notification) -> None:
            await a1.close()

        await a1.subscribe(P1, last)
        await e.publish(P1)
        await a1.wait_closed()
        assert a1.closed


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
            a1.receive(PubRefused(7, "not-advertised", "A1 has not advertised that"))
            raise ZeroDivisionError


# --- operators ---


@asynchronous
async def test_an_operator_looks_into_a_broker() -> None:
    overlay = InProcessOverlay("three")
    async with overlay.connect_async("A1", at="B1") as a1, overlay.operator_async(at="B3") as op:
        await a1.subscribe(P1)
        tables = await op.inspect("tables")
        assert tables["clients"] == [{"client": "A1", "edge": "B1", "hop": "B2"}]
        with pytest.raises(OperationError, match="tea"):
            await op.inspect("tea")
