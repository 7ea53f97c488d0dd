"""An experiment's records as DataFrames: the declared schemas, and what could not be read.

Schemas are declared and not guessed from the data: fields that do not apply are left out of a
record, and a guess would differ from run to run. What is no record (a line that was cut off, a
wrong type, a field that every record has and this has not) is kept apart by file and counted; the
report says so. Nothing here is collected but those counts, and the runs' descriptions, of
which a sweep has thousands at most.

What records mean is said in `bench.records` and `overlay.trace`; what they come to, in
`spark.summaries` and `spark.checks`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from bench.records import BROKERS, CLIENTS, DONE, MANIFEST, RUN, RUNS

#: Where Spark puts a line that it cannot read.
CORRUPT: Final = "_corrupt_record"

_LONGS = ("n", "x", "begin_ns", "end_ns", "at_ns")

#: `bench.records.ClientRecord`.
CLIENT_SCHEMA: Final = StructType(
    [
        *(StructField(name, StringType()) for name in ("run", "client", "kind", "tx", "engine")),
        *(StructField(name, StringType()) for name in ("op_id", "publisher", "owner", "status")),
        *(StructField(name, StringType()) for name in ("code", "reason")),
        *(StructField(name, LongType()) for name in _LONGS),
    ]
)

#: `overlay.trace.Record`.
TRACE_SCHEMA: Final = StructType(
    [
        *(StructField(name, StringType()) for name in ("run", "node", "kind", "tx", "engine")),
        *(StructField(name, StringType()) for name in ("op_id", "op_kind", "client", "filter")),
        *(StructField(name, StringType()) for name in ("source", "version", "outcome", "trigger")),
        *(StructField(name, LongType()) for name in ("seq", "at_ns")),
        *(StructField(name, ArrayType(StringType())) for name in ("dests", "after")),
    ]
)

#: What makes two runs repetitions of one another: one point of a figure.
POINT: Final = (
    "experiment",
    "figure",
    "series",
    "engine",
    "topology",
    "brokers",
    "concurrency",
    "clients",
    "instances",
    "variant",
    "workload",
    "delay_ms",
    "client_delay_ms",
)

#: What one run was, as far as its numbers need it.
RUN_SCHEMA: Final = StructType(
    [
        *(StructField(name, StringType()) for name in ("run", "experiment", "series", "engine")),
        *(StructField(name, StringType()) for name in ("topology", "variant", "workload")),
        *(StructField(name, LongType()) for name in ("figure", "brokers", "clients", "instances")),
        *(StructField(name, LongType()) for name in ("concurrency", "transactions", "repetition")),
        *(StructField(name, DoubleType()) for name in ("delay_ms", "client_delay_ms")),
        *(StructField(name, DoubleType()) for name in ("bl_wait_s", "counted_delays")),
        *(StructField(name, DoubleType()) for name in ("rate_per_s", "took_s")),
        *(StructField(name, BooleanType()) for name in ("dispatch", "trace", "quick")),
        *(StructField(name, LongType()) for name in ("client_records", "broker_records")),
    ]
)


class DirectoryError(Exception):
    """There is no experiment in a directory; the message is one line."""


class _Run(msgspec.Struct, kw_only=True):
    """Of `bench.records.Run` what is needed here, however old the run is."""

    run_id: str
    experiment: str
    figure: int
    series: str
    engine: str
    topology: str
    brokers: int
    clients: int
    concurrency: int
    instances: int
    transactions: int
    repetition: int
    delay_ms: float
    client_delay_ms: float
    workload: str
    options: dict[str, Any]
    variant: str
    bl_wait_s: float | None = None
    counted_delays: float | None = None
    trace: bool = False
    quick: bool = False


class _Done(msgspec.Struct, kw_only=True):
    took_s: float = 0.0
    client_records: int = 0
    broker_records: int = 0


class Skipped(NamedTuple):
    """A file, or a run, of which something could not be used."""

    what: str
    lines: int
    reason: str


class Experiment(NamedTuple):
    """What is in an experiment's directory."""

    directory: Path
    manifest: dict[str, Any]
    #: The rows of RUN_SCHEMA, by name; complete runs only.
    runs: list[dict[str, Any]]
    #: Runs that are left out, and why.
    skipped: list[Skipped]

    def has_records_of(self, who: str) -> bool:
        """Whether anything was recorded by clients, or by brokers."""
        runs = self.directory / RUNS
        return any(next((runs / run["run"] / who).glob("*.jsonl"), None) for run in self.runs)

    def size_bytes(self) -> int:
        """Of all record files."""
        runs = self.directory / RUNS
        return sum(path.stat().st_size for path in runs.glob("*/*/*.jsonl"))


