"""The brokers that an (un-)advertisement of a static transaction did not wait for.

An (un-)advertisement is complete when every broker has answered. Only a broker that is unreachable
is not waited for, unless it is in the span of the transaction: there the operations that come later
are carried out as well. It receives everything when its link resumes, in the order of the
operations. But what it attracts or sends back arrives at its neighbours only then, and the rest of
the transaction did not wait for it.

Brokers record when they lose a neighbour and when it is back. An operation left out a link if the
link was down at some time after the operation was sent over it, and before its sender handled
another operation that comes after it. Whatever is behind such a link was left out, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from padres_tx.audit.promises import REPLICATED
from proofs.history import History, Key, TracedOperation, TracedTransaction, TraceEvent


class LeftOut:
    """Which brokers each operation of one transaction left out."""

    def __init__(
        self,
        history: History,
        tx: TracedTransaction,
        order: Sequence[str],
        before: Mapping[str, Set[str]],
    ) -> None:
        """`order` has the operations, each behind its predecessors, and `before` these."""
        self._history = history
        self._tx = tx
        self._order = order
        self._before = before
        self._known: dict[Key, frozenset[str]] = {}

    def by(self, operation: TracedOperation) -> frozenset[str]:
        if self._tx.engine not in REPLICATED or not self._history.outages:
            return frozenset()
        if operation.key not in self._known:
            self._known[operation.key] = self._find(operation)
        return self._known[operation.key]

    def _find(self, operation: TracedOperation) -> frozenset[str]:
        later = self._later(operation)
        found: set[str] = set()
        todo = [operation.edge]
        for node in todo:
            event = self._own(node, operation.key)
            if event is None:
                continue
            for neighbour in event.record.dests:
                if node in found or self._is_left_out(neighbour, event, later):
                    found.add(neighbour)
                todo.append(neighbour)
        return frozenset(found)

    def _later(self, operation: TracedOperation) -> set[str]:
        """The operations that come after one."""
        found = {operation.name}
        for name in self._order:
            if not found.isdisjoint(self._before[name]):
                found.add(name)
        return found - {operation.name}

    def _own(self, node: str, key: Key) -> TraceEvent | None:
        """Where an operation was carried out at a node for the first time, on its own way."""
        events = self._history.applied.get((node, key), ())
        return next((event for event in events if event.cause is None), None)

    def _is_left_out(self, neighbour: str, sent: TraceEvent, later: Set[str]) -> bool:
        node = sent.record.node
        if neighbour in self._tx.neighbours.get(node, ()):
            return False  # It is in the span.
        outages = self._history.outages.get((node, neighbour))
        if outages is None:
            return False
        events = self._history.events[node]
        behind = (event.at for event in events[sent.at + 1 :] if event.record.op_id in later)
        end = next(behind, len(events))
        return any(down < end and up > sent.at for down, up in outages)
