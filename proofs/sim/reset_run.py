"""Random plain streams over a simulated tree whose brokers are restarted without their state.

Publishers and subscribers are spread over the tree. While they publish, brokers die and come back,
and links between living brokers are reset. The clients of a broker that dies are gone. What the
others received is for `proofs.checkers.gaps`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import networkx as nx

from overlay.broker.core import Broker
from overlay.filters import Filter
from overlay.hosts.simulator import Simulator, Tape
from overlay.messages import AnyMessage, BrokerName, Gap, Join, Kind, Operation, Pub
from proofs.checkers.gaps import Sent, StreamClient, StreamHistory

PUBLISHERS = ("P1", "P2", "P3")
SUBSCRIBERS = ("S1", "S2", "S3", "S4")

#: Publications of each publisher, and the time between two.
STREAM_LENGTH = 60
PAUSE_S = 0.001


class ResetRun:
    """One run, determined by its tape."""

    def __init__(
        self, tape: Tape, *, broker: type[Broker] = Broker, simulator: type[Simulator] = Simulator
    ) -> None:
        self._choose = choose = tape.choose
        tree: nx.Graph[str] = nx.Graph()
        tree.add_node("B1")
        for n in range(2, 4 + choose(4)):
            tree.add_edge(f"B{n}", f"B{1 + choose(n - 1)}")
        self.tree, brokers = tree, sorted(tree)

        def make(name: BrokerName, others: Iterable[BrokerName]) -> Broker:
            made = broker(name, others)
            made.slice = 1 + choose(20)
            return made

        self.sim = simulator({name: list(tree[name]) for name in brokers}, choose, broker=make)
        self.edges = {name: brokers[choose(len(brokers))] for name in PUBLISHERS + SUBSCRIBERS}
        self.topics = {name: frozenset(p for p in PUBLISHERS if choose(3)) for name in SUBSCRIBERS}
        self.messages: dict[str, list[AnyMessage]] = {name: [] for name in self.edges}
        self.sent: list[Sent] = []
        self.reset: set[str] = set()
        self._stayed = set(self.edges)
        self._set_up()
        for publisher in PUBLISHERS:
            self._publish(publisher, 0)
        for _ in range(1 + choose(3)):
            at_s = PAUSE_S * choose(STREAM_LENGTH + 20)
            if choose(4):
                name = brokers[choose(len(brokers))]
                self.sim.at(at_s, partial(self._restart, name, PAUSE_S * choose(30)))
            else:
                links = sorted(tree.edges)
                link = links[choose(len(links))]
                self.sim.at(at_s, partial(self._reset, *link))
        self.sim.run()

    def _set_up(self) -> None:
        """Let the clients join, advertise and subscribe, before anything happens."""
        for name, edge in self.edges.items():

            def receive(message: AnyMessage, now: float, name: str = name) -> list[AnyMessage]:
                self.messages[name].append(message)
                return []

            self.sim.connect(name, edge, receive)
            self.sim.send(name, Join(1, name, ""))
            self.sim.run()
        for name in PUBLISHERS:
            self._operate(name, "adv", Filter({"class": name}))
        for name in SUBSCRIBERS:
            for publisher in sorted(self.topics[name]):
                self._operate(name, "sub", Filter({"class": publisher}))

    def _operate(self, name: str, kind: Kind, filter: Filter) -> None:
        self.sim.send(name, Operation(2, kind, name, 0, filter))
        self.sim.run()

    def _publish(self, publisher: str, number: int) -> None:
        if number == STREAM_LENGTH or not self.sim.connected(publisher):
            return
        self.sent.append(Sent(publisher, number, self.sim.now))
        self.sim.send(publisher, Pub(publisher, number, {"class": publisher}))
        pause_s = PAUSE_S * self._choose(3)
        self.sim.at(pause_s, lambda: self._publish(publisher, number + 1))

    def _restart(self, broker: str, outage_s: float) -> None:
        self.reset.add(broker)
        self._stayed -= {name for name, edge in self.edges.items() if edge == broker}
        self.sim.restart(broker, outage_s)

    def _reset(self, one: str, other: str) -> None:
        self.reset |= {one, other}
        self.sim.reset(one, other)

    def history(self) -> StreamHistory:
        """The run as the checker reads it."""
        clients = {}
        for name, edge in self.edges.items():
            messages = self.messages[name]
            pubs = [(m.client, m.seq) for m in messages if isinstance(m, Pub)]
            gaps = [m for m in messages if isinstance(m, Gap)]
            topics = self.topics.get(name, frozenset())
            clients[name] = StreamClient(edge, topics, pubs, gaps, name in self._stayed)
        ways = {
            (one, other): nx.shortest_path(self.tree, one, other)
            for one in self.tree
            for other in self.tree
        }
        return StreamHistory(clients, self.sent, ways, frozenset(self.reset))

    @property
    def at_rest(self) -> bool:
        """Whether no broker waits for anything."""
        return all(broker.at_rest for broker in self.sim.brokers.values())
