"""TCP under the host, by Twisted: connections, who dials whom, delays.

A connection cuts what it reads into frames (`frames`) and passes them on; a turn's output for it is
one write. It sees to its own first seconds (a hello must come in time, be small and acceptable),
and to its last: an error frame is written, our half is closed, and what the peer still sends is
read and thrown away until it closes too, LINGER_S are over or it has sent too much. Closing with
unread data would reset the connection and could take the error frame with it.

Connections that have not said hello are bounded as a whole (`pending_connections`), and so are
those of clients and operators, so that the process never runs out of files.

Of two neighbours the one whose name sorts first dials, and keeps dialling, so that brokers may
start in any order.

It knows neither links nor messages, but for the hello and the goodbye.
"""

from __future__ import annotations

import socket
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from twisted.application.internet import ClientService
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from overlay.errors import BrokerFull, OverlayError, Overloaded, PeerError, ProtocolError
from overlay.hosts.host import Host
from overlay.hosts.limited_log import LimitedLog
from overlay.hosts.peers import ClientPeer, Clock, Neighbour, OperatorPeer, Peer, Timer
from overlay.hosts.pending_connections import PendingConnections
from overlay.hosts.settings import BACKLOG
from overlay.messages import BrokerName, Goodbye, Hello
from overlay.wire.codec import FRAME_LIMIT, decode
from overlay.wire.frames import (
    BROKER_FRAME_LIMIT,
    PREFIX_SIZE,
    FirstFrame,
    Splitter,
    pack,
)
from overlay.wire.link import WINDOW_BYTES

#: How long a closed peer may take to read its goodbye.
LINGER_S = 2.0

#: What it may still send meanwhile: what a known peer may have in flight, by the window; of others
#: what one that has mistaken us for something else may have said.
LINGER_BYTES = WINDOW_BYTES + BROKER_FRAME_LIMIT
STRANGER_LINGER_BYTES = 256 << 10

#: How long a dialled host may take to answer the first packet.
DIAL_TIMEOUT_S = 5.0

#: Waits between two attempts to reach a neighbour: quick at first, because a broken connection
#: holds up the overlay, and never long, because neighbours start in any order.
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0
RETRY_FACTOR = 1.5

#: What may be on its way through an emulated delay: the window, the frame by which it can be
#: exceeded, and as much for acknowledgements.
DELAYED_BYTES = 2 * (WINDOW_BYTES + BROKER_FRAME_LIMIT)

#: A timer comes late by what the machine needs to wake up, some tenths of a millisecond on an idle
#: one; over a path of many delays that adds up. A delay line sees how late its timers are and sets
#: them early by that, so that its delays are right on the average; never by more than this.
EARLY_LIMIT_S = 0.0005

#: How many timers the average goes back.
EARLY_MEMORY = 8

#: How often a port that stops looks whether its connections have ended.
STOPPING_POLL_S = 0.02


#: Bytes that are read from a client at a time: they are decoded at once, and operations of 80 bytes
#: take 10 us each, so this is 2 ms. (Twisted reads 64 KiB.)
CLIENT_READ_BYTES = 1 << 14


class DelayLine:
    """Gives on what is put in, in order, `delay_s` later."""

    __slots__ = ("_aim", "_call", "_clock", "_delay_s", "_early_s", "_held", "_line", "_out")

    def __init__(self, clock: Clock, delay_s: float, out: Callable[[bytes], None]) -> None:
        self._clock = clock
        self._delay_s = delay_s
        self._out = out
        self._line: deque[tuple[float, bytes]] = deque()
        self._held = 0
        self._call: Timer | None = None
        #: When the timer should run out, and how much earlier than that is set what is due.
        self._aim = 0.0
        self._early_s = 0.0

    def put(self, data: bytes) -> None:
        """Raises ProtocolError if the line is over-full: somebody ignores the window."""
        self._held += len(data)
        if self._held > DELAYED_BYTES:
            raise ProtocolError("the peer sends without waiting for acknowledgements")
        now = self._clock.seconds()
        self._line.append((now + self._delay_s, data))
        if self._call is None:
            self._set(now)

    def _due(self) -> None:
        self._call = None
        now = self._clock.seconds()
        late_s = min(max(now - self._aim, 0.0), EARLY_LIMIT_S)
        self._early_s += (late_s - self._early_s) / EARLY_MEMORY
        while self._line and self._line[0][0] <= now + self._early_s:
            data = self._line.popleft()[1]
            self._held -= len(data)
            self._out(data)
        if self._line and self._call is None:
            self._set(now)

    def _set(self, now: float) -> None:
        self._aim = max(now, self._line[0][0] - self._early_s)
        self._call = self._clock.callLater(self._aim - now, self._due)

    def end(self, *, give_on: bool) -> None:
        """Stop, giving on at once what is inside, or dropping it."""
        if self._call is not None:
            self._call.cancel()
            self._call = None
        line, self._line = self._line, deque()
        self._held = 0
        if give_on:
            for _, data in line:
                self._out(data)


