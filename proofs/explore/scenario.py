"""What is explored: an overlay, who is where and holds what, who does what, by which rules.

A scenario is data; `scenarios` has the named ones. Set up, it is a network at rest in which
everybody is about to begin: joins and what is held before are over, and the openings are on their
links. Rules say which engines the brokers run: ours, or variants from `proofs.faults.paper_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import networkx as nx

from overlay.broker.core import Broker
from overlay.broker.engine import EngineFactory
from overlay.filters import Filter
from overlay.hosts.simulator import Simulator
from overlay.messages import BrokerName, Done, Hop, Join, Kind, Operation, client_hop
from overlay.trace import Record
from proofs.explore.network import Network, State
from proofs.explore.nodes import BrokerNode, BrokerPast, ClientNode, ExploredNode
from proofs.explore.scripted_clients import (
    Action,
    DynamicTransaction,
    Script,
    ScriptedClient,
    StaticTransaction,
)


class Rules(NamedTuple):
    """How brokers behave in an exploration, and what that must lead to."""

    engines: Mapping[str, EngineFactory]
    #: Kinds of anomalies, one of which must be found; empty if there must be none.
    expected: tuple[str, ...] = ()
    #: Changes a broker before anything happens.
    broker: Callable[[Broker], None] = lambda broker: None
    about: str = ""


@dataclass(frozen=True)
class Scenario:
    """One thing to explore."""

    name: str
    about: str
    edges: tuple[tuple[str, str], ...]
    #: The edge broker of each client.
    homes: Mapping[str, str]
    roles: Mapping[str, Script]
    #: What clients hold before it begins, in this order.
    held: tuple[tuple[str, Kind, Filter], ...] = ()
    rules: Mapping[str, Rules] = field(default_factory=dict)
    #: Whether deadlines may pass, at any moment.
    ring: bool = False
    #: Small enough for every test run.
    quick: bool = True

    @property
    def tree(self) -> nx.Graph[str]:
        tree: nx.Graph[str] = nx.Graph()
        tree.add_nodes_from(self.homes.values())
        tree.add_edges_from(self.edges)
        return tree

    def role(self, client: str) -> Script:
        return self.roles.get(client, Script())

    def words(self, client: str) -> tuple[tuple[str, Filter], ...]:
        """What a client has said before it begins, if it ever asks what it holds."""
        if not any(reaction.catches for reaction in self.role(client).reactions):
            return ()
        return tuple((kind, filter) for who, kind, filter in self.held if who == client)

    @property
    def acts(self) -> list[tuple[str, Action]]:
        return [(client, act) for client, role in self.roles.items() for act in role.acts]

    @property
    def engines(self) -> list[str]:
        """The engines of the transactions in it."""
        found = (
            act.engine
            for _, act in self.acts
            if isinstance(act, DynamicTransaction | StaticTransaction)
        )
        return list(dict.fromkeys(found))


class PreparedScenario(NamedTuple):
    """A scenario that is about to begin."""

    network: Network
    start: State
    #: What was recorded while it was set up.
    records: tuple[Record, ...]


def set_up(scenario: Scenario, rules: Rules) -> PreparedScenario:
    """Let everybody join and hold what is held, and put the openings on their links."""
    tree = scenario.tree

    def broker(name: BrokerName, others: Iterable[BrokerName]) -> Broker:
        made = Broker(name, others, engines=rules.engines, trace=True)
        rules.broker(made)
        return made

    sim = Simulator({name: list(tree[name]) for name in sorted(tree)}, lambda n: 0, broker=broker)
    numbers = dict.fromkeys(scenario.homes, 1)
    lives: dict[str, int] = {}

    def answered(client: str, message: object, now: float) -> list[Operation]:
        assert isinstance(message, Done) and not message.code, message
        lives.setdefault(client, message.number)
        return []

    for client, home in scenario.homes.items():
        sim.connect(client, home, partial(answered, client))
        sim.send(client, Join(1, client, ""))
        sim.run()
    for client, kind, filter in scenario.held:
        number = numbers[client] = numbers[client] + 1
        sim.send(client, Operation(number, kind, client, number, filter))
        sim.run()
    # What went before explains who holds what; its order plays no part.
    facts = {
        name: BrokerPast(BrokerPast().after(r for r in sim.records if r.node == name).words)
        for name in sim.brokers
    }

    clients = [
        ClientNode(
            ScriptedClient(
                client, numbers[client], words=scenario.words(client), life=lives[client]
            ),
            Hop(home),
            scenario.role(client),
        )
        for client, home in scenario.homes.items()
    ]
    brokers = [
        BrokerNode(broker, facts[name], ring=scenario.ring) for name, broker in sim.brokers.items()
    ]
    nodes: list[ExploredNode] = [*clients, *brokers]
    edges = [(Hop(one), Hop(other)) for one, other in scenario.edges]
    edges += [(client_hop(client), Hop(home)) for client, home in scenario.homes.items()]
    network = Network(nodes, edges)
    start = network.state(
        (client.hop, client.edge, frame) for client in clients for frame in client.opening
    )
    return PreparedScenario(network, start, tuple(sim.records))
