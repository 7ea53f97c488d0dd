"""The ends of a node's links, and what a node has for its host."""

from __future__ import annotations

from typing import NamedTuple

from overlay.messages import Goodbye, Hop
from overlay.node.received import Received
from overlay.trace import Record
from overlay.wire.frames import is_publication
from overlay.wire.link import Link


class End:
    """This node's end of the link to one peer; hosts add the connection to it."""

    __slots__ = ("digest", "hop", "is_touched", "kept", "link", "outgoing", "received")

    def __init__(self, hop: Hop, link: Link) -> None:
        self.hop = hop
        self.link = link
        #: Frames for the peer that are not queued on the link yet.
        self.outgoing: list[bytes] = []
        #: Whether it is among `Outputs.touched`.
        self.is_touched = False
        #: A checksum of all that was sent to the peer.
        self.digest = 0
        #: What has come from it, if it is a neighbour.
        self.received = None if hop.startswith(("@", "?")) else Received()
        #: Publications for a neighbour's former life that wait to be sent to its next one.
        self.kept: list[bytes] = []

    def keep(self) -> None:
        """The neighbour begins a new life: keep the publications that its former life has not
        acknowledged. Its tables are sent anew, and everything else is void."""
        assert self.received is not None
        frames = [*self.link.unacked, *self.link.outbox, *self.outgoing]
        self.kept += [frame for frame in frames if is_publication(frame)]
        self.outgoing.clear()
        self.received.reset()

    def take_kept(self) -> list[bytes]:
        """What was kept, which is kept no longer."""
        kept, self.kept = self.kept, []
        return kept


class EndedLink(NamedTuple):
    """The node has closed a link, for good or, of a neighbour, until it comes back."""

    end: End
    #: What the peer is told.
    goodbye: Goodbye
    #: Whether the peer has broken the rules.
    expelled: bool
    #: How many messages for it were given up.
    lost: int


class Outputs:
    """What has come of inputs and waits for the host, which empties each list.

    First the records are written, then the links that were touched, then those that ended.
    """

    __slots__ = ("ended", "records", "timers", "touched")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.touched: list[End] = []
        self.ended: list[EndedLink] = []
        #: Keys of the timers that were set, set again or cancelled.
        self.timers: dict[str, None] = {}
