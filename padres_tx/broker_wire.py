"""What brokers say to each other about transactions, whatever the engine.

Each engine has messages of its own (`padres_tx.dynamic_wire`, `padres_tx.static_tx`). These two are
the same for all: a broker that does not know how a transaction has ended asks its neighbours
(`padres_tx.questions`).
"""

from __future__ import annotations

import msgspec

from overlay.codec import StructCodec
from padres_tx.wire import Standing, TxID


class Between(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of what brokers say to each other about a transaction."""


class Ask(Between, frozen=True, array_like=True, gc=False, tag=61):
    """How has this transaction ended? Answered by `Answer`, once."""

    tx: TxID


class Answer(Between, frozen=True, array_like=True, gc=False, tag=62):
    """What is known behind the sender: "unknown" if no broker there knows the decision."""

    tx: TxID
    status: Standing
    code: str = ""
    reason: str = ""


asking: StructCodec[Ask | Answer] = StructCodec(Ask | Answer)
