"""The directory of an experiment, and the contents of each file.

    DIR/manifest.json                 the specs, the seeds, the versions, the machine, the command
    DIR/runs/<run_id>/run.json        `RunParameters`: the parameters of this run
    DIR/runs/<run_id>/brokers/*.jsonl by broker, the records of `overlay.trace`, if it is traced
    DIR/runs/<run_id>/clients/*.jsonl by client, `ClientRecord`
    DIR/runs/<run_id>/done.json       `RunDone`: the run is complete; the numbers of its records
    DIR/runs/<run_id>/failed.json     `RunFailure`: the run could not be completed, and why
    DIR/calibration.json              the waits and rates that were measured before the runs

There are also logs, and the brokers' topology with its ports. A run without done.json is not
complete: a resumed sweep repeats it, and readers should ignore it.

Records are written as they occur, one JSON object per line; fields that do not apply are left out,
so a reader needs a schema and takes a missing field as empty (`bench.spark.records` derives its
schemas from the structs here).

All times are nanoseconds of one clock: the wall time when the run began, advanced by the monotonic
clock, which all processes of a machine share. So the times of clients can be subtracted from each
other, and compared with the `at_ns` of brokers, which use the same clock.

Writers and readers of records use this module; it must not know how a run is made.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

#: The version of the layout, in the manifest; old readers cannot read a layout with another number.
LAYOUT = 1

MANIFEST = "manifest.json"
RUNS = "runs"
RUN = "run.json"
DONE = "done.json"
FAILED = "failed.json"
CALIBRATION = "calibration.json"
#: What it was called in directories of early versions.
OLD_CALIBRATION = "beforehand.json"
BROKERS = "brokers"
CLIENTS = "clients"

#: Records that wait in memory. The file has them after FLUSH_S at the latest (`client_process`).
BUFFER_BYTES = 1 << 20

Kind: TypeAlias = Literal["tx", "sent", "event"]


class ClientRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What one client observed.

    tx      a transaction, at its coordinator: from `begin_ns` to `end_ns`, when the coordinator
            has the result or, in BL-WAIT's dispatching, the receiver's acknowledgement of the
            publication. `status` is "committed" or "aborted"; in BL-WAIT also "misrouted" if the
            wrong client received the publication, and "lost" if no client did. `owner` is the
            client that has the instance afterwards, if the transaction committed.
    sent    an event was published: the publisher's number `n`, its instance `x`, and `owner`, the
            client that has to receive it, if that is certain. With `tx`, the event belongs to a
            transaction and has to be received if and only if that commits.
    event   an event was received; `publisher` and `n` are those of the `sent` record.

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


class RunParameters(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of one run of a sweep. Fields with a default may be missing in old files."""

    run_id: str
    experiment: str
    #: The paper's figure that it belongs to, or 0.
    figure: int
    #: The engine; for one that waits also how its wait was chosen. One line in a figure.
    series: str
    engine: str
    topology: str
    #: Numbers of brokers and clients.
    brokers: int
    clients: int
    #: Transactions that a coordinator has open at once.
    concurrency: int
    #: Instances of the scenario, each with its own clients and event space.
    instances: int
    #: Of each coordinator.
    transactions: int
    #: From 1. Runs with the same number have the same placement, whatever the engine.
    repetition: int
    seed: int
    #: Of each link between brokers, and of each client's link.
    delay_ms: float
    client_delay_ms: float
    workload: str
    #: The workload's own options, and the name of this set of them in the spec.
    options: dict[str, Any]
    variant: str
    #: Sequential message delays of a transaction with this placement, as the simulator counts
    #: them, or None: the mean over the agents.
    counted_delays: float | None = None
    #: "smallest", "paper" or "fixed"; "" and None for engines that do not wait.
    bl_wait: str = ""
    bl_wait_s: float | None = None
    #: Client -> broker.
    placement: dict[str, str] = {}
    #: Whether the brokers wrote traces, which costs them time.
    trace: bool = False
    quick: bool = False


class RunDone(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a complete run. Counts are of records."""

    run_id: str
    transactions: int
    #: By status.
    statuses: dict[str, int]
    sent: int
    events: int
    #: From the command "go" until the last client has finished.
    took_s: float
    #: CPU time of each broker and each client process, where the system provides it.
    cpu_s: dict[str, float]
    client_records: int
    broker_records: int


class RunFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run could not be completed, and after what time."""

    run_id: str
    reason: str
    after_s: float


Clock: TypeAlias = Callable[[], int]


def clock(epoch_ns: int) -> Clock:
    """The clock of a run: the wall time at its beginning, advanced by the monotonic clock."""
    return lambda: time.monotonic_ns() + epoch_ns


def epoch_ns() -> int:
    """The difference between wall time and the monotonic clock."""
    return time.time_ns() - time.monotonic_ns()


class RecordWriter:
    """Writes the records of one client into its file."""

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