class Connection(Protocol):
    """One TCP connection of a broker; a `peers.Wire`.

    It is pending until `_peer` is known, then open until `_closing`.
    """

    def __init__(self, tcp: Tcp, dialled: Neighbour | None = None) -> None:
        self._tcp = tcp
        self._host = tcp.host
        self._clock: Clock = tcp.reactor
        self._dialled = dialled
        self._peer: Peer | None = None
        self._closing = False
        self._first = FirstFrame()
        self._splitter = Splitter(FRAME_LIMIT)
        #: What came behind a hello; it waits until the host has answered that.
        self._behind_hello = b""
        self._hello_waits = False
        #: Bytes that came after we had closed.
        self._thrown_away = 0
        self._timeout: Timer | None = None
        self._delayed_in: DelayLine | None = None
        self._delayed_out: DelayLine | None = None

    @property
    def dialled(self) -> bool:
        return self._dialled is not None

    @property
    def ended(self) -> bool:
        return self._closing

    @property
    def ip(self) -> str:
        """The IP address of the other end."""
        transport: Any = self.transport
        return str(getattr(transport.getPeer(), "host", ""))

    @property
    def address(self) -> str:
        transport: Any = self.transport
        return _readable(transport.getPeer())

    # What Twisted calls.

    def connectionMade(self) -> None:
        transport: Any = self.transport
        transport.setTcpNoDelay(True)
        self._tcp.made(self)
        timeout_s = self._host.settings.hello_timeout_s
        self._timeout = self._clock.callLater(timeout_s, self._no_hello)
        if self._dialled is not None:
            self._guard(self._host.call, self, self._dialled)

    def dataReceived(self, data: bytes) -> None:
        if self._closing:
            self._throw_away(data)
            return
        peer = self._peer
        if self._hello_waits:
            self._behind_hello += data  # At most what was read at once: reading has paused.
            return
        if peer is None:
            self._guard(self._begin, data)
            return
        peer.link.heard(self._host.now())
        self._guard(self._take, data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._closing = True
        self._tcp.lost(self, self._peer)
        self._cancel_timeout()
        self._end_delays(give_on=False)
        peer = self._peer or self._dialled
        if peer is not None:
            self._guard(self._host.lost, self, peer)

    # What arrives.

    def _guard(self, step: Callable[..., None], *args: Any) -> None:
        """Run a step; the peer's mistake costs it the connection, ours ends the process."""
        try:
            step(*args)
        except OverlayError as error:
            if self._peer is None:
                self._refuse(error)
            elif isinstance(error, PeerError):
                self._host.expel(self._peer, error)
            else:
                self._host.crash()
        except Exception:
            self._host.crash()

    def _begin(self, data: bytes) -> None:
        """Take the first frame, which has to be a hello, and what came along with it."""
        split = self._first.feed(data)
        if split is None:
            return
        frame, rest = split
        hello = decode(frame[PREFIX_SIZE:])
        if isinstance(hello, Goodbye) and self._dialled is not None:
            self._host.refused(self._dialled, hello)
            self._tcp.refused_by_neighbour.write(
                neighbour=self._dialled.name, code=hello.code, reason=hello.reason
            )
            self.abort()
            return
        if not isinstance(hello, Hello):
            raise ProtocolError(f"the first frame is a {type(hello).__name__}, not a hello")
        self._cancel_timeout()
        self._behind_hello = rest
        if self._dialled is not None:
            self._host.answered(self, self._dialled, hello)
        else:
            self._tcp.check_room(hello)
            self._host.accept(self, hello)
        if self._peer is not None:
            self._take_rest()
        elif not self._closing:
            self._hello_waits = True
            transport: Any = self.transport
            transport.pauseProducing()

    def _take_rest(self) -> None:
        """Take what came behind the hello."""
        rest, self._behind_hello = self._behind_hello, b""
        if rest and self._peer is not None:
            self._take(rest)

    def _go_on(self) -> None:
        """The hello that waited was answered: read on."""
        if not self._closing:
            transport: Any = self.transport
            transport.resumeProducing()
            self._guard(self._take_rest)

    def _take(self, data: bytes) -> None:
        if self._delayed_in is None:
            self._arrived(data)
        else:
            self._delayed_in.put(data)

    def _throw_away(self, data: bytes) -> None:
        self._thrown_away += len(data)
        limit = STRANGER_LINGER_BYTES if self._peer is None else LINGER_BYTES
        if self._thrown_away > limit:
            self.abort()

    def _arrived(self, data: bytes) -> None:
        assert self._peer is not None
        if not self._closing:
            self._host.arrived(self._peer, self._splitter.feed(data))

    def _no_hello(self) -> None:
        self._timeout = None
        self._refuse(ProtocolError(f"no hello within {self._host.settings.hello_timeout_s:g} s"))

    def _cancel_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def _refuse(self, error: OverlayError) -> None:
        """End a connection that never became a peer's."""
        self._tcp.note_refusal(self, error)
        self.close(Goodbye(error.code, str(error)))

    def make_room(self, error: OverlayError) -> None:
        """End a pending connection in favour of a newer one, without waiting for its other end."""
        if not self._closing:
            self._tcp.note_refusal(self, error)
            self._closing = True
            self._cancel_timeout()
            self._write(pack(Goodbye(error.code, str(error))))
        transport: Any = self.transport
        transport.loseConnection()

    # What the host calls: `peers.Wire`.

    def opened(self, peer: Peer) -> None:
        self._peer = peer
        self._tcp.opened(self, peer)
        if self._hello_waits:
            self._hello_waits = False
            self._clock.callLater(0, self._go_on)
        if isinstance(peer, Neighbour):
            self._splitter.limit = BROKER_FRAME_LIMIT
        else:
            transport: Any = self.transport
            transport.bufferSize = CLIENT_READ_BYTES
        # From now on what we write is late, and what a client writes as well, so that it need not
        # know; a neighbour delays on its own side.
        if peer.delay_s:
            self._delayed_out = DelayLine(self._clock, peer.delay_s, self._write)
            if isinstance(peer, ClientPeer):
                self._delayed_in = DelayLine(self._clock, peer.delay_s, self._delayed_arrival)

    def write(self, data: bytes) -> None:
        if self._delayed_out is None:
            self._write(data)
        else:
            self._delayed_out.put(data)

    def _write(self, data: bytes) -> None:
        transport: Any = self.transport
        transport.write(data)

    def close(self, goodbye: Goodbye) -> None:
        if self._closing:
            return
        self._end_delays(give_on=True)
        self._closing = True
        self._cancel_timeout()
        self._write(pack(goodbye))
        transport: Any = self.transport
        transport.loseWriteConnection()
        self._timeout = self._clock.callLater(LINGER_S, self._lingered)

    def _lingered(self) -> None:
        self._timeout = None
        self.abort()

    def abort(self) -> None:
        self._closing = True
        self._end_delays(give_on=False)
        transport: Any = self.transport
        transport.abortConnection()

    def _delayed_arrival(self, data: bytes) -> None:
        self._guard(self._arrived, data)

    def _end_delays(self, *, give_on: bool) -> None:
        if self._delayed_in is not None:
            self._delayed_in.end(give_on=False)
            self._delayed_in = None
        if self._delayed_out is not None:
            self._delayed_out.end(give_on=give_on)
            self._delayed_out = None


class _Connecting(Factory):
    """Makes connections, accepted or dialled."""

    noisy = False

    def __init__(self, tcp: Tcp, dialled: Neighbour | None = None) -> None:
        self._tcp = tcp
        self._dialled = dialled

    def buildProtocol(self, addr: IAddress | None) -> Connection:
        return Connection(self._tcp, self._dialled)


class Tcp:
    """A host's listening port and the neighbours that it dials.

    `listen` first, then `dial`; `stop` ends both and answers when it has.
    """

    def __init__(self, host: Host, reactor: Any) -> None:
        self.host = host
        self.reactor = reactor
        #: Those that are open, oldest first.
        self.connections: dict[Connection, None] = {}
        settings = host.settings
        self._pending = PendingConnections[Connection](
            settings.pending_connections, settings.pending_per_address
        )
        #: How many of each kind of peer are connected, and how many connections were refused.
        self._open: Counter[type[Peer]] = Counter()
        self._refusals: Counter[str] = Counter()
        log = Logger(namespace="overlay.hosts.tcp")
        self._refused = LimitedLog(log, reactor, "connection refused")
        self.refused_by_neighbour = LimitedLog(log, reactor, "refused by neighbour", "error")
        host.reports["connections"] = self._report
        self._port: Any = None
        self._dialling: list[ClientService] = []

    def listen(self, interface: str, port: int) -> int:
        """Listen at an IP address or a name that has one; answers the port.

        Raises OSError for a name without an address, CannotListenError for a busy port.
        """
        address = socket.getaddrinfo(interface, port, type=socket.SOCK_STREAM)[0][4][0]
        listening = self.reactor.listenTCP(
            port,
            _Connecting(self),
            backlog=BACKLOG,
            interface=address,
        )
        self._port = listening
        return int(listening.getHost().port)

    def dial(self, addresses: Mapping[BrokerName, tuple[str, int]]) -> None:
        """Connect to those neighbours that are ours to dial, and go on doing so."""
        for name, (address, port) in addresses.items():
            if self.host.dials(name):
                neighbour = self.host.neighbours[name]
                # Any: zope's interfaces mean nothing to mypy.
                endpoint: Any = HostnameEndpoint(
                    self.reactor, address.encode(), port, timeout=DIAL_TIMEOUT_S
                )
                connecting: Any = _Connecting(self, neighbour)
                service = ClientService(
                    endpoint,
                    connecting,
                    retryPolicy=_patience(neighbour),
                    clock=self.reactor,
                )
                service.startService()
                self._dialling.append(service)

    # What connections call.

    def made(self, connection: Connection) -> None:
        """A connection is there; until it is `opened`, it is pending."""
        self.connections[connection] = None
        if not connection.dialled:
            oldest = self._pending.add(connection, connection.ip)
            if oldest is not None:
                oldest.make_room(Overloaded("too many connections have not said hello"))

    def check_room(self, hello: Hello) -> None:
        """Raises BrokerFull if there are as many clients or operators as there may be."""
        settings = self.host.settings
        limit = {
            "client": (ClientPeer, settings.client_connections),
            "operator": (OperatorPeer, settings.operator_connections),
        }.get(hello.role)
        if limit is not None and self._open[limit[0]] >= limit[1]:
            raise BrokerFull(
                f"{self.host.name} has {limit[1]} {hello.role}s connected, which is its limit"
            )

    def opened(self, connection: Connection, peer: Peer) -> None:
        """A connection has become a peer's."""
        self._pending.remove(connection)
        self._open[type(peer)] += 1

    def lost(self, connection: Connection, peer: Peer | None) -> None:
        """A connection has ended."""
        self.connections.pop(connection, None)
        self._pending.remove(connection)
        if peer is not None:
            self._open[type(peer)] -= 1

    def note_refusal(self, connection: Connection, error: OverlayError) -> None:
        self._refusals[error.code] += 1
        self._refused.write(address=connection.address, code=error.code, reason=str(error))

    def _report(self) -> dict[str, Any]:
        settings = self.host.settings
        return {
            "clients": self._open[ClientPeer],
            "clients_limit": settings.client_connections,
            "operators": self._open[OperatorPeer],
            "pending": len(self._pending),
            "pending_limit": settings.pending_connections,
            "refused": dict(sorted(self._refusals.items())),
        }

    # Its end.

    def refuse(self) -> None:
        """Take no more connections and make none."""
        if self._port is not None:
            self._port.stopListening()
        for service in self._dialling:
            service.stopService()
        self._dialling.clear()

    def drop(self) -> None:
        """End all connections without a goodbye, so that the other ends will come back."""
        self.refuse()
        for connection in list(self.connections):
            connection.abort()

    def stop(self, patience_s: float) -> Deferred[None]:
        """Take no more connections and make none; the open ones say goodbye.

        Answers when they have ended, or have been ended after `patience_s`.
        """
        self.refuse()
        self.host.stop()
        for connection in self.connections:
            connection.close(Goodbye())
        stopped: Deferred[None] = Deferred()
        deadline = self.reactor.seconds() + patience_s
        self._await_end(stopped, deadline)
        return stopped

    def _await_end(self, stopped: Deferred[None], deadline: float) -> None:
        if self.connections and self.reactor.seconds() < deadline:
            self.reactor.callLater(STOPPING_POLL_S, self._await_end, stopped, deadline)
            return
        for connection in list(self.connections):
            connection.abort()
        stopped.callback(None)


def _patience(neighbour: Neighbour) -> Callable[[int], float]:
    """How long to wait before attempt n; one that connects and is refused counts as failed too."""

    def wait_s(attempt: int) -> float:
        exponent = min(max(attempt, neighbour.refusals) - 1, 100)
        return float(min(RETRY_FIRST_S * RETRY_FACTOR**exponent, RETRY_MAX_S))

    return wait_s


def _readable(address: object) -> str:
    if isinstance(address, IPv4Address | IPv6Address):
        return f"{address.host}:{address.port}"
    return str(address)
