"""The end of a client's link in a simulation with connections: it dials, resumes and acknowledges.

What a client answers to a message is its function's business (`overlay.hosts.simulator.Client`);
here is what the library's channel does (`padres_tx.client.asyncio.channel`), without its limits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from overlay.hosts.simulator import Client
from overlay.messages import AnyMessage, BrokerName, Goodbye, Hello, Hop
from overlay.wire.codec import decode
from overlay.wire.frames import PREFIX_SIZE, Splitter, pack
from overlay.wire.link import Link, Opening
from proofs.sim.sockets import Socket

#: Longer than any run in virtual time: silence means nothing here.
NEVER_S = 1e9


class ClientProgram:
    """One client; it is a protocol to its socket."""

    def __init__(
        self,
        hop: Hop,
        edge: BrokerName,
        incarnation: str,
        receive: Client,
        now: Callable[[], float],
        closed: Callable[[ClientProgram, str, str], None],
        lost: Callable[[ClientProgram], None],
    ) -> None:
        """`closed` is called when the broker has closed on it, `lost` when a connection is gone."""
        self.hop = hop
        self.edge = edge
        self.receive = receive
        self.link = Link(incarnation, heartbeat_s=NEVER_S, idle_s=NEVER_S)
        self.socket: Socket | None = None
        self.alive = True
        #: Connections in a row that were refused.
        self.refusals = 0
        self._now = now
        self._closed = closed
        self._lost = lost
        self._splitter = Splitter()

    # A socket's owner.

    def step(self, act: Callable[..., object], *arguments: Any) -> None:
        if self.alive:
            act(*arguments)

    def before_write(self) -> None:
        pass

    # A protocol.

    def makeConnection(self, socket: Socket) -> None:
        self.socket = socket
        self._splitter = Splitter()
        socket.write(pack(self.link.hello("client", self.hop[1:])))

    def dataReceived(self, data: bytes) -> None:
        frames = self._splitter.feed(data)
        if not self.link.connected and frames:
            self._answered(decode(frames.pop(0)[PREFIX_SIZE:]))
        if not self.alive or not self.link.connected:
            return
        goodbye = self.link.receive_all(frames)
        while self.link.inbox and self.alive:
            message = self.link.hand_over()
            for answer in self.receive(message, self._now()):
                self.send(answer)
        if goodbye is not None and self.alive:
            self._closed(self, goodbye.code, goodbye.reason)
        self._flush()

    def connectionLost(self, reason: object) -> None:
        self.socket = None
        self.link.cut()
        self._lost(self)

    def _answered(self, value: object) -> None:
        if isinstance(value, Goodbye):
            self.refusals += 1
            if self.socket is not None:
                self.socket.abortConnection()
            return
        assert isinstance(value, Hello), value
        if self.link.open(value, self._now()) is Opening.RESET:
            self._closed(self, "reset", "the broker has forgotten the client")
            return
        self.refusals = 0
        self._flush()

    # The program.

    def send(self, message: AnyMessage) -> None:
        self.link.send(pack(message))
        self._flush()

    def leave(self) -> None:
        """Say goodbye, after all that was said."""
        self._flush()
        if self.socket is not None:
            self.socket.write(pack(Goodbye()))

    def _flush(self) -> None:
        if self.socket is not None and self.alive:
            frames = self.link.take(self._now(), idle=True)
            if frames:
                self.socket.write(b"".join(frames))
