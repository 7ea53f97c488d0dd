"""A reliable, ordered channel between a client and its broker.

`Channel` is all that a client knows of how messages travel. `TcpChannel` is the one over the
network; `padres_tx.testing.inprocess` has another. Messages over TCP are numbered, acknowledged and
resent by `overlay.wire.link`; this module has its sockets and timers, on asyncio. When the
connection breaks, the channel dials again for a while and continues where it was; the client does
not notice. When that fails, or the broker has closed the connection, the channel is lost for good,
with the reason. The first connection is dialled again as well, as long as the client waits for it:
a broker that is just starting is no error.

Flow control works both ways. Outgoing: `full` says that the window is used up, and the client
waits. Incoming: the channel hands a message over only while its end is `ready`, and acknowledges
what it has handed over. So the broker stops sending to a client that does not keep up, and finally
disconnects it.

This module knows no sessions and no filters: it does not read messages.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
from typing import NamedTuple, Protocol, cast

from overlay.errors import (
    BrokerFull,
    NameAway,
    OverlayError,
    Overloaded,
    ProtocolError,
    from_code,
)
from overlay.messages import PROTOCOL_VERSION, AnyMessage, Goodbye, Hello, Role
from overlay.wire.codec import decode
from overlay.wire.frames import PREFIX_SIZE, Splitter, pack
from overlay.wire.link import ACK_DELAY_S, HEARTBEAT_S, IDLE_S, Link, Opening
from padres_tx.errors import BadAddress, ConnectionLost, Unreachable

#: Time for the connection, the hellos and the answer to the join: enough on any usual network.
CONNECT_TIMEOUT_S = 10.0

#: How long a broken connection is dialled again: long enough for a broker that is restarted, even
#: on a busy machine or with much to replay. A broker that ran on and has dropped the client
#: meanwhile refuses it at once, so a longer patience costs nothing then.
RECONNECT_S = 60.0

#: Pauses between dialling: short at first, since most cuts are short, then not a burden.
REDIAL_S = 0.05
REDIAL_LIMIT_S = 0.5

#: How long one attempt waits for the connection and the broker's hello before the next: a proxy or
#: a backlog that accepted the connection for an absent broker may have lost it.
DIAL_TIMEOUT_S = 3.0

#: The codes of refusals after which another attempt at the first connection may succeed: the broker
#: is being restarted, the client that has the name lost its connection a moment ago, or too many
#: clients connect at once. All others are final.
PASSING = frozenset({ConnectionLost.code, NameAway.code, Overloaded.code})

#: The same for a connection that has broken: clients that lost theirs together all come back
#: together. Any other refusal means that the session is gone.
CROWDED = frozenset({Overloaded.code, BrokerFull.code})

#: How long `close` waits for the broker to acknowledge what was sent, and to answer the goodbye,
#: which it does when all brokers have forgotten the client.
CLOSE_TIMEOUT_S = 5.0

#: How often an idle connection is checked: well within the heartbeat of a link.
TICK_S = 1.0

#: Messages and bytes that are gathered before they are written; more waits in the channel only if
#: the window is full. Large enough to make a system call cheap, small enough to leave within a
#: millisecond.
BATCH_MESSAGES = 256
BATCH_BYTES = 64 * 1024


class ChannelEnd(Protocol):
    """What a channel needs of the client. All calls come from the client's loop."""

    @property
    def ready(self) -> bool:
        """Whether the client takes another message now; it calls `pull` when that changes."""
        ...

    def receive(self, message: AnyMessage) -> None:
        """Take the next message. Raises ProtocolError if a broker may not send it."""
        ...

    def writable(self) -> None:
        """The channel is not `full` any more."""
        ...

    def lost(self, error: OverlayError) -> None:
        """The channel has ended for this reason. What has arrived can still be pulled."""
        ...


class Channel(Protocol):
    """A reliable, ordered channel to one broker."""

    async def open(self, end: ChannelEnd, timeout_s: float, *, retry: bool) -> None:
        """Connect to the broker within that time, with `retry` by several attempts.

        Raises Unreachable, or the broker's refusal.
        """
        ...

    def send(self, message: AnyMessage) -> None:
        """Queue a message. Raises FrameTooLarge, and then queues nothing."""
        ...

    @property
    def full(self) -> bool:
        """Whether the broker has to catch up before more is sent."""
        ...

    @property
    def waiting(self) -> int:
        """How many messages have arrived and wait for the end to be ready."""
        ...

    @property
    def outage(self) -> str:
        """That there is no connection now, since when and why; "" if there is one."""
        ...

    def pull(self) -> None:
        """Hand over waiting messages, while the end is ready."""
        ...

    async def close(self) -> None:
        """Leave when the broker has everything that was sent.

        Raises ConnectionLost if messages may have been lost.
        """
        ...

    def abort(self, error: OverlayError) -> None:
        """Leave at once, and send the broker the reason."""
        ...


