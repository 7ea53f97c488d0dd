"""The order of a transaction's operations at each broker that sees two of them (Section 3.2).

    Thread     each operation of a client comes before its next one
    Trigger    a tcm comes before the operations of its receivers on it
    Trigger*   all operations that a tcm has led to come before its client's next operation

The record of an operation's entry names its direct predecessors; the rest is transitivity. At a
broker an operation that comes later must not be handled before one that comes earlier, nor before
the entries that an earlier (un-)advertisement has attracted or sent back there. Entries do not
count that come from brokers that the (un-)advertisement of a static transaction did not wait for,
because they were unreachable (`proofs.checkers.left_out`). For each transaction and broker one pass
over its operations is enough, which carries along "the last that comes before".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from overlay.trace import Record
from padres_tx.audit.promises import REPLICATED
from padres_tx.audit.replayed_tables import ReplayStep
from proofs.checkers.anomalies import Anomaly
from proofs.checkers.left_out import LeftOut
from proofs.history import History, TracedTransaction, TraceEvent


class HandledOperation(NamedTuple):
    """An operation at one broker: when it was handled, and the last entry that it moved."""

    first: TraceEvent
    last: TraceEvent


def check(history: History) -> Iterator[Anomaly]:
    entered = _entered(history)
    before = {name: _before(operations) for name, operations in entered.items()}
    order = {name: _sorted(mine) for name, mine in before.items()}
    left_out = {
        name: LeftOut(history, history.txs[name], order[name], before[name]) for name in entered
    }
    handled = _handled(history, left_out)
    for name in entered:
        for node, here in sorted(handled.get(name, {}).items()):
            yield from _check_node(history.txs[name], node, order[name], before[name], here)


def _entered(history: History) -> dict[str, dict[str, TraceEvent]]:
    """Where each operation of each transaction entered, in the order of each node."""
    found: dict[str, dict[str, TraceEvent]] = {}
    for operation in history.operations.values():
        if operation.tx is not None:
            found.setdefault(operation.tx.name, {})[operation.name] = operation.event
    for publication in history.publications.values():
        if publication.tx is not None and publication.published.record.kind == "publish":
            found.setdefault(publication.tx.name, {})[publication.name] = publication.published
    return found


def _before(operations: dict[str, TraceEvent]) -> dict[str, set[str]]:
    """The direct predecessors of each operation, those by Trigger* included."""
    triggered: defaultdict[str, list[str]] = defaultdict(list)
    for name, event in operations.items():
        if event.record.trigger:
            triggered[event.record.trigger].append(name)
    before: dict[str, set[str]] = {}
    for name, event in operations.items():
        mine = {*event.record.after, event.record.trigger} & operations.keys()
        # An operation after a tcm comes after everything that the tcm has led to, at any depth.
        todo = [other for other in event.record.after if other in operations]
        while todo:
            for other in triggered[todo.pop()]:
                if other != name and other not in mine:
                    mine.add(other)
                    todo.append(other)
        before[name] = mine
    return before


def _sorted(before: dict[str, set[str]]) -> list[str]:
    """The operations, each after its predecessors; those in a cycle are left out."""
    waits = {name: len(mine) for name, mine in before.items()}
    behind: defaultdict[str, list[str]] = defaultdict(list)
    for name, mine in before.items():
        for other in mine:
            behind[other].append(name)
    ready = [name for name, count in waits.items() if not count]
    for name in ready:
        for other in behind[name]:
            waits[other] -= 1
            if not waits[other]:
                ready.append(other)
    return ready


def _handled(
    history: History, left_out: Mapping[str, LeftOut]
) -> dict[str, dict[str, dict[str, HandledOperation]]]:
    """By transaction, broker and operation."""
    found: dict[str, dict[str, dict[str, HandledOperation]]] = {}
    for node, events in history.events.items():
        for event in events:
            record = event.record
            if event.key is None:
                continue
            if record.kind == "match":
                publication = event.publication
                tx = publication.tx if publication is not None else None
                name = record.op_id
            elif record.kind == "apply":
                whose = event.cause or event.key
                operation = history.operations.get(whose)
                # After an abort, operations that were under way arrive as if they were plain.
                tx = operation.tx if operation is not None else None
                if tx is not None and tx.engine not in REPLICATED and record.tx != tx.name:
                    continue
                taken_back = (
                    operation is not None
                    and event.cause is None
                    and (record.op_kind != operation.event.record.op_kind)
                )
                if taken_back:
                    continue  # A client that leaves takes its entries back under their numbers.
                name = operation.name if operation is not None else ""
                if event.moved_by and operation is not None and tx is not None:
                    late = event.moved_by in left_out[tx.name].by(operation)
                    tx = None if late else tx
            else:
                continue
            if tx is None or event.at > tx.ended.get(node, event.at):
                continue  # A later compensation may repeat the operation.
            here = found.setdefault(tx.name, {}).setdefault(node, {})
            if name in here:
                if event.cause is not None:
                    here[name] = here[name]._replace(last=event)
            elif event.cause is None:
                here[name] = HandledOperation(event, event)
    return found


def _check_node(
    tx: TracedTransaction,
    node: str,
    order: list[str],
    before: dict[str, set[str]],
    here: dict[str, HandledOperation],
) -> Iterator[Anomaly]:
    latest: dict[str, tuple[int, str]] = {}
    for name in order:
        last = (-1, "")
        for other in before[name]:
            last = max(last, latest.get(other, last))
            if other in here:
                last = max(last, (here[other].last.at, other))
        latest[name] = last
        if name in here and here[name].first.at < last[0]:
            late = here[last[1]]
            moved = "" if late.last is late.first else ", and an entry that it has moved there"
            story = (
                f"at {node}, {what(here[name].first.record)} was handled before"
                f" {what(late.first.record)}{moved}, which in {tx.name} comes first"
            )
            yield Anomaly("order", tx.engine, tx.name, story)
            return


def what(record: Record | ReplayStep) -> str:
    """An operation, for people: which client does what."""
    return f"{record.client}'s {record.op_kind} {record.filter} ({record.op_id})"
