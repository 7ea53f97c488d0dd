"""Calls a client's callbacks, one after the other, in the order in which their events came.

An asynchronous callback is awaited before the next one is called. An exception of a callback is
reported (`padres_tx.client.asyncio.error_reports`) and ends nothing here.

One event and its callbacks make a *turn*. Some calls of the client behave differently inside a
callback, which would otherwise wait for itself; `Callbacks.calling_now` returns whether they are.

This module knows no sessions and no transactions: an argument is passed to the callbacks unread.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from padres_tx.client.asyncio.error_reports import ErrorReports, callback_name
from padres_tx.client.asyncio.requests import Requests
from padres_tx.errors import ClientError


class CallbackTurn:
    """The callbacks that are called with one event."""

    __slots__ = ("callbacks", "over")

    def __init__(self, callbacks: Callbacks) -> None:
        self.callbacks = callbacks
        self.over = False


#: The turn in which a task runs, or was started.
current_turn: ContextVar[CallbackTurn | None] = ContextVar("current_turn", default=None)


class Callbacks:
    """The callbacks of one client that are to be called."""

    def __init__(self, requests: Requests, reports: ErrorReports) -> None:
        self._requests = requests
        self._reports = reports
        #: Each event with its callbacks; the first is being called.
        self.waiting: deque[tuple[Any, list[Callable[[Any], Any]]]] = deque()
        #: Called with each event when its callbacks have returned.
        self.when_called: Callable[[Any], None] = lambda event: None
        #: Called after the last callback of a client that has lost its broker.
        self.when_over: Callable[[], Awaitable[None]]
        self._task: asyncio.Task[None] | None = None
        #: The task that calls `when_over`. A loop does not keep tasks alive.
        self._last_task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether callbacks are being called."""
        return self._task is not None

    def calling_now(self) -> bool:
        """Whether this code runs in a callback that has not returned, or in a task that such a
        callback has started."""
        turn = current_turn.get()
        return turn is not None and turn.callbacks is self and not turn.over

    def add(self, event: Any, callbacks: list[Callable[[Any], Any]]) -> None:
        """Call these with the event, after all that were added before."""
        if callbacks:
            self.waiting.append((event, callbacks))
            self.start()

    def start(self) -> None:
        """Start the task that calls the callbacks, if it does not run."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"callbacks of {self._requests.name}"
            )
            # Also for a task that is cancelled before its first step, and so never runs.
            self._task.add_done_callback(self._stopped)

    def stop(self) -> None:
        """Cancel the callback that is running, unless it is the caller."""
        if self._task is not None and not self.calling_now():
            self._task.cancel()

    def _stopped(self, task: asyncio.Task[None] | None) -> None:
        if self._task is task:
            self._task = None
            self._requests.changed()

    async def _run(self) -> None:
        """Call the callbacks until none is left."""
        requests = self._requests
        try:
            while self.waiting and not requests.closed:
                event, callbacks = self.waiting[0]
                turn = CallbackTurn(self)
                current_turn.set(turn)
                try:
                    for callback in callbacks:
                        await self.call(callback, event)
                finally:
                    turn.over = True
                    self.waiting.popleft()
                    self.when_called(event)
        finally:
            self._stopped(asyncio.current_task())
        if requests.lost_channel and not requests.closed:
            # This task is no longer the one that `stop` cancels: `on_close` may call `close`.
            self._last_task = asyncio.current_task()
            await self.when_over()

    async def call(self, callback: Callable[[Any], Any], event: Any) -> None:
        """Call one callback, and report what it raises."""
        try:
            awaitable = callback(event)
            if inspect.isawaitable(awaitable):
                await awaitable
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # By `close`, or by the end of the loop.
            failed = ClientError(
                f"{callback_name(callback)} of {self._requests.name} was cancelled from within"
            )
            failed.__cause__ = cancelled
            self._reports.callback_failed(callback, event, failed)
        except Exception as error:
            self._reports.callback_failed(callback, event, error)


def check_callable(what: str, given: object) -> None:
    """Raises TypeError unless it is None or can be called."""
    if given is not None and not callable(given):
        raise TypeError(f"a {what} is a function, not {given!r}")
