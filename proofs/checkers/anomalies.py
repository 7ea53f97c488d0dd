"""What a checker reports; which engine promises what is in `padres_tx.audit.promises`."""

from __future__ import annotations

from typing import NamedTuple

from padres_tx.audit.promises import AnomalyKind


class Anomaly(NamedTuple):
    """An anomaly, and an explanation of how it happened."""

    kind: AnomalyKind
    #: The engine whose transaction shows it; empty if no transaction is involved.
    engine: str
    #: The transaction, or the publication, operation or broker that it is about.
    tx: str
    story: str
