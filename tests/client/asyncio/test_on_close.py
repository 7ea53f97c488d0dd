"""How a program that only has callbacks hears of its client's end."""

from __future__ import annotations

import asyncio
import gc
import logging
import queue
import subprocess
import sys
import threading
import warnings

import pytest

from overlay.errors import OverlayError
from overlay.messages import Pub
from padres_tx.client.asyncio.connecting import Connecting
from padres_tx.client.session import Notification
from padres_tx.errors import ClientError, ConnectionLost, Unreachable
from padres_tx.testing.inprocess import InProcessOverlay
from tests.client.asyncio.two_clients import P1, ManualChannel, asynchronous, on_channel


def lost_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "padres_tx" and record.levelno == logging.WARNING
    ]


@asynchronous
async def test_a_lost_client_says_so_after_the_callbacks_for_what_had_arrived() -> None:
    """Also those behind a full queue, which nobody reads."""
    overlay = InProcessOverlay("one")
    told: list[object] = []
    ended = asyncio.Event()

    async def take(n: Notification) -> None:
        await asyncio.sleep(0)
        told.append(n["x"])

    async def end(error: OverlayError | None) -> None:
        await asyncio.sleep(0)
        told.append(error)
        ended.set()

    async with overlay.connect_async("E") as e:
        await e.advertise(P1)
        a1 = await overlay.connect_async("A1", on_close=end, queue_messages=2)
        await a1.subscribe(P1, take)
        await a1.subscribe({"class": "p2"})
        await e.advertise({"class": "p2"})
        for _ in range(5):
            await e.publish({"class": "p2"})
        for x in range(10):
            await e.publish({"class": "p1", "x": x})
        overlay.stop()
        await ended.wait()
        with pytest.raises(ConnectionLost):
            await a1.wait_closed()
        await a1.close()
    assert told[:-1] == list(range(10))
    assert isinstance(told[-1], ConnectionLost) and "has been stopped" in str(told[-1])


@asynchronous
async def test_closing_is_an_end_without_an_error_and_told_once() -> None:
    told: list[object] = []
    overlay = InProcessOverlay("one")
    async with overlay.connect_async("A1", on_close=told.append) as a1:
        await a1.close()
        assert told == [None]
        overlay.stop()
        await asyncio.sleep(0)
    assert told == [None]


@asynchronous
async def test_a_lost_client_that_is_closed_at_once_still_says_why() -> None:
    """Its callbacks are not called any more, but the end is told."""
    told: list[object] = []
    overlay = InProcessOverlay("one")
    a1 = await overlay.connect_async("A1", on_close=told.append)
    await a1.advertise(P1)
    hanging = asyncio.Event()

    async def hang(n: Notification) -> None:
        hanging.set()
        await asyncio.Event().wait()

    await a1.subscribe(P1, hang)
    await a1.publish(P1)
    await hanging.wait()
    overlay.stop()
    await asyncio.sleep(0)
    assert a1.closed and told == []
    await a1.close()
    assert [type(error) for error in told] == [ConnectionLost]


@asynchronous
async def test_on_close_may_close_and_wait() -> None:
    overlay = InProcessOverlay("one")
    ended = asyncio.Event()

    async def end(error: OverlayError | None) -> None:
        with pytest.raises(ConnectionLost):
            await a1.wait_closed()
        await a1.close()
        ended.set()

    a1 = await overlay.connect_async("A1", on_close=end)
    overlay.stop()
    async with asyncio.timeout(20):
        await ended.wait()


@asynchronous
async def test_a_callback_that_closes_its_client_has_the_end_told() -> None:
    told: list[object] = []
    overlay = InProcessOverlay("one")
    async with overlay.connect_async("A1", on_close=told.append) as a1:
        await a1.advertise(P1)

        async def last(n: Notification) -> None:
            await a1.close()

        await a1.subscribe(P1, last)
        await a1.publish(P1)
        await a1.wait_closed()
        while not told:
            await asyncio.sleep(0)
    assert told == [None]


@asynchronous
async def test_a_client_that_was_never_connected_has_no_end() -> None:
    told: list[object] = []
    overlay = InProcessOverlay("one")
    async with overlay.connect_async("A1"):
        with pytest.raises(OverlayError):
            await overlay.connect_async("A1", on_close=told.append)
    assert told == []


# --- nobody waits ---


def test_a_loss_that_nothing_waits_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    @asynchronous
    async def test() -> None:
        overlay = InProcessOverlay("one")
        a1 = await overlay.connect_async("A1")
        await a1.subscribe(P1, print)
        overlay.stop()
        while not a1.closed:
            await asyncio.sleep(0)

    test()
    assert lost_in(caplog) == ["client A1 has lost its broker: the overlay has been stopped"]


