"""Who is at the other end of a broker's links: neighbours, clients, operators.

Each is a record that outlives TCP connections, with its link and the connection it has at the
moment, if any. What follows from their coming and going is the host's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from overlay.messages import BrokerName, ClientName, Goodbye, Hello, Hop, client_hop
from overlay.node.ends import End
from overlay.wire.link import Link


class Timer(Protocol):
    """A call that is going to be made; Twisted's IDelayedCall."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Twisted's IReactorTime, so far as it is used here: a reactor or a `task.Clock`."""

    def seconds(self) -> float: ...

    def callLater(self, delay: float, callable: Callable[..., Any], *args: Any) -> Timer: ...


class Wire(Protocol):
    """A TCP connection, as far as the host has to know."""

    @property
    def address(self) -> str:
        """Where the other end is, for people."""

    @property
    def ended(self) -> bool:
        """Whether nothing can be written any more."""

    def opened(self, peer: Peer) -> None:
        """The hellos are exchanged, and this is the peer's connection now."""

    def write(self, data: bytes) -> None:
        """Send whole frames, after the link's emulated delay."""

    def close(self, goodbye: Goodbye) -> None:
        """Say goodbye after what has been written, and end."""

    def abort(self) -> None:
        """End at once; what has not been sent is sent again on the next connection."""


class Greeting(NamedTuple):
    """A connection whose hello waits until all that came before it is settled."""

    wire: Wire
    #: What the other end has said; None if it is ours to say hello first.
    hello: Hello | None


class Peer(End):
    """The part that is the same for everyone."""

    __slots__ = ("delay_s", "gone", "greeting", "leaving", "staged", "units", "wire")

    def __init__(self, hop: Hop, link: Link, delay_s: float = 0.0) -> None:
        super().__init__(hop, link)
        self.wire: Wire | None = None
        #: Emulated one-way delay of this link.
        self.delay_s = delay_s
        #: It has said goodbye, and goes when what it said before has been handed over.
        self.leaving = False
        #: It is not here any more; the node may still have to hear of that.
        self.gone = False
        #: Inputs of it, or about it, that are on their way to the node.
        self.staged = 0
        #: A new connection that waits for these.
        self.greeting: Greeting | None = None
        #: Units of work that are left of its turn, or were overdrawn (`overlay.hosts.rounds`).
        self.units = 0.0


class Neighbour(Peer):
    """An adjacent broker; it is there as long as the topology is."""

    __slots__ = ("absence", "absent", "calling", "forgetting", "name", "refusals", "reporting")

    def __init__(self, name: BrokerName, link: Link, delay_s: float) -> None:
        super().__init__(Hop(name), link, delay_s)
        self.name = name
        #: A connection that we have made, and whose answer is still out.
        self.calling: Wire | None = None
        #: Connections in a row that ended without an answer: the dialling side waits longer.
        self.refusals = 0
        #: Whether the core has been told that it cannot be reached, and what will tell it.
        self.absent = False
        self.absence: Timer | None = None
        #: The node is about to give it up.
        self.forgetting = False
        #: The node is about to be told that its outbox is full, or has room again.
        self.reporting = False


class ClientPeer(Peer):
    """A client; after its connection is lost it has its grace period to come back."""

    __slots__ = ("grace", "kept_bytes", "lost_at", "name", "parted")

    def __init__(self, name: ClientName, link: Link, delay_s: float) -> None:
        super().__init__(client_hop(name), link, delay_s)
        self.name = name
        self.grace: Timer | None = None
        #: Bytes in its outbox when the host looked last.
        self.kept_bytes = 0
        #: When its connection was lost, by the host's time.
        self.lost_at = 0.0
        #: The core knows that it leaves, and closes its link when every broker has forgotten it.
        self.parted = False


class OperatorPeer(Peer):
    """Somebody who asks for the broker's state; gone with the connection."""

    __slots__ = ()
