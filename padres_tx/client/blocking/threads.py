"""The threads of one blocking client: calls into the background loop, and callbacks out of it.

Callbacks run on one thread of their client, one after the other, and may use the client themselves.
Handlers for tcms run on another thread, so that a callback may wait for a transaction in which the
client is called. A handler that waits lets the same transaction call the client again, on a further
thread (`padres_tx.client.asyncio.tcm_handlers`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from padres_tx.client.asyncio.callbacks import check_callable
from padres_tx.client.blocking.background import BackgroundLoop
from padres_tx.errors import ClientClosed, ClientError

T = TypeVar("T")


class ClientThreads:
    """What a blocking client and its handles use to call the asyncio client, and to be called."""

    def __init__(self, background: BackgroundLoop) -> None:
        self.background = background
        #: The client's name, once it is connected.
        self.name = ""
        self.closed = False
        self._lock = threading.Lock()
        self._callbacks: concurrent.futures.ThreadPoolExecutor | None = None
        #: One for each handler that may run while those before it wait.
        self._handlers: list[concurrent.futures.ThreadPoolExecutor] = []
        self._running_handlers = 0

    # --- calls into the loop ---

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the asyncio client and wait for it.

        Raises ClientClosed after `close`, and what the coroutine raises.
        """
        if self.closed:
            call.close()
            raise ClientClosed(f"{self.name} has been closed")
        return self.background.run(call)

    def call(self, function: Callable[..., T], *args: Any, **more: Any) -> T:
        """Call a function of the asyncio client in its loop."""
        return self.run(as_coroutine(function, *args, **more))

    # --- calls out of the loop ---

    def relay(self, callback: Callable[[Any], None] | None) -> CallbackRelay | None:
        """A callback for the asyncio client that runs this one on the callback thread.

        Raises TypeError if it cannot be called.
        """
        check_callable("callback", callback)
        return None if callback is None else CallbackRelay(self._callback_thread(), callback)

    async def run_handler(self, handler: Callable[..., None], *args: Any) -> None:
        """Run a handler on a handler thread, from within the loop."""
        thread = self._handler_thread(self._running_handlers)
        self._running_handlers += 1
        try:
            # The context tells Table 2's calls in which part they act.
            await _run_on(thread, handler, *args)
        finally:
            self._running_handlers -= 1

    def _callback_thread(self) -> concurrent.futures.ThreadPoolExecutor:
        with self._lock:
            if self._callbacks is None:
                self._callbacks = concurrent.futures.ThreadPoolExecutor(
                    1, thread_name_prefix=f"callbacks of {self.name}"
                )
            return self._callbacks

    def _handler_thread(self, depth: int) -> concurrent.futures.ThreadPoolExecutor:
        while len(self._handlers) <= depth:
            self._handlers.append(
                concurrent.futures.ThreadPoolExecutor(
                    1, thread_name_prefix=f"handlers of {self.name}"
                )
            )
        return self._handlers[depth]

    # --- the end ---

    def close(self) -> bool:
        """Refuse further calls; returns False if they were refused before."""
        with self._lock:
            first, self.closed = not self.closed, True
            return first

    def stop(self, *, cancel_callbacks: bool) -> None:
        """End the threads without waiting for what runs on them."""
        if self._callbacks is not None:
            self._callbacks.shutdown(wait=False, cancel_futures=cancel_callbacks)
        for thread in self._handlers:
            thread.shutdown(wait=False, cancel_futures=True)


class CallbackRelay:
    """A callback as the asyncio client calls it: awaited until it has returned on its thread."""

    def __init__(
        self, thread: concurrent.futures.ThreadPoolExecutor, callback: Callable[[Any], None]
    ) -> None:
        self._thread = thread
        self._callback = callback

    async def __call__(self, argument: Any) -> None:
        # The context tells the client that it is called from a callback.
        await _run_on(self._thread, self._callback, argument)

    def __eq__(self, other: object) -> bool:
        # Subscribing twice with one callback calls it once.
        return isinstance(other, CallbackRelay) and self._callback == other._callback

    def __repr__(self) -> str:
        return getattr(self._callback, "__qualname__", None) or repr(self._callback)


async def _run_on(
    thread: concurrent.futures.ThreadPoolExecutor, function: Callable[..., None], *args: Any
) -> None:
    """Run a function of the program on a thread, in the current context."""
    run = contextvars.copy_context().run
    await asyncio.get_running_loop().run_in_executor(thread, run, _contained, function, *args)


def _contained(function: Callable[..., None], *args: Any) -> None:
    """Call a function of the program, and let it raise nothing but errors.

    Raises ClientError for SystemExit, which would end the event loop of all blocking clients, and
    for StopIteration, which a future cannot carry.
    """
    try:
        function(*args)
    except StopIteration as error:
        raise ClientError(f"{function!r} raised StopIteration") from error
    except Exception:
        raise
    except BaseException as error:
        name = type(error).__name__
        raise ClientError(f"{function!r} raised {name}, which ends only a main thread") from error


async def as_coroutine(function: Callable[..., T], *args: Any, **more: Any) -> T:
    """Call a function; as a coroutine, which can be run in another thread's loop."""
    return function(*args, **more)
