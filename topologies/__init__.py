"""Broker trees as data: the model, generators and the named ones.

`load("three")` or `load("mine.yaml")` gives a checked `Topology`; `topologies.generators` makes
chains, stars, balanced and random trees; `topologies.draw` shows them.
"""

from topologies.errors import TopologyError
from topologies.model import (
    BASE_PORT,
    MAX_BROKERS,
    NAMES,
    BrokerSpec,
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
    "Edge",
    "Placement",
    "Topology",
    "TopologyError",
    "load",
]
