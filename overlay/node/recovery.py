"""A node made again from its log: the latest snapshot, and the inputs after it.

Replay sends nothing: what the inputs have led to is on the links, and when a peer connects it says
what of that it has. Records that an earlier process has written are skipped by whoever has their
file.

Each batch says what the node had sent before it, as a checksum. Replay compares. Code that would
send anything else than the code before it cannot go on with the log, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from overlay.errors import LogDiverges
from overlay.log.log import Log
from overlay.messages import Hop
from overlay.node.image import thaw_node
from overlay.node.inputs import Asked, Input, Took, decode_batch
from overlay.node.node import Node
from overlay.trace import Record


class Failing(NamedTuple):
    """An input at which the core fails, by its batch's position and its place in that."""

    position: int
    place: int


class InputFails(Exception):
    """The core has failed at an input; the cause is the exception's own."""

    def __init__(self, where: Failing, input: Input) -> None:
        self.where = where
        self.input = input
        super().__init__(f"the core fails at input {where.place} of batch {where.position}")


class Recovered(NamedTuple):
    """What has come of a log."""

    #: The broker's time of the last input.
    now: float
    #: The position of the last batch.
    position: int
    #: How many inputs were applied after the snapshot.
    replayed: int


def recover(
    node: Node,
    log: Log,
    *,
    record: Callable[[Record], None] | None = None,
    skip: Collection[Failing] = (),
    progress: Callable[[int], None] | None = None,
) -> Recovered:
    """Bring a fresh node to where its log ends; `progress` is told positions.

    At an input in `skip` the core is known to fail: its source is expelled instead.

    Raises LogError if the log cannot be read or was written by code that sends something else,
    InputFails if the core fails.
    """
    now, position, replayed = 0.0, 0, 0
    node.keeps_digest = True
    snapshot = log.latest_snapshot()
    if snapshot is not None:
        position = snapshot[0]
        now = thaw_node(node, snapshot[1])
    for at, data in log.read(position):
        batch = decode_batch(data)
        digest = batch.digest
        if digest is not None and digest.position == position and digest.sent != node.digest:
            raise LogDiverges(
                f"replaying batches up to {position} did not lead to what was sent before"
            )
        now = batch.now
        for place, input in enumerate(batch.inputs):
            where = Failing(at, place)
            if where in skip:
                node.expel_source(Hop(source_of(input)), "this input makes the broker fail", now)
            else:
                try:
                    node.apply(input, now)
                except Exception as error:
                    raise InputFails(where, input) from error
            replayed += 1
            _settle(node, record)
        position = at
        if progress is not None:
            progress(position)
    for end in node.ends.values():
        end.link.suspect()
    return Recovered(now, position, replayed)


def source_of(input: Input) -> str:
    """Whose input it is, if it is a peer's."""
    return input.hop if isinstance(input, Took | Asked) else ""


def _settle(node: Node, record: Callable[[Record], None] | None) -> None:
    """Put what an input has led to on the links, as if there were connections."""
    outputs = node.outputs
    node.queue_all()
    for end in outputs.touched:
        end.is_touched = False
    outputs.touched.clear()
    outputs.ended.clear()
    outputs.timers.clear()
    if record is not None:
        for one in outputs.records:
            record(one)
    outputs.records.clear()
