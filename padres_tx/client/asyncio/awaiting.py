"""What can be awaited of one transaction, on asyncio.

`drained` tells a worker that it may go: all that was published before the commit has come. Its
callbacks may still be at work on that. So awaiting `drained` returns when the callbacks of
everything that came before are done. A callback itself, and a task that it has started and may be
waiting for, would wait for themselves; there it returns when the message has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any, TypeVar

from overlay.errors import OverlayError
from padres_tx.client.asyncio.handles import SharedFuture
from padres_tx.client.transactions import Result

F = TypeVar("F")


class CallbackTurn:
    """One turn of a client's callbacks: those that are called with one notification or outcome."""

    __slots__ = ("client", "over")

    def __init__(self, client: object) -> None:
        self.client = client
        self.over = False


#: The turn in which a task runs, or was started.
current_turn: ContextVar[CallbackTurn | None] = ContextVar("current_turn", default=None)


def in_callback(client: object) -> bool:
    """Whether this runs in a callback of the client that has not returned, or in a task that such a
    callback has started."""
    turn = current_turn.get()
    return turn is not None and turn.client is client and not turn.over


class TransactionFutures:
    """What can be awaited of one transaction."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.decided: asyncio.Future[Result] = loop.create_future()
        self.applied: asyncio.Future[None] = loop.create_future()
        #: The message has come; and the callbacks of all that came before it are done.
        self.drained_came: asyncio.Future[None] = loop.create_future()
        self.drained: asyncio.Future[None] = loop.create_future()
        #: Whether the callbacks for `drained` itself are called.
        self.is_drained = False
        #: By the number of the operation.
        self.operations: dict[int, asyncio.Future[None]] = {}

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is to come."""
        return self.decided.done() and self.applied.done() and self.drained.done()

    @property
    def callbacks_at_work(self) -> bool:
        """Whether it is drained, but for the callbacks."""
        return self.drained_came.done() and not self.drained.done()

    def fail(self, reason: Callable[[], OverlayError], *, callbacks: bool = True) -> None:
        """None of it will come, for this reason; `callbacks`: nor will the callbacks be done."""
        futures: list[asyncio.Future[Any]] = [self.decided, self.applied]
        if self.is_drained:
            succeed(self.drained, None)
        elif callbacks or not self.callbacks_at_work:
            futures += [self.drained_came, self.drained]
        for future in (*futures, *self.operations.values()):
            fail(future, reason())
        self.operations.clear()

    def fail_drained(self, error: OverlayError) -> None:
        fail(self.drained_came, error)
        fail(self.drained, error)

    def drain(self) -> None:
        """It is drained, and no callback is at work on what came before."""
        succeed(self.drained_came, None)
        succeed(self.drained, None)


class DrainedFuture(SharedFuture[None]):
    """`drained`, to be awaited."""

    __slots__ = ("_client", "_watch")

    def __init__(self, client: object, watch: TransactionFutures) -> None:
        super().__init__(watch.drained)
        self._client = client
        self._watch = watch

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        if in_callback(self._client):
            await asyncio.shield(self._watch.drained_came)
            if in_callback(self._client):
                return
        await asyncio.shield(self._watch.drained)


def succeed(future: asyncio.Future[F], value: F) -> None:
    if not future.done():
        future.set_result(value)


def fail(future: asyncio.Future[Any], error: Exception) -> None:
    """Let the future raise for whoever awaits it, and nobody needs to."""
    if not future.done():
        future.set_exception(error)
        future.exception()  # Or the loop would complain that nobody has looked.
