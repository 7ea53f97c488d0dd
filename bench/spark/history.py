"""The transactions, operations, publications and causes of each run, from brokers' records.

Each function returns a DataFrame; nothing is judged here. An operation is a routing operation of a
client at its edge broker; a publication likewise. An operation that reached a broker in consequence
of another one (attracted or sent back by an (un-)advertisement) has that one as its cause: the
sender's record says so, and links are FIFO.

A client that leaves and comes back numbers its operations from 1 again. The names of publications
and transactions contain the client's life; the lives of routing operations are counted.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from bench.spark.shipped import by_value
from padres_tx.audit.promises import REPLICATED, VERSIONED

#: Keeps a frame that is used several times, under a name; the caller of the job decides how. The
#: returned frame has a new plan: an ever-growing plan would take longer than the job.
Keep: TypeAlias = Callable[[str, DataFrame], DataFrame]

#: The key of an operation or publication: `life` distinguishes those of a client that came back.
NAMED: Final = ("run", "op_id", "life")

CAUSES: Final = ArrayType(
    StructType(
        [
            StructField("node", StringType()),
            StructField("seq", LongType()),
            StructField("cause", StringType()),
            StructField("cause_client", StringType()),
            StructField("cause_life", LongType()),
        ]
    )
)


def in_executors(_: str, frame: DataFrame) -> DataFrame:
    """Keep a frame in the executors, for the lifetime of the session."""
    return frame.localCheckpoint()


def with_lives(traces: DataFrame) -> DataFrame:
    """The records with the life of their client: how often it had left before, at that node.

    For publications it is 0, since their names are used once.
    """
    before = (
        Window.partitionBy("run", "node", "client")
        .orderBy("seq")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    gone = (F.col("kind") == "end") & (F.col("tx") == "") & (F.col("client") != "")
    lives = F.coalesce(F.sum(gone.cast("long")).over(before), F.lit(0))
    named = F.col("kind").isin("publish", "match", "deliver")
    return traces.withColumn("life", F.when(named, F.lit(0)).otherwise(lives).cast("long"))


def transactions(traces: DataFrame) -> DataFrame:
    """run, tx, engine, outcome: that of the coordinator's edge broker, if it has decided."""
    of_tx = traces.where("tx != ''")
    at_edge = of_tx.where("kind = 'begin' AND source LIKE '@%'").select("run", "tx", "node")
    decided = of_tx.where("kind = 'decide'").select("run", "tx", "node", "seq", "at_ns", "outcome")
    by_edge = (
        decided.join(at_edge, ["run", "tx", "node"])
        .groupBy("run", "tx")
        .agg(F.min_by("outcome", "seq").alias("edge_outcome"))
    )
    by_any = decided.groupBy("run", "tx").agg(F.min_by("outcome", "at_ns").alias("any_outcome"))
    engines = of_tx.groupBy("run", "tx").agg(F.max("engine").alias("engine"))
    outcome = F.coalesce("edge_outcome", "any_outcome", F.lit("")).alias("outcome")
    return (
        engines.join(by_edge, ["run", "tx"], "left")
        .join(by_any, ["run", "tx"], "left")
        .select("run", "tx", "engine", outcome)
    )


def published(traces: DataFrame, txs: DataFrame) -> DataFrame:
    """Each publication with its transaction, engine and outcome; empty for a plain one."""
    own = (
        traces.where("kind = 'publish'")
        .groupBy(*NAMED)
        .agg(F.min_by("tx", "seq").alias("tx"), F.min_by("op_kind", "seq").alias("op_kind"))
    )
    return own.join(txs, ["run", "tx"], "left").fillna("", ["engine", "outcome"])


def words(traces: DataFrame) -> DataFrame:
    """Each routing operation at its edge broker, with its transaction."""
    entry = traces.where("kind = 'apply' AND source = concat('@', client)")
    columns = ("tx", "after", "trigger", "engine", "node", "client", "op_kind", "filter")
    return entry.groupBy(*NAMED).agg(*(F.min_by(each, "seq").alias(each) for each in columns))


def changes(traces: DataFrame) -> DataFrame:
    """The records of changes of the tables."""
    return traces.where("kind IN ('apply', 'undo') OR (kind = 'end' AND tx = '')")


def causes(traces: DataFrame) -> DataFrame:
    """run, node, seq of the changes that others have caused: the cause's name, client and life.

    The name is empty if the cause is a client's leaving.
    """
    changed = changes(traces).select(
        "run",
        # An operation without a version may continue as if it were plain.
        F.when(F.col("engine").isin(*VERSIONED), F.col("tx")).otherwise("").alias("version"),
        *("node", "seq", "op_id", "client", "life", "source", "dests", "outcome"),
        # Whether a broker has done it by itself, as the plan of a static transaction says.
        (F.col("engine").isin(*REPLICATED) & F.col("op_kind").isin("sub", "usub")).alias("by_plan"),
    )
    token = r"^(.+)>([^>]+)$"
    nobody = F.lit(None).cast("string")
    came = changed.where("op_id != ''").select(
        *("run", "version", "op_id", "node", "seq", "source", "dests", "by_plan"),
        F.lit(0).alias("rank"),
        *(nobody.alias("cause"), nobody.alias("cause_client")),
        F.lit(0).cast("long").alias("cause_life"),
    )
    moved = (
        changed.where("outcome LIKE '%>%'")
        .select("*", F.posexplode(F.split("outcome", " ")).alias("place", "token"))
        .where(F.col("token").rlike(token))
        .select(
            *("run", "version", F.regexp_extract("token", token, 1).alias("op_id"), "node", "seq"),
            F.lit("").alias("source"),
            F.array(F.regexp_extract("token", token, 2)).alias("dests"),
            F.lit(False).alias("by_plan"),
            (F.col("place") + 1).alias("rank"),
            F.col("op_id").alias("cause"),
            F.col("client").alias("cause_client"),
            F.col("life").alias("cause_life"),
        )
    )
    # Operations that were never moved have no cause.
    link = ["run", "version", "op_id"]
    steps = came.join(moved.select(*link).distinct(), link, "left_semi").unionByName(moved)
    columns = [column for column in steps.columns if column not in link]
    return (
        steps.groupBy(*link)
        .agg(F.collect_list(F.struct(*columns)).alias("moves"))
        .select("run", F.explode(_moved_by("moves")).alias("found"))
        .select("run", "found.*")
    )


def moved_by(moves: Iterable[Any]) -> list[tuple[str, int, str, str, int]]:
    """Of the paths of one operation through the overlay, the steps that others have caused."""
    sent: defaultdict[tuple[str, str], deque[Any]] = defaultdict(deque)
    in_order = sorted(moves, key=lambda move: (move["node"], move["seq"], move["rank"]))
    for move in in_order:
        for dest in move["dests"]:
            sent[move["node"], dest].append(move)
    by: dict[tuple[str, int], Any] = {}
    for move in in_order:
        if move["cause"] is None and not move["by_plan"]:
            came = sent[move["source"], move["node"]]
            if came:
                by[move["node"], move["seq"]] = came.popleft()
    found: list[tuple[str, int, str, str, int]] = []
    for node, seq in by:
        # An entry that was moved continues from there for the same reason.
        why, steps = by[node, seq], 0
        while why["cause"] is None and (why["node"], why["seq"]) in by and steps < len(by):
            why, steps = by[why["node"], why["seq"]], steps + 1
        if why["cause"] is not None:
            found.append((node, seq, why["cause"], why["cause_client"], why["cause_life"]))
    return found


by_value(__name__)
_moved_by = F.udf(moved_by, CAUSES)
