"""Subscriptions for events only: the same routes for publications, and no part in anything else."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from overlay.broker.core import Broker
from overlay.filters import Filter
from overlay.hosts.simulator import Simulator, Tape
from overlay.messages import AnyMessage, BrokerName, Done, Hop, Join, Operation, client_hop
from overlay.tables.pages import page
from overlay.tables.routing import attracted, entry_line
from overlay.tables.space import Entry, Space
from overlay.tables.versions import Seen
from tests.overlay.tables.test_routing import FILTERS, POINTS, trees

CLIENTS = ("C1", "C2", "C3")


class Said(NamedTuple):
    client: str
    positive: bool
    filter: Filter
    events: bool


SAID = st.builds(Said, st.sampled_from(CLIENTS), st.booleans(), FILTERS, st.booleans())


def takers(said: list[Said], point: dict[str, Any]) -> list[str]:
    """The clients whose last word on the point is a yes for more than events."""
    last = {each.client: each for each in said if each.filter.matches(point)}
    return sorted(c for c, each in last.items() if each.positive and not each.events)


@given(st.lists(SAID, max_size=12))
def test_a_space_sends_publications_as_if_all_were_alike(said: list[Said]) -> None:
    flagged, plain = Space(), Space()
    for number, each in enumerate(said, 1):
        for space, events in ((flagged, each.events), (plain, False)):
            kind: Any = "sub" if each.positive else "usub"
            operation = Operation(0, kind, each.client, number, each.filter, events=events)
            # Two clients behind one hop, one behind another.
            space.add(Entry(operation, Hop("B1" if each.client == "C3" else "B2")))
    for point in POINTS:
        assert flagged.hops(point) == plain.hops(point)
        assert flagged.holds(point) == plain.holds(point)
        expected = takers(said, point)
        assert list(flagged.takers(point)) == expected
        hops = {"B1" if client == "C3" else "B2" for client in expected}
        assert set(flagged.taking_hops(point)) == hops
        assert sorted(plain.taking_hops(point)) == sorted(plain.hops(point))
    points = [dict(point) for point in POINTS]
    assert flagged.runs(points) == plain.runs(points)


def test_a_version_may_change_what_a_subscription_is_for() -> None:
    space, version = Space(), ("E", 1)
    old = Entry(Operation(0, "sub", "C1", 1, Filter(x=1), events=True), Hop("B1"))
    space.add(old)
    space.add(Entry(Operation(0, "sub", "C1", 2, Filter(x=1)), Hop("B1"), version))
    space.mark_removed(old, version)
    assert space.takers({"x": 1}) == {}
    assert space.takers({"x": 1}, Seen({version})) == {"C1": "B1"}
    assert space.hops({"x": 1}) == space.hops({"x": 1}, Seen({version})) == ("B1",)
    space.remove(old)
    assert space.taking_hops({"x": 1}, Seen({version})) == ("B1",)


def test_only_a_subscription_can_be_for_events_only() -> None:
    kinds: tuple[Any, ...] = ("usub", "adv", "uadv")
    for kind in kinds:
        operation = Operation(0, kind, "C1", 1, Filter(x=1), events=True)
        assert not Entry(operation, Hop("B1")).events


def test_an_entry_says_what_it_is_for_on_its_way_and_to_people() -> None:
    entry = Entry(Operation(0, "sub", "C1", 1, Filter(x=1), events=True), Hop("B1"))
    assert attracted(entry).events
    assert entry_line(entry, "sub")["events"] is True
    entry = Entry(Operation(0, "sub", "C1", 1, Filter(x=1)), Hop("B1"))
    assert not attracted(entry).events and "events" not in entry_line(entry, "sub")


class World:
    """A simulated overlay in which clients say things, and brokers may be restarted."""

    def __init__(self, tree: nx.Graph[str], seed: int) -> None:
        self.sim = Simulator({b: list(tree[b]) for b in tree}, Tape(seed=seed).choose)
        self._edges: dict[str, str] = {}
        self._numbers: dict[str, int] = {}

    def join(self, client: str, edge: str) -> None:
        def receive(message: AnyMessage, now: float) -> list[AnyMessage]:
            assert not isinstance(message, Done) or message.code in ("", "not-held")
            return []

        self._edges[client], self._numbers[client] = edge, 1
        self.sim.connect(client, edge, receive)
        self.sim.send(client, Join(1, client, ""))
        self.sim.run()

    def send(self, client: str, kind: Any, filter: Filter, *, events: bool = False) -> None:
        self._numbers[client] += 1
        number = self._numbers[client]
        self.sim.send(client, Operation(number, kind, client, number, filter, events=events))

    def restart(self, broker: str) -> None:
        self.sim.restart(broker)
        for client in [c for c, edge in self._edges.items() if edge == broker]:
            del self._edges[client]

    def check(self) -> None:
        """Wherever an entry stands, it is for the same as at its client's edge broker."""
        for broker in self.sim.brokers.values():
            for entry in broker.routing.prt:
                edge = self.sim.brokers[BrokerName(self._edges[entry.client])]
                own = edge.routing.prt.get(entry.client, entry.seq)
                assert own is not None and own.events == entry.events, (broker.name, entry)
            for point in POINTS:
                self._check_takers(broker, point)

    def _check_takers(self, broker: Broker, point: dict[str, Any]) -> None:
        """Whom a publisher of this broker finds is who takes it, at that one's own broker."""
        if not any(broker.routing.may_publish(client_hop(c), point) for c in self._edges):
            return
        found = broker.routing.prt.takers(point)
        expected = []
        for client, edge in sorted(self._edges.items()):
            if client in self.sim.brokers[BrokerName(edge)].routing.prt.takers(point):
                expected.append(client)
        assert list(found) == expected


@given(trees(), st.integers(0, 1 << 30))
def test_all_brokers_agree_what_subscriptions_are_for(tree: nx.Graph[str], seed: int) -> None:
    """Advertisements attract and let go, and brokers lose their memories."""
    choose = random.Random(seed)
    world, brokers = World(tree, seed), sorted(tree)
    for client in CLIENTS:
        world.join(client, choose.choice(brokers))
    lost = choose.randrange(30)
    for at in range(20):
        for client in sorted(world._edges):
            kind = choose.choice(["sub", "sub", "sub", "usub", "adv", "adv", "uadv"])
            ends = sorted((choose.randrange(5), choose.randrange(5)))
            filter = Filter({choose.choice("xy"): (ends[0], ends[1])})
            world.send(client, kind, filter, events=choose.random() < 0.5)
        if choose.random() < 0.5:
            world.sim.run()
        if at == lost and len(brokers) > 1:
            world.sim.run()
            world.restart(choose.choice(brokers))
    world.sim.run()
    world.check()


def test_pages_of_tables_tell_it() -> None:
    broker = Broker(BrokerName("B1"), [])
    hop = client_hop("C1")
    broker.receive(hop, Join(1, "C1", ""), 0.0)
    broker.receive(hop, Operation(2, "sub", "C1", 2, Filter(x=1), events=True), 0.0)
    broker.receive(hop, Operation(3, "sub", "C1", 3, Filter(x=2)), 0.0)
    rows = page(broker.routing, None, "")["prt"]
    assert [row.get("events", False) for row in rows] == [True, False]
