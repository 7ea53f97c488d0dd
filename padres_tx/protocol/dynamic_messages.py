"""What brokers say to each other about dynamic transactions (D-TX and D-TX-NI).

`padres_tx.protocol.dynamic` and `padres_tx.protocol.two_phase` explain the protocol that these make
up.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec

from overlay.messages import NameText, Natural, Operation, Pub
from overlay.stored import stored_values
from overlay.wire.codec import StructCodec
from padres_tx.client_messages import FromClient, TxID
from padres_tx.protocol.broker_messages import Answer, Ask, BrokerMessage, CodeText, ReasonText

#: Clients that have finished a tcm, at most: more than any overlay has, and the sum over all
#: neighbours is still a number that fits in a message.
ReceiverCount: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


class Init(BrokerMessage, frozen=True, array_like=True, gc=False, tag=50):
    tx: TxID
    age: Natural
    #: What the coordinator's edge broker has voted for and does not know decided: it is not in the
    #: snapshot.
    undecided: tuple[TxID, ...] = ()
    #: What is left of its deadline; a broker that is cut off acts on it by itself. 0: nothing.
    deadline_s: float = 0.0


class TxOperation(BrokerMessage, frozen=True, array_like=True, gc=False, tag=51):
    tx: TxID
    #: Answered by Acked with this number; 0 if no answer is wanted.
    req: Natural
    operation: Operation | None = None
    pub: Pub | None = None
    tcm: bool = False
    #: The clients behind the receiver that a tcm has to reach, and only these; empty for all.
    to: tuple[NameText, ...] = ()


class Acked(BrokerMessage, frozen=True, array_like=True, gc=False, tag=52):
    tx: TxID
    req: Natural
    #: How many clients have finished what a tcm asked of them.
    receivers: ReceiverCount = 0


class Prepare(BrokerMessage, frozen=True, array_like=True, gc=False, tag=53):
    tx: TxID


class Vote(BrokerMessage, frozen=True, array_like=True, gc=False, tag=54):
    tx: TxID
    code: CodeText = ""
    reason: ReasonText = ""
    #: The client whose transaction or operation it has lost to, if one is known.
    to: NameText = ""


class Decide(BrokerMessage, frozen=True, array_like=True, gc=False, tag=55):
    tx: TxID
    committed: bool
    code: CodeText = ""
    reason: ReasonText = ""
    to: NameText = ""


class Decided(BrokerMessage, frozen=True, array_like=True, gc=False, tag=56):
    tx: TxID


class Forget(BrokerMessage, frozen=True, array_like=True, gc=False, tag=57):
    tx: TxID


class AbortRequest(BrokerMessage, frozen=True, array_like=True, gc=False, tag=58):
    tx: TxID
    code: CodeText
    reason: ReasonText
    to: NameText = ""


class Fence(BrokerMessage, frozen=True, array_like=True, gc=False, tag=59):
    """Give way to this transaction, which is about to begin; answered by Fenced."""

    tx: TxID
    age: Natural
    #: As in Init.
    deadline_s: float = 0.0


class Fenced(BrokerMessage, frozen=True, array_like=True, gc=False, tag=60):
    tx: TxID


AnyDynamicMessage: TypeAlias = (
    Init
    | TxOperation
    | Acked
    | Prepare
    | Vote
    | Decide
    | Decided
    | Forget
    | AbortRequest
    | Fence
    | Fenced
    | Ask
    | Answer
)

codec: StructCodec[Any] = StructCodec(FromClient | AnyDynamicMessage)

#: What may wait at a broker.
stored_values(TxOperation, Acked, Prepare, Vote, Decide, Decided, Forget, AbortRequest, Answer)
stored_values(Init, Fence, Fenced, Ask)
