"""At which brokers of a topology the clients of a demonstration or a measurement sit.

As far apart as there is room for, since two clients at one broker would not try the overlay; or
drawn by a seed, to try other places. The same arguments always give the same places.
"""

from __future__ import annotations

import random
from itertools import cycle, islice

import networkx as nx

from topologies import Topology


def spread(topology: Topology, count: int, seed: int | None = None) -> list[str]:
    """The brokers of `count` clients; when every broker has one, it begins anew."""
    brokers = [broker.name for broker in topology.brokers]
    if seed is not None:
        random.Random(seed).shuffle(brokers)
        return list(islice(cycle(brokers), count))
    # Each next one where it is furthest from those before, the first at the edge of the tree.
    hops = dict(nx.all_pairs_shortest_path_length(topology.graph()))
    chosen = [max(brokers, key=lambda broker: max(hops[broker].values()))]
    while len(chosen) < min(count, len(brokers)):
        free = [broker for broker in brokers if broker not in chosen]
        chosen.append(max(free, key=lambda broker: min(hops[broker][other] for other in chosen)))
    return list(islice(cycle(chosen), count))