def look_into(directory: Path) -> Experiment:
    """The runs of an experiment.

    Raises DirectoryError if it is none, or no run of it is complete.
    """
    if not directory.is_dir():
        raise DirectoryError(f"there is no directory {str(directory)!r}")
    if not (directory / RUNS).is_dir():
        raise DirectoryError(f"{str(directory)!r} has no experiment in it: there is no {RUNS}/")
    skipped: list[Skipped] = []
    manifest = _manifest(directory / MANIFEST, skipped)
    rows: list[dict[str, Any]] = []
    for place in sorted(path for path in (directory / RUNS).iterdir() if path.is_dir()):
        if not (place / DONE).exists():
            skipped.append(Skipped(f"run {place.name}", 0, "not complete"))
            continue
        try:
            run = msgspec.json.decode((place / RUN).read_bytes(), type=_Run)
            done = msgspec.json.decode((place / DONE).read_bytes(), type=_Done)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            skipped.append(Skipped(f"run {place.name}", 0, f"cannot be read: {error}"))
            continue
        rows.append(_row(place.name, run, done))
    if not rows:
        raise DirectoryError(f"no run in {str(directory)!r} is complete")
    return Experiment(directory.resolve(), manifest, rows, skipped)


def _manifest(path: Path, skipped: list[Skipped]) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        skipped.append(Skipped(path.name, 0, f"cannot be read: {error}"))
        return {}


def _row(name: str, run: _Run, done: _Done) -> dict[str, Any]:
    fields = {
        field: getattr(source, field)
        for source in (run, done)
        for field in source.__struct_fields__
        if field not in ("run_id", "options")
    }
    rate = run.options.get("rate_per_s")
    fields["rate_per_s"] = float(rate) if isinstance(rate, int | float) else None
    # A workload without the option dispatches whenever it does anything.
    fields["dispatch"] = run.options.get("dispatch") is not False
    for field in ("delay_ms", "client_delay_ms", "took_s", "bl_wait_s", "counted_delays"):
        fields[field] = None if fields[field] is None else float(fields[field])
    return {"run": name, **fields}


# --- DataFrames -----------------------------------------------------------------------------


def runs_frame(spark: SparkSession, experiment: Experiment) -> DataFrame:
    names = RUN_SCHEMA.fieldNames()
    rows = [tuple(row[name] for name in names) for row in experiment.runs]
    return spark.createDataFrame(rows, RUN_SCHEMA)


def client_lines(spark: SparkSession, experiment: Experiment) -> DataFrame:
    """What clients of complete runs recorded: each line, its `file`, and whether it is `bad`."""
    return _lines(spark, experiment, CLIENTS, CLIENT_SCHEMA, ("client", "kind"))


def trace_lines(spark: SparkSession, experiment: Experiment) -> DataFrame:
    """What all brokers of complete runs recorded, in the same way."""
    return _lines(spark, experiment, BROKERS, TRACE_SCHEMA, ("node", "kind", "seq"))


def _lines(
    spark: SparkSession,
    experiment: Experiment,
    who: str,
    schema: StructType,
    needed: tuple[str, ...],
) -> DataFrame:
    with_corrupt = StructType([*schema.fields, StructField(CORRUPT, StringType())])
    if experiment.has_records_of(who):
        read = spark.read.schema(with_corrupt).options(
            mode="PERMISSIVE", columnNameOfCorruptRecord=CORRUPT, pathGlobFilter="*.jsonl"
        )
        place = f"{literally(experiment.directory)}/{RUNS}/*/{who}"
        lines = read.json(place).withColumn("file", _path(F.col("_metadata.file_path")))
    else:
        lines = spark.createDataFrame([], with_corrupt).withColumn("file", F.lit(""))
    pattern = f"/{RUNS}/([^/]+)/{who}/[^/]+$"
    # A run's records are those in its directory; brokers do not say which run they are in.
    lines = lines.withColumn("run", F.regexp_extract("file", pattern, 1))
    about = runs_frame(spark, experiment).select("run", "experiment", "series")
    bad = F.col(CORRUPT).isNotNull()
    for field in needed:
        bad = bad | F.col(field).isNull()
    lines = lines.join(F.broadcast(about), "run").withColumn("bad", bad)
    kept = (*schema.fieldNames(), "file", "bad", "experiment", "series")
    return lines.select(*kept).transform(nothing_for_missing)


def records_of(lines: DataFrame) -> DataFrame:
    """The records among the lines."""
    return lines.where(~F.col("bad")).drop("bad", "file", "experiment", "series")


def bad_files(lines: DataFrame) -> DataFrame:
    """run, file, lines, bad: the files in which not every line is a record."""
    return (
        lines.groupBy("run", "file")
        .agg(F.count(F.lit(1)).alias("lines"), F.sum(F.col("bad").cast("long")).alias("bad"))
        .where("bad > 0")
        .orderBy("file")
    )


def nothing_for_missing(lines: DataFrame) -> DataFrame:
    """Fields that were left out, as their writers mean them."""
    filled = lines.fillna("").fillna(0)
    for field in lines.schema.fields:
        if isinstance(field.dataType, ArrayType):
            empty = F.array().cast(field.dataType)
            filled = filled.withColumn(field.name, F.coalesce(F.col(field.name), empty))
    return filled


def _path(uri: Column) -> Column:
    """A file's path: Spark tells it as an address, in which "+" is a plus."""
    return F.url_decode(F.regexp_replace(uri, r"\+", "%2B"))


def literally(path: Path) -> str:
    """A path in which nothing is taken for a pattern."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", str(path))
