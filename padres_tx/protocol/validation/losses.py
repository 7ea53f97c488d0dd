"""How often a client's transactions have lost, as the client's edge broker counts it.

A transaction that loses to another client's is begun again with the age of its first attempt, so
that it is older than its rivals. After FENCE_AFTER losses it gets a fence, which is precedence over
everything else (`padres_tx.engines.d_tx.broker`). Both are granted by the edge broker's own count,
not because a client says so: an age counts if this broker has given it to this client, and the last
attempt of that age has lost. Whatever else a client claims counts as a first attempt.

A loss counts if it is known to whom, and that is another client: one that conflicts with its own
transactions or operations would otherwise earn fences at will. What a client that lies about its
own state is aborted for is lost to no other client, and does not count either.

A fence holds all others up, so one client has one at a time, and then none for FENCE_SHARE - 1
times as long as it took: at most that share of the time. A transaction that has had a fence and has
lost to an older one is not kept from its next by that.

Pure: time is what the core is given as `now`.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import NamedTuple

from overlay.messages import Hop
from overlay.stored import stored, stored_value
from padres_tx.client_messages import TX_PER_CLIENT_LIMIT

#: After so many losses a transaction gets a fence. It holds others up, so a few attempts come
#: first: most conflicts are over by the second.
FENCE_AFTER = 3

#: The longest deadline of a transaction with a fence: whatever its client asks for, the overlay
#: does not stand still for longer.
FENCE_LIMIT_S = 30.0

#: A client's fences take at most one part in so many of the time.
FENCE_SHARE = 10

#: Lost transactions of one client that may be begun again: as many as it may have open.
LOST_LIMIT = TX_PER_CLIENT_LIMIT

#: Clients that have had a fence of late; more than a broker has clients, usually.
PAUSES_LIMIT = 10_000


@stored_value("loss-record")
class LossRecord(NamedTuple):
    """What the attempts of one transaction have earned it so far."""

    losses: int = 0
    #: Whether it has had a fence, and has lost to an older one.
    outranked: bool = False


@stored("loss-counts", fields=("_lost", "_pauses"))
class LossCounts:
    """The lost transactions of a broker's clients, by age."""

    def __init__(self) -> None:
        #: Those that can be begun again, the oldest loss first.
        self._lost: dict[Hop, OrderedDict[int, LossRecord]] = {}
        #: Until when a client gets no fence. Kept when it leaves, or it would come back for one.
        self._pauses: OrderedDict[Hop, float] = OrderedDict()

    def resume(self, client: Hop, age: int) -> LossRecord | None:
        """The standing of a transaction that is begun again; None if this is a first attempt."""
        lost = self._lost.get(client)
        standing = lost.pop(age, None) if lost else None
        if lost is not None and not lost:
            del self._lost[client]
        return standing

    def lost(self, client: Hop, age: int, standing: LossRecord, *, to: str, fenced: bool) -> None:
        """An attempt has lost to a client's transaction or operation ("" if that is unknown)."""
        if to and to != client[1:]:
            standing = LossRecord(standing.losses + 1, outranked=standing.outranked or fenced)
        kept = self._lost.setdefault(client, OrderedDict())
        kept[age] = standing
        if len(kept) > LOST_LIMIT:
            kept.popitem(last=False)

    def grants_fence(self, client: Hop, standing: LossRecord, now: float) -> bool:
        """Whether a transaction gets a fence; call `fence_ended` when it is over."""
        if standing.losses < FENCE_AFTER:
            return False
        until = self._pauses.get(client, 0.0)
        if until == inf or (until > now and not standing.outranked):
            return False
        self._pause(client, inf)
        return True

    def fence_ended(self, client: Hop, began_at: float, now: float) -> None:
        """A fence of the client is over: let others have their share of the time."""
        self._pause(client, now + (FENCE_SHARE - 1) * (now - began_at))

    def _pause(self, client: Hop, until: float) -> None:
        self._pauses.pop(client, None)
        if len(self._pauses) >= PAUSES_LIMIT:
            self._pauses.popitem(last=False)
        self._pauses[client] = until

    def client_left(self, client: Hop) -> None:
        self._lost.pop(client, None)