@pytest.mark.parametrize("waits", ["iterator", "wait_closed", "on_close", "commit", "own close"])
def test_a_loss_that_something_waits_for_is_not(
    waits: str, caplog: pytest.LogCaptureFixture
) -> None:
    @asynchronous
    async def test() -> None:
        overlay = InProcessOverlay("one")
        on_close = (lambda error: None) if waits == "on_close" else None
        a1 = await overlay.connect_async("A1", on_close=on_close)
        calls = {"iterator": a1.next, "wait_closed": a1.wait_closed}
        task: asyncio.Task[object] | None = None
        if waits in calls:
            task = asyncio.create_task(calls[waits]())
        elif waits == "commit":
            await a1.advertise(P1)
            await a1.subscribe(P1)
            a1.on_tcm(None, lambda tx, n: asyncio.Event().wait())
            tx = await a1.beginTX()
            a1.txTCM(tx, P1)
            task = asyncio.create_task(a1.commitTX(tx))
        elif waits == "own close":
            await a1.close()
        await asyncio.sleep(0)
        overlay.stop()
        while not a1.closed:
            await asyncio.sleep(0)
        if task is not None:
            with pytest.raises(ConnectionLost):
                await task
        await a1.close()

    test()
    assert lost_in(caplog) == []


# --- blocking clients ---


def test_a_blocking_client_that_is_lost() -> None:
    told: queue.Queue[tuple[object, str]] = queue.Queue()
    with InProcessOverlay("one") as overlay:
        a1 = overlay.connect(
            "A1", on_close=lambda error: told.put((error, threading.current_thread().name))
        )
        a1.advertise(P1)
        a1.subscribe(P1, lambda n: told.put((n["x"], "")))
        for x in range(3):
            a1.publish({"class": "p1", "x": x})
        overlay.stop()
        got = [told.get(timeout=30) for _ in range(4)]
        a1.close()
    assert [x for x, _ in got[:3]] == [0, 1, 2]
    error, thread = got[3]
    assert isinstance(error, ConnectionLost) and thread.startswith("callbacks of A1")
    assert told.empty()


def test_a_blocking_client_that_is_closed() -> None:
    told: list[tuple[object, object]] = []
    with InProcessOverlay("one") as overlay:
        with overlay.connect(
            "A1", on_close=lambda error: told.append((error, threading.current_thread()))
        ):
            pass
        assert told == [(None, threading.current_thread())]
    assert len(told) == 1


def test_a_blocking_callback_may_close_its_client() -> None:
    """`on_close` does not wait for the thread that waits for it."""
    told: queue.Queue[object] = queue.Queue()
    with InProcessOverlay("one") as overlay:
        a1 = overlay.connect("A1", on_close=told.put)
        a1.advertise(P1)
        a1.subscribe(P1, lambda n: a1.close())
        a1.publish(P1)
        assert told.get(timeout=30) is None


def test_a_blocking_client_that_is_forgotten_ends_with_its_program() -> None:
    program = """
from padres_tx.testing.inprocess import InProcessOverlay
a1 = InProcessOverlay("one").connect("A1", on_close=lambda error: print("ended", error))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (ended.stdout, ended.stderr) == ("ended None\n", "")


# --- loops, and the end of them ---


def test_a_client_belongs_to_its_loop() -> None:
    overlay = InProcessOverlay("one")

    async def connect() -> object:
        return await overlay.connect_async("A1")

    with asyncio.Runner() as first, asyncio.Runner() as second:
        a1: object = first.run(connect())
        for call in (
            lambda: a1.publish(P1),  # type: ignore[attr-defined]
            lambda: a1.subscribe(P1),  # type: ignore[attr-defined]
            lambda: a1.next(),  # type: ignore[attr-defined]
            lambda: a1.beginTX(),  # type: ignore[attr-defined]
            lambda: a1.close(),  # type: ignore[attr-defined]
        ):
            with pytest.raises(ClientError, match="A1 was connected in another event loop"):
                second.run(call())
        first.run(a1.close())  # type: ignore[attr-defined]


def test_a_client_that_is_never_closed_is_a_resource_warning() -> None:
    async def forget() -> None:
        channel = ManualChannel()
        client = await Connecting(on_channel(channel), 1)
        client._requests.receive(Pub("E", 1, P1))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(forget())
        gc.collect()
    texts = [str(one.message) for one in caught if one.category is ResourceWarning]
    assert "<Client A1, open> was never closed" in texts


def test_a_client_that_could_not_connect_is_none() -> None:
    class NobodyThere(ManualChannel):
        async def open(self, end: object, timeout_s: float, *, retry: bool) -> None:
            raise Unreachable("nobody there")

    async def attempt() -> None:
        with pytest.raises(Unreachable):
            await Connecting(on_channel(NobodyThere()), 1)

    asyncio.run(attempt())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gc.collect()
    assert not [one for one in caught if "A1" in str(one.message)]
