"""What callbacks and handlers raise: it is logged at once, goes to `on_error`, and nowhere else."""

from __future__ import annotations

import asyncio
import logging
import queue
import subprocess
import sys
import threading
from typing import Any

import pytest

from overlay.errors import NotAdvertised
from overlay.messages import PubRefused
from padres_tx.client.session import Notification
from padres_tx.client.transactions import Result
from padres_tx.errors import ClientError, TransactionAborted
from padres_tx.testing.inprocess import InProcessOverlay
from tests.client.asyncio.two_clients import P1, X1, alone, asynchronous, received, two_clients


def logged(caplog: pytest.LogCaptureFixture, text: str) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.name == "padres_tx" and text in one.getMessage()]


# --- callbacks ---


def test_a_callbacks_exception_is_logged_with_its_traceback_and_raised_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @asynchronous
    async def test() -> None:
        async with two_clients() as (a1, e):
            seen: list[object] = []

            async def fails_on_x1(n: Notification) -> None:
                seen.append(n["x"])
                if n["x"] == "x1":
                    raise LookupError("for x1")

            await a1.subscribe(P1, fails_on_x1)
            iterating = asyncio.create_task(a1.next(timeout_s=0.05))
            await e.publish(X1)
            while not seen:
                await asyncio.sleep(0)
            assert logged(caplog, "A1"), "at once"
            await e.publish({"class": "p1", "x": "x2"})
            await a1.subscribe({"class": "p2"})
            with pytest.raises(TimeoutError):
                await iterating
            await a1.close()
            assert seen == ["x1", "x2"]

    test()
    (record,) = logged(caplog, "fails_on_x1 of client A1 failed on publication E:")
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None and isinstance(record.exc_info[1], LookupError)
    assert record.exc_info[2] is not None, "with the traceback"


