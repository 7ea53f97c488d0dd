"""The handlers for tcms of one client, and the order in which they run.

A client's handlers run one after the other, in the order in which the tcms arrived, so that a
program need not guard what they share. There is one exception, without which a transaction could
wait for itself: while a handler waits for an operation of its transaction (`await tx.tcm(...)`),
tcms of the same transaction are handled at once, nested in the waiting handler.

Two transactions whose handlers wait for each other's clients crosswise can still block each other.
Their deadlines end that and cancel the waiting handlers. A program that calls back and forth
between the same clients should end its handler instead of waiting in it.

If the coordinator is unreachable for good, a client does not learn how its transaction has ended.
An operation that a handler waits for raises when the longest deadline has passed. A handler that
waits for something else should set a time limit itself.

This module knows neither messages nor brokers: it is called with tcms and ends of transactions, and
reports how each handler ended.
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

#: Called with a part and the tcm: a function, or a coroutine function.
Handler: TypeAlias = Callable[[Part, Notification], Awaitable[None] | None]

#: Nested handlers of one transaction at one client. More is an endless recursion of tcms.
NESTING_LIMIT = 16

#: The part in which the current code runs, for Table 2's calls, which name only the transaction.
current_part: contextvars.ContextVar[Part | None] = contextvars.ContextVar(
    "padres_tx_part", default=None
)


class QueuedTcm(NamedTuple):
    """A tcm that waits for its handler to run."""

    part: Part
    notification: Notification
    handler: Handler


class RunningHandler(NamedTuple):
    """A handler that is running."""

    part: Part
    task: asyncio.Task[None]


class TcmHandlers:
    """The handlers of one client.

    `finished` is called with each part that has ended, and the text of its error or ""; `failed`
    with the name of the transaction and the exception.
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
        """Call this handler for tcms that match, in place of an earlier one for the same filter."""
        self._handlers = [entry for entry in self._handlers if entry[0] != filter]
        if handler is not None:
            self._handlers.append((filter, handler))

    def find(self, point: dict[str, Value]) -> Handler | None:
        """The last registered handler that matches."""
        for filter, handler in reversed(self._handlers):
            if filter is None or filter.matches(point):
                return handler
        return None

    def call(self, part: Part, notification: Notification) -> None:
        """Queue a tcm that has arrived."""
        handler = self.find(notification.point)
        if handler is None:
            self._finished(part, NO_HANDLER)
            return
        self._waiting.append(QueuedTcm(part, notification, handler))
        self.start_next()

    def start_next(self) -> None:
        """Start the next handler, if one may run now."""
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
            # Also for a task that is cancelled before its first step, and so never runs.
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
        except (
            Exception
        ) as raised:  # The handler is the program's; the coordinator gets the reason.
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
        """A handler has ended; start the next one."""
        left = [run for run in self._running if run.part is not part]
        if len(left) < len(self._running):
            self._running = left
            self._finished(part, error)
            self.start_next()

    def ended(self, tx: ClientTransaction) -> None:
        """The transaction has ended: drop its queued tcms, and cancel its handlers.

        A handler is not cancelled if it has ended the transaction itself, or if it waits for an
        operation, which raises the reason.
        """
        self._waiting = deque(turn for turn in self._waiting if turn.part.tx is not tx)
        for run in self._running:
            if run.part.tx is tx and not tx.end_requested and not run.part.waiting:
                run.task.cancel()

    def close(self) -> None:
        """Cancel all handlers, except one that closes its own client."""
        self._waiting.clear()
        for run in self._running:
            if run.task is not asyncio.current_task():
                run.task.cancel()
