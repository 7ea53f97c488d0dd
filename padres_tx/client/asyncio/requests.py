"""What a client and an operator have in common on asyncio: requests, answers, and an end.

A peer sits between a session, which makes the messages, and a channel, which carries them. It waits
for answers and for room, and sees to it that nobody waits for ever: when the channel is lost or
the peer closed, everybody who waits is told why.

A peer belongs to the event loop in which it was connected; a call from another one is refused.

It knows nothing of notifications; those are `padres_tx.client.asyncio.client`'s.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Generator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from overlay.errors import OverlayError, ProtocolError, from_code
from overlay.messages import AnyMessage, Inspect, Join, Operation
from overlay.wire.frames import FrameTooLarge
from padres_tx.client.asyncio.channel import Channel
from padres_tx.client.session import PENDING_LIMIT, Answered, Event, SendMessage, Session
from padres_tx.errors import CallTimeout, ClientClosed, ClientError

#: An operation has to cross the whole tree, over links that may just be coming back; an overlay
#: that needs longer than this is broken, and the caller should hear of it.
CALL_TIMEOUT_S = 30.0

P = TypeVar("P", bound="Peer")


class Connecting(Generic[P]):
    """A connection about to be made: await it, or enter it with `async with`."""

    def __init__(self, peer: P, timeout_s: float, *, retry: bool = True) -> None:
        self._peer = peer
        self._timeout_s = timeout_s
        self._retry = retry

    def __await__(self) -> Generator[Any, None, P]:
        return self._open().__await__()

    async def __aenter__(self) -> P:
        return await self._open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._peer.__aexit__(kind, error, trace)

    async def _open(self) -> P:
        await self._peer.open(self._timeout_s, retry=self._retry)
        return self._peer


class Peer:
    """What a client and an operator have in common: requests, answers, and an end."""

    def __init__(self, session: Session, channel: Channel) -> None:
        self._session = session
        self._channel = channel
        self._waiting: dict[int, asyncio.Future[Answered]] = {}
        #: Why no more calls are possible.
        self._error: OverlayError | None = None
        self._opened = self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        #: How many calls wait for something, and so hear of the end.
        self._waiters = 0
        #: Pulsed (set and cleared) whenever something has changed that somebody may wait for.
        self._news = asyncio.Event()

    @property
    def name(self) -> str:
        return self._session.name

    @property
    def closed(self) -> bool:
        """Whether the client has been closed, or has lost its broker for good."""
        return self._error is not None

    def __repr__(self) -> str:
        state = "open" if self._opened and not self.closed else "closed"
        return f"<{type(self).__name__} {self.name}, {state}>"

    def __del__(self) -> None:
        if self._opened and self._error is None:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=2, source=self)

    async def open(self, timeout_s: float, *, retry: bool = True) -> None:
        """Reach the broker; with `retry` by several attempts, as long as time is left."""
        if self._opened:
            raise ClientError(f"{self.name} has been connected already; connect anew instead")
        self._opened = True
        self._loop = asyncio.get_running_loop()
        try:
            await self._channel.open(self, timeout_s, retry=retry)
        except BaseException as error:
            self._give_up(error)
            raise

    def _give_up(self, error: BaseException) -> None:
        """The peer could not be connected, or nobody waits for it any more."""
        gave_up = ClientClosed(f"{self.name} gave up: {type(error).__name__}")
        self._channel.abort(gave_up)
        self._end(gave_up)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except Exception:
            # What ended the block says more than what could not be sent because of it.
            if error is None:
                raise

    async def close(self) -> None:
        """Leave, when the broker has everything that was published. Closing twice is fine.

        Raises ConnectionLost if publications may have been lost on their way.
        """
        if self._closed:
            return
        self._check_loop()
        self._closed = True
        self._end(ClientClosed(f"{self.name} has been closed"))
        await self._channel.close()

    # --- the channel's end (padres_tx.client.asyncio.channel.End) ---

    @property
    def ready(self) -> bool:
        return True

    def receive(self, message: AnyMessage) -> None:
        try:
            for event in self._session.receive(message):
                self._take(event)
        except ProtocolError:
            raise
        except Exception as error:
            # A mistake of ours. Whoever waits must not wait for ever.
            self._end(ClientError(f"a fault in the client: {error!r}"))
            raise

    def writable(self) -> None:
        self._pulse()

    def lost(self, error: OverlayError) -> None:
        self._end(error)

    # --- requests ---

    def _take(self, event: Event) -> None:
        if isinstance(event, Answered):
            future = self._waiting.pop(event.req, None)
            # Nobody waits any more if the call was cancelled.
            if future is not None and not future.done():
                future.set_result(event)
            self._pulse()
        elif isinstance(event, SendMessage):
            self._channel.send(event.message)
        else:
            raise AssertionError(f"nobody takes {event!r}")

    async def _request(self, message: Operation | Join | Inspect, timeout_s: float) -> Answered:
        """Send a request and wait for its answer.

        Raises CallTimeout, what the request is refused with, or why no answer will come.
        """
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._waiting[message.req] = future
        try:
            self._channel.send(message)
            async with asyncio.timeout(timeout_s):
                answered = await future
        except FrameTooLarge as error:
            self._session.unsent(message, error)
            raise
        except TimeoutError:
            raise CallTimeout(self._overdue(message, timeout_s)) from None
        finally:
            self._waiting.pop(message.req, None)
        if answered.error is not None:
            raise answered.error
        return answered

    def _overdue(self, message: AnyMessage, timeout_s: float) -> str:
        what = type(message).__name__.lower()
        return f"no answer to the {what} of {self.name} within {timeout_s:g} s"

    async def _room(self) -> None:
        """Wait until something may be sent. Raises why nothing may be sent any more."""
        while True:
            self._check()
            if not self._channel.full and self._session.pending < PENDING_LIMIT:
                return
            await self._wait_news()

    async def _wait_news(self) -> None:
        """Wait until something has changed."""
        self._check_loop()
        self._waiters += 1
        try:
            await self._news.wait()
        finally:
            self._waiters -= 1

    def _check_loop(self) -> None:
        """Raises ClientError in another event loop than the one the peer was connected in."""
        if self._loop is not None and asyncio.get_running_loop() is not self._loop:
            raise ClientError(
                f"{self.name} was connected in another event loop and can only be used there; "
                "for use from several threads there is padres_tx.sync"
            )

    def _check(self) -> None:
        assert self._opened, f"{self.name} is not connected yet: await it, or use async with"
        self._check_loop()
        if self._error is not None:
            raise again(self._error)

    def _end(self, error: OverlayError) -> None:
        """No more calls, for this reason. The first reason counts."""
        if self._error is None:
            self._error = error
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(again(error))
            self._pulse()

    def _pulse(self) -> None:
        self._news.set()
        self._news.clear()


def again(error: OverlayError) -> OverlayError:
    """The same error anew: one that several calls raise would gather all their tracebacks."""
    return from_code(error.code, str(error))
