"""Simulated TCP connections: bytes in order, with chosen delays, until a connection breaks.

A `Socket` is one end of a connection, and Twisted's transport for the protocol at that end, so
brokers run the real `overlay.hosts.tcp.Connection` on it. What breaks a connection also takes what
is on its way, or not: that is chosen, as a kernel may still send what a dead process has written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.python.failure import Failure

from overlay.messages import Hop

#: Twisted is not typed.
_failure: Any = Failure
_LOST = _failure(ConnectionLost())
_DONE = _failure(ConnectionDone())


class Owner(Protocol):
    """Who has an end of a connection: a broker process or a client program."""

    def step(self, act: Callable[..., object], *arguments: Any) -> None:
        """Let something happen in the owner, if it still lives."""

    def before_write(self) -> None:
        """The owner is about to write; raises what ends it, if this is its end."""


class SimulatedNetwork(Protocol):
    """What connections need of the simulator."""

    now: float

    def chosen_delay_s(self) -> float:
        """How long the next bytes take."""

    def choose_whether(self) -> bool:
        """One of two possibilities."""

    def happen(self, at: float, act: Callable[[], None]) -> object:
        """Let something happen at a time."""

    def note(self, source: Hop, dest: Hop, data: bytes) -> None:
        """Bytes have arrived."""


class PeerAddress(NamedTuple):
    host: str
    port: int


class Socket:
    """One end of a connection."""

    def __init__(self, network: SimulatedNetwork, owner: Owner, hop: Hop) -> None:
        self._network = network
        self.owner = owner
        self.hop = hop
        #: What reads here: a Twisted protocol, or what looks like one.
        self.protocol: Any = None
        self.peer: Socket
        #: Nothing arrives here any more.
        self.ended = False
        self._closed = False
        #: What was written here and has not arrived is lost.
        self._dropped = False
        self._arrives = 0.0
        self._paused = False
        self._waiting: list[bytes] = []
        self._end_waits = False

    # What a protocol calls: Twisted's ITCPTransport.

    bufferSize = 0

    def write(self, data: bytes) -> None:
        if not (self.ended or self._closed):
            self.owner.before_write()
            self._send(partial(self.peer._receive, data), is_data=True)

    def loseWriteConnection(self) -> None:
        if not (self.ended or self._closed):
            self._closed = True
            self._send(self.peer._end)

    def loseConnection(self) -> None:
        self.loseWriteConnection()

    def abortConnection(self) -> None:
        if not self.ended:
            self._leave()
            lost = partial(self.owner.step, self.protocol.connectionLost, _LOST)
            self._network.happen(self._network.now, lost)

    def pauseProducing(self) -> None:
        self._paused = True

    def resumeProducing(self) -> None:
        self._paused = False
        waiting, self._waiting = self._waiting, []
        for data in waiting:
            self._network.happen(self._network.now, partial(self._receive, data))
        if self._end_waits:
            self._network.happen(self._network.now, self._end)

    def setTcpNoDelay(self, enabled: bool) -> None:
        pass

    def getPeer(self) -> PeerAddress:
        return PeerAddress(self.peer.hop, 0)

    # What the simulator calls.

    def open(self, protocol: Any) -> None:
        """Give this end to a protocol."""
        self.protocol = protocol
        self.owner.step(protocol.makeConnection, self)

    def offer(self, make: Callable[[], Any]) -> None:
        """Let the other end be accepted: its protocol is made when the connection arrives."""
        self._send(lambda: self.peer._accept(make))

    def die(self) -> None:
        """The owner is dead, and the other end hears of it."""
        if not self.ended:
            self._leave()

    def break_off(self) -> None:
        """The network loses the connection, and what is on it; both ends notice in time."""
        for end in (self, self.peer):
            end._dropped = True
        for end in (self, self.peer):
            end._send(end.peer._end)

    # Inside.

    def _accept(self, make: Callable[[], Any]) -> None:
        if not self.ended:
            self.owner.step(lambda: self.open(make()))

    def _leave(self) -> None:
        self.ended = True
        self._dropped = self._dropped or self._network.choose_whether()
        self._send(self.peer._end)

    def _send(self, act: Callable[[], None], *, is_data: bool = False) -> None:
        network = self._network
        self._arrives = max(network.now + network.chosen_delay_s(), self._arrives)

        def arrive() -> None:
            if not (is_data and self._dropped):
                act()

        network.happen(self._arrives, arrive)

    def _receive(self, data: bytes) -> None:
        if self.ended or self.protocol is None:
            return
        if self._paused:
            self._waiting.append(data)
            return
        self._network.note(self.peer.hop, self.hop, data)
        self.owner.step(self.protocol.dataReceived, data)

    def _end(self) -> None:
        if self.ended:
            return
        if self._paused:
            self._end_waits = True
            return
        self.ended = True
        if not self.peer.ended:
            self._send(self.peer._end)
        if self.protocol is not None:
            self.owner.step(self.protocol.connectionLost, _DONE)


def connect(
    network: SimulatedNetwork, dialling: tuple[Owner, Hop], accepting: tuple[Owner, Hop]
) -> Socket:
    """Make a connection; returns the dialling end."""
    one, other = Socket(network, *dialling), Socket(network, *accepting)
    one.peer, other.peer = other, one
    return one
