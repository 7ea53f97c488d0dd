"""Checks of what clients recorded: the events they sent, joined with the events they received.

Every event has its publisher's number and, where it is certain which client has to receive it, its
owner. Of the events of a run,

    lost          no client received it
    doubled       it was received more than once, by one client or by several
    misrouted     a client other than its owner received it; and where no owner is certain, how
                  often the receiver of an instance's events changed beyond once per commit
    partial       it belongs to an aborted transaction and was received, or to a committed one and
                  was not
    out of order  plain events of one publisher reached a client in another order than they were
                  sent
    unsent        it was received, and no client recorded that it sent it

Brokers' traces are judged in `spark.traces`. Nothing here reads or writes files.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

FAULTS: Final = ("lost", "doubled", "misrouted", "partial", "out_of_order", "unsent")

#: The key of an event.
EVENT: Final = ("run", "publisher", "n")


def events(records: DataFrame) -> DataFrame:
    """Each event that was sent, with the status of its transaction and its receivers."""
    sent = records.where("kind = 'sent'").select(*EVENT, "x", "owner", "tx")
    decided = records.where("kind = 'tx'").select("run", "tx", "status")
    received = (
        records.where("kind = 'event'")
        .groupBy(*EVENT)
        .agg(
            F.count(F.lit(1)).alias("times"),
            F.min("client").alias("receiver"),
            F.max("client").alias("another"),
        )
    )
    found = sent.join(decided, ["run", "tx"], "left").join(received, list(EVENT), "left")
    return found.fillna(0, ["times"])


def faults_of_events(events: DataFrame) -> DataFrame:
    """Each event with a flag for each fault that one event can have."""
    times, tx, status = F.col("times"), F.col("tx"), F.col("status")
    plain = tx == ""
    # Nothing is expected of a transaction whose coordinator never learned the outcome.
    due = plain | (status.isNotNull() & (status != "aborted"))
    strayed = (F.col("receiver") != F.col("owner")) | (F.col("another") != F.col("owner"))
    missing, committed = times == 0, ~plain & (status == "committed")
    flags = {
        "lost": due & missing & ~committed,
        "doubled": due & (times > 1),
        "misrouted": due & (F.col("owner") != "") & (times > 0) & strayed,
        "partial": (committed & missing) | (~plain & (status == "aborted") & (times > 0)),
    }
    return events.select(
        *EVENT, *(F.coalesce(flag, F.lit(False)).alias(name) for name, flag in flags.items())
    )


def changes_of_hands(events: DataFrame, records: DataFrame) -> DataFrame:
    """By run, how often the receiver changed beyond once per commit, where no owner is certain."""
    order = Window.partitionBy("run", "publisher", "x").orderBy("n")
    changes = (
        events.where("tx = '' AND owner = '' AND times > 0")
        .withColumn("before", F.lag("receiver").over(order))
        .groupBy("run", "publisher", "x")
        .agg(F.sum((F.col("before") != F.col("receiver")).cast("long")).alias("changes"))
    )
    commits = (
        records.where("kind = 'tx' AND status = 'committed'")
        .groupBy("run")
        .agg(F.count(F.lit(1)).alias("commits"))
    )
    beyond = F.greatest(F.col("changes") - F.coalesce(F.col("commits"), F.lit(0)), F.lit(0))
    return (
        changes.join(F.broadcast(commits), "run", "left")
        .groupBy("run")
        .agg(F.sum(F.coalesce(beyond, F.lit(0))).alias("misrouted_changes"))
    )


def out_of_order(records: DataFrame) -> DataFrame:
    """By run, how many plain events reached a client after a later one of the same publisher."""
    plain = records.where("kind = 'sent' AND tx = ''").select(*EVENT).distinct()
    # The order of two in the same nanosecond is unknown, and assumed to be right.
    so_far = (
        Window.partitionBy("run", "client", "publisher")
        .orderBy("at_ns", "n")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    return (
        records.where("kind = 'event'")
        .select(*EVENT, "client", "at_ns")
        .join(plain, list(EVENT), "left_semi")
        .withColumn("latest", F.max("n").over(so_far))
        .groupBy("run")
        .agg(F.sum((F.col("n") < F.col("latest")).cast("long")).alias("out_of_order"))
    )


def unsent(records: DataFrame) -> DataFrame:
    """By run, how many events were received that no client has sent."""
    sent = records.where("kind = 'sent'").select(*EVENT)
    return (
        records.where("kind = 'event'")
        .join(sent, list(EVENT), "left_anti")
        .groupBy("run")
        .agg(F.count(F.lit(1)).alias("unsent"))
    )


def run_checks(records: DataFrame, runs: DataFrame) -> DataFrame:
    """One row for each run: the numbers of events sent and received, and of each fault."""
    each = events(records)
    flagged = faults_of_events(each)
    counts = flagged.groupBy("run").agg(
        F.count(F.lit(1)).alias("sent"),
        *(
            F.sum(F.col(name).cast("long")).alias(name)
            for name in ("lost", "doubled", "misrouted", "partial")
        ),
    )
    received = (
        records.where("kind = 'event'").groupBy("run").agg(F.count(F.lit(1)).alias("received"))
    )
    found = runs.select(
        "run", "experiment", "series", "engine", "workload", "variant", "topology", "repetition"
    )
    parts = (
        counts,
        received,
        changes_of_hands(each, records),
        out_of_order(records),
        unsent(records),
    )
    for part in parts:
        found = found.join(part, "run", "left")
    numbers = ["sent", "received", "misrouted_changes", *FAULTS]
    return (
        found.fillna(0, numbers)
        .withColumn("misrouted", F.col("misrouted") + F.col("misrouted_changes"))
        .drop("misrouted_changes")
        .orderBy("run")
    )


def engine_checks(by_run: DataFrame) -> DataFrame:
    """One row for each engine and workload, over all runs."""
    return (
        by_run.groupBy("series", "engine", "workload")
        .agg(
            F.count(F.lit(1)).alias("runs"),
            *(F.sum(name).alias(name) for name in ("sent", "received", *FAULTS)),
        )
        .orderBy("series", "workload")
    )
