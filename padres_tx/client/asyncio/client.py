"""The asyncio client: connect, (un-)advertise, (un-)subscribe, publish, and receive.

    async with padres_tx.connect("127.0.0.1:7001", name="A1") as a1:
        await a1.subscribe("[class,eq,'p1'],[x,>=,3]")
        async for notification in a1:
            print(notification["x"], notification.json())

A shell around `padres_tx.client.session`, which has the rules, and a
`padres_tx.client.asyncio.channel`, which has the wire. Requests and their answers are in
`padres_tx.client.asyncio.requests`, transactions in `padres_tx.client.asyncio.transacting`; here
are the calls that people make, and what becomes of notifications. All runs in the caller's event
loop, without global state, threads or signal handlers, so it works in notebooks and web servers.
The methods belong to that loop; from other threads use `padres_tx.sync`.

**Cancelling.** Any call may be cancelled. A cancelled or timed-out operation may or may not have
happened; the session stays consistent either way, because the answer is still taken when it
comes. A cancelled `publish` has published nothing if it was still waiting.

**Notifications** go to the callbacks whose subscription wants them (`padres_tx.client.holdings`),
one after the other in the order of arrival, an asynchronous callback being awaited before the next
is called. What no callback wants waits for the iterator. Both queues are bounded. A client that
does not keep up stops acknowledging, its broker's queue fills, and the broker cuts it off: the
iterator gives out what had arrived and then raises SlowReader. While the queue is full answers wait
behind it, too: a program that subscribes to more than it reads sees CallTimeout, which says so.

**Errors.** The caller's mistake raises at the call. A broker that goes away is dialled again for
`reconnect_s` seconds; if it comes back and still knows the client, nothing is lost and nobody
notices. Otherwise every call that waits, the iterator and every later call raise ConnectionLost, or
what the broker gave as its reason. `on_close`, if given, is called once with that error, or with
None after the program's own `close`; when the end comes and nothing waits for it, it is logged.

Two errors have no call to raise from: an exception out of a callback or handler, and a publication
that the broker refused after the fact. Both are logged at once (`logging.getLogger("padres_tx")`,
with the traceback) and go to `on_error`, if given. Without an `on_error` a refused publication is
also raised by `close`, which promises that the broker has everything; an exception of a callback
is raised nowhere.

A callback or handler that raises SystemExit or KeyboardInterrupt ends the program, as in any task.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from overlay.errors import OverlayError, from_code
from overlay.messages import AnyMessage, Kind
from padres_tx.client.asyncio.awaiting import CallbackTurn, current_turn, in_callback
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
from padres_tx.client.asyncio.error_reports import ErrorReports, OnError, callback_name, logger
from padres_tx.client.asyncio.handles import Callback, Part, as_payload
from padres_tx.client.asyncio.requests import CALL_TIMEOUT_S, Connecting, Peer, again
from padres_tx.client.asyncio.transacting import Transacting, check_callable
from padres_tx.client.session import (
    Event,
    FilterLike,
    Notification,
    PointLike,
    PublicationRefused,
    Session,
)
from padres_tx.client.transactions import TCM_MARK
from padres_tx.environment import secret_or_environment
from padres_tx.errors import CallTimeout, ClientClosed, ClientError

#: Notifications that wait for the program, and the bytes of their payloads: a burst of a second or
#: so, in a size that any process can hold.
QUEUE_MESSAGES = 10_000
QUEUE_BYTES = 64 << 20

#: Publications that may leave in a row before other tasks of the loop get a turn.
TURN = 256

#: What is called at the end of a client, with the reason, or with None after its own `close`.
OnClose: TypeAlias = Callable[[OverlayError | None], Awaitable[None] | None]


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


def operator(
    at: str,
    *,
    secret: str | None = None,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    retry: bool = True,
) -> Connecting[Operator]:
    """Somebody who looks into the broker at "host:port", and takes no part in the overlay.

    The secret and the time-out are as in `connect`.

    Entering raises BadAddress, Unreachable, or what the broker refuses with.
    """
    address = parse_address(at)
    session = Session(unique_name("operator"))
    channel = TcpChannel(
        address, "operator", session.name, secret=secret_or_environment(secret), reconnect_s=0
    )
    return Connecting(Operator(session, channel), connect_timeout_s, retry=retry)


def unique_name(stem: str) -> str:
    """A name that no other client has."""
    return f"{stem}-{secrets.token_hex(6)}"


class Operator(Peer):
    """Somebody who looks into a broker."""

    async def inspect(
        self, what: str, argument: str = "", *, timeout_s: float = CALL_TIMEOUT_S
    ) -> Any:
        """A part of the broker's state as plain data: "tables" (its first page) or "status".

        Raises OperationError if there is no such part.
        """
        await self._room()
        return (await self._request(self._session.inspect(what, argument), timeout_s)).body

    async def tables(
        self,
        *,
        client: str = "",
        hop: str = "",
        matching: str = "",
        limit: int | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> dict[str, Any]:
        """The broker's SRT, PRT and clients, gathered page by page.

        `client`, `hop` and `matching` (a publication in PADRES notation that the filter contains)
        choose rows. With a `limit` no more rows than that are returned; `complete` says whether
        these are all.

        Raises OperationError for a question that the broker does not understand.
        """
        query: dict[str, Any] = {"client": client, "hop": hop, "matching": matching}
        gathered: dict[str, Any] = {"srt": [], "prt": [], "clients": []}
        room = sys.maxsize if limit is None else limit
        while True:
            question = msgspec.json.encode(query).decode()
            page = await self.inspect("tables", question, timeout_s=timeout_s)
            left_out = False
            for table, rows in gathered.items():
                rows += page[table][:room]
                left_out = left_out or len(page[table]) > room
                room -= min(room, len(page[table]))
            complete = page["next"] is None and not left_out
            if complete or not room:
                return {"broker": page["broker"], **gathered, "complete": complete}
            query["after"] = page["next"]


class Client(Transacting):
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
        super().__init__(session, channel)
        check_callable("on_error", on_error)
        check_callable("on_close", on_close)
        self._reports = ErrorReports(session.name, on_error)
        #: To be called at the end; None when it has been, or is being.
        self._on_close = on_close
        #: Whether the broker has let the client in, so that there can be an end.
        self._joined = False
        #: Whether the channel has ended: nothing more will arrive.
        self._lost = False
        self._queue_messages = queue_messages
        self._queue_bytes = queue_bytes
        #: Bytes of the payloads in both queues.
        self._queued_bytes = 0
        self._queue: deque[Notification] = deque()
        #: What is to be called with what: notifications, and how transactions have ended.
        self._calls: deque[tuple[Any, list[Callable[[Any], Any]]]] = deque()
        self._caller: asyncio.Task[None] | None = None
        self._notify: Callback | None = None
        #: The task in which `on_close` is called. A loop does not keep tasks alive.
        self._ending: asyncio.Task[None] | None = None
        self._in_a_row = 0

    @property
    def on_error(self) -> OnError | None:
        """What is called with an error that no call can raise."""
        return self._reports.on_error

    @on_error.setter
    def on_error(self, on_error: OnError | None) -> None:
        check_callable("on_error", on_error)
        self._reports.on_error = on_error

    async def open(self, timeout_s: float, *, retry: bool = True) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        await super().open(timeout_s, retry=retry)
        try:
            await self._join(deadline, timeout_s, retry=retry)
        except BaseException as error:
            self._give_up(error)
            raise
        self._joined = True

    async def _join(self, deadline: float, timeout_s: float, *, retry: bool) -> None:
        """Ask for the name, again while the refusal is one that may pass."""
        loop = asyncio.get_running_loop()
        pause_s = REDIAL_S
        while True:
            join = self._session.join()
            try:
                await self._request(join, deadline - loop.time())
                return
            except CallTimeout:
                raise CallTimeout(self._overdue(join, timeout_s)) from None
            except OverlayError as error:
                if not retry or error.code not in PASSING or self.closed:
                    raise
                if loop.time() + pause_s >= deadline:
                    why = f"{error}; tried for {timeout_s:g} s"
                    raise from_code(error.code, why) from None
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, REDIAL_LIMIT_S)

    async def close(self) -> None:
        """Leave, when the broker has everything that was published. Closing twice is fine.

        Returns when every broker that can be reached has forgotten the client, so that its name is
        free; but not later than after CLOSE_TIMEOUT_S (`padres_tx.client.asyncio.channel`).

        What waits for the iterator can still be read; callbacks are not called any more, and one
        that is running is cancelled if it awaits something. `on_close` is called before this
        returns.

        Raises ConnectionLost if publications may have been lost on their way, and, without an
        `on_error`, the first publication that the broker has refused.
        """
        if self._closed:
            return
        try:
            await self._leave()
        finally:
            await self._tell_end()
        self._reports.raise_refused()

    async def _leave(self) -> None:
        """What `close` does, apart from telling about it."""
        if self._caller is not None and not in_callback(self):
            self._caller.cancel()
        await super().close()

    # --- routing operations ---

    async def advertise(self, filter: FilterLike, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Announce publications; returns when every broker that can be reached knows, and the
        subscriptions that this attracts have come.

        Raises FilterError, CallTimeout, ConnectionLost.
        """
        await self._operate("adv", filter, None, timeout_s)

    async def unadvertise(self, filter: FilterLike, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Take a part of what was advertised back, or all of it.

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

        Those that this filter wants go to the callback, if there is one; to the iterator
        otherwise, unless another subscription has a callback for them.

        With `events_only` the client gets publications and no tcms: it is not asked to act in
        others' transactions, and so need not have a handler. Where several subscriptions want a
        tcm, the last of them decides.

        Raises FilterError, CallTimeout, ConnectionLost.
        """
        await self._operate("sub", filter, callback, timeout_s, events_only=events_only)

    async def unsubscribe(self, filter: FilterLike, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Take a part of what was subscribed to back, or all of it; no publication in that part
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
        await self._room()
        operation = self._session.operate(kind, filter, callback, events=events_only)
        await self._request(operation, timeout_s)

    # --- publications ---

    async def publish(
        self, point: PointLike, payload: bytes = b"", *, json: Any = msgspec.UNSET
    ) -> None:
        """Publish an event: its attributes, and a payload of bytes or, as `json`, of data.

        Returns as soon as it is on its way, and waits only while the broker has to catch up.
        `close` makes sure that the broker has it.

        Raises FilterError, NotAdvertised, FrameTooLarge, ConnectionLost; TypeError if the JSON
        data is none.
        """
        payload = as_payload(payload, json)
        await self._room()
        self._in_a_row += 1
        if self._in_a_row >= TURN:
            self._in_a_row = 0
            await asyncio.sleep(0)
            await self._room()
        self._channel.send(self._session.publish(point, payload))

    # --- notifications ---

    def notify(self, callback: Callback | None) -> None:
        """Call this with every publication that comes (Table 2), beside those that subscriptions
        have of their own; nothing goes to the iterator then. None ends it.
        """
        check_callable("callback", callback)
        self._notify = callback

    def notifications(self, *, timeout_s: float | None = None) -> AsyncIterator[Notification]:
        """The notifications that no callback takes, in the order of their arrival.

        Ends when the client is closed, or when nothing has come for `timeout_s` seconds. Several
        iterators share the notifications, each getting some.

        Raises ConnectionLost, SlowReader.
        """
        return self._iterate(timeout_s)

    def __aiter__(self) -> AsyncIterator[Notification]:
        return self._iterate(None)

    async def _iterate(self, timeout_s: float | None) -> AsyncIterator[Notification]:
        while True:
            try:
                notification = (await self.take(1, timeout_s=timeout_s))[0]
            except (ClientClosed, CallTimeout):
                return
            yield notification

    async def next(self, *, timeout_s: float | None = None) -> Notification:
        """The next notification that no callback takes.

        Raises CallTimeout after `timeout_s` seconds, ClientClosed, and as `notifications` does.
        """
        return (await self.take(1, timeout_s=timeout_s))[0]

    async def take(self, limit: int, *, timeout_s: float | None = None) -> list[Notification]:
        """At least one notification, and as many as there are, up to the limit; raises as `next`.

        A timeout of 0 asks for what has arrived.
        """
        if not self._queue:
            # What has arrived but not been looked at counts, even if there is no time to wait.
            await asyncio.sleep(0)
            try:
                async with asyncio.timeout(timeout_s):
                    await self._some()
            except TimeoutError:
                raise CallTimeout(f"nothing came to {self.name} within {timeout_s:g} s") from None
        taken = [self._queue.popleft() for _ in range(min(limit, len(self._queue)))]
        self._make_room(sum(len(notification.payload) for notification in taken))
        return taken

    async def _some(self) -> None:
        """Wait for a notification in the queue. Raises why none will come."""
        while not self._queue:
            if self._drained:
                self._check()
            await self._wait_news()

    async def wait_closed(self) -> None:
        """Wait for the end, for programs that only have callbacks.

        Returns when the client is closed. Raises ConnectionLost, SlowReader, when the callbacks
        for what had arrived have been called. `on_close` says the same without waiting.
        """
        while True:
            if self._drained and self._caller is None:
                try:
                    self._check()
                except ClientClosed:
                    return
            await self._wait_news()

    @property
    def _drained(self) -> bool:
        """Whether all that will ever be handed over has been."""
        return self._closed or not self._channel.waiting

    @property
    def ready(self) -> bool:
        return (
            len(self._queue) < self._queue_messages
            and len(self._calls) < self._queue_messages
            and self._queued_bytes < self._queue_bytes
        ) or self._lost

    def _take(self, event: Event) -> None:
        if isinstance(event, Notification):
            if TCM_MARK in event.point:
                events = self._transactions.notified(event)
                if events is not None:
                    self._carry_out(events)
                    return
            self._queued_bytes += len(event.payload)
            callbacks = self._session.callbacks(event)
            if self._notify is not None and self._notify not in callbacks:
                callbacks.append(self._notify)
            if callbacks:
                self._call_back(event, callbacks)
            else:
                self._queue.append(event)
            self._pulse()
        elif isinstance(event, PublicationRefused):
            self._reports.publication_refused(event)
        else:
            super()._take(event)

    def _call_back(self, argument: Any, callbacks: list[Callable[[Any], Any]]) -> None:
        if callbacks:
            self._calls.append((argument, callbacks))
            self._start_calling()

    def _start_calling(self) -> None:
        if self._caller is None:
            self._caller = asyncio.get_running_loop().create_task(
                self._call(), name=f"callbacks of {self.name}"
            )
            # Also if it is cancelled before its first step, and so never runs.
            self._caller.add_done_callback(self._calling_over)

    def _calling_over(self, caller: asyncio.Task[None] | None) -> None:
        if self._caller is caller:
            self._caller = None
            self._pulse()

    async def _call(self) -> None:
        """Call the callbacks, one after the other, until there is nothing left to call."""
        try:
            while self._calls and not self._closed:
                argument, callbacks = self._calls[0]
                turn = CallbackTurn(self)
                current_turn.set(turn)
                try:
                    for callback in callbacks:
                        await self._call_one(callback, argument)
                finally:
                    turn.over = True
                    self._calls.popleft()
                    size = len(argument.payload) if isinstance(argument, Notification) else 0
                    self._make_room(size)
        finally:
            self._calling_over(asyncio.current_task())
        if self._lost and not self._closed:
            # No longer as the caller: `on_close` may wait for the end, and `close` not cancel it.
            self._ending = asyncio.current_task()
            await self._tell_end()

    async def _call_one(self, callback: Callable[[Any], Any], argument: Any) -> None:
        """Call a callback. What it raises is the user's, and ends nothing here."""
        try:
            awaitable = callback(argument)
            if inspect.isawaitable(awaitable):
                await awaitable
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # By `close`, or by the end of the loop.
            failed = ClientError(
                f"{callback_name(callback)} of {self.name} was cancelled from within"
            )
            failed.__cause__ = cancelled
            self._reports.callback_failed(callback, argument, failed)
        except Exception as error:
            self._reports.callback_failed(callback, argument, error)

    def _make_room(self, size: int) -> None:
        self._queued_bytes -= size
        if self._channel.waiting:
            self._channel.pull()

    # --- the end ---

    def lost(self, error: OverlayError) -> None:
        # Before its calls are ended: who waits hears of it.
        heard = self._waiters or self._waiting or self._on_close is not None
        first = self._error is None
        self._lost = True
        super().lost(error)
        # The queues have no limit for the rest: it is here already, and nothing follows.
        self._channel.pull()
        if first and self._joined:
            if not heard:
                logger.warning("client %s has lost its broker: %s", self.name, error)
            self._start_calling()

    async def _tell_end(self) -> None:
        """Call `on_close`, unless that has been done."""
        on_close = self._take_on_close()
        if on_close is not None:
            await self._call_one(on_close, self._reason())

    def _take_on_close(self) -> OnClose | None:
        """The callback for the end, to who asks first: it is called once."""
        on_close, self._on_close = self._on_close, None
        return on_close if self._joined else None

    def _reason(self) -> OverlayError | None:
        """Why the client has ended; None if the program has closed it."""
        if self._error is None or isinstance(self._error, ClientClosed):
            return None
        return again(self._error)

    def _handler_failed(self, part: Part, error: Exception) -> None:
        self._reports.handler_failed(part.id, error)

    def _overdue(self, message: AnyMessage, timeout_s: float) -> str:
        text = super()._overdue(message, timeout_s)
        if not self.ready:
            return f"{text}: {len(self._queue)} notifications wait to be read first"
        return text
