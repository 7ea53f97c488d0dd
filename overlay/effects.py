"""Effects: what a core asks its host to do, in order.

The order matters: a host carries out effects one after the other, so that what must be recorded
before a message is sent comes before it. Effects hold no callbacks and no clock readings; the same
input in the same state gives the same list.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from overlay.messages import AnyMessage, Hop
from overlay.trace import Record


class Send(msgspec.Struct, frozen=True, gc=False):
    """Queue one message on the links to these hops."""

    hops: tuple[Hop, ...]
    message: AnyMessage


class Forward(msgspec.Struct, frozen=True, gc=False):
    """Queue messages of the present input, as they came, on the links to these hops.

    They are `count` messages from index `start` on. A host that has their bytes sends these.
    """

    hops: tuple[Hop, ...]
    start: int
    count: int


class Resend(msgspec.Struct, frozen=True, gc=False):
    """Queue for a neighbour again what was meant for its former life, or give that up.

    When a link was reset, the host has kept the plain publications that were queued or in flight.
    """

    hop: Hop
    given_up: bool


class Close(msgspec.Struct, frozen=True, gc=False):
    """End a peer's link with a reason, after what has been queued for it."""

    hop: Hop
    code: str
    reason: str


class SetTimer(msgspec.Struct, frozen=True, gc=False):
    """Give `key` back as `Broker.wake(key, now)` after `delay_s` seconds; replaces an older one."""

    key: str
    delay_s: float


class CancelTimer(msgspec.Struct, frozen=True, gc=False):
    """Forget the timer, if it is still running."""

    key: str


Effect: TypeAlias = Send | Forward | Resend | Close | SetTimer | CancelTimer | Record
