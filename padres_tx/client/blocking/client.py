"""The client for blocking code: the methods of `padres_tx.client.asyncio.client`, without `await`.

    with padres_tx.sync.connect("127.0.0.1:7001", name="A1") as a1:
        a1.subscribe("[class,eq,'p1']")
        for notification in a1.notifications(timeout_s=10):
            print(notification["x"])

The asyncio client does the work, in an event loop on one background thread that all blocking
clients of the process share; it starts with the first client and ends with the last. No program
code runs there, apart from `on_error`: callbacks run on a thread of their client, one after the
other, and may use the client themselves. What they raise is logged, as in
`padres_tx.client.asyncio.client`; that includes SystemExit, which ends a program only in its main
thread. All methods can be called from any thread; calls that block can be interrupted (Ctrl-C),
which cancels them as in `padres_tx.client.asyncio.client`. Clients that are still open when the
interpreter exits are closed, so that what they published is not lost.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import contextvars
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import msgspec

from overlay.errors import OverlayError
from padres_tx.client.asyncio import client
from padres_tx.client.asyncio.channel import CLOSE_TIMEOUT_S, CONNECT_TIMEOUT_S, RECONNECT_S
from padres_tx.client.asyncio.error_reports import OnError, logger
from padres_tx.client.asyncio.requests import CALL_TIMEOUT_S, Connecting
from padres_tx.client.asyncio.transacting import check_callable
from padres_tx.client.blocking.transacting import Transacting, call_in_loop, contained
from padres_tx.client.session import FilterLike, Notification, PointLike
from padres_tx.errors import CallTimeout, ClientClosed

T = TypeVar("T")

#: Called with a notification, on the client's callback thread.
Callback: TypeAlias = Callable[[Notification], None]

#: Called at the end of a client, with the reason, or with None after its own `close`.
OnClose: TypeAlias = Callable[[OverlayError | None], None]

#: Notifications that cross from the loop's thread at once: the crossing costs as much as a hundred
#: of them do.
BATCH = 256

#: How long the background thread may take to end, after its last client has been closed.
JOIN_S = 5.0


def connect(
    at: str,
    *,
    name: str | None = None,
    secret: str | None = None,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    retry: bool = True,
    reconnect_s: float = RECONNECT_S,
    on_error: OnError | None = None,
    on_close: OnClose | None = None,
) -> Client:
    """A client of the broker at "host:port", connected; `close` it, or use it with `with`.

    Raises as `padres_tx.connect` does. `on_error` is called on the background thread and must not
    call the client. `on_close` is called on the thread of the callbacks, or on the one that calls
    `close`.
    """
    return Client(
        client.connect(
            at,
            name=name,
            secret=secret,
            connect_timeout_s=connect_timeout_s,
            retry=retry,
            reconnect_s=reconnect_s,
            on_error=on_error,
        ),
        on_close=on_close,
    )


class Client(Transacting):
    """A client of the overlay, for blocking code; see the asyncio `Client` for what calls do."""

    def __init__(
        self, connecting: Connecting[client.Client], *, on_close: OnClose | None = None
    ) -> None:
        super().__init__()
        check_callable("on_close", on_close)
        self._on_close = on_close
        # Taken from the asyncio client, and not yet given out.
        self._batch: deque[Notification] = deque()
        self._reading = threading.Lock()
        self._caller: concurrent.futures.ThreadPoolExecutor | None = None
        self._closing = threading.Lock()
        self._closed = False
        self._background = _Background.enter(self)
        try:
            self._client = self._background.run(self._opened(connecting))
        except BaseException:
            self._background.leave(self)
            raise

    async def _opened(self, connecting: Connecting[client.Client]) -> client.Client:
        self._client = await connecting
        # In the same turn of the loop: before the client can end.
        self._client._on_close = self._relay(self._on_close)
        return self._client

    @property
    def name(self) -> str:
        return self._client.name

    @property
    def closed(self) -> bool:
        """Whether the client has been closed, or has lost its broker for good."""
        return self._client.closed

    def __repr__(self) -> str:
        return repr(self._client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception:
            # What ended the block says more than what could not be sent because of it.
            if error is None:
                raise

    def close(self) -> None:
        """Leave, when the broker has everything that was published. Closing twice is fine.

        A callback that is running is not waited for. `on_close` is called before this returns, on
        the same thread.

        Raises as `padres_tx.client.asyncio.client.Client.close` does.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
        if not self._background.running:
            return  # In a forked child: the client is the parent's.
        try:
            self._background.run(self._client._leave())
        finally:
            # What has arrived can still be read, but not from a loop that may end now.
            with self._reading:
                self._batch.extend(self._background.run(_rest(self._client)))
            on_close = self._background.run(call_in_loop(self._client._take_on_close))
            if self._caller is not None:
                # A lost connection may just be told to `on_close` there.
                told = self._on_close is not None and on_close is None
                self._caller.shutdown(wait=False, cancel_futures=not told)
            self._end_threads()
            self._background.leave(self)
            if on_close is not None:
                self._tell_end()
        self._client._reports.raise_refused()

    def _tell_end(self) -> None:
        """Call `on_close` on this thread: that of the callbacks may be the one that closes."""
        if self._on_close is not None:
            try:
                self._on_close(self._client._reason())
            except Exception as error:
                logger.error("on_close of client %s failed", self.name, exc_info=error)

    # --- operations and publications ---

    def advertise(self, filter: FilterLike, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Announce publications; see `padres_tx.client.asyncio.client.Client.advertise`."""
        self._run(self._client.advertise(filter, timeout_s=timeout_s))

    def unadvertise(self, filter: FilterLike, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Take advertisements back; see `padres_tx.client.asyncio.client.Client.unadvertise`."""
        self._run(self._client.unadvertise(filter, timeout_s=timeout_s))

    def subscribe(
        self,
        filter: FilterLike,
        callback: Callback | None = None,
        *,
        events_only: bool = False,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """Ask for publications; see `padres_tx.client.asyncio.client.Client.subscribe`."""
        relay = self._relay(callback)
        self._run(
            self._client.subscribe(filter, relay, events_only=events_only, timeout_s=timeout_s)
        )

    def unsubscribe(self, filter: FilterLike, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Take subscriptions back; see `padres_tx.client.asyncio.client.Client.unsubscribe`."""
        self._run(self._client.unsubscribe(filter, timeout_s=timeout_s))

    def publish(self, point: PointLike, payload: bytes = b"", *, json: Any = msgspec.UNSET) -> None:
        """Publish an event; see `padres_tx.client.asyncio.client.Client.publish`."""
        self._run(self._client.publish(point, payload, json=json))

    # --- notifications ---

    def notify(self, callback: Callback | None) -> None:
        """Call this with every publication that comes; see the asyncio `Client.notify`."""
        self._run(call_in_loop(self._client.notify, self._relay(callback)))

    def notifications(self, *, timeout_s: float | None = None) -> Iterator[Notification]:
        """The notifications that no callback takes, in the order of their arrival.

        Ends when the client is closed, or when nothing has come for `timeout_s` seconds.

        Raises ConnectionLost, SlowReader.
        """
        while True:
            try:
                notification = self.next(timeout_s)
            except (ClientClosed, CallTimeout):
                return
            yield notification

    def __iter__(self) -> Iterator[Notification]:
        return self.notifications()

    def next(self, timeout_s: float | None = None) -> Notification:
        """The next notification that no callback takes.

        Raises CallTimeout after `timeout_s` seconds, ClientClosed, and as `notifications` does.
        """
        # One thread reads at a time, or batches would get mixed up.
        if not self._reading.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise CallTimeout(f"another thread waits for what comes to {self.name}")
        try:
            if not self._batch:
                self._batch.extend(self._run(self._client.take(BATCH, timeout_s=timeout_s)))
            return self._batch.popleft()
        finally:
            self._reading.release()

    def wait_closed(self) -> None:
        """Wait for the end, for programs that only have callbacks."""
        self._run(self._client.wait_closed())

    # --- threads ---

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            call.close()
            raise ClientClosed(f"{self.name} has been closed")
        return self._background.run(call)

    def _relay(self, callback: Callable[[Any], None] | None) -> _Relay | None:
        check_callable("callback", callback)
        return None if callback is None else _Relay(self._callback_thread(), callback)

    def _callback_thread(self) -> concurrent.futures.ThreadPoolExecutor:
        with self._closing:
            if self._caller is None:
                self._caller = concurrent.futures.ThreadPoolExecutor(
                    1, thread_name_prefix=f"callbacks of {self.name}"
                )
            return self._caller


class _Relay:
    """A callback as the asyncio client sees it: awaited until the callback's thread is done."""

    def __init__(
        self, thread: concurrent.futures.ThreadPoolExecutor, callback: Callable[[Any], None]
    ) -> None:
        self._thread = thread
        self._callback = callback

    async def __call__(self, argument: Any) -> None:
        loop = asyncio.get_running_loop()
        # With the context, in which the client finds that it is called from a callback.
        run = contextvars.copy_context().run
        await loop.run_in_executor(self._thread, run, contained, self._callback, argument)

    def __eq__(self, other: object) -> bool:
        # Subscribing twice with one callback calls it once.
        return isinstance(other, _Relay) and self._callback == other._callback

    def __repr__(self) -> str:
        return getattr(self._callback, "__qualname__", None) or repr(self._callback)


async def _rest(client: client.Client) -> list[Notification]:
    """All that waits for the iterator of a client that has been closed."""
    rest: list[Notification] = []
    with contextlib.suppress(OverlayError):
        while True:
            rest += await client.take(BATCH, timeout_s=0)
    return rest


class _Background:
    """The thread with the event loop of all blocking clients of this process."""

    _lock = threading.Lock()
    _shared: _Background | None = None

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._clients: list[Client] = []
        self._loop = asyncio.new_event_loop()
        # A daemon: a program that forgets to close must still be able to end.
        self._thread = threading.Thread(target=self._serve, name="padres_tx", daemon=True)
        self._thread.start()

    @classmethod
    def enter(cls, client: Client) -> _Background:
        """The background for a new client, started if it is the first."""
        with cls._lock:
            # A forked child has the object, but not the thread.
            if cls._shared is None or cls._shared._pid != os.getpid():
                cls._shared = cls()
            cls._shared._clients.append(client)
            return cls._shared

    def leave(self, client: Client) -> None:
        """A client has been closed; the last one ends the thread."""
        with self._lock:
            if client in self._clients:
                self._clients.remove(client)
            if self._clients or not self._loop.is_running():
                return
            if _Background._shared is self:
                _Background._shared = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_S)

    @property
    def running(self) -> bool:
        return self._pid == os.getpid() and self._thread.is_alive()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for it; an interrupt cancels it."""
        if not self.running or threading.current_thread() is self._thread:
            call.close()
            raise ClientClosed(
                "a blocking client cannot be used from its own event loop"
                if self.running
                else "the client was made before a fork, or its thread has ended"
            )
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClientClosed("the client was closed during the call") from None
        except BaseException:
            future.cancel()
            raise

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=JOIN_S))
        finally:
            self._loop.close()


@atexit.register
def _close_all() -> None:
    """Close the clients that the program has left open, for at most the time that closing takes."""
    background = _Background._shared
    if background is None or not background.running:
        return

    untold: list[Client] = []

    async def close(clients: list[Client]) -> list[BaseException | None]:
        closing = (client._client._leave() for client in clients)
        errors = await asyncio.gather(*closing, return_exceptions=True)
        untold.extend(client for client in clients if client._client._take_on_close())
        return errors

    with contextlib.suppress(concurrent.futures.TimeoutError, RuntimeError):
        still_open = list(background._clients)
        future = asyncio.run_coroutine_threadsafe(close(still_open), background._loop)
        for error in future.result(CLOSE_TIMEOUT_S + JOIN_S):
            if error is not None:
                print(f"padres_tx: {error}", file=sys.stderr)
        for client in untold:
            client._tell_end()