class Address(NamedTuple):
    """The address of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """The address in "host:port" or "[v6-address]:port".

    Raises BadAddress.
    """
    host, colon, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise BadAddress(
            f"invalid address {text!r}: an IPv6 address needs brackets, as in '[::1]:7001'"
        )
    if not host or not colon:
        raise BadAddress(f"invalid address {text!r}: expected 'host:port'")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise BadAddress(f"invalid port {port!r} in {text!r}: expected 1 to 65535")
    return Address(host, int(port))


class TcpChannel:
    """A channel over TCP that outlives its connections."""

    def __init__(
        self,
        address: Address,
        role: Role,
        name: str,
        *,
        secret: str = "",
        reconnect_s: float = RECONNECT_S,
        heartbeat_s: float = HEARTBEAT_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._address = address
        self._role = role
        self._name = name
        self._secret = secret
        self._reconnect_s = reconnect_s
        # Random: a broker must never take two clients for the same one.
        self._link = Link(secrets.token_hex(8), heartbeat_s=heartbeat_s, idle_s=idle_s)
        self._connection: _Connection | None = None
        self._redialling: asyncio.Task[None] | None = None
        self._lost_at = 0.0
        self._last_failure = _LastFailure(None)
        self._error: OverlayError | None = None
        #: The broker has sent what it may not; what it sent after that is ignored.
        self._broken = False
        self._leaving = False
        self._write_soon: asyncio.Handle | None = None
        self._ack_later: asyncio.TimerHandle | None = None
        self._tick_later: asyncio.TimerHandle | None = None
        self._ticked_at = 0.0
        #: Set and cleared whenever something was acknowledged, or the channel ended.
        self._progress = asyncio.Event()

    # --- the client's side ---

    async def open(self, end: ChannelEnd, timeout_s: float, *, retry: bool) -> None:
        self._end = end
        self._loop = asyncio.get_running_loop()
        last = _LastFailure(TimeoutError("no hello"))
        try:
            async with asyncio.timeout(timeout_s) as limit:
                if retry:
                    await self._keep_dialling(last, PASSING)
                else:
                    await self._dial(timeout_s)
        except OSError as error:
            if limit.expired():
                raise self._not_reached(last.error, timeout_s) from None
            raise Unreachable(f"no broker at {self._address}: {_reason(error)}") from None
        if self._error is None:
            self._tick()

    def _not_reached(self, last: Exception | None, tried_s: float) -> OverlayError:
        """The error to raise after attempts of which the last has failed like this."""
        if isinstance(last, OverlayError) and not isinstance(last, OSError):
            # There is a broker, and its refusal says more.
            return from_code(last.code, f"{last}; tried for {tried_s:g} s")
        why = f": {_reason(last)}" if last is not None else ""
        return Unreachable(f"no broker at {self._address} within {tried_s:g} s{why}")

    def send(self, message: AnyMessage) -> None:
        link = self._link
        link.send(pack(message))
        if self.full:
            self._write()
        elif self._write_soon is None:
            self._write_soon = self._loop.call_soon(self._write)

    @property
    def full(self) -> bool:
        link = self._link
        return len(link.outbox) >= BATCH_MESSAGES or link.backlog_bytes >= BATCH_BYTES

    @property
    def waiting(self) -> int:
        return 0 if self._broken else len(self._link.inbox)

    @property
    def outage(self) -> str:
        if self._redialling is None:
            return ""
        last = self._last_failure.error
        why = f" ({_reason(last)})" if last else ""
        away_s = self._loop.time() - self._lost_at
        return f"the broker at {self._address} has been away for {away_s:.1f} s{why}"

    def pull(self) -> None:
        link, end = self._link, self._end
        try:
            while link.inbox and end.ready and not self._broken:
                message = link.hand_over()
                end.receive(message)
        except ProtocolError as error:
            self._broken = True
            self.abort(error)
            return
        if link.ack_waits:
            if self._write_soon is None:
                self._write_soon = self._loop.call_soon(self._write)
            if self._ack_later is None:
                self._ack_later = self._loop.call_later(ACK_DELAY_S, self._write_idle)

    async def close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                # First everything has to be acknowledged, over a new connection if necessary. After
                # the goodbye the session is gone.
                while self._link.pending and self._error is None:
                    await self._progress.wait()
                self._leaving = True
                if self._connection is not None:
                    # The answer says that all brokers have forgotten the client: its name is free.
                    self._connection.write(pack(Goodbye()))
                    while self._error is None:
                        await self._progress.wait()
        except TimeoutError:
            pass
        finally:
            # Also when the caller is cancelled, and so does not wait.
            connection = self._detach()
            if connection is not None:
                connection.close()
        if unsure := self._link.pending:
            why = self._error or ConnectionLost(
                f"the broker at {self._address} did not answer within {CLOSE_TIMEOUT_S:g} s"
            )
            raise from_code(why.code, f"{why}; {unsure} messages may be lost")

    def abort(self, error: OverlayError) -> None:
        if self._connection is not None:
            self._connection.write(pack(Goodbye(error.code, str(error))))
        self._fail(error)

    # --- writing ---

    def _write(self, *, idle: bool = False) -> None:
        if self._write_soon is not None:
            self._write_soon.cancel()
            self._write_soon = None
        if self._connection is not None:
            frames = self._link.take(self._loop.time(), idle=idle)
            if frames:
                self._connection.write(b"".join(frames))

    def _write_idle(self) -> None:
        self._ack_later = None
        self._write(idle=True)

    def _tick(self) -> None:
        """Send a sign of life, and check for the broker's."""
        now = self._loop.time()
        # If the loop was blocked, what has arrived meanwhile has not been read yet.
        on_time = now - self._ticked_at < 2 * TICK_S
        self._ticked_at = now
        if self._connection is not None:
            if on_time and self._link.silent(now):
                self._connection.abort()
            else:
                self._write(idle=True)
        self._tick_later = self._loop.call_later(TICK_S, self._tick)

    # --- connections ---

    async def _dial(self, timeout_s: float) -> Opening:
        """Connect and exchange hellos.

        Raises OSError, or the error that the broker refuses the client with.
        """
        connection = _Connection(self)
        try:
            async with asyncio.timeout(timeout_s) as limit:
                await self._loop.create_connection(lambda: connection, *self._address)
                hello = self._link.hello(self._role, self._name, self._secret)
                connection.write(pack(hello))
                return await connection.opening
        except TimeoutError:
            connection.abort()
            if not limit.expired():
                raise  # Raised by the system, not by the time limit.
            raise TimeoutError(f"no hello within {timeout_s:g} s") from None
        except BaseException:
            connection.abort()
            raise

    async def _keep_dialling(self, last: _LastFailure, passing: frozenset[str]) -> Opening:
        """Dial until the broker lets the client in; the caller sets the time limit.

        `last` gets the error of each attempt that failed. Raises the broker's refusal, unless its
        code is one that may pass.
        """
        pause_s = REDIAL_S
        while True:
            try:
                return await self._dial(DIAL_TIMEOUT_S)
            except OverlayError as error:  # Before OSError: some are that as well.
                if error.code not in passing:
                    raise
                last.error = error
            except OSError as error:
                last.error = error
            # Random, or clients that were refused together would come back together.
            await asyncio.sleep(random.uniform(0, pause_s))
            pause_s = min(2 * pause_s, REDIAL_LIMIT_S)

    def connected(self, connection: _Connection, hello: Hello) -> Opening:
        """The broker's hello has come."""
        if hello.version != PROTOCOL_VERSION:
            raise ProtocolError(
                f"the broker has protocol version {hello.version}, this client {PROTOCOL_VERSION}"
            )
        opening = self._link.open(hello, self._loop.time())
        self._connection = connection
        return opening

    def received(self, connection: _Connection, frames: list[bytes]) -> None:
        """Frames have come, after the hello."""
        if connection is not self._connection:
            return  # After the goodbye: only the end of the connection matters.
        link = self._link
        link.heard(self._loop.time())
        before = link.pending
        try:
            goodbye = link.receive_all(frames)
        except ProtocolError as error:
            self.abort(error)
            return
        self.pull()
        if link.outbox:
            self._write()
        if link.pending < before:
            self._progressed()
        if goodbye is not None:
            self._fail(_meaning(goodbye))

    def disconnected(self, connection: _Connection, reason: Exception | None) -> None:
        """The connection is gone."""
        if connection is not self._connection:
            return
        self._connection = None
        self._link.cut()
        if self._reconnect_s > 0 and not self._leaving:
            self._lost_at = self._loop.time()
            self._redialling = self._loop.create_task(self._redial(reason))
        else:
            why = f" ({_reason(reason)})" if reason else ""
            self._fail(ConnectionLost(f"the connection to {self._address} broke{why}"))

    async def _redial(self, reason: Exception | None) -> None:
        last = self._last_failure = _LastFailure(reason)
        try:
            async with asyncio.timeout(self._reconnect_s):
                opening = await self._keep_dialling(last, CROWDED)
        except OverlayError as error:
            self._fail(error)
            return
        except TimeoutError:
            why = f" ({_reason(last.error)})" if last.error else ""
            self._fail(
                ConnectionLost(
                    f"the broker at {self._address} has been away for {self._reconnect_s:g} s{why}"
                )
            )
            return
        self._redialling = None
        if opening is Opening.RESET:
            self.abort(ConnectionLost(f"the broker at {self._address} has forgotten this client"))
        else:
            self._write()
            self._progressed()

    # --- endings ---

    def _detach(self) -> _Connection | None:
        """Stop all activity; returns the connection, which the caller has to close."""
        connection, self._connection = self._connection, None
        self._link.cut()
        for handle in (self._write_soon, self._ack_later, self._tick_later):
            if handle is not None:
                handle.cancel()
        if self._redialling is not None and self._redialling is not asyncio.current_task():
            self._redialling.cancel()
        return connection

    def _fail(self, error: OverlayError) -> None:
        """End the channel for good; the first reason counts."""
        if self._error is None:
            self._error = error
            connection = self._detach()
            if connection is not None:
                connection.close()
            self._progressed()
            self._end.lost(error)

    def _progressed(self) -> None:
        self._progress.set()
        self._progress.clear()
        if not self.full:
            self._end.writable()


