"""A test fails if an exception is left where only the event loop hears of it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import uvloop

from tests.stray_errors import StrayErrors


async def fails() -> None:
    raise LookupError("nobody awaits this")


async def leave_an_exception() -> None:
    task = asyncio.create_task(fails())
    while not task.done():
        await asyncio.sleep(0)


async def leave_an_exception_in_a_cycle() -> None:
    async def knows_itself() -> None:
        this_task = asyncio.current_task()
        assert this_task is not None
        raise LookupError("nobody awaits this")

    task = asyncio.create_task(knows_itself())
    while not task.done():
        await asyncio.sleep(0)


async def leave_a_future() -> None:
    asyncio.get_running_loop().create_future().set_exception(LookupError("nobody awaits this"))


async def fail_in_a_callback() -> None:
    def fail() -> None:
        raise LookupError("nobody awaits this")

    asyncio.get_running_loop().call_soon(fail)
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    "leave",
    [leave_an_exception, leave_an_exception_in_a_cycle, leave_a_future, fail_in_a_callback],
)
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_exception_that_nobody_hears_of_is_reported(
    leave: Any, run: Any, stray_errors: StrayErrors
) -> None:
    run(leave())
    (report,) = stray_errors.take()
    assert "LookupError: nobody awaits this" in report


def test_so_is_one_in_another_thread(stray_errors: StrayErrors) -> None:
    thread = threading.Thread(target=lambda: asyncio.run(leave_an_exception()))
    thread.start()
    thread.join()
    assert len(stray_errors.take()) == 1


def test_so_is_a_task_destroyed_while_pending(stray_errors: StrayErrors) -> None:
    loop = asyncio.new_event_loop()
    task = loop.create_task(asyncio.sleep(3600))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    del loop, task
    (report,) = stray_errors.take()
    assert "destroyed but it is pending" in report


def test_an_exception_that_is_awaited_is_not(stray_errors: StrayErrors) -> None:
    async def retrieve() -> None:
        with pytest.raises(LookupError):
            await asyncio.create_task(fails())

    asyncio.run(retrieve())
    assert stray_errors.take() == []
