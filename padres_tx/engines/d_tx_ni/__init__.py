"""D-TX-NI: dynamic transactions without isolation (Section 5).

Here is what the engine declares; `broker` has the algorithm. A client loads this alone.
"""

from __future__ import annotations

from padres_tx.engine_declaration import ATOMIC, EngineDeclaration

engine = EngineDeclaration(
    broker="padres_tx.engines.d_tx_ni.broker:DTxNI",
    client="dynamic",
    promises=ATOMIC,
)
