"""Latencies, throughput and rates of an experiment, as DataFrames computed from its records.

A point is one mark in a figure (`spark.records.POINT`). Quantiles are over all transactions of a
point; means have confidence intervals over its repetitions, each of which counts once: transactions
of one run share its placement and its luck, and are not independent.

Nothing here reads or writes files.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from scipy.stats import t as student

from bench.spark.records import POINT

#: The confidence of an interval.
CONFIDENCE: Final = 0.95

#: Repetitions beyond which the normal distribution replaces the t distribution: 0.4 % apart.
MANY: Final = 200

QUANTILES: Final = {"p50": 0.50, "p90": 0.90, "p99": 0.99}

#: 1/10,000 of the rank, Spark's default: exact up to 10,000 transactions.
ACCURACY: Final = 10_000

NS_PER_S: Final = 1_000_000_000


def transactions(records: DataFrame, runs: DataFrame) -> DataFrame:
    """Each transaction of a coordinator, with its latency and its run."""
    took = ((F.col("end_ns") - F.col("begin_ns")) / 1e6).alias("latency_ms")
    return (
        records.where("kind = 'tx'")
        .select("run", "client", "tx", "status", "code", "begin_ns", "end_ns", took)
        .join(F.broadcast(runs.select("run", *POINT, "repetition")), "run")
    )


def run_summaries(transactions: DataFrame) -> DataFrame:
    """One row for each run: latency of the committed transactions, and throughput."""
    committed = F.col("status") == "committed"
    latency = F.when(committed, F.col("latency_ms"))
    took_s = (F.max("end_ns") - F.min("begin_ns")) / NS_PER_S
    return (
        transactions.groupBy("run", *POINT, "repetition")
        .agg(
            F.count(F.lit(1)).alias("transactions"),
            F.sum(committed.cast("long")).alias("committed"),
            F.sum((F.col("status") == "aborted").cast("long")).alias("aborted"),
            F.avg(latency).alias("latency_ms_mean"),
            *_quantiles(latency),
            took_s.alias("took_s"),
        )
        .withColumn(
            "throughput_per_s",
            F.when(F.col("took_s") > 0, F.col("committed") / F.col("took_s")),
        )
    )


def point_summaries(transactions: DataFrame, by_run: DataFrame) -> DataFrame:
    """One row for each point: quantiles of all, and means over repetitions with intervals."""
    latency = F.when(F.col("status") == "committed", F.col("latency_ms"))
    pooled = transactions.groupBy(*POINT).agg(*_quantiles(latency))
    means = by_run.groupBy(*POINT).agg(
        F.count(F.lit(1)).alias("repetitions"),
        F.sum("transactions").alias("transactions"),
        F.sum("committed").alias("committed"),
        F.sum("aborted").alias("aborted"),
        *_interval("latency_ms_mean"),
        *_interval("throughput_per_s"),
    )
    return means.join(pooled, list(POINT)).orderBy(*POINT)


def _quantiles(latency: Column) -> list[Column]:
    # percentile_approx ignores nulls, and so transactions that were not committed.
    return [
        F.percentile_approx(latency, share, ACCURACY).alias(f"latency_ms_{name}")
        for name, share in QUANTILES.items()
    ]


def _interval(value: str) -> list[Column]:
    """The mean of a column, and the half width of its confidence interval.

    The half width is null for a single repetition, whose deviation is unknown.
    """
    half = _student(F.count(value)) * F.stddev_samp(value) / F.sqrt(F.count(value))
    return [F.avg(value).alias(value), F.when(F.count(value) > 1, half).alias(f"{value}_ci")]


def _student(count: Column) -> Column:
    """The half width of an interval in standard errors, for a mean of `count` values."""
    factors = [student.ppf((1 + CONFIDENCE) / 2, df) for df in range(1, MANY)]
    listed = F.array(*(F.lit(float(factor)) for factor in factors))
    within = F.least(count - 1, F.lit(len(factors)))
    return F.when(count > 1, F.element_at(listed, F.greatest(within, F.lit(1)).cast("int")))


# --- rates (Figure 9) ---------------------------------------------------------------------------


def rates(records: DataFrame, runs: DataFrame) -> DataFrame:
    """Events received in each whole second of each run, and the transactions open in it.

    Seconds count from the run's first event. Seconds without events are included, with 0; the last
    second, which is incomplete, is not.
    """
    plain = records.where("kind = 'sent' AND tx = ''").select("run", "publisher", "n").distinct()
    events = records.where("kind = 'event'").select("run", "publisher", "n", "at_ns")
    events = events.join(plain, ["run", "publisher", "n"], "left_semi")
    spans = events.groupBy("run").agg(F.min("at_ns").alias("from_ns"), F.max("at_ns").alias("to"))
    second = F.floor((F.col("at_ns") - F.col("from_ns")) / NS_PER_S)
    counted = (
        events.join(F.broadcast(spans), "run")
        .groupBy("run", second.alias("second"))
        .agg(F.count(F.lit(1)).alias("events"))
    )
    last = F.floor((F.col("to") - F.col("from_ns")) / NS_PER_S) - 1
    every = spans.where(last >= 0).select(
        "run", F.explode(F.sequence(F.lit(0), last.cast("int"))).alias("second")
    )
    found = (
        every.join(counted, ["run", "second"], "left")
        .join(_open(records, spans), ["run", "second"], "left")
        .fillna(0, ["events", "open_transactions"])
    )
    about = runs.select("run", *POINT, "repetition", "dispatch", "rate_per_s")
    return found.join(F.broadcast(about), "run").orderBy("run", "second")


def _open(records: DataFrame, spans: DataFrame) -> DataFrame:
    """How many transactions were open in each second."""
    begun, ended = (
        F.floor((F.col(at) - F.col("from_ns")) / NS_PER_S).cast("int")
        for at in ("begin_ns", "end_ns")
    )
    return (
        records.where("kind = 'tx' AND end_ns >= begin_ns")
        .select("run", "begin_ns", "end_ns")
        .join(F.broadcast(spans), "run")
        .select("run", F.explode(F.sequence(begun, ended)).alias("second"))
        .groupBy("run", "second")
        .agg(F.count(F.lit(1)).alias("open_transactions"))
    )


def rate_summaries(rates: DataFrame) -> DataFrame:
    """One row for each point and repetition, for the seconds with and without open transactions.

    Repetitions are not combined here: the offered rate differs between them.
    """
    busy = (F.col("open_transactions") > 0).alias("busy")
    # The first second includes the start.
    return (
        rates.where("second > 0")
        .groupBy(*POINT, "repetition", "dispatch", busy)
        .agg(
            F.count(F.lit(1)).alias("windows"),
            F.avg("events").alias("events_per_s"),
            F.stddev_samp("events").alias("events_per_s_sd"),
            F.avg("rate_per_s").alias("offered_per_s"),
        )
        .orderBy(*POINT, "repetition", "dispatch", "busy")
    )
