"""What a reset of a link may have lost, and which clients are told of it.

A broker that dies takes along what it had acknowledged and not passed on. Nobody knows what that
was. So every client is told that may be concerned: each end of the link tells the brokers on its
side (`LinkReset`), and each of these tells its own clients (`Gap`): the subscribers of what is
advertised behind the link, and the publishers of what is subscribed to there. The tables say who
they are, so this comes before the clients behind the link are forgotten.

A `Gap` speaks of what was published before its time. It comes to a subscriber ahead of everything
that the new life of the link brings.

The brokers next to the link hold publications until the routes are back. Those further away do not:
there what is published meanwhile finds no route. So when the routes are back, the same clients are
told again, and those beyond the link as well. Until then each broker remembers whom it has told,
since its tables do not say that any more: another reset concerns them, too.

Resets in quick succession merge: a client that has just been told is told of all further ones
together, a moment later.

A part of the broker (`overlay.broker.core`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from overlay.effects import Effect, Send, SetTimer
from overlay.errors import ProtocolError
from overlay.messages import Direction, Gap, Hop, LinkReset, is_client
from overlay.stored import stored
from overlay.tables.space import Entry

if TYPE_CHECKING:
    from overlay.broker.core import Broker

#: The key of the timer after which clients are told what was merged. No engine has this name.
GAPS = "gaps"

#: How long gaps of one client merge: a program can do something about one in a second.
MERGED_S = 1.0

#: Entries of clients that are compared with the tables in one turn. A client with more than are
#: left is told without a look: a gap says what may be lost.
LOOKS = 1000


@stored("losses", fields=("_merging", "_unrestored"), derived=("_broker",))
class Losses:
    """The part of a broker that tells clients of what may be lost."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: Clients that were told a short while ago; what they have to be told next, by the broker
        #: that was lost.
        self._merging: dict[Hop, dict[str, Gap]] = {}
        #: By the neighbour towards it, and by its two ends: whom a reset concerned whose routes are
        #: not back yet.
        self._unrestored: dict[Hop, dict[tuple[str, str], dict[Hop, Direction]]] = {}

    # --- a link is reset ---

    def link_reset(self, neighbour: Hop, now: float) -> list[Effect]:
        """Publications that were on their way over this link may be lost; tell this side of it."""
        own, before = self._broker.name, self._unrestored.pop(neighbour, {})
        # What was reset behind the neighbour: whether it is restored will not be reported here.
        concerned = self._unrestored.setdefault(neighbour, {}).setdefault((own, neighbour), {})
        for clients in before.values():
            _merge(concerned, clients.items())
        edges = self._edges(neighbour, behind=True)
        return self._take(neighbour, LinkReset(own, neighbour, now, edges))

    def restored(self, neighbour: Hop, now: float, *, lost: bool) -> list[Effect]:
        """The routes over a link are back. Tell both sides of it, if publications were lost here or
        may have found no route further away."""
        own = self._broker.name
        if not lost and self._broker.routing.neighbours == (neighbour,):
            self._unrestored.pop(neighbour, None)
            return []
        edges = self._edges(neighbour, behind=True)
        here = LinkReset(own, neighbour, now, edges, restored=True)
        others = self._edges(neighbour, behind=False)
        there = LinkReset(own, neighbour, now, others, restored=True)
        return [*self._take(neighbour, here), Send((neighbour,), there)]

    def receive(self, source: Hop, reset: LinkReset, now: float) -> list[Effect]:
        """A neighbour reports that a link behind it was reset."""
        if source not in self._broker.routing.neighbours:
            raise ProtocolError(f"{source} is no neighbour of {self._broker.name}")
        return self._take(source, reset)

    def _take(self, source: Hop, reset: LinkReset) -> list[Effect]:
        """Tell the clients here, and all brokers on this side."""
        others = tuple(hop for hop in self._broker.routing.neighbours if hop != source)
        effects: list[Effect] = [Send(others, reset)] if others else []
        ends, unrestored = (reset.broker, reset.neighbour), self._unrestored.setdefault(source, {})
        concerned = unrestored.setdefault(ends, {})
        _merge(concerned, self._concerned(source, reset.edges))
        if reset.restored:
            del unrestored[ends]
        else:
            # The tables do not say yet whom the routes behind another such link concern.
            for clients in list(unrestored.values()):
                _merge(concerned, list(clients.items()))
        for client, direction in concerned.items():
            effects += self._tell(client, Gap(reset.neighbour, reset.time, direction))
        return effects

    def _edges(self, neighbour: Hop, *, behind: bool) -> tuple[str, ...]:
        """The edge brokers of clients behind a neighbour, or of those that are not."""
        homes = self._broker.routing.crt.values()
        return tuple(sorted({home.edge for home in homes if (home.hop == neighbour) == behind}))

    def _concerned(self, source: Hop, edges: Collection[str]) -> Iterator[tuple[Hop, Direction]]:
        """The clients here whose publications, or those for them, cross the link to these edges."""
        routing = self._broker.routing
        homes = routing.crt.items()
        beyond = {client for client, home in homes if home.hop == source and home.edge in edges}
        if not beyond:
            return
        looks = LOOKS
        for client, home in sorted(homes):
            if not is_client(home.hop):
                continue
            subscribed = [entry for entry in routing.prt.of(client) if entry.positive]
            advertised = [
                entry
                for entry in (routing.srt[home.hop].of(client) if home.hop in routing.srt else ())
                if entry.positive
            ]
            looks -= len(subscribed) + len(advertised)
            told = looks < 0
            comes = told or any(self._is_advertised(e, source, beyond) for e in subscribed)
            goes = told or any(self._is_subscribed(e, source, beyond) for e in advertised)
            if comes and subscribed and goes and advertised:
                yield home.hop, "both"
            elif comes and subscribed:
                yield home.hop, "in"
            elif goes and advertised:
                yield home.hop, "out"

    def _is_advertised(self, entry: Entry, source: Hop, beyond: Collection[str]) -> bool:
        """Whether one of these clients may publish for a subscription."""
        view = self._broker.versions.view()
        found = self._broker.routing.srt[source].overlapping(entry.filter, view)
        return any(other.positive and other.client in beyond for other in found)

    def _is_subscribed(self, entry: Entry, source: Hop, beyond: Collection[str]) -> bool:
        """Whether one of these clients has subscribed to what is advertised."""
        view = self._broker.versions.view()
        found = self._broker.routing.prt.overlapping(entry.filter, view)
        return any(
            other.positive and other.hop == source and other.client in beyond for other in found
        )

    # --- telling a client ---

    def _tell(self, client: Hop, gap: Gap) -> list[Effect]:
        """Tell a client, or if it was told just now, a moment later."""
        waiting = self._merging.get(client)
        if waiting is None:
            timers = [] if self._merging else [SetTimer(GAPS, MERGED_S)]
            self._merging[client] = {}
            return [Send((client,), gap), *timers]
        before = waiting.get(gap.broker)
        if before is not None and before.direction != gap.direction:
            gap = Gap(gap.broker, gap.time, "both")
        waiting[gap.broker] = gap
        return []

    def wake(self) -> list[Effect]:
        """Tell clients what was merged; those that are told may have to wait again."""
        told = {client: gaps for client, gaps in self._merging.items() if gaps}
        self._merging = {client: {} for client in told}
        effects: list[Effect] = [
            Send((client,), gap) for client, gaps in told.items() for gap in gaps.values()
        ]
        return [*effects, SetTimer(GAPS, MERGED_S)] if told else []

    def forget(self, client: Hop) -> None:
        """A client is gone; a later one of its name has its own gaps."""
        self._merging.pop(client, None)
        for resets in self._unrestored.values():
            for concerned in resets.values():
                concerned.pop(client, None)


def _merge(concerned: dict[Hop, Direction], more: Iterable[tuple[Hop, Direction]]) -> None:
    for client, direction in more:
        if concerned.setdefault(client, direction) != direction:
            concerned[client] = "both"