class _Connection(asyncio.Protocol):
    """One TCP connection of a channel: bytes to frames, and the hello."""

    def __init__(self, channel: TcpChannel) -> None:
        self._channel = channel
        self._splitter = Splitter()
        self._transport: asyncio.Transport | None = None
        self.opening: asyncio.Future[Opening] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Its class depends on the event loop: uvloop's is no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._splitter.feed(data)
        except ProtocolError as error:
            self._give_up(error)
            return
        if not self.opening.done() and frames:
            try:
                self._greet(frames.pop(0))
            except OverlayError as error:
                self._give_up(error)
                return
        if frames:
            self._channel.received(self, frames)

    def connection_lost(self, reason: Exception | None) -> None:
        # Writing to a closed transport does nothing in asyncio and raises in uvloop.
        self._transport = None
        if not self.opening.done():
            self.opening.set_exception(
                reason
                if isinstance(reason, OSError)
                else ConnectionResetError("connection closed before the hello")
            )
        self._channel.disconnected(self, reason)

    def write(self, data: bytes) -> None:
        """Send this; does nothing if the connection is gone."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection after what has been written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, and stop waiting for its hello."""
        self.opening.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _greet(self, frame: bytes) -> None:
        """Take the broker's first frame. Raises the error with which it or this client refuses."""
        first = decode(frame[PREFIX_SIZE:])
        if isinstance(first, Goodbye):
            raise _meaning(first)
        if not isinstance(first, Hello):
            raise ProtocolError(f"expected a hello from the broker, got {type(first).__name__}")
        self.opening.set_result(self._channel.connected(self, first))

    def _give_up(self, error: OverlayError) -> None:
        if not self.opening.done():
            self.opening.set_exception(error)
            self.write(pack(Goodbye(error.code, str(error))))
            self.close()
        else:
            self._channel.abort(error)


class _LastFailure:
    """The error of the last of several attempts."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error


def _meaning(goodbye: Goodbye) -> OverlayError:
    """The error that a broker's goodbye means."""
    if goodbye.code:
        return from_code(goodbye.code, goodbye.reason)
    return ConnectionLost(goodbye.reason or "the broker closed the connection")


def _reason(error: Exception) -> str:
    """Why a connection failed, as the system describes it, without the address."""
    if isinstance(error, OSError) and error.errno:
        # A failed name look-up has a negative number and a text of its own.
        return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)
    return str(error) or type(error).__name__
