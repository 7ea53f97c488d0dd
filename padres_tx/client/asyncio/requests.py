"""Requests to a broker, their answers, and the end of the connection.

`Requests` sits between a session, which makes the messages, and a channel, which carries them. A
client and an operator each have one. It waits for answers and for room in the channel. When the
channel is lost or closed, every call that waits raises the reason, so no call waits for ever.

Events have one way through a client: the session turns a message into events, and `carry_out` calls
the function that was registered for each kind of event with `handle`. An event of a kind that has
no function is a bug.

A `Requests` object belongs to the event loop in which it was opened. A call from another loop is
refused.

This module knows no notifications and no transactions.
"""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from overlay.errors import OverlayError, ProtocolError, from_code
from overlay.messages import AnyMessage, Inspect, Join, Operation
from overlay.wire.frames import FrameTooLarge
from padres_tx.client.asyncio.channel import Channel
from padres_tx.client.session import PENDING_LIMIT, Answered, Event, SendMessage, Session
from padres_tx.errors import CallTimeout, ClientClosed, ClientError

#: An operation has to cross the whole tree, over links that may be reconnecting. An overlay that
#: needs longer than this is broken, and the caller should learn of it.
CALL_TIMEOUT_S = 30.0

E = TypeVar("E")


class Requests:
    """The requests of one client or operator; the client's end of its channel."""

    def __init__(self, kind: str, session: Session, channel: Channel) -> None:
        #: "Client" or "Operator", for people.
        self._kind = kind
        self.session = session
        self.channel = channel
        #: Why no more calls are possible.
        self.error: OverlayError | None = None
        self.opened = False
        #: Whether `close` was called.
        self.closed = False
        #: Whether the channel has ended: no more messages will arrive.
        self.lost_channel = False
        #: Whether the program has room for another message.
        self.has_room: Callable[[], bool] = _always
        #: Called once with the reason, when no more calls are possible.
        self.when_ended: Callable[[OverlayError], None] = _ignore
        #: Called when the channel is lost while calls were possible, after all that had arrived was
        #: handed over; with the reason, and with whether a waiting call raises it.
        self.when_lost: Callable[[OverlayError, bool], None] = _ignore
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handlers: dict[type[Any], Callable[[Any], None]] = {Answered: self.answered}
        self._unanswered: dict[int, asyncio.Future[Answered]] = {}
        #: Calls that wait for something other than an answer.
        self._waiters = 0
        #: Set and cleared whenever something has changed that a call may wait for.
        self._change = asyncio.Event()

    @property
    def name(self) -> str:
        """The name of the client."""
        return self.session.name

    def __repr__(self) -> str:
        state = "open" if self.opened and self.error is None else "closed"
        return f"<{self._kind} {self.name}, {state}>"

    def __del__(self) -> None:
        if self.opened and self.error is None:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=2, source=self)

    # --- opening and closing ---

    async def open(self, timeout_s: float, *, retry: bool) -> None:
        """Connect to the broker, with `retry` by several attempts within the time.

        Raises ClientError if it was opened before, and as `Channel.open` does.
        """
        if self.opened:
            raise ClientError(f"{self.name} has been connected already; connect anew instead")
        self.opened = True
        self._loop = asyncio.get_running_loop()
        try:
            await self.channel.open(self, timeout_s, retry=retry)
        except BaseException as error:
            self.give_up(error)
            raise

    def give_up(self, error: BaseException) -> None:
        """End a connection that could not be made, or that the caller does not wait for."""
        gave_up = ClientClosed(f"{self.name} gave up: {type(error).__name__}")
        self.channel.abort(gave_up)
        self.end(gave_up)

    async def close(self) -> None:
        """Leave when the broker has everything that was sent.

        Raises ConnectionLost if messages may have been lost.
        """
        self.check_loop()
        self.closed = True
        self.end(ClientClosed(f"{self.name} has been closed"))
        await self.channel.close()

    def end(self, error: OverlayError) -> None:
        """Refuse further calls for this reason, and let waiting ones raise it; the first counts."""
        if self.error is None:
            self.error = error
            for future in self._unanswered.values():
                if not future.done():
                    future.set_exception(again(error))
            self.changed()
            self.when_ended(error)

    # --- the channel's end (padres_tx.client.asyncio.channel.ChannelEnd) ---

    @property
    def ready(self) -> bool:
        # What has arrived before the channel was lost has no limit: nothing follows it.
        return self.lost_channel or self.has_room()

    def receive(self, message: AnyMessage) -> None:
        try:
            self.carry_out(self.session.receive(message))
        except ProtocolError:
            raise
        except Exception as error:
            # A bug in this package. Calls that wait must not wait for ever.
            self.end(ClientError(f"a fault in the client: {error!r}"))
            raise

    def writable(self) -> None:
        self.changed()

    def lost(self, error: OverlayError) -> None:
        first, has_waiters = self.error is None, bool(self._waiters or self._unanswered)
        self.lost_channel = True
        self.end(error)
        self.channel.pull()
        if first:
            self.when_lost(error, has_waiters)

    # --- events ---

    def handle(self, kind: type[E], handler: Callable[[E], None]) -> None:
        """Call this function with each event of that class."""
        self._handlers[kind] = handler

    def carry_out(self, events: Iterable[Event]) -> None:
        """Carry out events, in their order."""
        for event in events:
            if isinstance(event, SendMessage):
                self.channel.send(event.message)
                continue
            handler = self._handlers.get(type(event))
            if handler is None:
                raise AssertionError(f"no handler for {event!r}")
            handler(event)

    # --- requests ---

    async def request(self, message: Operation | Join | Inspect, timeout_s: float) -> Answered:
        """Send a request and wait for its answer.

        Raises CallTimeout, the error that the request is refused with, or why no answer can come.
        """
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._unanswered[message.req] = future
        try:
            self.channel.send(message)
            async with asyncio.timeout(timeout_s):
                answered = await future
        except FrameTooLarge as error:
            self.session.unsent(message, error)
            raise
        except TimeoutError:
            raise CallTimeout(self.overdue(message, timeout_s)) from None
        finally:
            self._unanswered.pop(message.req, None)
        if answered.error is not None:
            raise answered.error
        return answered

    def answered(self, event: Answered) -> None:
        """Give an answer to the call that waits for it; a cancelled call waits no more."""
        future = self._unanswered.pop(event.req, None)
        if future is not None and not future.done():
            future.set_result(event)
        self.changed()

    def overdue(self, message: AnyMessage, timeout_s: float) -> str:
        """The text of the error for a request without an answer."""
        what = type(message).__name__.lower()
        outage = f": {self.channel.outage}" if self.channel.outage else ""
        return f"no answer to the {what} of {self.name} within {timeout_s:g} s{outage}"

    # --- waiting ---

    async def wait_room(self) -> None:
        """Wait until something may be sent. Raises why nothing may be sent any more."""
        while True:
            self.check()
            if not self.channel.full and self.session.pending < PENDING_LIMIT:
                return
            await self.wait_change()

    async def wait_change(self) -> None:
        """Wait for the next call of `changed`."""
        self.check_loop()
        with self.waiter():
            await self._change.wait()

    @contextlib.contextmanager
    def waiter(self) -> Iterator[None]:
        """Count the block as a call that waits, and so learns of a lost connection."""
        self._waiters += 1
        try:
            yield
        finally:
            self._waiters -= 1

    def changed(self) -> None:
        """Wake all calls that wait for a change."""
        self._change.set()
        self._change.clear()

    # --- checks ---

    def check(self) -> None:
        """Raises why no call is possible now."""
        assert self.opened, f"{self.name} is not connected yet: await it, or use async with"
        self.check_loop()
        if self.error is not None:
            raise again(self.error)

    def check_loop(self) -> None:
        """Raises ClientError in an event loop other than the one of `open`."""
        if self._loop is not None and asyncio.get_running_loop() is not self._loop:
            raise ClientError(
                f"{self.name} was connected in another event loop and can only be used there; "
                "for use from several threads there is padres_tx.sync"
            )


def again(error: OverlayError) -> OverlayError:
    """A new error with the same code and text: a shared one would collect tracebacks."""
    return from_code(error.code, str(error))


def _always() -> bool:
    return True


def _ignore(*_: object) -> None:
    """A hook that is not set."""
