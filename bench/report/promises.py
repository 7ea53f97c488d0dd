"""What each engine promises that brokers' traces never show; the table that verdicts are held
against.

An engine may show what it does not promise never to show: that is no failure, and reports say so.
"""

from __future__ import annotations

from typing import Final

#: What each kind of verdict means, in the order in which people read about them.
MEANING: Final = {
    "order": "operations out of their order at a broker",
    "partial": "publications of a transaction delivered in part, too early, or after an abort",
    "split": "brokers or clients disagree on an outcome",
    "ghost": "routing entries left by an aborted transaction",
    "divergence": "tables or routes other than what all operations come to",
    "undecided": "a transaction without an outcome",
    "duplicate": "a publication handed to one client twice",
    "dirty": "a transaction's publication routed on uncommitted, or on a part of, changes",
    "cycle": "transactions that no serial order explains, predicate reads included",
    "handover": "a plain publication on both sides of a commit, or on neither",
    "lost": "a plain publication that did not arrive",
}

KINDS: Final = tuple(MEANING)

_ATOMIC: Final = ("order", "partial", "split", "ghost", "divergence", "undecided", "duplicate")

#: By engine. S-TX promises no cycle between transactions whose event spaces are disjoint; such
#: transactions have nothing in common that could make one. BL-WAIT has no transactions in traces.
NEVER: Final = {
    "d-tx": (*_ATOMIC, "dirty", "cycle", "handover"),
    "d-tx-ni": _ATOMIC,
    "s-tx": _ATOMIC,
    "bl-wait": ("divergence", "duplicate"),
}

#: Of plain operations and publications, whatever runs beside them.
PLAIN: Final = ("ghost", "divergence", "undecided", "duplicate", "lost")


def is_promised(kind: str, engine: str) -> bool:
    """Whether an engine promises that this never happens; "" is what is plain.

    Of an engine of somebody else's, what every transaction has to be is expected.
    """
    return kind in (NEVER.get(engine, _ATOMIC) if engine else PLAIN)
