"""Outcomes: the same for all brokers and clients, and one for every transaction in the end."""

from __future__ import annotations

from collections.abc import Iterator

from overlay.identity import parse_name
from padres_tx.audit.promises import SPLIT_BY_RESTARTS
from proofs.checkers.anomalies import Anomaly
from proofs.history import History, TracedTransaction


def check(history: History) -> Iterator[Anomaly]:
    """Split decisions, and transactions without a decision."""
    told = history.clients.outcomes if history.clients is not None else {}
    for tx in history.txs.values():
        yield from _split(history, tx, told.get(tx.name, {}))
    if not history.complete or history.restarted:
        return
    for tx in history.txs.values():
        yield from _undecided(tx)
    if history.clients is not None:
        yield from _unreported(history)
    for broker, why in sorted(history.unrest.items()):
        yield Anomaly("undecided", "", broker, f"{broker} is not at rest: {why}")


def _split(history: History, tx: TracedTransaction, told: dict[str, bool]) -> Iterator[Anomaly]:
    outcomes = {node: outcome for node, (_, outcome) in tx.decided.items()}
    outcomes |= {
        client: "committed" if committed else "aborted" for client, committed in told.items()
    }
    if history.restarted and tx.engine in SPLIT_BY_RESTARTS:
        return
    if tx.edge in history.restarted:
        # The decision may have been lost with the broker that made it and those that knew it.
        lost = {client for client, homes in history.homes.items() if homes & history.restarted}
        lost |= history.restarted
        outcomes = {who: outcome for who, outcome in outcomes.items() if who not in lost}
    for node, outcome in tx.changed_mind:
        yield Anomaly("split", tx.engine, tx.name, f"{node} decides again, differently: {outcome}")
    if len(set(outcomes.values())) > 1:
        sides: dict[str, list[str]] = {}
        for who in sorted(outcomes):
            sides.setdefault(outcomes[who], []).append(who)
        parts = [f"{how} according to {', '.join(sides[how])}" for how in sorted(sides)]
        yield Anomaly("split", tx.engine, tx.name, f"{tx.name} is {' and '.join(parts)}")


def _undecided(tx: TracedTransaction) -> Iterator[Anomaly]:
    """Where a transaction has begun, it has to be decided and to end."""
    for what, where in (("decided", tx.decided), ("over", tx.ended)):
        missing = sorted(tx.begun.keys() - where.keys())
        if missing:
            story = f"{tx.name} has begun at {', '.join(missing)} and is never {what} there"
            yield Anomaly("undecided", tx.engine, tx.name, story)
            return


def _unreported(history: History) -> Iterator[Anomaly]:
    """A coordinator learns the outcome of its transaction, unless it has left."""
    assert history.clients is not None
    left = {client for client, _ in history.gone}
    for name, engine in history.clients.asked.items():
        id = parse_name(name)
        assert id is not None, name
        coordinator = id[0]
        if coordinator in left or coordinator in history.clients.outcomes.get(name, {}):
            continue
        story = f"{coordinator} never received the outcome of {name}"
        yield Anomaly("undecided", engine, name, story)
