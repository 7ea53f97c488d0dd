"""Generate chains, stars, balanced and random trees of any size.

networkx makes the shapes; brokers are named B1 (the root) to Bn in breadth-first order, and have
ports in the same order. The same arguments always give the same topology.
"""

from __future__ import annotations

import networkx as nx

from topologies.errors import TopologyError
from topologies.model import BASE_PORT, MAX_BROKERS, BrokerSpec, Edge, Topology

#: Fits into the name of a topology.
MAX_SEED = 2**32 - 1


def chain(n: int, *, base_port: int = BASE_PORT, delay_ms: float = 0.0) -> Topology:
    """Return n brokers in a row, with B1 and Bn at the ends.

    With base_port p, Bi listens on port p + i - 1; with 0, on a free port. Every edge has the delay
    delay_ms. Raises TopologyError if a number is out of range.
    """
    _check_size(n)
    return _topology(f"chain-{n}", nx.path_graph(n), base_port, delay_ms)


def star(n: int, *, base_port: int = BASE_PORT, delay_ms: float = 0.0) -> Topology:
    """Return B1 in the middle of n - 1 others; ports, delay and errors as in `chain`."""
    _check_size(n)
    return _topology(f"star-{n}", nx.star_graph(n - 1), base_port, delay_ms)


def balanced(
    branching: int, depth: int, *, base_port: int = BASE_PORT, delay_ms: float = 0.0
) -> Topology:
    """Return a root with `depth` levels below, `branching` children each; otherwise as `chain`."""
    if branching < 1:
        raise TopologyError(f"invalid branching {branching}: expected at least 1")
    if depth < 0:
        raise TopologyError(f"invalid depth {depth}: expected at least 0")
    brokers = level = 1
    for _ in range(depth):
        level *= branching
        brokers += level
        if brokers > MAX_BROKERS:
            raise TopologyError(
                f"branching {branching} and depth {depth} make more than {MAX_BROKERS} brokers"
            )
    name = f"balanced-{branching}-{depth}"
    return _topology(name, nx.balanced_tree(branching, depth), base_port, delay_ms)


def random_tree(
    n: int, seed: int, *, base_port: int = BASE_PORT, delay_ms: float = 0.0
) -> Topology:
    """Return a tree drawn uniformly from all labelled trees of n nodes; otherwise as `chain`."""
    _check_size(n)
    if not 0 <= seed <= MAX_SEED:
        raise TopologyError(f"invalid seed {seed}: expected 0 to {MAX_SEED}")
    tree = nx.random_labeled_tree(n, seed=seed)
    return _topology(f"random-{n}-{seed}", tree, base_port, delay_ms)


def _check_size(n: int) -> None:
    if not 1 <= n <= MAX_BROKERS:
        raise TopologyError(f"invalid number of brokers {n}: expected 1 to {MAX_BROKERS}")


def _topology(name: str, tree: nx.Graph[int], base_port: int, delay_ms: float) -> Topology:
    links = list(nx.bfs_edges(tree, 0))
    names = {node: f"B{i}" for i, node in enumerate([0, *(child for _, child in links)], 1)}
    last_port = base_port + len(names) - 1
    if base_port and not (base_port >= 1 and last_port <= 65535):
        raise TopologyError(
            f"invalid base port {base_port}: {len(names)} brokers need the ports {base_port} to "
            f"{last_port}; expected ports from 1 to 65535, or 0 for free ports"
        )
    return Topology(
        name=name,
        brokers=tuple(
            BrokerSpec(name=broker, port=base_port and base_port + i)
            for i, broker in enumerate(names.values())
        ),
        edges=tuple(Edge(a=names[a], b=names[b], delay_ms=delay_ms) for a, b in links),
    )
