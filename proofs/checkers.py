"""Judging a run: which of the anomalies that an engine must never show does it show?"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from proofs.history import History

Kind: TypeAlias = Literal[
    "order",
    "partial",
    "split",
    "ghost",
    "divergence",
    "undecided",
    "duplicate",
    "dirty",
    "cycle",
    "handover",
    # A core, or a judge, has failed in the middle of the run.
    "error",
]


class Anomaly(NamedTuple):
    """Something that must not happen, and the story of how it did."""

    kind: Kind
    #: The engine that broke its promise; empty if no transaction was involved.
    engine: str
    #: The transaction, or the publication, operation or broker that it is about.
    tx: str
    story: str


def check(history: History, *, strict: bool = False) -> list[Anomaly]:
    """All anomalies of a run; with `strict` also those that an engine does not promise to avoid."""
    return []
