"""Cycles of the dependency graph, and the moments that order transactions at a broker."""

from __future__ import annotations

from padres_tx.audit.dependency_graph import (
    Boundary,
    Graph,
    Unit,
    add_edge,
    add_moments,
    cyclic_components,
    shortest_cycle,
)

A, B, C = (Unit("tx", name) for name in "ABC")


def test_a_graph_without_a_cycle_has_no_cyclic_component() -> None:
    graph: Graph = {}
    add_edge(graph, A, B)
    add_edge(graph, B, C)
    add_edge(graph, A, C)
    assert list(cyclic_components(graph)) == []


def test_the_shortest_cycle_of_a_component_is_found() -> None:
    graph: Graph = {}
    for before, after in ((A, B), (B, C), (C, A), (C, B)):
        add_edge(graph, before, after)
    (component,) = cyclic_components(graph)
    assert component == {A, B, C}
    assert shortest_cycle(graph, component) == [B, C]


def test_a_transaction_that_ends_before_another_begins_at_a_broker_comes_before_it() -> None:
    graph: Graph = {}
    add_edge(graph, B, A)  # By what was read.
    add_moments(graph, [Boundary("B1", 1, False, A), Boundary("B1", 5, True, A)])
    assert list(cyclic_components(graph)) == []
    add_moments(graph, [Boundary("B1", 5, True, A), Boundary("B1", 6, False, B)])
    (component,) = cyclic_components(graph)
    assert {A, B} <= component


def test_transactions_that_overlap_at_a_broker_are_not_ordered_there() -> None:
    graph: Graph = {}
    add_edge(graph, B, A)
    overlapping = [
        *(Boundary("B1", 1, False, A), Boundary("B1", 2, False, B)),
        *(Boundary("B1", 5, True, A), Boundary("B1", 6, True, B)),
    ]
    add_moments(graph, overlapping)
    assert list(cyclic_components(graph)) == []
