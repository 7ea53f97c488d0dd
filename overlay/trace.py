"""One record of what happened at a node, in one format for every host, checker and Spark job.

Records leave the cores as effects. `seq` is the node's own order: what two records of one node
say about order is certain; across nodes only messages order things.
"""

from __future__ import annotations

from typing import IO, Literal, TypeAlias

import msgspec

TraceKind: TypeAlias = Literal[
    "publish", "apply", "undo", "match", "deliver", "begin", "end", "decide"
]


class Record(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What one node did in one step. Empty strings and lists stand for "does not apply"."""

    seq: int
    node: str
    kind: TraceKind
    at_ns: int
    run: str = ""
    tx: str = ""
    engine: str = ""
    op_id: str = ""
    op_kind: str = ""
    client: str = ""
    filter: str = ""
    source: str = ""
    dests: tuple[str, ...] = ()
    version: str = ""
    outcome: str = ""


_encoder = msgspec.json.Encoder()


def write(record: Record, file: IO[bytes]) -> None:
    """Append a record as one line of JSON."""
    file.write(_encoder.encode(record) + b"\n")
