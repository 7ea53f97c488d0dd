"""The asyncio client: connect, (un-)advertise, (un-)subscribe, publish, receive, and transactions.

    async with padres_tx.connect("127.0.0.1:7001", name="A1") as a1:
        await a1.subscribe("[class,eq,'p1'],[x,>=,3]")
        async for notification in a1:
            print(notification["x"], notification.json())

    async with client.transaction("d-tx") as tx:
        tx.tcm({"class": "p1", "x": "x1"})
        tx.pub({"class": "p1", "x": "x1", "n": 1})

    tx_id = await client.beginTX("d-tx")                    # the same, with the names of Table 2
    client.txTCM(tx_id, {"class": "p1", "x": "x1"})
    client.txPub(tx_id, {"class": "p1", "x": "x1", "n": 1})
    result = await client.commitTX(tx_id)

`Client` has the calls that programs make. Its parts do the work:

    requests             sends messages, waits for answers; the end of the connection
    callbacks            calls the program's callbacks, one after the other
    notifications        queues what no callback takes, for the iterator
    transaction_driver   runs transactions, and the handlers for tcms
    error_reports        errors that no call can raise

Everything runs in the caller's event loop, without global state, threads or signal handlers, so it
works in notebooks and web servers. The methods belong to that loop; from other threads use
`padres_tx.sync`.

**Cancelling.** Any call may be cancelled. A cancelled or timed-out operation may or may not have
happened. The session stays consistent either way, because the answer is still processed when it
comes. A cancelled `publish` has published nothing if it was still waiting.

**Notifications** go to the callbacks whose subscription matches them (`padres_tx.client.holdings`),
one after the other in the order of arrival. An asynchronous callback is awaited before the next is
called. What no callback takes waits for the iterator. Both queues are bounded. A client that does
not keep up stops acknowledging, its broker's queue fills, and the broker disconnects it: the
iterator yields what had arrived and then raises SlowReader. While the queue is full, answers wait
behind it: a program that subscribes to more than it reads gets a CallTimeout, which says so.

**Errors.** The caller's mistake raises at the call. A broker that goes away is dialled again for
`reconnect_s` seconds; if it comes back and still knows the client, nothing is lost and no call
raises. Otherwise every waiting call, the iterator and every later call raise ConnectionLost, or the
broker's reason. `on_close`, if given, is called once with that error, or with None after the
program's own `close`. An end for which no call waits and no `on_close` is given is logged.

Two errors have no call to raise from: an exception of a callback or handler, and a publication
that the broker refused after the call. Both are logged at once (`logging.getLogger("padres_tx")`,
with the traceback) and passed to `on_error`, if given. Without an `on_error` a refused publication
is also raised by `close`, which promises that the broker has everything. An exception of a callback
is raised nowhere.

A callback or handler that raises SystemExit or KeyboardInterrupt ends the program, as in any task.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Any, Literal, Self, overload

import msgspec

from overlay.errors import OverlayError, from_code
from overlay.messages import Gap, Kind
from padres_tx.client.asyncio.callbacks import Callbacks, check_callable
from padres_tx.client.asyncio.channel import (
    CONNECT_TIMEOUT_S,
    PASSING,
    RECONNECT_S,
    REDIAL_LIMIT_S,
    REDIAL_S,
    Channel,
    TcpChannel,
    parse_address,
)
from padres_tx.client.asyncio.close_report import CloseReport, OnClose
from padres_tx.client.asyncio.connecting import Connecting, close_after, unique_name
from padres_tx.client.asyncio.error_reports import ErrorReports, OnError, logger
from padres_tx.client.asyncio.handles import (
    After,
    Callback,
    PendingOperation,
    Transaction,
    TransactionRetry,
    Wait,
    as_payload,
    check_wait,
)
from padres_tx.client.asyncio.notifications import QUEUE_BYTES, QUEUE_MESSAGES, Notifications
from padres_tx.client.asyncio.requests import CALL_TIMEOUT_S, Requests
from padres_tx.client.asyncio.tcm_handlers import Handler
from padres_tx.client.asyncio.transaction_driver import (
    OnDoubt,
    OnDrained,
    OnEnd,
    TransactionDriver,
)
from padres_tx.client.operations import Ops
from padres_tx.client.session import (
    FilterLike,
    Notification,
    PointLike,
    PublicationRefused,
    Session,
    as_filter,
)
from padres_tx.client.transactions import DEADLINE_S, TCM_MARK, Result
from padres_tx.environment import secret_or_environment
from padres_tx.errors import CallTimeout, ClientClosed

#: Publications that may leave in a row before other tasks of the loop get a turn.
TURN = 256


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
) -> Connecting[Client]:
    """A client of the broker at "host:port": `async with connect(...)`, or `await connect(...)`
    and then `close`.

    Without a name it gets a unique one; without a secret, that of the environment variable
    PADRES_TX_SECRET. A broker that is not there, or does not answer, is tried again until
    `connect_timeout_s` have passed, or only once without `retry`. A connection that breaks later is
    dialled again for `reconnect_s`; 0 means not at all. `on_error` and `on_close` are explained in
    the module's docstring.

    Entering raises BadAddress, BadName, Unreachable, CallTimeout, or what the broker refuses the
    client with: NameTaken, Unauthorized, ProtocolError (another version).
    """
    address = parse_address(at)
    session = Session(unique_name("client") if name is None else name)
    channel = TcpChannel(
        address,
        "client",
        session.name,
        secret=secret_or_environment(secret),
        reconnect_s=reconnect_s,
    )
    client = Client(session, channel, on_error=on_error, on_close=on_close)
    return Connecting(client, connect_timeout_s, retry=retry)


class Client:
    """A client of the overlay; see the module's docstring."""

    def __init__(
        self,
        session: Session,
        channel: Channel,
        *,
        on_error: OnError | None = None,
        on_close: OnClose | None = None,
        queue_messages: int = QUEUE_MESSAGES,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        check_callable("on_error", on_error)
        check_callable("on_close", on_close)
        self._session = session
        self._requests = Requests("Client", session, channel)
        self._reports = ErrorReports(session.name, on_error)
        self._callbacks = Callbacks(self._requests, self._reports)
        self._notifications = Notifications(
            self._requests,
            self._callbacks,
            queue_messages=queue_messages,
            queue_bytes=queue_bytes,
        )
        self._driver = TransactionDriver(self._requests, self._callbacks, self._reports)
        self._notifications.intercept(TCM_MARK, self._driver.intercept)
        self._close_report = CloseReport(self._requests, self._callbacks, on_close)
        self._requests.handle(PublicationRefused, self._reports.publication_refused)
        self._requests.when_lost = self._lost
        self._published_in_a_row = 0

    @property
    def name(self) -> str:
        return self._session.name

    @property
    def closed(self) -> bool:
        """Whether the client has been closed, or has lost its broker for good."""
        return self._requests.error is not None

    @property
    def on_error(self) -> OnError | None:
        """Called with each error that no call can raise."""
        return self._reports.on_error

    @on_error.setter
    def on_error(self, on_error: OnError | None) -> None:
        check_callable("on_error", on_error)
        self._reports.on_error = on_error

    def __repr__(self) -> str:
        return repr(self._requests)

    # --- opening and closing ---

    async def open(self, timeout_s: float, *, retry: bool = True) -> None:
        """Connect to the broker and join the overlay; `Connecting` does this."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        await self._requests.open(timeout_s, retry=retry)
        try:
            await self._join(deadline, timeout_s, retry=retry)
        except BaseException as error:
            self._requests.give_up(error)
            raise
        self._close_report.joined = True

    async def _join(self, deadline: float, timeout_s: float, *, retry: bool) -> None:
        """Ask for the name, again while the refusal is one that may pass."""
        loop = asyncio.get_running_loop()
        pause_s = REDIAL_S
        while True:
            join = self._session.join()
            try:
                await self._requests.request(join, deadline - loop.time())
                return
            except CallTimeout:
                raise CallTimeout(self._requests.overdue(join, timeout_s)) from None
            except OverlayError as error:
                if not retry or error.code not in PASSING or self.closed:
                    raise
                if loop.time() + pause_s >= deadline:
                    why = f"{error}; tried for {timeout_s:g} s"
                    raise from_code(error.code, why) from None
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, REDIAL_LIMIT_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await close_after(self, error)

    async def close(self) -> None:
        """Leave when the broker has everything that was published. Closing twice is fine.

        Returns when every broker that can be reached has forgotten the client, so that its name is
        free; but not later than after CLOSE_TIMEOUT_S (`padres_tx.client.asyncio.channel`).

        What waits for the iterator can still be read. Callbacks are not called any more, and one
        that is running is cancelled if it awaits something. `on_close` is called before this
        returns.

        Raises ConnectionLost if publications may have been lost on their way, and, without an
        `on_error`, the first publication that the broker has refused.
        """
        if self._requests.closed:
            return
        try:
            await self._leave()
        finally:
            await self._close_report.report()
        self._reports.raise_refused()

    async def _leave(self) -> None:
        """What `close` does, apart from its reports."""
        self._requests.check_loop()
        self._callbacks.stop()
        self._driver.handlers.close()
        try:
            await self._requests.close()
        finally:
            self._driver.close()

    def _lost(self, error: OverlayError, has_waiters: bool) -> None:
        """The broker is lost for good; the callbacks of what has arrived are still called."""
        if self._close_report.joined:
            if not has_waiters and self._close_report.on_close is None:
                logger.warning("client %s has lost its broker: %s", self.name, error)
            self._callbacks.start()

    # --- routing operations ---

    async def advertise(self, filter: FilterLike, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Announce publications; returns when every broker that can be reached knows, and the
        subscriptions that match have come.

        Raises FilterError, CallTimeout, ConnectionLost.
        """
        await self._operate("adv", filter, None, timeout_s)

    async def unadvertise(self, filter: FilterLike, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Take back a part of what was advertised, or all of it.

        Raises FilterError, NotHeld, CallTimeout, ConnectionLost.
        """
        await self._operate("uadv", filter, None, timeout_s)

    async def subscribe(
        self,
        filter: FilterLike,
        callback: Callback | None = None,
        *,
        events_only: bool = False,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """Ask for publications; returns when no later one is lost for want of a route, at brokers
        that can be reached.

        Those that match this filter go to the callback, if there is one; to the iterator
        otherwise, unless another subscription has a callback for them.

        With `events_only` the client gets publications and no tcms: it does not act in others'
        transactions, and so needs no handler. Where several subscriptions match a tcm, the last of
        them decides.

        Raises FilterError, CallTimeout, ConnectionLost.
        """
        await self._operate("sub", filter, callback, timeout_s, events_only=events_only)

    async def unsubscribe(self, filter: FilterLike, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Take back a part of what was subscribed to, or all of it; no publication in that part
        arrives after the return, though some may still wait for the iterator.

        Raises FilterError, NotHeld, CallTimeout, ConnectionLost.
        """
        await self._operate("usub", filter, None, timeout_s)

    async def _operate(
        self,
        kind: Kind,
        filter: FilterLike,
        callback: Callback | None,
        timeout_s: float,
        *,
        events_only: bool = False,
    ) -> None:
        check_callable("callback", callback)
        await self._requests.wait_room()
        operation = self._session.operate(kind, filter, callback, events=events_only)
        try:
            await self._requests.request(operation, timeout_s)
        except CallTimeout as error:
            if self._requests.ready:
                raise
            waiting = f"{len(self._notifications)} notifications wait to be read first"
            raise CallTimeout(f"{error}: {waiting}") from None

    # --- publications ---

    async def publish(
        self, point: PointLike, payload: bytes = b"", *, json: Any = msgspec.UNSET
    ) -> None:
        """Publish an event: its attributes, and a payload of bytes or, as `json`, of data.

        Returns when it is queued, and waits only while the broker has to catch up.
        `close` makes sure that the broker has it.

        Raises FilterError, NotAdvertised, FrameTooLarge, ConnectionLost; TypeError if the
        data cannot be encoded as JSON.
        """
        payload = as_payload(payload, json)
        requests = self._requests
        await requests.wait_room()
        self._published_in_a_row += 1
        if self._published_in_a_row >= TURN:
            self._published_in_a_row = 0
            await asyncio.sleep(0)
            await requests.wait_room()
        requests.channel.send(self._session.publish(point, payload))

    # --- notifications ---

    def notify(self, callback: Callback | None) -> None:
        """Call this with every publication that comes (Table 2), beside the callbacks of
        subscriptions. No publication goes to the iterator then. None ends it.
        """
        check_callable("callback", callback)
        self._notifications.notify = callback

    @overload
    def notifications(self, *, timeout_s: float | None = None) -> AsyncIterator[Notification]: ...

    @overload
    def notifications(
        self, *, timeout_s: float | None = None, gaps: Literal[True]
    ) -> AsyncIterator[Notification | Gap]: ...

    def notifications(
        self, *, timeout_s: float | None = None, gaps: bool = False
    ) -> AsyncIterator[Notification] | AsyncIterator[Notification | Gap]:
        """The notifications that no callback takes, in the order of their arrival.

        Ends when the client is closed, or when nothing has come for `timeout_s` seconds. Several
        iterators share the notifications, each getting some. With `gaps`, what `on_gap` reports
        comes too, in its place among them.

        Raises ConnectionLost, SlowReader.
        """
        return self._iterate_all(timeout_s) if gaps else self._iterate(timeout_s)

    def __aiter__(self) -> AsyncIterator[Notification]:
        return self._iterate(None)

    async def _iterate(self, timeout_s: float | None) -> AsyncIterator[Notification]:
        while True:
            try:
                notification = (await self._notifications.take(1, timeout_s=timeout_s))[0]
            except (ClientClosed, CallTimeout):
                return
            yield notification

    async def _iterate_all(self, timeout_s: float | None) -> AsyncIterator[Notification | Gap]:
        while True:
            try:
                taken = await self._notifications.take_all(1, timeout_s=timeout_s)
            except (ClientClosed, CallTimeout):
                return
            yield taken[0]

    async def next(self, *, timeout_s: float | None = None) -> Notification:
        """The next notification that no callback takes.

        Raises CallTimeout after `timeout_s` seconds, ClientClosed, and as `notifications` does.
        """
        return (await self.take(1, timeout_s=timeout_s))[0]

    async def take(self, limit: int, *, timeout_s: float | None = None) -> list[Notification]:
        """At least one notification, and as many as there are, up to the limit; raises as `next`.

        A timeout of 0 asks for what has arrived.
        """
        return await self._notifications.take(limit, timeout_s=timeout_s)

    async def wait_closed(self) -> None:
        """Wait for the end, for programs that only have callbacks.

        Returns when the client is closed. Raises ConnectionLost, SlowReader, when the callbacks
        for what had arrived have been called. `on_close` says the same without waiting.
        """
        await self._notifications.wait_closed()

    def on_gap(self, callback: Callable[[Gap], Any]) -> None:
        """Call this when publications may be lost, with where and until when (`Gap`).

        That happens when a broker that is not durable dies: its neighbours send again what it had
        not acknowledged, and what it had not passed on is lost. Subscribers and publishers whose
        publications took that way are told. In order with the callbacks for notifications. Without
        a callback a warning is logged. A client of the broker that died loses its connection
        instead.
        """
        check_callable("callback", callback)
        self._notifications.on_gap.append(callback)

    # --- transactions, the Pythonic way ---

    def transaction(
        self,
        engine: str = "d-tx",
        *,
        deadline_s: float = DEADLINE_S,
        wait: Wait = "decided",
        retries: int = 0,
        **options: Any,
    ) -> TransactionRetry:
        """A transaction: `async with client.transaction(...) as tx`, which commits at its end.

        With `retries`, which are for conflicts: `async for tx in client.transaction(...)` and in
        it `async with tx`. It is aborted if it is not decided within `deadline_s`. `wait` says
        when leaving returns: as soon as the commit is decided, or when every broker has applied it.
        `options` are the engine's own.

        Entering raises UnknownEngine, BadTransaction, TooManyRequests, ConnectionLost; leaving
        TransactionAborted, CallTimeout, ConnectionLost.
        """
        return TransactionRetry(
            self._driver, engine, retries=retries, wait=wait, deadline_s=deadline_s, **options
        )

    async def transact(
        self,
        function: Callable[[Transaction], Any],
        engine: str = "d-tx",
        *,
        deadline_s: float = DEADLINE_S,
        wait: Wait = "decided",
        retries: int = 0,
        **options: Any,
    ) -> Any:
        """Run a function, or coroutine function, in a transaction; returns its result.

        After a conflict it is run again, up to `retries` times. Raises as `transaction` does.
        """
        value = None
        async for tx in self.transaction(
            engine, deadline_s=deadline_s, wait=wait, retries=retries, **options
        ):
            async with tx:
                value = function(tx)
                if inspect.isawaitable(value):
                    value = await value
        return value

    async def outcome(
        self, txID: str, *, engine: str | None = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> Result:
        """The outcome of a transaction; waits for the decision if it is still open.

        Any client that has the name can ask, at any broker, also in a new program: brokers remember
        outcomes for some minutes (`padres_tx.protocol.outcomes`). `engine` is needed only for
        engines of other packages.

        Raises UnknownTransaction if no broker knows it, TooManyRequests, CallTimeout,
        ConnectionLost.
        """
        return await self._driver.outcome(txID, engine, timeout_s)

    # --- taking part ---

    def on_tcm(self, filter: FilterLike | None, handler: Handler | None) -> None:
        """Call `handler(tx, notification)` on tcms that match the filter, or on all with None.

        What the handler does with tx belongs to the coordinator's transaction; its part ends when
        it returns. If it raises, the transaction is aborted with that reason, and the exception is
        logged and passed to `on_error`. Of several handlers that match, the last registered is
        called; None as the handler removes one.

        The client has to be subscribed to the tcm. One that has no handler for it aborts the
        transaction, unless its subscription is for events only (`subscribe`). Static transactions
        call no handlers.

        Raises FilterError; TypeError for a handler that cannot be called.
        """
        check_callable("handler", handler)
        self._driver.handlers.register(None if filter is None else as_filter(filter), handler)

    def on_end(self, callback: OnEnd) -> None:
        """Call this with the result of each transaction in which the client takes part.

        In order with the callbacks for notifications: a transaction's publications come first.
        """
        check_callable("callback", callback)
        self._driver.on_end.append(callback)

    def on_doubt(self, callback: OnDoubt) -> None:
        """Call this when a transaction's deadline has passed and its outcome cannot be known yet.

        The client's broker has agreed to the commit and is cut off from the broker that decides.
        `callback` gets the transaction's name and the name of that broker. Nothing has to be done:
        the outcome comes when the broker can be reached again. Until then the client's plain calls
        that overlap the transaction's wait.
        """
        check_callable("callback", callback)
        self._driver.on_doubt.append(callback)

    def on_drained(self, callback: OnDrained) -> None:
        """Call this with a transaction's name when no publication from before it will come.

        The name has `gave` and `took`, the filters that this client has given up and taken in it. A
        worker that has given its stream away can go then. In order with the callbacks for
        notifications.
        """
        check_callable("callback", callback)
        self._driver.on_drained.append(callback)

    # --- Table 2 ---

    async def beginTX(
        self, engine: str = "d-tx", *, deadline_s: float = DEADLINE_S, **options: Any
    ) -> str:
        """Begin a transaction; returns its name, for the calls below. See `transaction`."""
        return (await self._driver.begin(engine, deadline_s=deadline_s, **options)).name

    async def commitTX(self, txID: str, *, wait: Wait = "decided") -> Result:
        """Commit it; returns the outcome: `status` is "committed" or "aborted".

        If an earlier client of this name has begun it, returns the outcome of that (`outcome`).

        Raises UnknownTransaction, NotCoordinator, TransactionFinished, CallTimeout,
        ConnectionLost.
        """
        check_wait(wait)
        transactions = self._driver.transactions
        if transactions.is_forgotten(txID):
            return await self.outcome(txID)
        return await self._driver.commit(transactions.find(txID), wait)

    async def abortTX(self, txID: str, reason: str = "") -> Result:
        """Abort it; returns the outcome, which can be a commit that was faster.

        Raises UnknownTransaction, TransactionFinished, CallTimeout, ConnectionLost.
        """
        return await self._driver.abort(self._driver.transactions.find(txID), reason)

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
    ) -> PendingOperation:
        """Make others act in it; returns at once, and can be awaited, as all of these.

        They raise UnknownTransaction, and as `TransactionScope.do` does.
        """
        return self._driver.scope(txID).tcm(point, payload, json=json, ops=ops, after=after, to=to)

    def txPub(
        self,
        txID: str,
        point: PointLike,
        payload: bytes = b"",
        *,
        json: Any = msgspec.UNSET,
        after: After = None,
    ) -> PendingOperation:
        """Publish in it."""
        return self._driver.scope(txID).pub(point, payload, json=json, after=after)

    def txAdv(self, txID: str, filter: FilterLike, *, after: After = None) -> PendingOperation:
        """Advertise in it."""
        return self._driver.scope(txID).adv(filter, after=after)

    def txUadv(self, txID: str, filter: FilterLike, *, after: After = None) -> PendingOperation:
        """Un-advertise in it."""
        return self._driver.scope(txID).uadv(filter, after=after)

    def txSub(
        self,
        txID: str,
        filter: FilterLike,
        callback: Callback | None = None,
        *,
        events_only: bool = False,
        after: After = None,
    ) -> PendingOperation:
        """Subscribe in it."""
        return self._driver.scope(txID).sub(filter, callback, events_only=events_only, after=after)

    def txUsub(self, txID: str, filter: FilterLike, *, after: After = None) -> PendingOperation:
        """Un-subscribe in it."""
        return self._driver.scope(txID).usub(filter, after=after)
