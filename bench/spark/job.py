"""The Spark job of `experiment report`: from an experiment's records to its results.

    DIR/results/records.parquet/       every line of the clients, with its file and whether it is
                                       valid
    DIR/results/broker_records.parquet/
                                       the same for the brokers, if they were traced
    DIR/results/transactions.parquet/  each transaction with its latency, by experiment and series;
                                       the same as .csv/
    DIR/results/rates.parquet/         events in each second of each run, in the same way
    DIR/results/NAME.parquet/, NAME.csv
                                       the summaries (`results.SUMMARIES`)
    DIR/results/results.json           written last: all of them are complete

Records are parsed once. Only summaries reach the driver, so its memory does not grow with the
number of events.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.records import BROKERS, RUNS
from bench.report.results import DONE, RESULTS, table
from bench.spark import summaries, traces
from bench.spark.checks import engine_checks, run_checks
from bench.spark.records import (
    Experiment,
    bad_files,
    client_lines,
    literally,
    records_of,
    runs_frame,
    trace_lines,
)

if TYPE_CHECKING:
    import pandas as pd

#: How tables with a row per transaction or second are cut up in the file system.
PARTITIONS: Final = ("experiment", "series")

#: Where frames are kept on the way; gone when the job is done.
KEPT: Final = "kept"

#: Anomalies of traces that are listed one by one; all of them are counted.
EXAMPLES: Final = 1000

Progress = Callable[[str], None]


def run(
    spark: SparkSession, experiment: Experiment, progress: Progress = lambda _: None
) -> dict[str, pd.DataFrame]:
    """Compute and write all results; returns the summaries."""
    place = experiment.directory / RESULTS
    # Earlier results may be of other records; a mixture would be worse than none.
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    progress("reading records")
    parsed = client_lines(spark, experiment)
    parsed.write.parquet(str(place / "records.parquet"))
    lines = _written(spark, parsed, place / "records.parquet")
    records = records_of(lines)
    runs = runs_frame(spark, experiment).cache()
    progress("transactions")
    transactions = _stored(
        spark, summaries.transactions(records, runs), place / "transactions.parquet"
    )
    by_run = summaries.run_summaries(transactions).cache()
    frames = {
        "delays": runs.select(
            "run", "figure", "series", "brokers", "repetition", "counted_delays", "trace"
        ).orderBy("run"),
        "points": summaries.point_summaries(transactions, by_run),
        "runs": by_run.orderBy("run"),
    }
    progress("rates")
    rates = _stored(spark, summaries.rates(records, runs), place / "rates.parquet")
    frames["rate_points"] = summaries.rate_summaries(rates)
    progress("checks")
    checks = run_checks(records, runs).cache()
    frames["checks"] = checks
    frames["engine_checks"] = engine_checks(checks)
    skipped = [_skipped(bad_files(lines))]
    if experiment.has_records_of(BROKERS):
        progress("traces")
        parsed = trace_lines(spark, experiment)
        parsed.write.parquet(str(place / "broker_records.parquet"))
        traced = _written(spark, parsed, place / "broker_records.parquet")
        told = transactions.where("status IN ('committed', 'aborted')")
        told = told.select("run", "tx", F.col("status").alias("outcome"))
        records = records_of(traced)
        keep = partial(_kept, place / KEPT)
        verdicts = keep("verdicts", traces.verdicts(records, told, keep=keep))
        skipped += [_skipped(bad_files(traced)), traces.not_judged(records)]
    else:
        verdicts = spark.createDataFrame([], "run string, kind string, engine string, tx string")
    frames["traces"] = verdicts.orderBy(*traces.VERDICT).limit(EXAMPLES)
    frames["trace_counts"] = traces.counts(verdicts)
    progress("writing")
    frames["skipped"] = _all_skipped(spark, experiment, lines, skipped)
    collected: dict[str, pd.DataFrame] = {}
    for name, frame in frames.items():
        # All of them are sorted and small, so one file each keeps the order.
        frame.coalesce(1).write.parquet(str(place / f"{name}.parquet"))
        summary = collected[name] = table(place / f"{name}.parquet")
        summary.to_csv(place / f"{name}.csv", index=False)
    shutil.rmtree(place / KEPT, ignore_errors=True)
    counts: dict[str, Any] = {name: len(summary) for name, summary in collected.items()}
    (place / DONE).write_bytes(msgspec.json.encode({"tables": counts}) + b"\n")
    return collected


def _stored(spark: SparkSession, frame: DataFrame, place: Path) -> DataFrame:
    """Write a table, and return what was written, which is not computed again."""
    # Otherwise every task would write a file in every partition.
    gathered = frame.repartition(*PARTITIONS)
    gathered.write.partitionBy(*PARTITIONS).parquet(str(place))
    written = _written(spark, frame, place)
    csv = str(place.with_suffix(".csv"))
    written.repartition(*PARTITIONS).write.partitionBy(*PARTITIONS).option("header", True).csv(csv)
    return written


def _kept(place: Path, name: str, frame: DataFrame) -> DataFrame:
    """Write an intermediate table, and return what was written."""
    frame.write.parquet(str(place / name))
    return _written(frame.sparkSession, frame, place / name)


def _written(spark: SparkSession, frame: DataFrame, place: Path) -> DataFrame:
    return spark.read.schema(frame.schema).parquet(literally(place))


def _skipped(bad: DataFrame) -> DataFrame:
    """The files with invalid lines, for the report."""
    name = F.concat(F.lit(f"{RUNS}/"), F.substring_index("file", f"/{RUNS}/", -1))
    reason = F.concat(F.lit("invalid lines, of "), F.col("lines"))
    return bad.select(name.alias("what"), F.col("bad").alias("lines"), reason.alias("reason"))


def _all_skipped(
    spark: SparkSession, experiment: Experiment, lines: DataFrame, files: list[DataFrame]
) -> DataFrame:
    """Runs, lines and records that could not be used or are missing."""
    schema = "what string, lines long, reason string"
    found = spark.createDataFrame([tuple(one) for one in experiment.skipped], schema)
    for frame in files:
        found = found.unionByName(frame)
    counted = runs_frame(spark, experiment).select("run", "client_records")
    there = records_of(lines).groupBy("run").agg(F.count(F.lit(1)).alias("there"))
    absent = F.col("client_records") - F.coalesce(F.col("there"), F.lit(0))
    fewer = (
        counted.join(there, "run", "left")
        .withColumn("absent", absent)
        .where("absent > 0")
        .select(
            F.concat(F.lit("run "), F.col("run")).alias("what"),
            F.col("absent").alias("lines"),
            F.lit("records that its clients counted are missing").alias("reason"),
        )
    )
    return found.unionByName(fewer).orderBy("what")
