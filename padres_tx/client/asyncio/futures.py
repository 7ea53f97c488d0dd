"""The futures of one transaction, on asyncio.

`drained` tells a worker that it may go: every publication from before the commit has come. Its
callbacks may still be running with those publications. So awaiting `drained` returns when the
callbacks of everything that came before have returned. A callback itself, and a task that it has
started and may be waiting for, would wait for themselves; there it returns when the message has
come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from overlay.errors import OverlayError
from padres_tx.client.asyncio.callbacks import Callbacks
from padres_tx.client.transactions import Result

T = TypeVar("T")


class SharedFuture(Generic[T]):
    """A future that several tasks can await; a task that is cancelled leaves it to the others."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[T]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.shield(self._future).__await__()

    @property
    def done(self) -> bool:
        return self._future.done()


class TransactionFutures:
    """What can be awaited of one transaction."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.decided: asyncio.Future[Result] = loop.create_future()
        self.applied: asyncio.Future[None] = loop.create_future()
        #: The message has come.
        self.drained_came: asyncio.Future[None] = loop.create_future()
        #: The message has come, and the callbacks of everything before it have returned.
        self.drained: asyncio.Future[None] = loop.create_future()
        #: Whether the callbacks for `drained` itself are called.
        self.is_drained = False
        #: By the number of the operation.
        self.operations: dict[int, asyncio.Future[None]] = {}

    @property
    def is_over(self) -> bool:
        """Whether all of them are done, apart from operations."""
        return self.decided.done() and self.applied.done() and self.drained.done()

    @property
    def waits_for_callbacks(self) -> bool:
        """Whether it is drained, apart from callbacks that still run."""
        return self.drained_came.done() and not self.drained.done()

    def fail(self, reason: Callable[[], OverlayError], *, callbacks: bool = True) -> None:
        """Let all that are not done raise this.

        `callbacks`: whether that includes `drained` when only callbacks are missing.
        """
        futures: list[asyncio.Future[Any]] = [self.decided, self.applied]
        if self.is_drained:
            succeed(self.drained, None)
        elif callbacks or not self.waits_for_callbacks:
            futures += [self.drained_came, self.drained]
        for future in (*futures, *self.operations.values()):
            fail(future, reason())
        self.operations.clear()

    def fail_drained(self, error: OverlayError) -> None:
        """Let waiting for `drained` raise this."""
        fail(self.drained_came, error)
        fail(self.drained, error)

    def drain(self) -> None:
        """It is drained, and no callback of what came before still runs."""
        succeed(self.drained_came, None)
        succeed(self.drained, None)


class DrainedFuture(SharedFuture[None]):
    """`drained`, to be awaited; see the module's docstring."""

    __slots__ = ("_callbacks", "_futures")

    def __init__(self, callbacks: Callbacks, futures: TransactionFutures) -> None:
        super().__init__(futures.drained)
        self._callbacks = callbacks
        self._futures = futures

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        if self._callbacks.calling_now():
            await asyncio.shield(self._futures.drained_came)
            if self._callbacks.calling_now():
                return
        await asyncio.shield(self._futures.drained)


def succeed(future: asyncio.Future[T], value: T) -> None:
    """Set the result, unless the future is done."""
    if not future.done():
        future.set_result(value)


def fail(future: asyncio.Future[Any], error: Exception) -> None:
    """Let the future raise this, unless it is done. It need not be awaited."""
    if not future.done():
        future.set_exception(error)
        future.exception()  # Without this the loop logs an exception that was never retrieved.
