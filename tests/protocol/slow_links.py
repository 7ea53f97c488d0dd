"""Interleavings of message deliveries, tried one tape after the other on the real brokers.

Links are FIFO, and which link delivers next is a choice. All links stand in one order; the first
that has something delivers, and now and then the one whose turn it is goes to the end of the order,
so that all that it carries arrives late. This is probabilistic concurrency testing (Burckhardt and
others, 2010) with links in the place of threads: most wrong protocols go wrong when one or two
links are slow at the wrong moment, and a few dozen such runs find that, where even delays seldom
do. Time stands still while anything is on its way, so deadlines ring only when nothing else moves.

Every choice comes from a tape, so a run is its seed. It is not exhaustive, as
`proofs.explore.explorer` is: it is for worlds that are too large for that, and knows nothing of
what is tried in them.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import networkx as nx

from overlay.broker.core import Broker
from overlay.hosts.simulator import STEP_LIMIT, NeverSettles, Simulator, _Arrival
from overlay.messages import Hop
from proofs.sim.simulated_overlay import SimulatedOverlay

#: One turn in so many, a link goes to the end of the order: a few times in a run.
SLOW = 16


class Links(Simulator):
    """The overlay, with the order of links as the only choice."""

    #: While it is being set up, nothing is chosen.
    choosing = False

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._queues: dict[tuple[Hop, Hop], deque[Callable[[], None]]] = {}
        self._order: list[tuple[Hop, Hop]] = []

    def _transmit(self, source: Hop, dest: Hop, what: bytes | Callable[[], None]) -> None:
        link = (source, dest)
        if link not in self._queues:
            self._queues[link] = deque()
            self._order.append(link)
        arrival = _Arrival(self._arrive, link, self._lives.get(link, 0), what)
        self._queues[link].append(arrival)

    def begin_choosing(self) -> None:
        """From here on runs differ; first in the order of the links."""
        self.choosing = True
        order, self._order = self._order, []
        for link in order:
            self._order.insert(self._choose(len(self._order) + 1), link)

    def _deliver_one(self) -> bool:
        link = self._next()
        if link is not None:
            self._queues[link].popleft()()
        return link is not None

    def run(self, *, until: float | None = None, steps: int = STEP_LIMIT) -> None:
        for _ in range(steps):
            if self._deliver_one():
                continue
            if self._events and (until is None or self._events[0][0] <= until):
                self.now, _, action = heapq.heappop(self._events)
                action()
            else:
                return
        raise NeverSettles(f"messages on their way after {steps} steps")

    def _next(self) -> tuple[Hop, Hop] | None:
        for link in self._order:
            if self._queues[link]:
                break
        else:
            return None
        if self.choosing and self._choose(SLOW) == 0:
            self._order.remove(link)
            self._order.append(link)
            return self._next_without_choice()
        return link

    def _next_without_choice(self) -> tuple[Hop, Hop]:
        return next(link for link in self._order if self._queues[link])


class SlowLinks(SimulatedOverlay):
    """A world whose links are slow at times, once it is set up."""

    sim: Links

    def __init__(
        self, tree: nx.Graph[str], choose: Callable[[int], int], factories: Mapping[str, Any]
    ) -> None:
        super().__init__(tree, choose, factories=factories)

        def broker(name: Any, others: Iterable[Any]) -> Broker:
            return Broker(name, others, engines=factories, trace=True)

        self.sim = Links({name: list(tree[name]) for name in sorted(tree)}, choose, broker=broker)

    def hold(self, *words: tuple[str, str, Any]) -> None:
        """What clients hold before any link is slow."""
        for client, kind, filter in words:
            self.plain(client, kind, filter)
            self.oracle.operate(client, kind, filter)
            self.sim.run()
