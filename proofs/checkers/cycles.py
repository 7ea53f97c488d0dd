"""Serializability: the graph of who comes before whom has no cycle; one that is there is told.

Nodes are units (`conflicts`), edges their dependencies. A transaction that is over at a broker
before another begins there comes before that one: every broker votes, and Init is behind Forget on
every way. Instead of an edge for each such pair there is a chain of moments at each broker, which
transactions enter when they are over and leave when they begin.

Plain publications on both sides of a commit are for `reads`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import networkx as nx

from proofs.checkers.anomalies import ISOLATED, Anomaly
from proofs.checkers.conflicts import Access, Conflicts, Edge, Unit
from proofs.checkers.order import what
from proofs.history import History

#: A unit, or a moment at a broker.
Node: TypeAlias = Unit | tuple[str, int]


def check(history: History, conflicts: Conflicts) -> Iterator[Anomaly]:
    graph = dependencies(history, conflicts)
    for component in nx.strongly_connected_components(graph):
        if len(component) > 1:
            yield _tell(history, conflicts, shortest_cycle(graph, component))


def dependencies(history: History, conflicts: Conflicts) -> nx.DiGraph[Node]:
    graph: nx.DiGraph[Node] = nx.DiGraph()
    for one, other in conflicts.edges:
        if one.kind != "pub" and other.kind != "pub":
            graph.add_edge(one, other)
    _add_moments(history, graph, conflicts)
    return graph


def _add_moments(history: History, graph: nx.DiGraph[Node], conflicts: Conflicts) -> None:
    for node in sorted(history.events):
        steps: list[tuple[int, bool, Unit]] = []
        for unit, tx in conflicts.txs.items():
            if tx.engine in ISOLATED and unit in graph:
                if node in tx.begun:
                    steps.append((tx.begun[node], False, unit))
                if node in tx.ended:
                    steps.append((tx.ended[node], True, unit))
        moment = 0
        fresh = False
        for _, is_over, unit in sorted(steps):
            if is_over:
                if not fresh:
                    moment += 1
                    graph.add_edge((node, moment - 1), (node, moment))
                    fresh = True
                graph.add_edge(unit, (node, moment))
            else:
                graph.add_edge((node, moment), unit)
                fresh = False


def shortest_cycle(graph: nx.DiGraph[Node], component: set[Node]) -> list[Node]:
    """The units of a shortest cycle in a strongly connected part, the first by name first."""
    part = graph.subgraph(component)
    units = sorted(node for node in component if isinstance(node, Unit))
    best: list[Node] = []
    for unit in units:
        found = _back_to(part, unit)
        if found and (not best or len(found) < len(best)):
            best = found
        if len(best) == 2:
            break
    return best


def _back_to(part: nx.DiGraph[Node], start: Node) -> list[Node]:
    """The shortest way from a node back to itself."""
    came: dict[Node, Node] = {}
    todo = [start]
    for node in todo:
        for after in sorted(part[node], key=str):
            if after == start:
                way = [node]
                while way[-1] != start:
                    way.append(came[way[-1]])
                return way[::-1]
            if after not in came:
                came[after] = node
                todo.append(after)
    return []


# --- the story ---


def _tell(history: History, conflicts: Conflicts, cycle: Sequence[Node]) -> Anomaly:
    """First what the transactions in it did, then why each comes before the next."""
    units = [unit for unit in cycle if isinstance(unit, Unit)]
    lines = ["no order of these could have led to this:"]
    lines += [_deeds(history, unit) for unit in sorted(units) if unit.kind == "tx"]
    before: Unit | None = None
    for one, other in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        if isinstance(one, Unit) and isinstance(other, Unit):
            why = reason(conflicts.edges[one, other][0])
            lines.append(f"{name(one)} comes before {name(other)}: {why}")
        elif isinstance(one, Unit):
            before = one
        elif isinstance(other, Unit):
            assert before is not None, "a cycle is told from a unit on"
            over = f"it was over at {one[0]} when that began there"
            lines.append(f"{name(before)} comes before {name(other)}: {over}")
    txs = [history.txs[unit.name] for unit in sorted(units) if unit.kind == "tx"]
    blamed = next((tx for tx in txs if tx.engine in ISOLATED), txs[0])
    return Anomaly("cycle", blamed.engine, blamed.name, "\n".join(lines))


def _deeds(history: History, unit: Unit) -> str:
    tx = history.txs[unit.name]
    events = [word.event for word in history.words.values() if word.tx is tx]
    events += [p.published for p in history.publications.values() if p.tx is tx]
    events.sort(key=lambda event: (event.record.at_ns, event.record.node, event.at))
    deeds = [f"{what(event)} at {event.record.node}" for event in events]
    return f"{unit.name} ({tx.engine}, decided at {tx.edge}): {', '.join(deeds)}"


def name(unit: Unit) -> str:
    """A unit, for people."""
    if unit.kind == "tx":
        return unit.name
    if unit.kind == "leave":
        return f"{unit.name}'s leaving"
    return f"the plain {unit.name}"


def reason(edge: Edge) -> str:
    """Who did what, where, and in which order."""
    read, wrote = _deed(edge.read), _deed(edge.write)
    if edge.read.is_publication:
        how = "was routed with" if edge.seen else "was routed without"
    else:
        how = "found" if edge.seen else "did not find"
    return f"at {edge.node}, {read} {how} {wrote}"


def _deed(access: Access) -> str:
    record = access.event.record
    return what(access.event) if record.op_id else f"{record.client}'s leaving"
