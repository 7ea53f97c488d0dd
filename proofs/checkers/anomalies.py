"""What may go wrong in a run, and who promises that it never does."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from padres_tx import registry
from padres_tx.engine_declaration import Promise

#: "error": a core, or a judge, has failed in the middle of the run; that is in nobody's promises.
Kind: TypeAlias = Promise | Literal["error"]


class Anomaly(NamedTuple):
    """Something that must not happen, and the story of how it did."""

    kind: Kind
    #: The engine that broke its promise; empty if no transaction was involved.
    engine: str
    #: The transaction, or the publication, operation or broker that it is about.
    tx: str
    story: str


#: Without a transaction: the overlay's own promises. What is sent is not lost ("handover").
PLAIN: Final[frozenset[Kind]] = frozenset(
    {"divergence", "undecided", "duplicate", "handover", "ghost", "error"}
)


def is_promised(kind: Kind, engine: str) -> bool:
    """Whether an engine promises that this never happens; "" is the overlay without engines."""
    if not engine:
        return kind in PLAIN
    return kind == "error" or kind in registry.properties(engine).promises


#: Engines that isolate: what is read and written by their transactions is judged by default.
ISOLATED: Final[frozenset[str]] = frozenset(registry.where(lambda engine: engine.isolated))

#: Engines whose transactions may end differently on the two sides of a broker that has lost its
#: memory: a side that is cut off from the coordinator ends them alone.
SPLIT_BY_RESTARTS: Final[frozenset[str]] = frozenset(
    registry.where(lambda engine: engine.ends_alone)
)
