"""The asyncio client over an in-process overlay: what it does, and where mistakes are raised."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from overlay.errors import (
    FilterError,
    NameTaken,
    NotAdvertised,
    NotHeld,
    OperationError,
    ProtocolError,
)
from overlay.messages import Done, EngineMessage, Leave, Pub, PubRefused
from overlay.wire.codec import FRAME_LIMIT
from overlay.wire.frames import FrameTooLarge
from padres_tx.client.session import Event, Notification, SendMessage
from padres_tx.errors import BadName, ClientError
from padres_tx.testing.inprocess import InProcessOverlay
from tests.client.asyncio.two_clients import P1, X1, alone, asynchronous, received, two_clients
from topologies import TopologyError

# --- subscribe, publish, receive ---


@asynchronous
async def test_what_is_published_arrives_once_and_in_order() -> None:
    async with two_clients() as (a1, e):
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
    async with two_clients() as (a1, e):
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
    async with two_clients() as (_, e):
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
    async with two_clients() as (a1, e):
        await a1.subscribe(P1)
        await e.unadvertise(X1)
        await e.publish({"class": "p1", "x": "x2"})
        with pytest.raises(NotAdvertised):
            await e.publish(X1)
        assert [n["x"] for n in await received(a1)] == ["x2"]


@asynchronous
async def test_clients_may_change_what_they_receive() -> None:
    """Two receivers do not share a publication's dict."""
    async with two_clients() as (a1, e):
        await a1.subscribe(P1)
        await e.subscribe(P1)
        await e.publish(P1)
        (await a1.next()).point["class"] = "changed"
        assert (await e.next())["class"] == "p1"


# --- callbacks ---


@asynchronous
async def test_callbacks_take_what_their_subscription_wants() -> None:
    async with two_clients() as (a1, e):
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
    async with two_clients() as (a1, e):
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
    async with two_clients() as (a1, e):

        async def reply(n: Notification) -> None:
            await a1.advertise({"class": "answer"})
            await a1.publish({"class": "answer", "to": n.publisher})

        await e.subscribe({"class": "answer"})
        await a1.subscribe(P1, reply)
        await e.publish(P1)
        assert (await e.next())["to"] == "E"


@asynchronous
async def test_unsubscribing_ends_a_callback() -> None:
    async with two_clients() as (a1, e):
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
        a1._requests.receive(Done(2, number=1))
        await subscribing
        unsubscribing = asyncio.create_task(a1.unsubscribe(P1))
        await asyncio.sleep(0)
        a1._requests.receive(Pub("E", 1, {"class": "p1"}))
        a1._requests.receive(Done(3, number=2))
        await unsubscribing
        while not seen:
            await asyncio.sleep(0)
        assert await received(a1) == []


# --- errors ---


@asynchronous
async def test_the_callers_mistakes_raise_at_the_call() -> None:
    async with two_clients() as (a1, e):
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
async def test_on_error_gets_what_no_call_can_raise() -> None:
    errors: list[Exception] = []
    overlay = InProcessOverlay("one")
    async with overlay.connect_async("A1", on_error=errors.append) as a1:
        mistake = RuntimeError("in the callback")

        def fails(n: Notification) -> None:
            raise mistake

        await a1.advertise(P1)
        await a1.subscribe(P1, fails)
        a1._requests.receive(PubRefused(7, "not-advertised", "A1 has not advertised that"))
        await a1.publish(P1)
        while len(errors) < 2:
            await asyncio.sleep(0)
        assert isinstance(errors[0], NotAdvertised)
        assert errors[1] is mistake


@asynchronous
async def test_an_on_error_that_fails_is_the_loops_to_report() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    worse = RuntimeError("in on_error")

    def fails(error: Exception) -> None:
        raise worse

    overlay = InProcessOverlay("one")
    async with overlay.connect_async("A1", on_error=fails) as a1:
        a1._requests.receive(PubRefused(7, "not-advertised", "A1 has not advertised that"))
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
            a1._requests.receive(EngineMessage("faulty", msgspec.Raw(b"\x01")))
        with pytest.raises(ClientError, match="a fault in the client: KeyError"):
            await subscribing


@asynchronous
async def test_what_an_engine_says_is_sent() -> None:
    class Echo:
        def receive(self, body: msgspec.Raw) -> list[Event]:
            return [SendMessage(EngineMessage("echo", body))]

    async with alone() as (a1, channel):
        a1._session.extend("echo", Echo())
        message = EngineMessage("echo", msgspec.Raw(b"\x01"))
        a1._requests.receive(message)
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
    channel: Any = a1._requests.channel  # The in-process one, which takes what its broker says.
    channel.deliver(Leave(0, "A1", "B1"))
    with pytest.raises(ProtocolError, match="unexpected Leave"):
        await iterating
    with pytest.raises(ProtocolError):
        await a1.subscribe(P1)
    async with overlay.connect_async("A1"):
        pass


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


@asynchronous
async def test_an_operator_gathers_tables_page_by_page() -> None:
    overlay = InProcessOverlay("one")
    async with overlay.connect_async("A1") as a1, overlay.operator_async() as op:
        for x in range(5):
            await a1.subscribe({"class": "p1", "x": x})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("overlay.tables.pages.ROWS_PER_PAGE", 2)
            whole = await op.tables()
            assert len({row["filter"] for row in whole["prt"]}) == len(whole["prt"]) == 5
            assert len(whole["clients"]) == 1 and whole["complete"]
            for limit in range(1, 8):
                some = await op.tables(limit=limit)
                rows = [*some["prt"], *some["clients"]]
                assert rows == [*whole["prt"], *whole["clients"]][:limit]
                assert some["complete"] == (limit >= 6)
        some = await op.tables(limit=3)  # On one page.
        assert len(some["prt"]) == 3 and not some["complete"]
        assert (await op.tables(client="nobody"))["prt"] == []
