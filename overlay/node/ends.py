"""The ends of a node's links, and what a node has for its host."""

from __future__ import annotations

from typing import NamedTuple

from overlay.messages import Goodbye, Hop
from overlay.trace import Record
from overlay.wire.link import Link


class End:
    """This node's end of the link to one peer; hosts add the connection to it."""

    __slots__ = ("digest", "hop", "is_touched", "link", "outgoing")

    def __init__(self, hop: Hop, link: Link) -> None:
        self.hop = hop
        self.link = link
        #: Frames for the peer that are not queued on the link yet.
        self.outgoing: list[bytes] = []
        #: Whether it is among `Outputs.touched`.
        self.is_touched = False
        #: A checksum of all that was sent to the peer.
        self.digest = 0


class Ended(NamedTuple):
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
        self.ended: list[Ended] = []
        #: Keys of the timers that were set, set again or cancelled.
        self.timers: dict[str, None] = {}
