"""The asyncio client: connect, (un-)advertise, (un-)subscribe, publish, and receive.

    async with padres_tx.connect("127.0.0.1:7001", name="A1") as a1:
        await a1.subscribe("[class,eq,'p1'],[x,>=,3]")
        async for notification in a1:
            print(notification["x"], notification.json())

A shell around `padres_tx.session`, which has the rules, and a `padres_tx.channel`, which has the
wire. Requests and their answers are in `padres_tx.peer`, transactions in `padres_tx.aio_tx`; here
are the calls that people make, and what becomes of notifications. All runs in the caller's event
loop, without global state, threads or signal handlers, so it works in notebooks and web servers.
The methods belong to that loop; from other threads use `padres_tx.sync`.

**Cancelling.** Any call may be cancelled. A cancelled or timed-out operation may or may not have
happened; the session stays consistent either way, because the answer is still taken when it
comes. A cancelled `publish` has published nothing if it was still waiting.

**Notifications** go to the callbacks whose subscription wants them (`padres_tx.listeners`), one
after the other in the order of arrival, an asynchronous callback being awaited before the next is
called. What no callback wants waits for the iterator. Both queues are bounded. A client that does
not keep up stops acknowledging, its broker's queue fills, and the broker cuts it off: the iterator
gives out what had arrived and then raises SlowReader. While the queue is full answers wait behind
it, too: a program that subscribes to more than it reads sees CallTimeout, which says so.

**Errors.** The caller's mistake raises at the call. A broker that goes away is dialled again for
`reconnect_s` seconds; if it comes back and still knows the client, nothing is lost and nobody
notices. Otherwise every call that waits, the iterator and every later call raise ConnectionLost, or
what the broker gave as its reason. Two errors have no call to raise from: a publication that the
broker refused after the fact, and an exception out of a callback. They go to `on_error`, if given;
otherwise the next call, the iterator or `close` raises them, whichever comes first.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import msgspec

from overlay.frames import FrameTooLarge
from overlay.messages import AnyMessage, Kind, Operation
from padres_tx.aio_tx import Transacting
from padres_tx.channel import CONNECT_TIMEOUT_S, RECONNECT_S, Channel, TcpChannel, parse_address
from padres_tx.errors import CallTimeout, ClientClosed, TransactionAborted
from padres_tx.handles import Callback, as_payload
from padres_tx.peer import CALL_TIMEOUT_S, Connecting, Peer
from padres_tx.session import (
    Answered,
    Event,
    FilterLike,
    Notification,
    PointLike,
    Refused,
    Session,
)
from padres_tx.transactions import TCM_MARK

#: Notifications that wait for the program, and the bytes of their payloads: a burst of a second or
#: so, in a size that any process can hold.
QUEUE_MESSAGES = 10_000
QUEUE_BYTES = 64 << 20

#: Publications that may leave in a row before other tasks of the loop get a turn.
TURN = 256

#: What is called with an error that no call can raise.
OnError: TypeAlias = Callable[[Exception], None]


def connect(
    at: str,
    *,
    name: str | None = None,
    secret: str | None = None,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    reconnect_s: float = RECONNECT_S,
    on_error: OnError | None = None,
) -> Connecting[Client]:
    """A client of the broker at "host:port": `async with connect(...)`, or `await connect(...)`
    and then `close`.

    Without a name it gets a unique one. `reconnect_s` of 0 means not to dial again.

    Entering raises BadAddress, BadName, Unreachable, CallTimeout, or what the broker refuses the
    client with: NameTaken, Unauthorized, ProtocolError (another version).
    """
    address = parse_address(at)
    session = Session(unique_name("client") if name is None else name)
    channel = TcpChannel(
        address, "client", session.name, secret=secret or "", reconnect_s=reconnect_s
    )
    return Connecting(Client(session, channel, on_error=on_error), connect_timeout_s)


def operator(
    at: str,
    *,
    secret: str | None = None,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
) -> Connecting[Operator]:
    """Somebody who looks into the broker at "host:port", and takes no part in the overlay.

    Entering raises BadAddress, Unreachable, or what the broker refuses with.
    """
    address = parse_address(at)
    session = Session(unique_name("operator"))
    channel = TcpChannel(address, "operator", session.name, secret=secret or "", reconnect_s=0)
    return Connecting(Operator(session, channel), connect_timeout_s)


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
        queue_messages: int = QUEUE_MESSAGES,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        super().__init__(session, channel)
        self.on_error = on_error
        self._queue_messages = queue_messages
        self._queue_bytes = queue_bytes
        #: Bytes of the payloads in both queues.
        self._queued_bytes = 0
        self._queue: deque[Notification] = deque()
        #: What is to be called with what: notifications, and how transactions have ended.
        self._calls: deque[tuple[Any, list[Callable[[Any], Any]]]] = deque()
        self._caller: asyncio.Task[None] | None = None
        self._notify: Callback | None = None
        #: Operations that are not answered yet, whether or not anybody still waits for the answer.
        self._operations: dict[int, Operation] = {}
        #: An error that no call has raised yet, and how many came after it.
        self._unraised: Exception | None = None
        self._unraised_more = 0
        self._in_a_row = 0

    async def open(self, timeout_s: float) -> None:
        await super().open(timeout_s)
        try:
            await self._request(self._session.join(), timeout_s)
        except BaseException as error:
            self._channel.abort(ClientClosed(f"{self.name} gave up: {type(error).__name__}"))
            raise

    async def close(self) -> None:
        """Leave, when the broker has everything that was published. Closing twice is fine.

        What waits for the iterator can still be read; callbacks are not called any more, and one
        that is running is cancelled if it awaits something.

        Raises ConnectionLost if publications may have been lost on their way, and an error that
        no call has raised yet.
        """
        if self._closed:
            return
        caller = self._caller
        if caller is not None and caller is not asyncio.current_task():
            caller.cancel()
        await super().close()
        self._raise_unraised()

    # --- routing operations ---

    async def advertise(self, filter: FilterLike, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Announce publications; returns when every broker knows, and the subscriptions that this
        attracts have come.

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
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """Ask for publications; returns when no later one is lost for want of a route.

        Those that this filter wants go to the callback, if there is one; to the iterator
        otherwise, unless another subscription has a callback for them.

        Raises FilterError, CallTimeout, ConnectionLost.
        """
        await self._operate("sub", filter, callback, timeout_s)

    async def unsubscribe(self, filter: FilterLike, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Take a part of what was subscribed to back, or all of it; no publication in that part
        arrives after the return, though some may still wait for the iterator.

        Raises FilterError, NotHeld, CallTimeout, ConnectionLost.
        """
        await self._operate("usub", filter, None, timeout_s)

    async def _operate(
        self, kind: Kind, filter: FilterLike, callback: Callback | None, timeout_s: float
    ) -> None:
        await self._room()
        operation = self._session.operate(kind, filter)
        self._operations[operation.req] = operation
        if callback is not None:
            self._listeners.listen(operation, callback)
        try:
            await self._request(operation, timeout_s)
        except FrameTooLarge:
            self._settle(operation.req, refused=True)
            raise

    def _settle(self, req: int, *, refused: bool) -> None:
        operation = self._operations.pop(req, None)
        if operation is None:
            return
        if refused and operation.kind == "sub":
            self._listeners.refused(operation)
        elif not refused and operation.kind == "usub":
            self._listeners.unsubscribed(operation)

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
        self._notify = callback

    def notifications(self, *, timeout_s: float | None = None) -> AsyncIterator[Notification]:
        """The notifications that no callback takes, in the order of their arrival.

        Ends when the client is closed, or when nothing has come for `timeout_s` seconds. Several
        iterators share the notifications, each getting some.

        Raises ConnectionLost, SlowReader, and errors that no call has raised yet.
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
                async with asyncio.timeout(timeout_s) as timer:
                    await self._some()
            except TimeoutError:
                if not timer.expired():
                    raise  # A callback's own.
                raise CallTimeout(f"nothing came to {self.name} within {timeout_s:g} s") from None
        taken = [self._queue.popleft() for _ in range(min(limit, len(self._queue)))]
        self._make_room(sum(len(notification.payload) for notification in taken))
        return taken

    async def _some(self) -> None:
        """Wait for a notification in the queue. Raises why none will come."""
        while not self._queue:
            self._raise_unraised()
            if self._drained:
                self._check()
            await self._news.wait()

    async def wait_closed(self) -> None:
        """Wait for the end, for programs that only have callbacks.

        Returns when the client is closed. Raises ConnectionLost, SlowReader, and errors that no
        call has raised yet.
        """
        while True:
            self._raise_unraised()
            if self._drained and self._caller is None:
                try:
                    self._check()
                except ClientClosed:
                    return
            await self._news.wait()

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
        )

    def _take(self, event: Event) -> None:
        if isinstance(event, Notification):
            if TCM_MARK in event.point:
                events = self._transactions.notified(event)
                if events is not None:
                    self._carry_out(events)
                    return
            self._queued_bytes += len(event.payload)
            callbacks = self._listeners.of(event.point)
            if self._notify is not None and self._notify not in callbacks:
                callbacks.append(self._notify)
            if callbacks:
                self._call_back(event, callbacks)
            else:
                self._queue.append(event)
            self._pulse()
        elif isinstance(event, Refused):
            self._report(event.error)
        else:
            if isinstance(event, Answered):
                self._settle(event.req, refused=event.error is not None)
            super()._take(event)

    def _call_back(self, argument: Any, callbacks: list[Callable[[Any], Any]]) -> None:
        if callbacks:
            self._calls.append((argument, callbacks))
            if self._caller is None:
                self._caller = asyncio.get_running_loop().create_task(
                    self._call(), name=f"callbacks of {self.name}"
                )

    async def _call(self) -> None:
        """Call the callbacks, one after the other, until there is nothing left to call."""
        while self._calls and not self._closed:
            argument, callbacks = self._calls[0]
            for callback in callbacks:
                try:
                    awaitable = callback(argument)
                    if inspect.isawaitable(awaitable):
                        await awaitable
                except Exception as error:  # The callback is the user's, and so is its error.
                    self._report(error)
            self._calls.popleft()
            self._make_room(len(argument.payload) if isinstance(argument, Notification) else 0)
        self._caller = None
        self._pulse()

    def _make_room(self, size: int) -> None:
        self._queued_bytes -= size
        if self._channel.waiting:
            self._channel.pull()

    # --- errors that no call can raise ---

    def _handler_failed(self, error: Exception) -> None:
        # The transaction's coordinator hears of it; here it is told to who wants to know.
        if self.on_error is not None and not isinstance(error, TransactionAborted):
            self._report(error)

    def _report(self, error: Exception) -> None:
        if self.on_error is not None:
            try:
                self.on_error(error)
            except Exception as worse:
                # There is nobody left to tell but the loop.
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"on_error of {self.name} failed", "exception": worse}
                )
        elif self._unraised is None:
            self._unraised = error
            self._pulse()
        else:
            self._unraised_more += 1

    def _raise_unraised(self) -> None:
        error, more = self._unraised, self._unraised_more
        if error is not None:
            self._unraised, self._unraised_more = None, 0
            if more:
                error.add_note(f"{more} more errors followed that nobody has seen")
            raise error

    def _check(self) -> None:
        self._raise_unraised()
        super()._check()

    def _overdue(self, message: AnyMessage, timeout_s: float) -> str:
        text = super()._overdue(message, timeout_s)
        if not self.ready:
            return f"{text}: {len(self._queue)} notifications wait to be read first"
        return text
