"""The client for blocking code: the methods of `padres_tx.client.asyncio.client`, without `await`.

    with padres_tx.sync.connect("127.0.0.1:7001", name="A1") as a1:
        a1.subscribe("[class,eq,'p1']")
        for notification in a1.notifications(timeout_s=10):
            print(notification["x"])

The asyncio client does the work, in an event loop on one background thread that all blocking
clients of the process share (`background`). Callbacks and handlers run on threads of their client
(`threads`). What they raise is logged, as in `padres_tx.client.asyncio.client`; that includes
SystemExit, which ends a program only in its main thread. All methods can be called from any thread.
Calls that block can be interrupted (Ctrl-C), which cancels them as in
`padres_tx.client.asyncio.client`. Clients that are still open when the interpreter exits are
closed, so that what they published is not lost.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import msgspec

from overlay.errors import OverlayError
from overlay.messages import Gap
from padres_tx.client.asyncio import client, handles
from padres_tx.client.asyncio.callbacks import check_callable
from padres_tx.client.asyncio.channel import CLOSE_TIMEOUT_S, CONNECT_TIMEOUT_S, RECONNECT_S
from padres_tx.client.asyncio.connecting import Connecting
from padres_tx.client.asyncio.error_reports import OnError, logger
from padres_tx.client.asyncio.handles import Wait
from padres_tx.client.asyncio.requests import CALL_TIMEOUT_S
from padres_tx.client.blocking.background import JOIN_S, BackgroundLoop
from padres_tx.client.blocking.handles import (
    After,
    BlockingOperation,
    BlockingRetry,
    BlockingScope,
    BlockingTransaction,
    Handler,
    operations,
)
from padres_tx.client.blocking.threads import ClientThreads, as_coroutine
from padres_tx.client.operations import Ops
from padres_tx.client.session import FilterLike, Notification, PointLike
from padres_tx.client.transactions import DEADLINE_S, Doubt, DrainedTx, Result
from padres_tx.errors import CallTimeout, ClientClosed

T = TypeVar("T")

#: Called with a notification, on the client's callback thread.
Callback: TypeAlias = Callable[[Notification], None]

#: Called at the end of a client, with the reason, or with None after its own `close`.
OnClose: TypeAlias = Callable[[OverlayError | None], None]

#: Notifications that cross from the loop's thread at once: the crossing costs as much as a hundred
#: of them do.
BATCH = 256


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
) -> BlockingClient:
    """A client of the broker at "host:port", connected; `close` it, or use it with `with`.

    Raises as `padres_tx.connect` does. `on_error` is called on the background thread and must not
    call the client. `on_close` is called on the thread of the callbacks, or on the one that calls
    `close`.
    """
    return BlockingClient(
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


class BlockingClient:
    """A client of the overlay, for blocking code; see the asyncio `Client` for what calls do."""

    def __init__(
        self, connecting: Connecting[client.Client], *, on_close: OnClose | None = None
    ) -> None:
        check_callable("on_close", on_close)
        self._on_close = on_close
        # Taken from the asyncio client, and not yet returned to the program.
        self._batch: deque[Notification] = deque()
        self._reading = threading.Lock()
        self._background = BackgroundLoop.enter(self)
        self._threads = ClientThreads(self._background)
        try:
            self._background.run(self._open(connecting))
        except BaseException:
            self._background.leave(self)
            raise

    async def _open(self, connecting: Connecting[client.Client]) -> None:
        self._client = await connecting
        self._threads.name = self._client.name
        # In the same turn of the loop: before the client can end.
        self._client._close_report.on_close = self._threads.relay(self._on_close)

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
            # Keep the block's own exception; the failure to send is only a consequence.
            if error is None:
                raise

    def close(self) -> None:
        """Leave when the broker has everything that was published. Closing twice is fine.

        A callback that is running is not waited for. `on_close` is called before this returns, on
        the same thread.

        Raises as `padres_tx.client.asyncio.client.Client.close` does.
        """
        if not self._threads.close():
            return
        if not self._background.running:
            return  # In a forked child: the client is the parent's.
        report = self._client._close_report
        try:
            self._background.run(self._client._leave())
        finally:
            # What has arrived can still be read, but not from a loop that may end now.
            with self._reading:
                self._batch.extend(self._background.run(_rest(self._client)))
            on_close = self._background.run(as_coroutine(report.take))
            # `on_close` may be running on the callback thread, after a lost connection.
            runs_there = self._on_close is not None and on_close is None
            self._threads.stop(cancel_callbacks=not runs_there)
            self._background.leave(self)
            if on_close is not None:
                self._report_close()
        self._client._reports.raise_refused()

    def _report_close(self) -> None:
        """Call `on_close` on this thread: the callback thread may be the one that closes."""
        if self._on_close is not None:
            try:
                self._on_close(self._client._close_report.reason())
            except Exception as error:
                logger.error("on_close of client %s failed", self.name, exc_info=error)

    # --- operations and publications ---

    def advertise(self, filter: FilterLike, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Announce publications; see `padres_tx.client.asyncio.client.Client.advertise`."""
        self._threads.run(self._client.advertise(filter, timeout_s=timeout_s))

    def unadvertise(self, filter: FilterLike, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Take back advertisements; see `padres_tx.client.asyncio.client.Client.unadvertise`."""
        self._threads.run(self._client.unadvertise(filter, timeout_s=timeout_s))

    def subscribe(
        self,
        filter: FilterLike,
        callback: Callback | None = None,
        *,
        events_only: bool = False,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """Ask for publications; see `padres_tx.client.asyncio.client.Client.subscribe`."""
        relay = self._threads.relay(callback)
        self._threads.run(
            self._client.subscribe(filter, relay, events_only=events_only, timeout_s=timeout_s)
        )

    def unsubscribe(self, filter: FilterLike, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Take back subscriptions; see `padres_tx.client.asyncio.client.Client.unsubscribe`."""
        self._threads.run(self._client.unsubscribe(filter, timeout_s=timeout_s))

    def publish(self, point: PointLike, payload: bytes = b"", *, json: Any = msgspec.UNSET) -> None:
        """Publish an event; see `padres_tx.client.asyncio.client.Client.publish`."""
        self._threads.run(self._client.publish(point, payload, json=json))

    # --- notifications ---

    def notify(self, callback: Callback | None) -> None:
        """Call this with every publication that comes; see the asyncio `Client.notify`."""
        self._threads.call(self._client.notify, self._threads.relay(callback))

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
                self._batch.extend(self._threads.run(self._client.take(BATCH, timeout_s=timeout_s)))
            return self._batch.popleft()
        finally:
            self._reading.release()

    def wait_closed(self) -> None:
        """Wait for the end, for programs that only have callbacks."""
        self._threads.run(self._client.wait_closed())

    # --- transactions, the Pythonic way ---

    def transaction(
        self,
        engine: str = "d-tx",
        *,
        deadline_s: float = DEADLINE_S,
        wait: Wait = "decided",
        retries: int = 0,
        **options: Any,
    ) -> BlockingRetry:
        """A transaction: `with client.transaction(...) as tx`, which commits at its end.

        With `retries`: `for tx in client.transaction(...)`, and in it `with tx`.
        """
        return BlockingRetry(
            self._threads,
            self._client.transaction(
                engine, deadline_s=deadline_s, wait=wait, retries=retries, **options
            ),
        )

    def transact(
        self,
        function: Callable[[BlockingTransaction], T],
        engine: str = "d-tx",
        *,
        deadline_s: float = DEADLINE_S,
        wait: Wait = "decided",
        retries: int = 0,
        **options: Any,
    ) -> T:
        """Run a function in a transaction, again after a conflict; returns its result."""
        attempts = self.transaction(
            engine, deadline_s=deadline_s, wait=wait, retries=retries, **options
        )
        values: list[T] = []
        for tx in attempts:
            with tx:
                values.append(function(tx))
        return values[-1]

    def outcome(
        self, txID: str, *, engine: str | None = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> Result:
        """The outcome of a transaction; see the asyncio `Client.outcome`."""
        return self._threads.run(self._client.outcome(txID, engine=engine, timeout_s=timeout_s))

    # --- taking part ---

    def on_tcm(self, filter: FilterLike | None, handler: Handler | None) -> None:
        """Call `handler(tx, notification)` on tcms that match the filter, or on all with None."""

        check_callable("handler", handler)

        async def act(part: handles.Part, notification: Notification) -> None:
            assert handler is not None
            scope = BlockingScope(self._threads, part)
            await self._threads.run_handler(handler, scope, notification)

        self._threads.call(self._client.on_tcm, filter, None if handler is None else act)

    def on_end(self, callback: Callable[[Result], None]) -> None:
        """Call this with the result of each transaction in which the client takes part."""
        self._threads.call(self._client.on_end, self._threads.relay(callback))

    def on_doubt(self, callback: Callable[[Doubt], None]) -> None:
        """Call this when a transaction's deadline has passed and its outcome cannot be known yet;
        see the asyncio client's `on_doubt`."""
        self._threads.call(self._client.on_doubt, self._threads.relay(callback))

    def on_gap(self, callback: Callable[[Gap], None]) -> None:
        """Call this when publications may be lost; see the asyncio client's `on_gap`."""
        self._threads.call(self._client.on_gap, self._threads.relay(callback))

    def on_drained(self, callback: Callable[[DrainedTx], None]) -> None:
        """Call this with a transaction's name when no publication from before it will come."""
        self._threads.call(self._client.on_drained, self._threads.relay(callback))

    # --- Table 2 ---

    def beginTX(
        self, engine: str = "d-tx", *, deadline_s: float = DEADLINE_S, **options: Any
    ) -> str:
        """Begin a transaction; returns its name, for the calls below."""
        return self._threads.run(self._client.beginTX(engine, deadline_s=deadline_s, **options))

    def commitTX(self, txID: str, *, wait: Wait = "decided") -> Result:
        """Commit it; returns the outcome: `status` is "committed" or "aborted"."""
        return self._threads.run(self._client.commitTX(txID, wait=wait))

    def abortTX(self, txID: str, reason: str = "") -> Result:
        """Abort it; returns the outcome."""
        return self._threads.run(self._client.abortTX(txID, reason))

    def txTCM(
        self,
        txID: str,
        point: PointLike,
        payload: bytes = b"",
        *,
        json: Any = msgspec.UNSET,
        ops: Ops | None = None,
        after: After = None,
        to: Iterable[str] | None = None,
    ) -> BlockingOperation:
        """Make others act in it; returns at once, and can be waited for, as all of these."""
        after = operations(after)
        return self._tx(
            self._client.txTCM, txID, point, payload, json=json, ops=ops, after=after, to=to
        )

    def txPub(
        self,
        txID: str,
        point: PointLike,
        payload: bytes = b"",
        *,
        json: Any = msgspec.UNSET,
        after: After = None,
    ) -> BlockingOperation:
        """Publish in it."""
        return self._tx(
            self._client.txPub, txID, point, payload, json=json, after=operations(after)
        )

    def txAdv(self, txID: str, filter: FilterLike, *, after: After = None) -> BlockingOperation:
        """Advertise in it."""
        return self._tx(self._client.txAdv, txID, filter, after=operations(after))

    def txUadv(self, txID: str, filter: FilterLike, *, after: After = None) -> BlockingOperation:
        """Un-advertise in it."""
        return self._tx(self._client.txUadv, txID, filter, after=operations(after))

    def txSub(
        self,
        txID: str,
        filter: FilterLike,
        callback: Callable[[Notification], None] | None = None,
        *,
        events_only: bool = False,
        after: After = None,
    ) -> BlockingOperation:
        """Subscribe in it."""
        relay, after = self._threads.relay(callback), operations(after)
        return self._tx(
            self._client.txSub, txID, filter, relay, events_only=events_only, after=after
        )

    def txUsub(self, txID: str, filter: FilterLike, *, after: After = None) -> BlockingOperation:
        """Un-subscribe in it."""
        return self._tx(self._client.txUsub, txID, filter, after=operations(after))

    def _tx(
        self, call: Callable[..., handles.PendingOperation], *args: Any, **more: Any
    ) -> BlockingOperation:
        return BlockingOperation(self._threads, self._threads.call(call, *args, **more))


async def _rest(client: client.Client) -> list[Notification]:
    """All that waits for the iterator of a client that has been closed."""
    rest: list[Notification] = []
    with contextlib.suppress(OverlayError):
        while True:
            rest += await client.take(BATCH, timeout_s=0)
    return rest


@atexit.register
def _close_all() -> None:
    """Close the clients that the program has left open, for at most the time that closing takes."""
    background = BackgroundLoop.shared
    if background is None or not background.running:
        return

    untold: list[BlockingClient] = []

    async def close(clients: list[BlockingClient]) -> list[BaseException | None]:
        closing = (client._client._leave() for client in clients)
        errors = await asyncio.gather(*closing, return_exceptions=True)
        untold.extend(client for client in clients if client._client._close_report.take())
        return errors

    with contextlib.suppress(concurrent.futures.TimeoutError, RuntimeError):
        still_open = list(background.clients)
        future = asyncio.run_coroutine_threadsafe(close(still_open), background.loop)
        for error in future.result(CLOSE_TIMEOUT_S + JOIN_S):
            if error is not None:
                print(f"padres_tx: {error}", file=sys.stderr)
        for client in untold:
            client._report_close()
