"""What a node is told: the inputs, as a log keeps them.

Whatever changes a node is one of these. An input holds all that its effects depend on but the state
of the node and the time. So the same inputs at the same times give the same node, in another
process as well.

A batch is what is appended to a log at once: inputs that came at about the same time.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from overlay.errors import ProtocolError
from overlay.messages import Inspect, NameText, Natural
from overlay.wire.codec import UNDECODABLE, StructCodec

HopText: TypeAlias = Annotated[str, msgspec.Meta(max_length=80)]


class _Input(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of what a node is told."""


class Took(_Input, frozen=True, array_like=True, gc=False, tag=1):
    """Messages of a link go to the core: their frames, one after the other."""

    hop: HopText
    #: This end's life of the link: what a life has brought that is over does not count.
    incarnation: str
    frames: bytes


class Woke(_Input, frozen=True, array_like=True, gc=False, tag=2):
    """A timer has run out that was due at this time."""

    key: str
    due: float


class Opened(_Input, frozen=True, array_like=True, gc=False, tag=3):
    """A life of a link begins: of a new client's, or of a neighbour's first, or after a reset."""

    hop: HopText
    incarnation: str
    peer: str
    reset: bool


class Leaves(_Input, frozen=True, array_like=True, gc=False, tag=4):
    """A client has said goodbye, and waits until it is forgotten everywhere."""

    client: NameText


class Left(_Input, frozen=True, array_like=True, gc=False, tag=5):
    """A client is gone for good: it did not come back, was closed on, or was replaced."""

    client: NameText
    #: The life of its link, since another client of the same name may have come.
    incarnation: str


class Forgot(_Input, frozen=True, array_like=True, gc=False, tag=6):
    """A neighbour is given up, with all that was meant for it: its link will begin anew."""

    neighbour: NameText


class Down(_Input, frozen=True, array_like=True, gc=False, tag=7):
    """A neighbour has been unreachable for a while."""

    neighbour: NameText


class Up(_Input, frozen=True, array_like=True, gc=False, tag=8):
    """A neighbour can be reached again, and its link goes on where it was."""

    neighbour: NameText


class Asked(_Input, frozen=True, array_like=True, gc=False, tag=9):
    """An operator asks something, or has something done."""

    hop: HopText
    question: Inspect


class Trimmed(_Input, frozen=True, array_like=True, gc=False, tag=10):
    """How many messages peers have acknowledged: what need not be kept for them any more.

    A hint. It changes nothing that a node sends.
    """

    #: Each with the lives of the link that it is about: this end's, and the peer's.
    acknowledged: list[tuple[HopText, str, str, Natural]]


class Filled(_Input, frozen=True, array_like=True, gc=False, tag=11):
    """So much waits for a neighbour that there is no room for more."""

    neighbour: NameText
    #: How many messages wait, and their bytes.
    messages: Natural
    size: Natural


class MadeRoom(_Input, frozen=True, array_like=True, gc=False, tag=12):
    """There is room again for what waits for a neighbour."""

    neighbour: NameText


Input: TypeAlias = (
    Took | Woke | Opened | Leaves | Left | Forgot | Down | Up | Asked | Trimmed | Filled | MadeRoom
)


class Digest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a node had sent when it had applied the batches up to a position."""

    position: Natural
    sent: Natural


class Batch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Inputs that are logged at once, and the broker's time when they were."""

    now: float
    inputs: list[Input]
    #: Who replays the log compares: the same code sends the same, other code may not.
    digest: Digest | None = None


_codec: StructCodec[Batch] = StructCodec(Batch)

encode_batch = _codec.encode


def decode_batch(data: bytes) -> Batch:
    """The batch in the data.

    Raises ProtocolError if it is invalid.
    """
    try:
        return _codec.decode_unguarded(data)
    except UNDECODABLE as error:
        raise ProtocolError(f"undecodable batch of {len(data)} bytes: {error}") from None
