"""Who acts on a tcm, and whose turn it is.

A client's handlers run one after the other, in the order in which the tcms have come, so that a
program need not guard what they share. There is one exception, without which a transaction could
wait for itself: while a handler waits for an operation of its transaction (`await tx.tcm(...)`),
tcms of the same transaction are handled at once, one inside the other.

Two transactions whose handlers wait for each other's clients crosswise can still block each other.
Their deadlines end that, and cancel what waits; a program that calls back and forth between the
same clients should end its handler instead of waiting in it.

If the way to the coordinator is gone for good, nobody tells a client how its transaction has ended.
An operation that a handler waits for raises when the longest deadline has passed; what else it
waits for, it should give a limit itself.

This module knows neither messages nor brokers: it is told of tcms and ends, and tells how a
handler ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, TypeAlias

from overlay.filters import Filter, Value
from padres_tx.client.asyncio.handles import Part
from padres_tx.client.session import Notification
from padres_tx.client.transactions import NO_HANDLER, ClientTransaction
from padres_tx.errors import ClientError

#: What is called on a tcm: a function, or a coroutine function.
Handler: TypeAlias = Callable[[Part, Notification], Awaitable[None] | None]

#: Handlers of one transaction at one client inside each other. More is an endless recursion of
#: tcms, which is better told than run.
NESTING_LIMIT = 16

#: In whose part the current code runs, for Table 2's calls, which name only the transaction.
current_part: contextvars.ContextVar[Part | None] = contextvars.ContextVar(
    "padres_tx_part", default=None
)


class QueuedTcm(NamedTuple):
    """A tcm that waits for its turn."""

    part: Part
    notification: Notification
    handler: Handler


class RunningHandler(NamedTuple):
    """A handler that runs."""

    part: Part
    task: asyncio.Task[None]


class TcmHandlers:
    """The handlers of one client.

    `finished` is told how each part has ended, with an error's text or ""; `failed` gets the
    exception.
    """

    def __init__(
        self,
        client: str,
        finished: Callable[[Part, str], None],
        failed: Callable[[str, Exception], None],
    ) -> None:
        self._client = client
        self._finished = finished
        self._failed = failed
        self._handlers: list[tuple[Filter | None, Handler]] = []
        self._waiting: deque[QueuedTcm] = deque()
        #: All in the same transaction, each but the last waiting.
        self._running: list[RunningHandler] = []

    def register(self, filter: Filter | None, handler: Handler | None) -> None:
        """Let a handler act on the tcms that match, in place of an earlier one for this filter."""
        self._handlers = [entry for entry in self._handlers if entry[0] != filter]
        if handler is not None:
            self._handlers.append((filter, handler))

    def find(self, point: dict[str, Value]) -> Handler | None:
        """Of the handlers that match, the last that was registered."""
        for filter, handler in reversed(self._handlers):
            if filter is None or filter.matches(point):
                return handler
        return None

    def call(self, part: Part, notification: Notification) -> None:
        """A tcm has come."""
        handler = self.find(notification.point)
        if handler is None:
            self._finished(part, NO_HANDLER)
            return
        self._waiting.append(QueuedTcm(part, notification, handler))
        self.start_next()

    def start_next(self) -> None:
        """Start the next handler, if it is its turn."""
        while self._waiting:
            turn = self._next()
            if turn is None:
                return
            self._waiting.remove(turn)
            if len(self._running) >= NESTING_LIMIT:
                self._finished(turn.part, f"handlers nested more than {NESTING_LIMIT} deep")
                continue
            task = asyncio.get_running_loop().create_task(
                self._run(turn), name=f"handler of {self._client} in {turn.part.id}"
            )
            self._running.append(RunningHandler(turn.part, task))
            # Also for one that is cancelled before its first step, and so never runs.
            task.add_done_callback(partial(self._over, turn.part))

    def _next(self) -> QueuedTcm | None:
        if not self._running:
            return self._waiting[0]
        last = self._running[-1].part
        if not last.waiting:
            return None
        return next((turn for turn in self._waiting if turn.part.tx is last.tx), None)

    async def _run(self, turn: QueuedTcm) -> None:
        part, notification, handler = turn
        current_part.set(part)
        error = "its handler was cancelled"
        try:
            awaitable = handler(part, notification)
            if inspect.isawaitable(awaitable):
                await awaitable
            error = ""
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Something that the handler awaits was cancelled, not the handler.
            failed = ClientError(f"a handler of {self._client} was cancelled from within")
            failed.__cause__ = cancelled
            self._failed(part.id, failed)
        except Exception as raised:  # The handler is the user's; the coordinator hears why.
            error = f"{type(raised).__name__}: {raised}"
            self._failed(part.id, raised)
        except BaseException as raised:
            error = f"{type(raised).__name__}: {raised}"
            raise  # It ends the program.
        finally:
            self._over(part, error=error)

    def _over(
        self, part: Part, _: object = None, *, error: str = "its handler was cancelled"
    ) -> None:
        """A handler has ended; let the next one have its turn."""
        left = [run for run in self._running if run.part is not part]
        if len(left) < len(self._running):
            self._running = left
            self._finished(part, error)
            self.start_next()

    def ended(self, tx: ClientTransaction) -> None:
        """The transaction has ended: nobody need act in it any more.

        A handler that still runs is cancelled, unless it has ended the transaction itself, or
        waits for an operation and so hears of it.
        """
        self._waiting = deque(turn for turn in self._waiting if turn.part.tx is not tx)
        for run in self._running:
            if run.part.tx is tx and not tx.end_requested and not run.part.waiting:
                run.task.cancel()

    def close(self) -> None:
        """Cancel everything, but not the handler that closes its own client."""
        self._waiting.clear()
        for run in self._running:
            if run.task is not asyncio.current_task():
                run.task.cancel()
