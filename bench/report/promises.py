"""What engines promise that brokers' traces never show, as verdicts are held against it.

Each engine declares its own promises (`padres_tx.engine_declaration`).

An engine may show what it does not promise never to show: that is no failure, and reports say so.
"""

from __future__ import annotations

from typing import Final

from padres_tx import registry
from padres_tx.engine_declaration import PROMISES

#: What each kind of verdict means, in the order in which people read about them.
MEANING: Final[dict[str, str]] = {
    **{str(promise): meaning for promise, meaning in PROMISES.items()},
    "lost": "a plain publication that did not arrive",
}

KINDS: Final = tuple(MEANING)

#: Of plain operations and publications, whatever runs beside them.
PLAIN: Final = ("ghost", "divergence", "undecided", "duplicate", "lost")


def is_promised(kind: str, engine: str) -> bool:
    """Whether an engine promises that this never happens; "" is what is plain.

    Of an engine of somebody else's, what every transaction has to be is expected.
    """
    return kind in (registry.properties(engine).promises if engine else PLAIN)
