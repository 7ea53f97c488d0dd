"""What an experiment leaves behind: its directory, and what stands in each file.

    DIR/manifest.json                 the specs, the seeds, the versions, the machine, the command
    DIR/runs/<run_id>/run.json        `Run`: what was combined in this run
    DIR/runs/<run_id>/brokers/*.jsonl by broker, the records of `overlay.trace`, if it is traced
    DIR/runs/<run_id>/clients/*.jsonl by client, `ClientRecord`
    DIR/runs/<run_id>/done.json       `Done`: the run is complete, and this much is in it
    DIR/runs/<run_id>/failed.json     `Failed`: the run has come to nothing, for this reason
    DIR/beforehand.json               the waits and rates that were found out before the runs

Besides there are logs, and the brokers' topology with its ports. A run without done.json is not
complete: it is made anew when the sweep is resumed, and nobody else should look at it.

Records are written as they come, one JSON object a line; fields that do not apply are left out, so
a reader declares its schema and takes what is missing for nothing.

All times are nanoseconds of one clock: wall time as it was when the run began, moved on by the
monotonic clock, which all processes of a machine share. So the times of clients can be subtracted
from each other, and laid beside the `at_ns` of brokers, which measure in the same way.

For whoever writes records and whoever reads them; it must not know how a run is made.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

#: What the layout is called in the manifest; another number means that old readers are wrong.
LAYOUT = 1

MANIFEST = "manifest.json"
RUNS = "runs"
RUN = "run.json"
DONE = "done.json"
FAILED = "failed.json"
BEFOREHAND = "beforehand.json"
BROKERS = "brokers"
CLIENTS = "clients"

#: Records that wait in memory. The file has them after FLUSH_S at the latest (`agents`).
BUFFER_BYTES = 1 << 20

Kind: TypeAlias = Literal["tx", "sent", "event"]


class ClientRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What one client saw.

    tx      a transaction, at its coordinator: from `begin_ns` to `end_ns`, which is when the
            coordinator has the result, or, in BL-WAIT's dispatching, the receiver's
            acknowledgement of the publication. `status` is "committed" or "aborted"; in BL-WAIT
            also "misrouted" if the publication came to the wrong client, and "lost" if to nobody.
            `owner` is the client that has what was handed over, if the transaction is committed.
    sent    an event was published: the publisher's number `n`, its instance `x`, and `owner`, the
            client that has to receive it, if that is certain. With `tx` it is one of a
            transaction, and is to be received if and only if that is committed.
    event   an event was received: `publisher` and `n` as there.

    `op_id` is the event's name in the traces of the brokers.
    """

    run: str
    client: str
    kind: Kind
    tx: str = ""
    engine: str = ""
    op_id: str = ""
    publisher: str = ""
    n: int = 0
    x: int = 0
    owner: str = ""
    status: str = ""
    code: str = ""
    reason: str = ""
    begin_ns: int = 0
    end_ns: int = 0
    at_ns: int = 0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of a sweep, and what it was run with."""

    run_id: str
    experiment: str
    #: The paper's figure that it belongs to, or 0.
    figure: int
    #: The engine; for one that waits also how its wait was found. One line in a figure.
    series: str
    engine: str
    topology: str
    #: How many.
    brokers: int
    clients: int
    #: Transactions that a coordinator has under way at once.
    concurrency: int
    #: How often the scenario is there, each time with clients and an event space of its own.
    instances: int
    #: Of each coordinator.
    transactions: int
    #: From 1. The same number means the same places, whatever the engine.
    repetition: int
    seed: int
    #: Of each link between brokers, and of each client's.
    delay_ms: float
    client_delay_ms: float
    workload: str
    #: The workload's own options, and what the spec calls this set of them.
    options: dict[str, Any]
    variant: str
    #: Sequential message delays of a transaction from these places, as the simulator counts them,
    #: if it can: the mean over those to whom work is handed over.
    counted_delays: float | None
    #: "smallest", "paper" or "fixed"; "" and None for engines that do not wait.
    bl_wait: str
    bl_wait_s: float | None
    #: Client -> broker.
    placement: dict[str, str]
    #: Whether the brokers recorded what they did, which costs them time.
    trace: bool
    quick: bool


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has led to. Counts are of records."""

    run_id: str
    transactions: int
    #: By status.
    statuses: dict[str, int]
    sent: int
    events: int
    #: From the word "go" to the last client's end.
    took_s: float
    #: Of each broker and each client process, where the system tells: who was busy, and how much.
    cpu_s: dict[str, float]
    client_records: int
    broker_records: int


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run has come to nothing, and after what time."""

    run_id: str
    reason: str
    after_s: float


Clock: TypeAlias = Callable[[], int]


def clock(epoch_ns: int) -> Clock:
    """The clock of a run: wall time at its beginning, then the machine's monotonic clock."""
    return lambda: time.monotonic_ns() + epoch_ns


def epoch_ns() -> int:
    """What has to be added to the monotonic clock to have wall time."""
    return time.time_ns() - time.monotonic_ns()


class Book:
    """The records of one client, on their way into its file."""

    def __init__(self, run: str, client: str, path: Path, now_ns: Clock) -> None:
        self.now_ns = now_ns
        #: Records by kind, and transactions by status.
        self.written: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self._run = run
        self._client = client
        self._file = path.open("ab", buffering=BUFFER_BYTES)
        self._encoder = msgspec.json.Encoder()

    def write(self, kind: Kind, **fields: Any) -> None:
        """Write a record of this client."""
        record = ClientRecord(self._run, self._client, kind, **fields)
        self._file.write(self._encoder.encode(record) + b"\n")
        self.written[kind] += 1
        if record.status:
            self.statuses[record.status] += 1

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()
