"""Publications for a neighbour whose link was reset: they wait until the routes are there again.

A neighbour that lives a new life knows no subscriptions, and neither does this broker know those
behind it any more. They come back with the tables: this broker sends its clients and
advertisements as requests, and the neighbour answers when all brokers behind it have answered and
the subscriptions have come that the advertisements attract. Until then each plain publication that
comes here is held for the neighbour as well, since it may have to go there. Then the neighbour
gets, in this order:

1. what had been sent to its former life and was not acknowledged, which the host has kept
   (`Resend`);
2. what was held, as far as it matches a subscription behind the neighbour now.

So each publisher's publications keep their order. Some of the first kind may have been passed on by
the former life; brokers behind drop what they have received already (`overlay.node.received`).

**Transactions.** A publication that comes late must not meet the tables of a transaction that it
was ahead of: then it would be routed on both sides of the commit. While publications wait, this
broker agrees to no D-TX (`Resending.waits_for`). If one has its vote already or is committed and
not forgotten, nothing of what waits is sent: it is lost, and both sides hear of that like of
everything that is lost with a link (`overlay.broker.losses`). A D-TX that is forgotten here was
carried out by every broker, and so each has received what was ahead of it.

A part of the broker (`overlay.broker.core`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from overlay.broker.requests import Task
from overlay.broker.turns import Worked
from overlay.effects import Effect, Resend, Send
from overlay.messages import Hop, Join, Operation, Pub
from overlay.stored import stored

if TYPE_CHECKING:
    from overlay.broker.core import Broker

#: What is held for one neighbour: publications, and bytes of their payloads. Routes come back
#: within some round trips, so these are seconds of all that a broker can deliver.
HELD_MESSAGES = 50_000
HELD_BYTES = 32 << 20

#: Publications that are routed in one slice; a broker routes one in 2 to 5 us. It is more than a
#: peer hands over in its turn, so what waits becomes less.
HELD_IN_SLICE = 2048


@stored("restoration")
class Restoration:
    """A neighbour whose routes are not all there again, and what is held for it."""

    __slots__ = ("commits", "gives_up", "held", "hop", "is_ready", "lost", "size", "task")

    def __init__(self, hop: Hop, commits: int, *, gives_up: bool) -> None:
        self.hop = hop
        #: How many versions were committed here when it began.
        self.commits = commits
        #: Whether what the host has kept may not be sent.
        self.gives_up = gives_up
        #: Publications, and where they came from.
        self.held: deque[tuple[Hop, Pub]] = deque()
        self.size = 0
        #: Publications that were dropped.
        self.lost = 0
        #: Whether the routes are there, and what is held is being sent.
        self.is_ready = False
        self.task = Task(hop, 0, context=self)

    def drop_held(self) -> None:
        self.lost += len(self.held)
        self.held.clear()
        self.size = 0


@stored("resending", fields=("restoring",), derived=("_broker",))
class Resending:
    """The part of a broker that holds publications for neighbours whose link was reset."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.restoring: dict[Hop, Restoration] = {}

    def waits_for(self) -> str:
        """A neighbour for which publications may wait here; "" if there is none."""
        return next(iter(self.restoring), "")

    # --- the tables are sent anew ---

    def begin(self, neighbour: Hop, state: Iterable[Join | Operation]) -> list[Effect]:
        """Send a neighbour that lives a new life what it has to know; wait for its answers."""
        broker = self._broker
        versions, before = broker.versions, self.restoring.get(neighbour)
        gives_up = bool(versions.committed or versions.voted)
        begun = Restoration(neighbour, versions.commits, gives_up=gives_up)
        if before is not None:  # The new life has ended as well.
            begun.held, begun.size, begun.lost = before.held, before.size, before.lost
            begun.gives_up |= before.gives_up and not before.is_ready
            if gives_up or before.commits != versions.commits:
                begun.drop_held()
        self.restoring[neighbour] = begun
        return [
            broker.requests.ask(begun.task, neighbour, message, required=True) for message in state
        ]

    def begun(self, neighbour: Hop, now: float) -> list[Effect]:
        """A neighbour was sent all that it has to know; there may be nothing to wait for."""
        task = self.restoring[neighbour].task
        return [] if task.waiting else self.finished(task, now)

    def finished(self, task: Task, now: float) -> list[Effect]:
        """A neighbour has answered all that it was asked: its routes are there."""
        restoration = task.context
        if not isinstance(restoration, Restoration):
            return []
        hop = restoration.hop
        if self.restoring.get(hop) is not restoration:
            return []  # Of a life that is over.
        restoration.is_ready = True
        if restoration.commits != self._broker.versions.commits:
            restoration.gives_up = True
            restoration.drop_held()
        resend = Resend(hop, given_up=restoration.gives_up)
        if not restoration.held:
            return [resend, *self._end(restoration, now)]
        return [resend, *self._broker.jobs.add("", restoration)]

    def _end(self, restoration: Restoration, now: float) -> list[Effect]:
        del self.restoring[restoration.hop]
        return self._broker.losses.restored(restoration.hop, now, lost=restoration.lost > 0)

    # --- publications ---

    def hold(self, source: Hop, pubs: Sequence[Pub]) -> tuple[Hop, ...]:
        """Hold publications for all neighbours that may have to get them later.

        Returns these neighbours: the publications must not go there now.
        """
        holding = tuple(hop for hop in self.restoring if hop != source)
        for hop in holding:
            restoration = self.restoring[hop]
            for pub in pubs:
                if len(restoration.held) >= HELD_MESSAGES or restoration.size >= HELD_BYTES:
                    restoration.lost += 1
                else:
                    restoration.held.append((source, pub))
                    restoration.size += len(pub.payload)
        return holding

    def work(self, restoration: Restoration, now: float) -> Worked:
        """Send a slice of what was held."""
        if self.restoring.get(restoration.hop) is not restoration:
            return Worked([])  # The link was reset again.
        effects: list[Effect] = []
        held = restoration.held
        for _ in range(min(HELD_IN_SLICE, len(held))):
            source, pub = held.popleft()
            restoration.size -= len(pub.payload)
            effects += self._send(restoration.hop, source, pub, now)
        if held:
            return Worked(effects, more=True)
        return Worked([*effects, *self._end(restoration, now)])

    def _send(self, hop: Hop, source: Hop, pub: Pub, now: float) -> list[Effect]:
        """Route a publication that was held, to this neighbour only."""
        broker = self._broker
        view = broker.versions.view(pub.hidden)
        if hop not in broker.routing.prt.hops(pub.point, view):
            return []
        effects: list[Effect] = [Send((hop,), pub)]
        if broker.trace:
            effects.insert(0, broker.record("match", now, pub, source, (hop,), view=view))
        return effects
