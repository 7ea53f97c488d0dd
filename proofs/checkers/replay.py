"""The replay of all brokers of a history (`padres_tx.audit.replay`).

Here the records of a history become steps: each with the unit that it belongs to, and with the
transaction in which its operation or publication was issued.
"""

from __future__ import annotations

from collections.abc import Iterator

from padres_tx.audit.dependency_graph import Unit
from padres_tx.audit.promises import ISOLATED, REPLICATED, VERSIONED
from padres_tx.audit.replay import (
    BrokerReplay,
    Dependency,
    Misrouting,
    TransactionAtBroker,
    UncommittedRead,
)
from padres_tx.audit.replayed_tables import ReplayStep
from proofs.history import History, TableRow, TracedTransaction, TraceEvent


class Replay:
    """What the replay of each broker shows, and the tables at the end."""

    def __init__(self, history: History, *, strict: bool) -> None:
        """With `strict`, the dependencies of all committed transactions are found, otherwise those
        of engines with isolation."""
        self._history = history
        self.misrouted: list[Misrouting | UncommittedRead] = []
        #: By pair of units, the reasons why the first comes before the second.
        self.dependencies: dict[tuple[Unit, Unit], list[Dependency]] = {}
        #: The committed transactions whose dependencies are found.
        self.judged = {
            Unit("tx", tx.name): tx
            for tx in history.txs.values()
            if tx.committed and (strict or tx.engine in ISOLATED)
        }
        self._brokers: dict[str, BrokerReplay] = {}
        for node in sorted(history.events):
            self._replay(node)

    def _replay(self, node: str) -> None:
        broker = BrokerReplay(versioned=VERSIONED, replicated=REPLICATED)
        self._brokers[node] = broker
        events = self._history.events[node]
        units = [self._unit(event) if self.judged else None for event in events]
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for event, unit in zip(events, units, strict=True):
            if unit is not None and unit.kind == "tx":
                first.setdefault(unit.name, event.at + 1)
                last[unit.name] = event.at + 1
        for tx in self._history.txs.values():
            stay = first.get(tx.name, 0), last.get(tx.name, 0)
            broker.add_transaction(self._transaction(tx, node, *stay))
        for event, unit in zip(events, units, strict=True):
            for found in broker.take(self._step(event, unit)):
                if isinstance(found, Dependency):
                    self.dependencies.setdefault(found.units, []).append(found)
                else:
                    self.misrouted.append(found)

    def _transaction(
        self, tx: TracedTransaction, node: str, first_at: int, last_at: int
    ) -> TransactionAtBroker:
        at, decided = tx.decided.get(node, (-1, ""))
        return TransactionAtBroker(
            name=tx.name,
            engine=tx.engine,
            outcome=tx.outcome,
            neighbours=tx.neighbours.get(node, frozenset()),
            decided_at=at + 1,
            decided=decided,
            first_at=first_at,
            last_at=last_at,
            judged=Unit("tx", tx.name) in self.judged,
        )

    def _step(self, event: TraceEvent, unit: Unit | None) -> ReplayStep:
        record, publication = event.record, event.publication
        issued_in: TracedTransaction | None = None
        if publication is not None:
            issued_in = publication.tx
        elif (operation := self._history.operation_of(event)) is not None:
            issued_in = operation.tx
        return ReplayStep(
            node=record.node,
            seq=event.at + 1,
            kind=record.kind,
            tx=record.tx,
            engine=record.engine,
            op_id=record.op_id,
            op_kind=record.op_kind,
            client=record.client,
            filter=record.filter,
            source=record.source,
            dests=record.dests,
            version=record.version,
            outcome=record.outcome,
            unit_kind=unit.kind if unit is not None else "",
            unit_name=unit.name if unit is not None else "",
            unit_life=unit.life if unit is not None else 0,
            issued_in=issued_in.name if issued_in is not None else "",
            entered=publication is not None and publication.published.record.node == record.node,
        )

    def _unit(self, event: TraceEvent) -> Unit | None:
        """The unit that an event belongs to; None if it was aborted, or undoes something."""
        record = event.record
        tx = self._history.txs.get(record.tx)
        if tx is None:
            if record.kind in ("match", "publish", "deliver"):
                publication = event.publication
                if publication is None:
                    return None
                tx = publication.tx
                if tx is None:
                    return Unit("pub", publication.name, publication.key[1])
            elif record.kind == "apply":
                key = event.cause or event.key
                assert key is not None
                operation = self._history.operations.get(key)
                if operation is None:
                    return Unit("leave", key[0], key[1])
                if event.cause is None and self._is_repeated(event):
                    return None  # An abort restores what it had dropped.
                tx = operation.tx
                if tx is None:
                    return Unit("op", operation.name, key[1])
            elif record.kind == "end":
                return Unit("leave", record.client, event.life)
        return Unit("tx", tx.name) if tx is not None and tx.committed else None

    def _is_repeated(self, event: TraceEvent) -> bool:
        assert event.key is not None
        before = self._history.applied[event.record.node, event.key]
        return before[0].at < event.at and any(other.cause is None for other in before[:1])

    def rows(self, node: str) -> Iterator[TableRow]:
        """A broker's tables at the end."""
        for name, table in self._brokers[node].tables.items():
            for entry in table:
                step = entry.step
                yield TableRow(
                    name,
                    entry.client,
                    entry.number,
                    step.op_kind,
                    step.filter,
                    entry.hop,
                    entry.marks,
                )
