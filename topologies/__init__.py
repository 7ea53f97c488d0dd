"""Broker trees as data: the model, named topologies, generators and drawings.

`load("three")` or `load("mine.yaml")` returns a checked `Topology`; `topologies.generators` makes
chains, stars, balanced and random trees; `topologies.draw` draws them.
"""

from topologies.errors import TopologyError
from topologies.model import (
    BASE_PORT,
    MAX_BROKERS,
    NAMES,
    BrokerSpec,
    Durability,
    Edge,
    Placement,
    Topology,
    load,
)
from topologies.text import SUFFIXES

__all__ = [
    "BASE_PORT",
    "MAX_BROKERS",
    "NAMES",
    "SUFFIXES",
    "BrokerSpec",
    "Durability",
    "Edge",
    "Placement",
    "Topology",
    "TopologyError",
    "load",
]
