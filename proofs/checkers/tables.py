"""The tables at rest: nothing of an aborted transaction, and exactly what the operations lead to.

`padres_tx.audit.expected_tables` computes what they should contain. The naive oracle of
`proofs.oracle` does the same for small overlays; a test compares the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from padres_tx.audit.expected_tables import RoutingOperation, effective, expected_lines
from proofs.checkers.anomalies import Anomaly
from proofs.checkers.replay import Replay
from proofs.history import History, TableRow

#: An entry without the client's number, since aborted operations leave gaps: table, client, kind,
#: filter, hop.
TableLine: TypeAlias = tuple[str, str, str, str, str]


def check(history: History, replay: Replay) -> Iterator[Anomaly]:
    """Ghosts and divergence; without tables the history's replay provides them."""
    if not history.complete or history.restarted:
        return
    expected = expected_tables(history)
    for node in sorted(history.events):
        rows = [*replay.rows(node)] if history.tables is None else history.tables.get(node, [])
        ghosts = [row for row in rows if _left_by(history, row)]
        for row in ghosts:
            name = _left_by(history, row)
            tx = history.txs.get(name)
            story = (
                f"{node} still has {row.client}'s {row.kind} {row.filter} in its"
                f" {row.table.upper()}, which {name} left there"
            )
            yield Anomaly("ghost", tx.engine if tx is not None else "", name, story)
        found = Counter(_line(row) for row in rows if row not in ghosts)
        right = expected.get(node, Counter())
        if found != right and not ghosts:
            yield Anomaly("divergence", "", node, _difference(node, found, right))


def _left_by(history: History, row: TableRow) -> str:
    """The transaction that left a row wrongly: any whose mark is on it, or an aborted one."""
    for mark in row.marks:
        return mark
    word = history.operations.get((row.client, history.lives.get(row.client, 0), row.number))
    if word is not None and word.tx is not None and word.tx.outcome == "aborted":
        return word.tx.name
    return ""


def _line(row: TableRow) -> TableLine:
    return row.table, row.client, row.kind, row.filter, row.hop


def _difference(node: str, found: Counter[TableLine], right: Counter[TableLine]) -> str:
    parts = [
        f"has {_text(line)}, which should not be there"
        for line in sorted((found - right).elements())
    ]
    parts += [f"lacks {_text(line)}" for line in sorted((right - found).elements())]
    return f"{node} " + ", ".join(parts)


def _text(line: TableLine) -> str:
    table, client, kind, filter, hop = line
    return f"{client}'s {kind} {filter} from {hop} in the {table.upper()}"


def expected_tables(history: History) -> Mapping[str, Counter[TableLine]]:
    """What all brokers should contain."""
    issued: dict[tuple[str, str], list[RoutingOperation]] = {}
    for word in history.operations.values():
        client, life, number = word.key
        if word.counts and (client, life) not in history.gone:
            operation = RoutingOperation(client, number, word.kind, word.text, word.edge)
            issued.setdefault((word.table, client), []).append(operation)
    operations = [each for _, mine in sorted(issued.items()) for each in effective(mine)]
    links = [(node, other) for node, others in history.tree.items() for other in others]
    found: dict[str, Counter[TableLine]] = {node: Counter() for node in sorted(history.tree)}
    for (node, *line), times in expected_lines(operations, links).items():
        table, client, kind, filter, hop = line
        found.setdefault(node, Counter())[table, client, kind, filter, hop] += times
    return found
