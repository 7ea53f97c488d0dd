"""The trace record: one step of a node, in one format for every host, checker and Spark job.

Records leave the cores as effects. `seq` is the node's own order: what two records of one node
say about order is certain; across nodes only messages order things.

    publish   a client's publication or tcm has come in here
    match     where a publication goes from here (`dests`)
    deliver   a publication is handed to clients of this broker
    apply     a routing operation was carried out here and goes on to `dests`; `undo`: the same,
              taking back what an aborted transaction had done
    begin     a transaction, or without one a client (`outcome` is its edge broker), is known here
    decide    a transaction's outcome is known here
    end       a transaction is over here, or without one a client has gone
    down      the neighbour `source` is unreachable: operations no longer wait for its answers
    up        the neighbour `source` is reachable again

`outcome` of apply and undo, and of a client's end, is what became of the tables, so that a node's
records are a log from which its tables can be rebuilt: "+" if the operation stands in them now,
"events" if it does and is for events only, "-7" if the same client's entry number 7 went,
"C2#7>B3" if the neighbour B3 was told of C2's entry number 7 in consequence (attracted or sent
back). Of the match of a tcm that names its receivers it is "to" and their names.

`op_id` names a publication by its client, that one's life and a number, as in "E:mfq0zk3p.b7c1:17"
(`overlay.identity`), and a routing operation by its client and a number that counts in this life
only, as in "C2#7".

`version` is the view on which the tables were looked at: of the committed versions whose marks
are still on entries those that it saw, and with a "-" before them those that it did not; its own
is left out.

`after` and `trigger` stand where an operation of a transaction enters the overlay: the operations
that it comes after, and the tcm that its client answers with it.
"""

from __future__ import annotations

from typing import IO, Literal, TypeAlias

import msgspec

TraceKind: TypeAlias = Literal[
    "publish", "apply", "undo", "match", "deliver", "begin", "end", "decide", "down", "up"
]


#: In `outcome`: an entry for events only, and the prefix of the names of a tcm's receivers.
EVENTS = "events"
TO = "to"


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
    after: tuple[str, ...] = ()
    trigger: str = ""


_encoder = msgspec.json.Encoder()


def encode(record: Record) -> bytes:
    """The record as one line of JSON."""
    return _encoder.encode(record) + b"\n"


def write(record: Record, file: IO[bytes]) -> None:
    """Append a record as one line of JSON."""
    file.write(encode(record))
