"""The anomalies that a run can show, and which engine promises never to show which.

Each engine declares its promises itself (`padres_tx.engine_declaration`); here they are asked for
by the name of an engine in a record. An engine may show an anomaly that it does not promise to
avoid: that is not a failure, and reports say so.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from padres_tx import registry
from padres_tx.engine_declaration import PROMISES, Promise

#: What an engine can promise; "lost", which only the overlay can; and "error", a core or a checker
#: that failed during the run, which no records show.
AnomalyKind: TypeAlias = Promise | Literal["lost", "error"]

#: What each kind that records can show means, in the order in which reports list them.
MEANING: Final[dict[str, str]] = {
    **{str(promise): meaning for promise, meaning in PROMISES.items()},
    "lost": "a plain publication that did not arrive",
}

#: The kinds that records can show.
KINDS: Final = tuple(MEANING)

#: The promises of the overlay to plain operations and publications, whatever engines run.
PLAIN: Final = frozenset({"ghost", "divergence", "undecided", "duplicate", "lost"})


def is_promised(kind: str, engine: str) -> bool:
    """Whether an engine promises never to show an anomaly; "" stands for the overlay itself.

    Of an engine that is not installed here, what every engine has to promise is expected.
    """
    if kind == "error":
        return True
    return kind in (registry.properties(engine).promises if engine else PLAIN)


#: Engines with isolation: the reads and writes of their transactions are judged by default.
ISOLATED: Final = frozenset(registry.where(lambda engine: engine.isolated))

#: Engines whose changes carry a version until the decision; changes of others are seen by all
#: traffic at once.
VERSIONED: Final = frozenset(registry.where(lambda engine: engine.versioned))

#: Engines of which every broker carries out its part of a plan by itself.
REPLICATED: Final = frozenset(registry.where(lambda engine: engine.replicated))

#: Engines whose transactions may end differently on the two sides of a broker that has lost its
#: memory: a side that is cut off from the coordinator ends them by itself.
SPLIT_BY_RESTARTS: Final = frozenset(registry.where(lambda engine: engine.ends_alone))
