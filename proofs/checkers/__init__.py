"""Checking a run from its records: which anomalies does it show, and were they promised not to be?

Each module looks for some of them, in a time that grows nearly linearly with the records:

    outcomes    split decisions, undecided transactions
    deliveries  publications delivered in part, too early, after an abort, or twice
    order       operations of a transaction out of their order at a broker
    tables      ghost routes, and tables at rest that differ from what the operations lead to
    reads       dirty and fractured reads; plain publications on both sides of a commit
    cycles      serializability: cycles of the dependency graph, explained
    replay      the steps of each broker, for the replay that the last three rest on

The rules of the last four are in `padres_tx.audit`, which the Spark job of `bench.spark` uses as
well; its `promises` knows which engine promises what. Checks that need no records are in
`proofs.sim.random_checks`.
"""

from __future__ import annotations

from padres_tx.audit.promises import AnomalyKind, is_promised
from proofs.checkers import cycles, deliveries, order, outcomes, reads, tables
from proofs.checkers.anomalies import Anomaly
from proofs.checkers.replay import Replay
from proofs.history import History

__all__ = ["Anomaly", "AnomalyKind", "check", "is_promised"]


def check(history: History, *, strict: bool = False) -> list[Anomaly]:
    """All anomalies of a run; with `strict` also those that an engine does not promise to avoid.

    If a broker has lost its memory, only outcomes and deliveries are checked: orders, tables and
    reads are judged by state that was lost with it.
    """
    found = [*outcomes.check(history), *deliveries.check(history)]
    if not history.restarted:
        replay = Replay(history, strict=strict)
        found += order.check(history)
        found += tables.check(history, replay)
        found += reads.check(history, replay)
        found += cycles.check(history, replay)
    return [one for one in found if strict or is_promised(one.kind, one.engine)]
