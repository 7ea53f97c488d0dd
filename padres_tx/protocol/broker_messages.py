"""What brokers say to each other about transactions, whatever the engine.

Each engine has messages of its own (`padres_tx.protocol.dynamic_messages`,
`padres_tx.protocol.static_state`). These two are the same for all: a broker that does not know how
a transaction has ended asks its neighbours (`padres_tx.protocol.questions`).
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from overlay.errors import REASON_LIMIT
from overlay.messages import NAME_LIMIT
from overlay.wire.codec import StructCodec
from padres_tx.client_messages import Standing, TxID

#: Why something failed, as brokers tell each other: what is longer does not decode. A broker adds
#: to what it passes on, so without a limit the next message might not fit in a frame.
CodeText: TypeAlias = Annotated[str, msgspec.Meta(max_length=NAME_LIMIT)]
ReasonText: TypeAlias = Annotated[str, msgspec.Meta(max_length=REASON_LIMIT)]


def shortened(reason: str) -> str:
    """A reason as it can be sent to another broker; it may quote a filter of any length."""
    return reason[:REASON_LIMIT]


class BrokerMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of what brokers say to each other about a transaction."""


class Ask(BrokerMessage, frozen=True, array_like=True, gc=False, tag=61):
    """How has this transaction ended? Answered by `Answer`, once."""

    tx: TxID


class Answer(BrokerMessage, frozen=True, array_like=True, gc=False, tag=62):
    """What is known behind the sender: "unknown" if no broker there knows the decision."""

    tx: TxID
    status: Standing
    code: CodeText = ""
    reason: ReasonText = ""


asking: StructCodec[Ask | Answer] = StructCodec(Ask | Answer)
