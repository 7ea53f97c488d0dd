"""Judging a run from its records: which of the anomalies that an engine must never show are there?

Each module looks for some of them, in a time that grows nearly with the number of records:

    outcomes    split decisions, undecided transactions
    deliveries  publications delivered in part, too early, after an abort, or twice
    order       operations of a transaction out of their order at a broker
    tables      ghost routes, and tables at rest that differ from what the words come to
    replay      a broker's tables rebuilt from its records; routing that does not follow them
    conflicts   who has read what others have written, at each broker
    reads       dirty and fractured reads; plain publications on both sides of a commit
    cycles      serializability: the dependency graph and its cycles, told as stories

`anomalies` says who promises what. What takes no theory is judged from
outside in `proofs.sim.random_checks`.
"""

from __future__ import annotations

from proofs.checkers import cycles, deliveries, order, outcomes, reads, tables
from proofs.checkers.anomalies import Anomaly, Kind, is_promised
from proofs.checkers.conflicts import Conflicts
from proofs.checkers.replay import Replay
from proofs.history import History

__all__ = ["Anomaly", "Kind", "check", "is_promised"]


def check(history: History, *, strict: bool = False) -> list[Anomaly]:
    """All anomalies of a run; with `strict` also those that an engine does not promise to avoid.

    A broker that has lost its memory has taken with it what orders, tables and reads are judged by:
    then only outcomes and deliveries are.
    """
    found = [*outcomes.check(history), *deliveries.check(history)]
    if not history.restarted:
        replay = Replay(history)
        conflicts = Conflicts(history, replay, strict=strict)
        found += order.check(history)
        found += tables.check(history, replay)
        found += reads.check(history, replay, conflicts)
        found += cycles.check(history, conflicts)
    return [one for one in found if strict or is_promised(one.kind, one.engine)]
