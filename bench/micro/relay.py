"""The yardstick of a hop: a bare Twisted relay, which forwards frames unread.

It does only what every broker on top of Twisted has to do: `Int32StringReceiver` splits the input
into frames, and the frames of one read go out in one write. Nothing is decoded, matched, numbered,
acknowledged or kept. Twisted's own flow control bounds the output buffer, so that a chain of relays
runs as fast as its slowest part.

A relay has two connections and forwards from each to the other. It listens for one or both; with a
port as argument it dials the next relay of a chain for the second. It is a child (`children`) of
the benchmarks.
"""

from __future__ import annotations

import sys
from struct import Struct
from typing import Any

from twisted.internet import reactor as installed_reactor
from twisted.internet.protocol import ClientFactory, Protocol, ServerFactory, connectionDone
from twisted.internet.stdio import StandardIO
from twisted.protocols.basic import Int32StringReceiver
from twisted.python.failure import Failure

LOOPBACK = "127.0.0.1"

# A module to mypy, and a class without types.
reactor: Any = installed_reactor
standard_io: Any = StandardIO

_prefix = Struct("!I").pack


class Relay(Int32StringReceiver):
    """One of the two connections; `pair` has those that exist."""

    def __init__(self, pair: list[Relay]) -> None:
        self._pair = pair
        self._batch: list[bytes] = []

    def connectionMade(self) -> None:
        transport: Any = self.transport
        transport.setTcpNoDelay(True)
        self._pair.append(self)
        if len(self._pair) == 1:
            transport.pauseProducing()  # There is no other connection yet.
            return
        one, other = self._pair
        one.forward_to(other)
        other.forward_to(one)

    def forward_to(self, other: Relay) -> None:
        transport: Any = self.transport
        out: Any = other.transport
        out.registerProducer(transport, True)
        self._out = out
        transport.resumeProducing()

    def dataReceived(self, data: bytes) -> None:
        cut: Any = super().dataReceived
        cut(data)
        if self._batch:
            self._out.write(b"".join(self._batch))
            self._batch.clear()

    def stringReceived(self, string: bytes) -> None:
        self._batch += _prefix(len(string)), string

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        for relay in self._pair:
            transport: Any = relay.transport
            transport.abortConnection()


class _Accepting(ServerFactory):
    noisy = False

    def __init__(self, pair: list[Relay]) -> None:
        self._pair = pair

    def buildProtocol(self, addr: object) -> Relay:
        return Relay(self._pair)


class _Dialling(_Accepting, ClientFactory):
    """The same, on the side that connects."""


class _StandardInput(Protocol):
    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if reactor.running:
            reactor.stop()


def main() -> None:
    """Relay until standard input is closed; prints the port on standard output."""
    pair: list[Relay] = []
    if len(sys.argv) > 1:
        reactor.connectTCP(LOOPBACK, int(sys.argv[1]), _Dialling(pair))
    port = reactor.listenTCP(0, _Accepting(pair), interface=LOOPBACK).getHost().port
    pipes = standard_io(_StandardInput())
    pipes.write(f"{port}\n".encode())
    reactor.run()


if __name__ == "__main__":
    main()
