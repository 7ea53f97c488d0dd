"""Whatever is generated is a tree of the promised shape, and the same each time."""

from __future__ import annotations

from collections.abc import Callable

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies import BASE_PORT, MAX_BROKERS, Topology, TopologyError
from topologies.generators import MAX_SEED, balanced, chain, random_tree, star

sizes = st.integers(1, 60)
generated = st.one_of(
    st.builds(chain, sizes),
    st.builds(star, sizes),
    st.builds(balanced, st.integers(1, 3), st.integers(0, 3)),
    st.builds(random_tree, sizes, st.integers(0, MAX_SEED)),
)


@settings(deadline=None)
@given(generated)
def test_always_a_tree_named_from_its_root_downwards(topology: Topology) -> None:
    count = len(topology.brokers)
    assert nx.is_tree(topology.graph())
    assert [broker.name for broker in topology.brokers] == [f"B{i + 1}" for i in range(count)]
    assert [broker.port for broker in topology.brokers] == [BASE_PORT + i for i in range(count)]
    depth = nx.single_source_shortest_path_length(topology.graph(), "B1")
    depths = [depth[broker.name] for broker in topology.brokers]
    assert depths == sorted(depths)
    assert all(depth[edge.b] == depth[edge.a] + 1 for edge in topology.edges)


@settings(deadline=None, max_examples=50)
@given(sizes, st.integers(0, MAX_SEED))
def test_a_seed_decides_the_tree(n: int, seed: int) -> None:
    assert random_tree(n, seed) == random_tree(n, seed)


def test_seeded_trees_do_not_change_between_releases() -> None:
    """People quote seeds. This also runs under whatever PYTHONHASHSEED there is."""
    assert [str(edge) for edge in random_tree(9, 1).edges] == [
        "B1-B2",
        "B2-B3",
        "B3-B4",
        "B3-B5",
        "B4-B6",
        "B5-B7",
        "B5-B8",
        "B5-B9",
    ]


def test_seeds_differ() -> None:
    shapes = {tuple(str(edge) for edge in random_tree(12, seed).edges) for seed in range(20)}
    assert len(shapes) > 10


def test_shapes() -> None:
    assert [str(edge) for edge in chain(4).edges] == ["B1-B2", "B2-B3", "B3-B4"]
    assert [str(edge) for edge in star(4).edges] == ["B1-B2", "B1-B3", "B1-B4"]
    assert [str(edge) for edge in balanced(2, 2).edges] == [
        "B1-B2",
        "B1-B3",
        "B2-B4",
        "B2-B5",
        "B3-B6",
        "B3-B7",
    ]
    for single in (chain(1), star(1), balanced(5, 0), random_tree(1, 0)):
        assert [broker.name for broker in single.brokers] == ["B1"]


def test_ports_and_delays() -> None:
    topology = chain(3, base_port=9000, delay_ms=2.5)
    assert [broker.port for broker in topology.brokers] == [9000, 9001, 9002]
    assert [edge.delay_ms for edge in topology.edges] == [2.5, 2.5]
    assert [broker.port for broker in star(3, base_port=0).brokers] == [0, 0, 0]
    assert chain(2, base_port=65534).broker("B2").port == 65535


def test_the_largest() -> None:
    assert len(chain(MAX_BROKERS).brokers) == MAX_BROKERS
    assert len(random_tree(MAX_BROKERS, MAX_SEED).brokers) == MAX_BROKERS


@pytest.mark.parametrize(
    ("generate", "reason"),
    [
        (lambda: chain(0), "invalid number of brokers 0: expected 1 to 1000"),
        (lambda: star(-1), "invalid number of brokers -1: expected 1 to 1000"),
        (
            lambda: random_tree(MAX_BROKERS + 1, 0),
            "invalid number of brokers 1001: expected 1 to 1000",
        ),
        (lambda: balanced(0, 1), "invalid branching 0: expected at least 1"),
        (lambda: balanced(2, -1), "invalid depth -1: expected at least 0"),
        (lambda: balanced(2, 9), "branching 2 and depth 9 make more than 1000 brokers"),
        (lambda: balanced(1, 10**12), "more than 1000 brokers"),
        (lambda: random_tree(3, -1), "seed"),
        (lambda: random_tree(3, MAX_SEED + 1), "seed"),
        (
            lambda: chain(3, base_port=65534),
            "invalid base port 65534: 3 brokers need the ports 65534 to 65536",
        ),
        (lambda: chain(3, base_port=-1), "base port -1"),
        (lambda: chain(3, delay_ms=-1), "edge B1-B2: delay_ms"),
    ],
)
def test_numbers_out_of_bounds(generate: Callable[[], Topology], reason: str) -> None:
    with pytest.raises(TopologyError) as caught:
        generate()
    assert reason in str(caught.value)
