"""D-TX: dynamic transactions that are serializable (Section 4, with corrections).

Here is what the engine declares; `broker` has the algorithm. A client loads this alone.
"""

from __future__ import annotations

from padres_tx.engine_declaration import ISOLATED, EngineDeclaration

engine = EngineDeclaration(
    broker="padres_tx.engines.d_tx.broker:DTx",
    client="dynamic",
    promises=ISOLATED,
    versioned=True,
    ends_alone=True,
)
