"""A scenario: an overlay, its clients, what they hold, their scripts, and the rules of the brokers.

A scenario is data; `scenarios` has the named ones. Prepared, it is a network at rest in which every
client is about to begin: joins and earlier operations are over, and the opening messages are on
their links. Rules name the engines that the brokers run: ours, or variants from `proofs.faults`.
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
    """The engines of the brokers in an exploration, and the anomalies that these must lead to."""

    engines: Mapping[str, EngineFactory]
    #: Kinds of anomalies of which one must be found; empty if there must be none.
    expected: tuple[str, ...] = ()
    #: Changes a broker before anything happens.
    broker: Callable[[Broker], None] = lambda broker: None
    about: str = ""


@dataclass(frozen=True)
class Scenario:
    """A small overlay to explore."""

    name: str
    about: str
    edges: tuple[tuple[str, str], ...]
    #: The edge broker of each client.
    homes: Mapping[str, str]
    scripts: Mapping[str, Script]
    #: The operations of clients before it begins, in order.
    held: tuple[tuple[str, Kind, Filter], ...] = ()
    rules: Mapping[str, Rules] = field(default_factory=dict)
    #: Whether deadlines may pass, at any moment.
    deadlines: bool = False
    #: Small enough for every test run.
    quick: bool = True

    @property
    def tree(self) -> nx.Graph[str]:
        tree: nx.Graph[str] = nx.Graph()
        tree.add_nodes_from(self.homes.values())
        tree.add_edges_from(self.edges)
        return tree

    def script(self, client: str) -> Script:
        return self.scripts.get(client, Script())

    def issued(self, client: str) -> tuple[tuple[str, Filter], ...]:
        """A client's operations before it begins, if its script depends on what it holds."""
        if not any(reaction.catches for reaction in self.script(client).reactions):
            return ()
        return tuple((kind, filter) for who, kind, filter in self.held if who == client)

    @property
    def actions(self) -> list[tuple[str, Action]]:
        return [
            (client, action) for client, script in self.scripts.items() for action in script.actions
        ]

    @property
    def engines(self) -> list[str]:
        """The engines of its transactions."""
        found = (
            action.engine
            for _, action in self.actions
            if isinstance(action, DynamicTransaction | StaticTransaction)
        )
        return list(dict.fromkeys(found))


class PreparedScenario(NamedTuple):
    """A scenario that is ready to be explored."""

    network: Network
    start: State
    #: The records of setting it up.
    records: tuple[Record, ...]


def set_up(scenario: Scenario, rules: Rules) -> PreparedScenario:
    """Let all clients join and issue their earlier operations; put the openings on their links."""
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
    # Earlier operations explain what clients hold; their order does not matter.
    past = {
        name: BrokerPast(BrokerPast().after(r for r in sim.records if r.node == name).operations)
        for name in sim.brokers
    }

    clients = [
        ClientNode(
            ScriptedClient(
                client, numbers[client], issued=scenario.issued(client), life=lives[client]
            ),
            Hop(home),
            scenario.script(client),
        )
        for client, home in scenario.homes.items()
    ]
    brokers = [
        BrokerNode(broker, past[name], deadlines=scenario.deadlines)
        for name, broker in sim.brokers.items()
    ]
    nodes: list[ExploredNode] = [*clients, *brokers]
    edges = [(Hop(one), Hop(other)) for one, other in scenario.edges]
    edges += [(client_hop(client), Hop(home)) for client, home in scenario.homes.items()]
    network = Network(nodes, edges)
    start = network.state(
        (client.hop, client.edge, frame) for client in clients for frame in client.opening
    )
    return PreparedScenario(network, start, tuple(sim.records))
