"""The tables at rest: nothing of an aborted transaction, and exactly what the operations lead to.

    ghost       a routing entry that an aborted transaction has left, or that is still marked
    divergence  a broker's SRT or PRT differs from what the operations of clients lead to

The replay of the records (`spark.replay`) gives what tables contain in the end;
`padres_tx.audit.expected_tables` computes what they should contain.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from bench.spark.shipped import by_value, ship
from padres_tx.audit.expected_tables import RoutingOperation, effective, expected_lines

#: Entries are compared by these; numbers are left out, since aborted operations leave gaps.
LINE: Final = ("table", "client", "op_kind", "filter", "hop")

LINES: Final = ArrayType(
    StructType(
        [
            *(StructField(name, StringType()) for name in ("node", *LINE)),
            StructField("times", LongType()),
        ]
    )
)

KINDS: Final = ("ghost", "divergence")


def verdicts(traces: DataFrame, txs: DataFrame, words: DataFrame, replayed: DataFrame) -> DataFrame:
    """run, kind, engine, tx of ghosts and divergence; `tx` of divergence is the broker."""
    ship(traces.sparkSession)
    nodes = traces.select("run", "node").distinct()
    lines = replayed.where("what = 'line'").join(nodes, ["run", "node"], "left_semi")
    left = ghosts(traces, txs, words, lines)
    right = expected(traces, txs, words.join(nodes.select("run").distinct(), "run", "left_semi"))
    there = lines.groupBy("run", "node", *LINE).agg(F.count(F.lit(1)).alias("times"))
    should = right.withColumn("times", -F.col("times"))
    differ = (
        there.unionByName(should)
        .groupBy("run", "node", *LINE)
        .agg(F.sum("times").alias("times"))
        .where("times != 0")
        .select("run", "node")
        .distinct()
        # Brokers without records are not judged, nor those that have ghosts.
        .join(nodes, ["run", "node"], "left_semi")
        .join(left, ["run", "node"], "left_anti")
    )
    diverged = differ.select(
        "run",
        F.lit("divergence").alias("kind"),
        F.lit("").alias("engine"),
        F.col("node").alias("tx"),
    )
    ghost = left.select("run", F.lit("ghost").alias("kind"), "engine", "tx")
    return ghost.unionByName(diverged)


def ghosts(traces: DataFrame, txs: DataFrame, words: DataFrame, lines: DataFrame) -> DataFrame:
    """run, node, engine, tx: the transactions that have left an entry wrongly."""
    life = _departures(traces).groupBy("run", "client").agg((F.max("life") + 1).alias("life"))
    aborted = words.join(
        txs.where("outcome = 'aborted'").select("run", "tx"), ["run", "tx"]
    ).select("run", "op_id", "life", F.col("tx").alias("aborted_in"))
    said = (
        lines.join(F.broadcast(life), ["run", "client"], "left")
        .fillna(0, ["life"])
        .join(aborted, ["run", "op_id", "life"], "left")
        .withColumn("tx", F.when(F.col("tx") != "", F.col("tx")).otherwise(F.col("aborted_in")))
        .where("tx IS NOT NULL")
        .select("run", "node", "tx")
        .distinct()
    )
    return said.join(txs.select("run", "tx", "engine"), ["run", "tx"], "left").fillna("")


def _departures(traces: DataFrame) -> DataFrame:
    return traces.where("kind = 'end' AND tx = ''").select("run", "client", "life").distinct()


def expected(traces: DataFrame, txs: DataFrame, words: DataFrame) -> DataFrame:
    """run, node, LINE, times: the entries that all operations lead to at each broker."""
    committed = txs.where("outcome = 'committed'").select("run", "tx")
    counted = words.where("tx = ''").unionByName(words.join(committed, ["run", "tx"]))
    table = F.when(F.col("op_kind").isin("sub", "usub"), F.lit("prt")).otherwise(F.lit("srt"))
    number = F.expr("cast(substring(op_id, length(client) + 2) AS long)")
    live = (
        counted.join(_departures(traces), ["run", "client", "life"], "left_anti")
        .select(
            "run",
            "client",
            "node",
            "op_kind",
            "filter",
            table.alias("table"),
            number.alias("number"),
        )
        .groupBy("run", "table", "client")
        .agg(F.collect_list(F.struct("number", "op_kind", "filter", "node")).alias("said"))
        .select("run", "table", "client", F.explode(_live("said")).alias("word"))
        .groupBy("run")
        .agg(F.collect_list(F.struct("table", "client", "word.*")).alias("live"))
    )
    hops = traces.select(
        "run", "node", F.explode(F.concat("dests", F.array("source"))).alias("hop")
    )
    tree = (
        hops.where("hop != '' AND hop NOT LIKE '@%'")
        .distinct()
        .groupBy("run")
        .agg(F.collect_list(F.struct("node", "hop")).alias("links"))
    )
    return (
        live.join(tree, "run", "left")
        .withColumn(
            "links", F.coalesce("links", F.expr("array()").cast(tree.schema["links"].dataType))
        )
        .select("run", F.explode(_stands("live", "links")).alias("line"))
        .select("run", "line.*")
    )


OPERATIONS: Final = ArrayType(
    StructType(
        [
            StructField("number", LongType()),
            *(StructField(name, StringType()) for name in ("op_kind", "filter", "node")),
        ]
    )
)


def live(issued: Iterable[Any]) -> list[Any]:
    """The rows of one client's operations in one table that later ones have not replaced."""
    rows = {row["number"]: row for row in issued}
    operations = (_operation(row, "") for row in rows.values())
    return [rows[operation.number] for operation in effective(operations)]


def stands(
    live: Iterable[Any], links: Iterable[Any]
) -> list[tuple[str, str, str, str, str, str, int]]:
    """The expected entries of one run, and how many there are of each."""
    operations = [_operation(row, row["client"]) for row in live]
    lines = expected_lines(operations, [(link["node"], link["hop"]) for link in links])
    return [(*line, times) for line, times in lines.items()]


def _operation(row: Any, client: str) -> RoutingOperation:
    return RoutingOperation(client, row["number"], row["op_kind"], row["filter"], row["node"])


by_value(__name__)
_live = F.udf(live, OPERATIONS)
_stands = F.udf(stands, LINES)
