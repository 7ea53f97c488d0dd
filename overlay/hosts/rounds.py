"""Whose messages the core takes next: peers take turns by work (deficit round robin).

A peer that has messages in its inbox stands in a queue. In its turn it may use so many units of
work (`overlay.broker.turns`); what is left waits for its next turn, behind everybody else. What a
message costs is known only when the core has taken it, so a turn may be overdrawn, and the debt is
paid in the next turns. A peer that is alone in the queue has one turn after the other: nothing is
held back without need. So a client with forty thousand subscriptions delays another one by one
turn at most, and not by forty thousand subscriptions.

All turns between two looks of the reactor at its sockets and timers are a *round*, which ends when
ROUND_UNITS are used. Slices of long work run between rounds. A peer that had nothing to say and
owes nothing has its first turn before the others, and if need be beyond the end of the round,
within FRESH_UNITS: so a client with an event now and then does not wait for those that always have
more.

Units are counts, the same on every machine: nothing here looks at a clock. This module only keeps
the account; the host acts on it.
"""

from __future__ import annotations

from overlay.hosts.peers import Neighbour, Peer

#: Units of work in one round: about 1.6 ms here, 5 ms on a slow machine. With a slice of long work
#: after it, that stays well under the 20 ms that nobody should have to wait.
ROUND_UNITS = 64

#: Units beyond the end of a round for peers that come with their first messages.
FRESH_UNITS = 32

#: Units that a peer's turn gives it: a client's is two operations or some hundred publications. A
#: neighbour speaks for many clients.
CLIENT_UNITS = 16
NEIGHBOUR_UNITS = 64


class Rounds:
    """The queue of peers with messages, and what the present round has used."""

    __slots__ = ("_fresh", "_queue", "used")

    def __init__(self) -> None:
        #: Peers that had nothing to hand over and have now; they come first.
        self._fresh: dict[Peer, None] = {}
        #: Peers with messages to hand over; the first is next.
        self._queue: dict[Peer, None] = {}
        #: Units that this round has used so far.
        self.used = 0.0

    def __len__(self) -> int:
        return len(self._fresh) + len(self._queue)

    @property
    def over(self) -> bool:
        """Whether everything else has to wait for the next round."""
        return self.used >= (ROUND_UNITS + FRESH_UNITS if self._fresh else ROUND_UNITS)

    def come(self, peer: Peer) -> None:
        """Messages of a peer have come; if it stands in the queue, it stays where it is."""
        if peer not in self._queue:
            (self._fresh if peer.units >= 0 else self._queue)[peer] = None

    def add(self, peer: Peer) -> None:
        """Put a peer at the end of the queue, if it does not stand there."""
        if peer not in self._fresh:
            self._queue.setdefault(peer)

    def remove(self, peer: Peer) -> None:
        self._fresh.pop(peer, None)
        self._queue.pop(peer, None)

    def next(self) -> Peer | None:
        """The peer whose turn it is, with its units; it leaves the queue. None if there is none."""
        while queue := self._fresh or self._queue:
            peer = next(iter(queue))
            del queue[peer]
            peer.units += NEIGHBOUR_UNITS if isinstance(peer, Neighbour) else CLIENT_UNITS
            if peer.units > 0:
                return peer
            self._queue[peer] = None  # It has overdrawn its last turns.
        return None

    def use(self, peer: Peer | None, units: float) -> None:
        """An input of a peer, or of nobody in particular, has cost so much."""
        if peer is not None:
            peer.units -= units
        self.used += units

    def rest(self, peer: Peer) -> None:
        """A peer has nothing to hand over: it keeps its debt, and no savings."""
        peer.units = min(peer.units, 0.0)