def test_on_end_and_on_drained_count_as_callbacks(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[Exception] = []

    @asynchronous
    async def test() -> None:
        overlay = InProcessOverlay("one")
        async with overlay.connect_async("E", on_error=errors.append) as e:

            def fails_at_the_end(result: Result) -> None:
                raise LookupError("end")

            async def fails_when_drained(tx: str) -> None:
                raise LookupError("drained")

            e.on_end(fails_at_the_end)
            e.on_drained(fails_when_drained)
            await e.advertise(P1)
            async with e.transaction("d-tx", wait="applied") as tx:
                tx.sub(P1)
            await tx.drained
            while len(errors) < 2:
                await asyncio.sleep(0)

    test()
    assert [str(error) for error in errors] == ["end", "drained"]
    assert logged(caplog, "fails_at_the_end") and logged(caplog, "fails_when_drained")


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_a_callback_that_is_cancelled_from_within_does_not_end_the_others(
    is_coroutine: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It awaits a task that somebody cancels, say: the client's own task goes on."""
    errors: list[Exception] = []

    @asynchronous
    async def test() -> None:
        overlay = InProcessOverlay("one")
        async with overlay.connect_async("A1", on_error=errors.append) as a1:
            seen: list[object] = []

            async def awaits(n: Notification) -> None:
                seen.append(n["x"])
                task = asyncio.create_task(asyncio.sleep(3600))
                task.cancel()
                await task

            def raises(n: Notification) -> None:
                seen.append(n["x"])
                raise asyncio.CancelledError

            await a1.advertise(P1)
            await a1.subscribe(P1, awaits if is_coroutine else raises)
            for x in range(3):
                await a1.publish({"class": "p1", "x": x})
            while len(errors) < 3:
                await asyncio.sleep(0)
            assert seen == [0, 1, 2]

    test()
    assert {type(error) for error in errors} == {ClientError}
    assert all(isinstance(error.__cause__, asyncio.CancelledError) for error in errors)
    assert len(logged(caplog, "of client A1 failed")) == 3


def test_a_callback_that_exits_ends_the_program() -> None:
    program = """
import asyncio, sys
from padres_tx.testing.inprocess import InProcessOverlay

async def main():
    async with InProcessOverlay("one").connect_async("A1") as a1:
        await a1.advertise({"class": "p1"})
        await a1.subscribe({"class": "p1"}, lambda n: sys.exit(7))
        await a1.publish({"class": "p1"})
        await a1.wait_closed()

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert ended.returncode == 7


def test_a_coroutine_function_as_on_error_is_awaited() -> None:
    errors: list[str] = []

    async def note(error: Exception) -> None:
        await asyncio.sleep(0)
        errors.append(str(error))

    @asynchronous
    async def test() -> None:
        overlay = InProcessOverlay("one")
        async with overlay.connect_async("A1", on_error=note) as a1:
            a1._requests.receive(PubRefused(7, "not-advertised", "not that"))
            while not errors:
                await asyncio.sleep(0)

    test()
    assert errors == ["not that"]


def test_what_cannot_be_called_is_refused_at_the_call() -> None:
    overlay = InProcessOverlay("one")
    mistake: Any = "print"

    @asynchronous
    async def test() -> None:
        async with overlay.connect_async("A1") as a1:
            with pytest.raises(TypeError, match="a callback is a function, not 'print'"):
                await a1.subscribe(P1, mistake)
            with pytest.raises(TypeError, match="a callback is a function"):
                a1.notify(mistake)
        with pytest.raises(TypeError, match="on_error"):
            overlay.connect_async("A1", on_error=mistake)

    test()
    with overlay, overlay.connect("A1") as a1:
        with pytest.raises(TypeError, match="a callback is a function"):
            a1.subscribe(P1, mistake)
        with pytest.raises(TypeError, match="a handler is a function"):
            a1.on_tcm(None, mistake)


# --- refused publications ---


@pytest.mark.parametrize("how", ["close", "block"])
def test_a_refused_publication_is_logged_and_raised_by_close(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    @asynchronous
    async def test() -> None:
        with pytest.raises(NotAdvertised, match="A1 has not advertised that") as caught:
            async with alone() as (a1, _):
                a1._requests.receive(PubRefused(7, "not-advertised", "A1 has not advertised that"))
                a1._requests.receive(PubRefused(8, "not-advertised", "nor that"))
                assert len(logged(caplog, "was refused")) == 2
                assert await received(a1) == [], "no call that has nothing to do with it"
                if how == "close":
                    await a1.close()
        assert caught.value.__notes__ == ["1 more publications were refused"]

    test()


@asynchronous
async def test_a_refused_publication_that_on_error_has_taken_is_not_raised() -> None:
    errors: list[Exception] = []
    async with InProcessOverlay("one").connect_async("A1", on_error=errors.append) as a1:
        a1._requests.receive(PubRefused(7, "not-advertised", "A1 has not advertised that"))
    assert [type(error) for error in errors] == [NotAdvertised]


def test_a_blocking_publisher_hears_of_it_as_well() -> None:
    with InProcessOverlay("one") as overlay:
        a1 = overlay.connect("A1")
        a1._background.loop.call_soon_threadsafe(
            a1._client._requests.receive,
            PubRefused(7, "not-advertised", "A1 has not advertised that"),
        )
        with pytest.raises(NotAdvertised):
            a1.close()


# --- handlers ---


def test_a_handlers_exception_aborts_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    @asynchronous
    async def test() -> None:
        async with two_clients() as (a1, e):

            def refuses(tx: object, n: Notification) -> None:
                raise LookupError("no room")

            await a1.subscribe(P1)
            a1.on_tcm(None, refuses)
            with pytest.raises(TransactionAborted, match="LookupError: no room"):
                async with e.transaction() as tx:
                    tx.tcm(P1)

    test()
    (record,) = logged(caplog, "a handler of client A1 failed, which aborts E:")
    assert record.exc_info is not None and isinstance(record.exc_info[1], LookupError)


def test_a_handler_that_passes_an_abort_on_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @asynchronous
    async def test() -> None:
        async with two_clients() as (a1, e):

            async def aborts(tx: object, n: Notification) -> None:
                raise TransactionAborted("of another one")

            await a1.subscribe(P1)
            a1.on_tcm(None, aborts)
            with pytest.raises(TransactionAborted):
                async with e.transaction() as tx:
                    tx.tcm(P1)

    test()
    assert not logged(caplog, "handler")


# --- blocking clients ---


def test_an_error_in_a_blocking_callback_is_logged_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors: queue.Queue[Exception] = queue.Queue()
    with InProcessOverlay("one") as overlay:
        a1 = overlay.connect("A1", on_error=errors.put)
        a1.advertise(P1)

        def fails(n: Notification) -> None:
            raise LookupError("in the callback")

        a1.subscribe(P1, fails)
        a1.publish(P1)
        assert str(errors.get(timeout=30)) == "in the callback"
        with pytest.raises(TimeoutError):
            a1.next(timeout_s=0)
    (record,) = logged(caplog, "fails of client A1 failed")
    assert record.exc_info is not None and record.exc_info[2] is not None


@pytest.mark.parametrize("raised", [SystemExit, StopIteration, KeyboardInterrupt, GeneratorExit])
def test_whatever_a_blocking_callback_raises_the_others_go_on(
    raised: type[BaseException],
) -> None:
    """All blocking clients share a loop: none may end it."""
    errors: queue.Queue[Exception] = queue.Queue()
    with InProcessOverlay("one") as overlay:
        a1, e = overlay.connect("A1", on_error=errors.put), overlay.connect("E")
        e.advertise(P1)
        seen: queue.Queue[object] = queue.Queue()

        def fails_first(n: Notification) -> None:
            if n["x"] == 0:
                raise raised
            seen.put(n["x"])

        a1.subscribe(P1, fails_first)
        for x in range(3):
            e.publish({"class": "p1", "x": x})
        assert [seen.get(timeout=30) for _ in range(2)] == [1, 2]
        assert isinstance(errors.get(timeout=30).__cause__, raised)


@pytest.mark.parametrize("raised", [SystemExit, StopIteration])
def test_whatever_a_blocking_handler_raises_aborts_its_transaction(
    raised: type[BaseException],
) -> None:
    with InProcessOverlay("one") as overlay:
        a1, e = overlay.connect("A1"), overlay.connect("E")
        e.advertise(P1)
        a1.subscribe(P1)
        on_thread = threading.Event()

        def fails(tx: object, n: Notification) -> None:
            on_thread.set()
            raise raised

        a1.on_tcm(None, fails)
        with pytest.raises(TransactionAborted, match=raised.__name__), e.transaction() as tx:
            tx.tcm(P1)
        assert on_thread.is_set()
