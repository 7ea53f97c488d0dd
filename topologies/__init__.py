"""Broker trees as data: the model, generators and the named ones.

`load("three")` or `load("mine.yaml")` gives a checked `Topology`; `topologies.generators` makes
chains, stars, balanced and random trees; `topologies.draw` shows them.
"""

from topologies.errors import TopologyError
from topologies.model import MAX_BROKERS, NAMES, BrokerSpec, Edge, Placement, Topology, load

__all__ = [
    "MAX_BROKERS",
    "NAMES",
    "BrokerSpec",
    "Edge",
    "Placement",
    "Topology",
    "TopologyError",
    "load",
]
