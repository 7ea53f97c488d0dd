"""Who may hand messages over to the core, and who has to wait: backpressure without deadlock.

Reading from sockets never stops, so acknowledgements always come through. A message from neighbour
n goes to the core only while each connected neighbour *other than n* has an outbox below
HIGH_WATER; a client's, while all have. So what comes from n waits only for links that lead away
from n. Follow such a wait from broker to broker: in a tree each step leads further away from where
it began, so it ends at a broker with no further neighbour, which takes what comes and acknowledges
it. Answers that go back to n itself are no reason to wait, or two brokers could wait for each
other; there is at most a handful for each message that n sent.

Clients are never waited for: one that does not read fills its outbox and is cut off, with a reason.
A neighbour that is down is not waited for either: what is meant for it is kept up to a limit. In
memory it is then given up as a whole, with a log entry that counts it, and when it comes back each
side sends the other its state anew. With a log, publishers are refused instead
(`overlay.broker.backlogs`).

When such a neighbour is back, with a log, what has waited for it does not hold up the others
either: it counts as congested when high water is added to that. Each time it is, the others wait
until it is some way below the least that has waited since it came back. So it catches up, however
much comes.

This module only keeps the account; the host acts on it.
"""

from __future__ import annotations

from overlay.hosts.peers import Neighbour, Peer

#: An outbox at which a neighbour counts as congested: about the window, so that a neighbour at full
#: speed finds its next window ready, and not much more.
HIGH_WATER_MESSAGES = 4096
HIGH_WATER_BYTES = 4 << 20

#: A congested neighbour counts as such until its outbox is down to this share of high water, so
#: that it does not change with every message. One that catches up has to get as far below what it
#: is behind.
LOW_WATER_SHARE = 0.5


class Flow:
    """The account of congested neighbours and of peers that wait for them."""

    __slots__ = ("_behind", "congested", "waiting")

    def __init__(self) -> None:
        self.congested: set[Neighbour] = set()
        #: Of neighbours that catch up: the least that has waited for them since they came back.
        self._behind: dict[Neighbour, float] = {}
        #: Peers with messages to hand over, longest wait first.
        self.waiting: dict[Peer, None] = {}

    def gauge(self, neighbour: Neighbour) -> None:
        """Look at a neighbour's outbox, after something was added, written or disconnected."""
        link = neighbour.link
        if not link.connected:
            self.congested.discard(neighbour)
            self._behind.pop(neighbour, None)
            return
        level = _level(neighbour) if link.outbox else 0.0
        behind = self._behind.get(neighbour, 0.0)
        if neighbour in self.congested:
            if level > max(LOW_WATER_SHARE, behind - LOW_WATER_SHARE):
                return
            self.congested.remove(neighbour)
        elif level > behind + 1:
            self.congested.add(neighbour)
            return
        if not behind:
            return
        if level <= LOW_WATER_SHARE:
            del self._behind[neighbour]
        else:
            self._behind[neighbour] = min(level, behind)

    def catches_up(self, neighbour: Neighbour) -> None:
        """A neighbour is back; nobody waits for what has waited for it."""
        if (level := _level(neighbour)) > LOW_WATER_SHARE:
            self._behind[neighbour] = level

    def admits(self, peer: Peer) -> bool:
        """Whether the core may take a message from this peer."""
        congested = self.congested
        return not congested or (len(congested) == 1 and peer in congested)

    def next(self) -> Peer | None:
        """The peer that has waited longest and need not wait any more, if any; it waits no more."""
        for peer in self.waiting:
            if self.admits(peer):
                del self.waiting[peer]
                return peer
        return None


def _level(neighbour: Neighbour) -> float:
    """How much waits for a neighbour, as a share of high water."""
    link = neighbour.link
    return max(len(link.outbox) / HIGH_WATER_MESSAGES, link.backlog_bytes / HIGH_WATER_BYTES)
