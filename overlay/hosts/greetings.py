"""Connections that come: hellos are exchanged, and a link is connected, in a new life if need be.

A hello says how many messages have been received. So it waits until nothing of its peer is on its
way to the node, and the life of a link begins when the node has heard of it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from twisted.logger import Logger

from overlay.errors import OverlayError, ProtocolError
from overlay.hosts.handshake import Handshake
from overlay.hosts.inputs import Inputs
from overlay.hosts.peers import ClientPeer, Greeting, Neighbour, OperatorPeer, Peer, Wire
from overlay.messages import ClientName, Goodbye, Hello, Hop, client_hop
from overlay.node.inputs import Opened
from overlay.wire.frames import pack
from overlay.wire.link import Opening

if TYPE_CHECKING:
    from overlay.hosts.host import Host


class Greetings:
    """Takes connections of peers that dial and that are dialled."""

    def __init__(self, host: Host, handshake: Handshake) -> None:
        self._host = host
        self._handshake = handshake
        #: Clients whose first connection is there, and whose link is about to begin.
        self._newcomers: dict[Hop, ClientPeer] = {}
        self._log = Logger(namespace="overlay.hosts.greetings")

    @property
    def _inputs(self) -> Inputs:
        return self._host.inputs

    def make_client(self, hop: Hop, incarnation: str) -> ClientPeer:
        """The client whose link begins."""
        newcomer = self._newcomers.pop(hop, None)
        if newcomer is not None and newcomer.link.incarnation == incarnation:
            return newcomer
        return self._handshake.client(ClientName(hop[1:]), incarnation)

    def call(self, wire: Wire, neighbour: Neighbour) -> None:
        """A neighbour has been dialled: say hello."""
        neighbour.calling = wire
        neighbour.refusals += 1
        self._greet(neighbour, Greeting(wire, None))

    def accept(self, wire: Wire, hello: Hello) -> None:
        """Somebody has connected and said hello: answer it.

        Raises OverlayError if they may not; nothing has changed then.
        """
        hop = client_hop(hello.name)
        known = self._newcomers.get(hop) or self._host.peer(hop)
        if known is not None and known.gone:
            known = None
        peer = self._handshake.admit(hello, known, self._host.now())
        if isinstance(peer, Neighbour):
            self._host.rivals[peer.name].check(peer, hello, wire, self._host.now())
        elif isinstance(peer, ClientPeer):
            if known is not None and known is not peer:
                self._log.info("client replaced by a newcomer", client=peer.name)
                self._host.end_link(known)
            self._host.tell_departed(peer.name)
        self._host.detach(peer)
        self._greet(peer, Greeting(wire, hello))
        self._host.end_turn(self._host.now())

    def _greet(self, peer: Peer, greeting: Greeting) -> None:
        """Say hello, or answer one, as soon as nothing of the peer is on its way to the node."""
        if peer.staged:
            peer.greeting = greeting
        elif greeting.hello is None:
            assert isinstance(peer, Neighbour)
            greeting.wire.write(
                pack(peer.link.hello("broker", self._host.name, self._host.settings.secret))
            )
        else:
            self._open(peer, greeting.wire, greeting.hello)

    def answered(self, wire: Wire, neighbour: Neighbour, hello: Hello) -> None:
        """The neighbour that was dialled has answered.

        Raises OverlayError if it is not the one.
        """
        self._handshake.recognise(hello, neighbour)
        # A neighbour can be given up while the answer is out; then this connection is aborted.
        assert neighbour.calling is wire
        neighbour.refusals = 0
        self._host.rivals[neighbour.name].refusal = ""
        self._open(neighbour, wire, hello)
        self._host.end_turn(self._host.now())

    def _open(self, peer: Peer, wire: Wire, hello: Hello) -> None:
        """Connect the link, in a new life if one of the two ends has begun one.

        Raises ProtocolError if the hello contradicts what was said on this link.
        """
        link = peer.link
        opening = link.opening(hello)
        lost = link.given_up if opening is Opening.RESET else 0
        connect = partial(self._connect, peer, wire, hello, opening, lost)
        if isinstance(peer, OperatorPeer):
            self._host.node.ends[peer.hop] = peer
            connect()
        elif opening is Opening.RESUMED:
            connect()
        else:
            if isinstance(peer, ClientPeer):
                self._newcomers[peer.hop] = peer
                peer.greeting = Greeting(wire, hello)  # Its name is taken already.
            incarnation = link.next_incarnation(opening)
            reset = opening is Opening.RESET
            self._inputs.submit(
                Opened(peer.hop, incarnation, hello.incarnation, reset), peer, connect
            )

    def _connect(self, peer: Peer, wire: Wire, hello: Hello, opening: Opening, lost: int) -> None:
        """The link lives the life that the hello is about: connect it.

        Raises ProtocolError if the hello contradicts what was said on this link.
        """
        calling = peer.calling if isinstance(peer, Neighbour) else None
        dialled = calling is wire
        if peer.greeting is not None and peer.greeting.wire is wire:
            peer.greeting = None
        if peer.gone:
            wire.abort()
            return
        if wire.ended:
            if calling in (None, wire) and peer.greeting is None:
                self._host.unconnected(peer)
            return  # Otherwise there is a newer connection.
        try:
            peer.link.open(hello, self._host.now())
        except ProtocolError:
            self._host.end_link(peer)
            raise
        peer.wire = wire
        if isinstance(peer, Neighbour):
            peer.calling = None
        elif isinstance(peer, ClientPeer):
            self._host.returned(peer)
        if not dialled:
            secret = self._host.settings.secret if isinstance(peer, Neighbour) else ""
            wire.write(pack(peer.link.hello("broker", self._host.name, secret)))
        wire.opened(peer)
        if isinstance(peer, Neighbour):
            self._host.linked(peer, opening, lost)
        else:
            self._log.info("peer connected", hop=peer.hop, opening=opening.value)
        self._host.touch(peer)

    def settled(self, peer: Peer) -> None:
        """An input of a peer has been applied."""
        peer.staged -= 1
        greeting = peer.greeting
        if greeting is not None and not peer.staged:
            peer.greeting = None
            if not greeting.wire.ended:
                try:
                    self._greet(peer, greeting)
                except OverlayError as error:
                    greeting.wire.close(Goodbye(error.code, str(error)))
