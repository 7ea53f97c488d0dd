"""What can differ between broker processes, with defaults that are right outside of tests."""

from __future__ import annotations

from dataclasses import dataclass

from overlay.link import HEARTBEAT_S, IDLE_S, OUTBOX_BYTES, OUTBOX_MESSAGES

#: A connection that has not said hello by then is not one of ours, or is stuck.
HELLO_TIMEOUT_S = 5.0

#: How long a client that lost its connection keeps its entries and its queue: enough for a broken
#: connection or a changed network, short enough that the dead don't attract events for long.
CLIENT_GRACE_S = 10.0

#: What is kept for a neighbour that is down; beyond it, sending it our state anew is less work.
NEIGHBOUR_OUTBOX_MESSAGES = 1_000_000
NEIGHBOUR_OUTBOX_BYTES = 128 << 20


@dataclass(frozen=True)
class Settings:
    """The settings of one broker process."""

    #: What a hello must carry; every broker and client of an overlay has the same.
    secret: str = ""
    #: Emulated one-way delay of client links; neighbours' come with the topology's edges.
    client_delay_s: float = 0.0
    hello_timeout_s: float = HELLO_TIMEOUT_S
    client_grace_s: float = CLIENT_GRACE_S
    client_outbox_messages: int = OUTBOX_MESSAGES
    client_outbox_bytes: int = OUTBOX_BYTES
    neighbour_outbox_messages: int = NEIGHBOUR_OUTBOX_MESSAGES
    neighbour_outbox_bytes: int = NEIGHBOUR_OUTBOX_BYTES
    heartbeat_s: float = HEARTBEAT_S
    idle_s: float = IDLE_S
