"""Which unit of a run comes before which: the dependency graph, and its cycles.

A unit takes effect as a whole: a transaction, or a plain operation, publication or leaving by
itself. The edges that brokers' records show are found by `replay`. A transaction that ends at a
broker before another begins there also comes before it: every broker votes, and Init follows Forget
on every path. Instead of an edge for each such pair there is a chain of moments at each broker:
transactions enter it when they end, and leave it when they begin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias


class Unit(NamedTuple):
    """What takes effect as a whole: a "tx", or a plain "op", "pub" or "leave"."""

    kind: str
    name: str
    #: Which life of its client it belongs to; a transaction's name is used once.
    life: int = 0


#: A unit, or a moment at a broker.
GraphNode: TypeAlias = Unit | tuple[str, int]
Graph: TypeAlias = dict[GraphNode, set[GraphNode]]


class Boundary(NamedTuple):
    """The beginning or the end of a transaction at a broker."""

    node: str
    seq: int
    is_end: bool
    unit: Unit


def add_edge(graph: Graph, before: GraphNode, after: GraphNode) -> None:
    graph.setdefault(before, set()).add(after)
    graph.setdefault(after, set())


def add_moments(graph: Graph, boundaries: Iterable[Boundary]) -> None:
    """Add the chains of moments, for the transactions that are in the graph already."""
    by_node: defaultdict[str, list[Boundary]] = defaultdict(list)
    for boundary in boundaries:
        if boundary.unit in graph:
            by_node[boundary.node].append(boundary)
    for node in sorted(by_node):
        moment = 0
        fresh = False
        for _, _, is_end, unit in sorted(by_node[node]):
            if is_end:
                if not fresh:
                    moment += 1
                    add_edge(graph, (node, moment - 1), (node, moment))
                    fresh = True
                add_edge(graph, unit, (node, moment))
            else:
                add_edge(graph, (node, moment), unit)
                fresh = False


def cyclic_components(graph: Graph) -> Iterator[set[GraphNode]]:
    """The strongly connected components of more than one node (Tarjan), without recursion."""
    number: dict[GraphNode, int] = {}
    low: dict[GraphNode, int] = {}
    open_: dict[GraphNode, None] = {}
    for root in graph:
        if root in number:
            continue
        path: list[tuple[GraphNode, Iterator[GraphNode]]] = [(root, iter(graph[root]))]
        number[root] = low[root] = len(number)
        open_[root] = None
        while path:
            node, rest = path[-1]
            after = next(rest, None)
            if after is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == number[node]:
                    component: set[GraphNode] = set()
                    while node not in component:
                        component.add(open_.popitem()[0])
                    if len(component) > 1:
                        yield component
            elif after not in number:
                number[after] = low[after] = len(number)
                open_[after] = None
                path.append((after, iter(graph[after])))
            elif after in open_:
                low[node] = min(low[node], number[after])


def shortest_cycle(graph: Graph, component: set[GraphNode]) -> list[GraphNode]:
    """A shortest cycle in a component; of several, the one that begins with the first unit."""
    best: list[GraphNode] = []
    for unit in sorted(node for node in component if isinstance(node, Unit)):
        found = _back_to(graph, component, unit)
        if found and (not best or len(found) < len(best)):
            best = found
        if len(best) == 2:
            break
    return best


def _back_to(graph: Graph, component: set[GraphNode], start: GraphNode) -> list[GraphNode]:
    """The shortest path from a node back to itself."""
    came_from: dict[GraphNode, GraphNode] = {}
    todo = [start]
    for node in todo:
        for after in sorted(graph[node] & component, key=str):
            if after == start:
                path = [node]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return path[::-1]
            if after not in came_from:
                came_from[after] = node
                todo.append(after)
    return []
