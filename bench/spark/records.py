"""An experiment's records as DataFrames, and the lines that could not be read.

Schemas are those of the structs (`schemas`) and not inferred from the data: fields that do not
apply are left out of a record, so an inferred schema would differ from run to run. An invalid line
(cut off, of a wrong type, or without a field that every record has) is counted by file, and the
report shows the counts. Only those counts and the descriptions of the runs, of which a sweep has
thousands at most, are collected.

`bench.records` and `overlay.trace` document the records; `spark.summaries` and `spark.checks`
compute the results.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from bench.records import (
    BROKERS,
    CLIENTS,
    DONE,
    MANIFEST,
    RUN,
    RUNS,
    ClientRecord,
    RunDone,
    RunParameters,
)
from bench.spark.schemas import schema_of
from overlay.trace import Record

#: The column in which Spark puts a line that it cannot read.
CORRUPT: Final = "_corrupt_record"

CLIENT_SCHEMA: Final = schema_of(ClientRecord)
TRACE_SCHEMA: Final = schema_of(Record)

#: Runs that agree in these are repetitions of each other: one point of a figure.
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

#: Of `RunParameters` and `RunDone`, the fields that results depend on.
_OF_RUN: Final = (
    *("experiment", "figure", "series", "engine", "topology", "brokers", "clients"),
    *("concurrency", "instances", "transactions", "repetition", "delay_ms", "client_delay_ms"),
    *("workload", "variant", "bl_wait_s", "counted_delays", "trace", "quick"),
)
_OF_DONE: Final = ("took_s", "client_records", "broker_records")


class _OfOptions(NamedTuple):
    """The options of a workload that results depend on."""

    rate_per_s: float | None
    dispatch: bool


#: One row for each run.
RUN_SCHEMA: Final = StructType(
    [
        StructField("run", StringType()),
        *schema_of(RunParameters, only=_OF_RUN).fields,
        *schema_of(RunDone, only=_OF_DONE).fields,
        *schema_of(_OfOptions).fields,
    ]
)


class DirectoryError(Exception):
    """A directory has no usable experiment; the message is one line."""


class Skipped(NamedTuple):
    """A file or run that could not be used, at least in part."""

    what: str
    lines: int
    reason: str


class Experiment(NamedTuple):
    """The contents of an experiment's directory."""

    directory: Path
    manifest: dict[str, Any]
    #: The rows of RUN_SCHEMA, as mappings; complete runs only.
    runs: list[dict[str, Any]]
    #: What was left out, and why.
    skipped: list[Skipped]

    def has_records_of(self, who: str) -> bool:
        """Whether clients, or brokers, have recorded anything."""
        runs = self.directory / RUNS
        return any(next((runs / run["run"] / who).glob("*.jsonl"), None) for run in self.runs)

    def size_bytes(self) -> int:
        """The size of all record files."""
        runs = self.directory / RUNS
        return sum(path.stat().st_size for path in runs.glob("*/*/*.jsonl"))


def look_into(directory: Path) -> Experiment:
    """The experiment in a directory.

    Raises DirectoryError if there is none, or none of its runs is complete.
    """
    if not directory.is_dir():
        raise DirectoryError(f"no such directory: {str(directory)!r}")
    if not (directory / RUNS).is_dir():
        raise DirectoryError(f"no experiment in {str(directory)!r}: {RUNS}/ is missing")
    skipped: list[Skipped] = []
    manifest = _manifest(directory / MANIFEST, skipped)
    rows: list[dict[str, Any]] = []
    for place in sorted(path for path in (directory / RUNS).iterdir() if path.is_dir()):
        if not (place / DONE).exists():
            skipped.append(Skipped(f"run {place.name}", 0, "not complete"))
            continue
        try:
            run = msgspec.json.decode((place / RUN).read_bytes(), type=RunParameters)
            done = msgspec.json.decode((place / DONE).read_bytes(), type=RunDone)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            skipped.append(Skipped(f"run {place.name}", 0, f"cannot read it: {error}"))
            continue
        rows.append(_row(place.name, run, done))
    if not rows:
        raise DirectoryError(f"no complete run in {str(directory)!r}")
    return Experiment(directory.resolve(), manifest, rows, skipped)


def _manifest(path: Path, skipped: list[Skipped]) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        skipped.append(Skipped(path.name, 0, f"cannot read it: {error}"))
        return {}


def _row(name: str, run: RunParameters, done: RunDone) -> dict[str, Any]:
    fields = {field: getattr(run, field) for field in _OF_RUN}
    fields |= {field: getattr(done, field) for field in _OF_DONE}
    rate = run.options.get("rate_per_s")
    options = _OfOptions(
        rate_per_s=float(rate) if isinstance(rate, int | float) else None,
        # A workload without this option always dispatches.
        dispatch=run.options.get("dispatch") is not False,
    )
    return {"run": name, **fields, **options._asdict()}


# --- DataFrames -----------------------------------------------------------------------------


def runs_frame(spark: SparkSession, experiment: Experiment) -> DataFrame:
    names = RUN_SCHEMA.fieldNames()
    rows = [tuple(row[name] for name in names) for row in experiment.runs]
    return spark.createDataFrame(rows, RUN_SCHEMA)


def client_lines(spark: SparkSession, experiment: Experiment) -> DataFrame:
    """The lines that clients of complete runs recorded, with `file`, and `bad` if invalid."""
    return _lines(spark, experiment, CLIENTS, CLIENT_SCHEMA, ("client", "kind"))


def trace_lines(spark: SparkSession, experiment: Experiment) -> DataFrame:
    """The lines that brokers of complete runs recorded, in the same way."""
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
    # A run's records are those in its directory; the records of brokers do not name their run.
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
    """run, file, lines, bad: the files with invalid lines."""
    return (
        lines.groupBy("run", "file")
        .agg(F.count(F.lit(1)).alias("lines"), F.sum(F.col("bad").cast("long")).alias("bad"))
        .where("bad > 0")
        .orderBy("file")
    )


def nothing_for_missing(lines: DataFrame) -> DataFrame:
    """Fill in the fields that were left out: empty text, 0, or an empty array."""
    filled = lines.fillna("").fillna(0)
    for field in lines.schema.fields:
        if isinstance(field.dataType, ArrayType):
            empty = F.array().cast(field.dataType)
            filled = filled.withColumn(field.name, F.coalesce(F.col(field.name), empty))
    return filled


def _path(uri: Column) -> Column:
    """A file's path, from Spark's URI, in which "+" is a plus."""
    return F.url_decode(F.regexp_replace(uri, r"\+", "%2B"))


def literally(path: Path) -> str:
    """A path with its pattern characters escaped."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", str(path))
