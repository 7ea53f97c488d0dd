"""S-TX: static transactions, known as a whole to the coordinator (Section 6, with corrections).

Here is what the engine declares; `broker` has the algorithm. A client loads this alone.
"""

from __future__ import annotations

from padres_tx.engine_declaration import ATOMIC, EngineDeclaration

# No cycle is promised between transactions whose event spaces are disjoint; such transactions have
# nothing in common that could make one, so that needs no promise.
engine = EngineDeclaration(
    broker="padres_tx.engines.s_tx.broker:STx",
    client="static",
    promises=ATOMIC,
    replicated=True,
    ends_alone=True,
)
