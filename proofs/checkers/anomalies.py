"""What may go wrong in a run, and who promises that it never does."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

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


#: Promised by every engine that has a broker's half, and by plain operations where they can.
COMMON: Final[frozenset[Kind]] = frozenset(
    {"order", "partial", "split", "ghost", "divergence", "undecided", "duplicate", "error"}
)

#: What each engine never shows. S-TX promises no cycle between transactions whose event spaces are
#: disjoint; such transactions have nothing in common that could make one, so nothing is checked.
NEVER: Final[dict[str, frozenset[Kind]]] = {
    "d-tx": COMMON | {"dirty", "cycle", "handover"},
    "d-tx-ni": COMMON,
    "s-tx": COMMON,
    "bl-wait": frozenset({"divergence", "duplicate", "error"}),
}

#: Without a transaction: the overlay's own promises. What is sent is not lost ("handover").
PLAIN: Final[frozenset[Kind]] = frozenset(
    {"divergence", "undecided", "duplicate", "handover", "ghost", "error"}
)


def is_promised(kind: Kind, engine: str) -> bool:
    """Whether an engine promises that this never happens; "" is the overlay without engines."""
    return kind in (NEVER.get(engine, COMMON) if engine else PLAIN)


#: Engines that isolate: what is read and written by their transactions is judged by default.
ISOLATED: Final[frozenset[str]] = frozenset(e for e, kinds in NEVER.items() if "cycle" in kinds)

#: Engines whose transactions may end differently on the two sides of a broker that has lost its
#: memory: a side that is cut off from the coordinator ends them alone.
SPLIT_BY_RESTARTS: Final[frozenset[str]] = frozenset({"d-tx", "s-tx"})
