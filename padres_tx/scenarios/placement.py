"""Choose the brokers for the clients of a demonstration or a measurement.

Clients are placed as far apart as possible, because two clients at one broker would not use the
overlay, or at random brokers if a seed is given. The same arguments always give the same brokers.
"""

from __future__ import annotations

import random
from itertools import cycle, islice

import networkx as nx

from topologies import Topology


def spread(topology: Topology, count: int, seed: int | None = None) -> list[str]:
    """Return the brokers of `count` clients; when every broker has a client, start over."""
    brokers = [broker.name for broker in topology.brokers]
    if seed is not None:
        random.Random(seed).shuffle(brokers)
        return list(islice(cycle(brokers), count))
    # The first broker is at the edge of the tree, each next one furthest from those before.
    hops = dict(nx.all_pairs_shortest_path_length(topology.graph()))
    chosen = [max(brokers, key=lambda broker: max(hops[broker].values()))]
    while len(chosen) < min(count, len(brokers)):
        free = [broker for broker in brokers if broker not in chosen]
        chosen.append(max(free, key=lambda broker: min(hops[broker][other] for other in chosen)))
    return list(islice(cycle(chosen), count))
