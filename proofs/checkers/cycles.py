"""Serializability: the dependency graph has no cycle; a cycle that it has is explained.

The graph is that of `padres_tx.audit.dependency_graph`. Plain publications on both sides of a
commit are checked in `reads`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from padres_tx.audit.dependency_graph import (
    Boundary,
    Graph,
    GraphNode,
    Unit,
    add_edge,
    add_moments,
    cyclic_components,
    shortest_cycle,
)
from padres_tx.audit.promises import ISOLATED
from padres_tx.audit.replay import Access, Dependency
from proofs.checkers.anomalies import Anomaly
from proofs.checkers.order import what
from proofs.checkers.replay import Replay
from proofs.history import History


def check(history: History, replay: Replay) -> Iterator[Anomaly]:
    graph: Graph = {}
    for before, after in replay.dependencies:
        if before.kind != "pub" and after.kind != "pub":
            add_edge(graph, before, after)
    add_moments(graph, _boundaries(replay))
    for component in cyclic_components(graph):
        yield _explain(history, replay, shortest_cycle(graph, component))


def _boundaries(replay: Replay) -> Iterator[Boundary]:
    """Where each isolated transaction begins and ends at each broker."""
    for unit, tx in replay.judged.items():
        if tx.engine in ISOLATED:
            for node, at in tx.begun.items():
                yield Boundary(node, at, False, unit)
            for node, at in tx.ended.items():
                yield Boundary(node, at, True, unit)


# --- explanation ---


def _explain(history: History, replay: Replay, cycle: Sequence[GraphNode]) -> Anomaly:
    """First what the transactions in it did, then why each comes before the next."""
    units = [unit for unit in cycle if isinstance(unit, Unit)]
    lines = ["no serial order explains this:"]
    lines += [_operations(history, unit) for unit in sorted(units) if unit.kind == "tx"]
    before: Unit | None = None
    for one, other in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        if isinstance(one, Unit) and isinstance(other, Unit):
            why = reason(replay.dependencies[one, other][0])
            lines.append(f"{name(one)} comes before {name(other)}: {why}")
        elif isinstance(one, Unit):
            before = one
        elif isinstance(other, Unit):
            assert before is not None, "a cycle begins with a unit"
            over = f"it was over at {one[0]} when that began there"
            lines.append(f"{name(before)} comes before {name(other)}: {over}")
    txs = [history.txs[unit.name] for unit in sorted(units) if unit.kind == "tx"]
    blamed = next((tx for tx in txs if tx.engine in ISOLATED), txs[0])
    return Anomaly("cycle", blamed.engine, blamed.name, "\n".join(lines))


def _operations(history: History, unit: Unit) -> str:
    tx = history.txs[unit.name]
    events = [operation.event for operation in history.operations.values() if operation.tx is tx]
    events += [p.published for p in history.publications.values() if p.tx is tx]
    events.sort(key=lambda event: (event.record.at_ns, event.record.node, event.at))
    operations = [f"{what(event.record)} at {event.record.node}" for event in events]
    return f"{unit.name} ({tx.engine}, decided at {tx.edge}): {', '.join(operations)}"


def name(unit: Unit) -> str:
    """A unit, for people."""
    if unit.kind == "tx":
        return unit.name
    if unit.kind == "leave":
        return f"{unit.name}'s leaving"
    return f"the plain {unit.name}"


def reason(dependency: Dependency) -> str:
    """Who did what, where, and in which order."""
    read, write = _operation(dependency.read), _operation(dependency.write)
    if dependency.read.is_publication:
        how = "was routed with" if dependency.seen else "was routed without"
    else:
        how = "found" if dependency.seen else "did not find"
    return f"at {dependency.read.step.node}, {read} {how} {write}"


def _operation(access: Access) -> str:
    step = access.step
    return what(step) if step.op_id else f"{step.client}'s leaving"
