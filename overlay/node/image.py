"""A node as bytes, and back: what a log keeps so that few inputs have to be replayed."""

from __future__ import annotations

import msgspec

from overlay.errors import LogError
from overlay.messages import Hop, is_client
from overlay.node.ends import End
from overlay.node.node import Node
from overlay.snapshots import freeze, thaw
from overlay.wire.link import LinkState


class _EndState(msgspec.Struct, frozen=True):
    """The end of one link."""

    hop: str
    digest: int
    link: LinkState
    #: Of a neighbour: publications for its former life, and what came from it (`Received`).
    kept: list[bytes] = []
    last: list[tuple[str, int, int]] = []
    repeated: list[tuple[str, int, int]] = []


class _NodeState(msgspec.Struct, frozen=True):
    """A node; its fields may get company with defaults, and never change."""

    #: The broker's time of the last input.
    now: float
    digest: int
    timers: dict[str, float]
    ends: list[_EndState]
    #: What `overlay.snapshots` makes of the core; it has a version of its own.
    core: bytes


def freeze_node(node: Node, now: float) -> bytes:
    """The state as bytes, between two inputs, with the time of the last one."""
    node.queue_all()
    ends = [_end_state(end) for end in node.ends.values() if not end.hop.startswith("?")]
    state = _NodeState(now, node.digest, node.timers, ends, freeze(node.core))
    return msgspec.msgpack.encode(state)


def thaw_node(node: Node, data: bytes) -> float:
    """Let a fresh node take a state over; returns the time of its last input.

    Raises LogError if the bytes are no such state, or one of a later version.
    """
    try:
        state = msgspec.msgpack.decode(data, type=_NodeState)
    except msgspec.DecodeError as error:
        raise LogError(f"the snapshot is of another format: {error}") from None
    thaw(node.core, state.core)
    node.timers = dict(state.timers)
    node.digest = state.digest
    for saved in state.ends:
        hop = Hop(saved.hop)
        end = node.ends.get(hop)
        if end is None:
            if not is_client(hop):
                raise LogError(f"the snapshot has a link to {hop}, which is no neighbour")
            end = node.add(hop, saved.link.incarnation)
        end.digest = saved.digest
        end.link.restore(saved.link)
        end.kept = list(saved.kept)
        if end.received is not None:
            end.received.restore(saved.last, saved.repeated)
    return state.now


def _end_state(end: End) -> _EndState:
    state = _EndState(end.hop, end.digest, end.link.state, end.kept)
    if end.received is None:
        return state
    last, repeated = end.received.state
    return msgspec.structs.replace(state, last=last, repeated=repeated)
