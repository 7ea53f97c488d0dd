"""The reads of publications and operations: one state of the tables at all brokers, in one order.

    dirty      a transaction's publication was routed on an uncommitted change, or saw a part of the
               changes of another transaction and not the rest
    handover   a plain publication did: it fell on both sides of a commit, or on neither; or of one
               client's publications a later one fell on the side before
    partial    a transaction's publication did not go to a client that its tables have it for
    divergence a plain publication did not go where the tables say, with no transaction near
    cycle      no serial order of some transactions and plain operations explains their reads

The dependencies at each broker are found by `spark.replay`; here brokers are combined.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from bench.spark.shipped import by_value, ship
from padres_tx.audit.dependency_graph import (
    Boundary,
    Graph,
    Unit,
    add_edge,
    add_moments,
    cyclic_components,
    shortest_cycle,
)
from padres_tx.audit.promises import ISOLATED

KINDS: Final = ("dirty", "handover", "cycle")

BLAMED: Final = ArrayType(
    StructType([StructField("engine", StringType()), StructField("tx", StringType())])
)

_WRITER: Final = ("run", "writer_name", "writer_engine")


def verdicts(traces: DataFrame, txs: DataFrame, replayed: DataFrame) -> DataFrame:
    """run, kind, engine, tx of all wrong reads."""
    ship(traces.sparkSession)
    alone = replayed.where("what = 'verdict'").select("run", "kind", "engine", "tx")
    edges = replayed.where("what = 'dependency'")
    found = alone.unionByName(fractured(edges)).unionByName(back_again(edges))
    return found.unionByName(cycles(traces, txs, edges))


def fractured(edges: DataFrame) -> DataFrame:
    """A publication, or those of one transaction, on both sides of another."""
    routed = edges.where("routed AND writer_kind = 'tx'")
    pair = [*_WRITER, "reader_kind", "reader_name", "reader_life", "reader_engine"]
    sides = routed.groupBy(*pair).agg(
        F.max("seen").alias("saw"), F.min("seen").alias("saw_everywhere")
    )
    plain = F.col("reader_kind") == "pub"
    return sides.where("saw AND NOT saw_everywhere").select(
        "run",
        F.when(plain, F.lit("handover")).otherwise(F.lit("dirty")).alias("kind"),
        F.when(plain, F.col("writer_engine")).otherwise(F.col("reader_engine")).alias("engine"),
        F.when(plain, F.col("writer_name")).otherwise(F.col("reader_name")).alias("tx"),
    )


def back_again(edges: DataFrame) -> DataFrame:
    """Of a client's plain publications those after a commit follow those before it.

    Without isolation, a later one may fall before the commit at another broker.
    """
    name = r"^(.*):(\d+)$"
    number = F.regexp_extract("reader_name", name, 2).cast("long")
    sides = (
        edges.where("reader_kind = 'pub' AND writer_kind = 'tx'")
        .where(F.col("writer_engine").isin(*ISOLATED))
        .groupBy(*_WRITER, F.regexp_extract("reader_name", name, 1).alias("client"), "reader_life")
        .agg(
            F.min(F.when(F.col("seen"), number)).alias("first_after"),
            F.max(F.when(~F.col("seen"), number)).alias("last_before"),
        )
    )
    return sides.where("first_after < last_before").select(
        "run",
        F.lit("handover").alias("kind"),
        F.col("writer_engine").alias("engine"),
        F.col("writer_name").alias("tx"),
    )


def cycles(traces: DataFrame, txs: DataFrame, edges: DataFrame) -> DataFrame:
    """Serializability: the dependency graph has no cycle.

    A transaction that is over at a broker before another begins there comes before that one.
    """
    ends = ["kind", "name", "life", "engine"]
    reader = F.struct(*(F.col(f"reader_{end}").alias(end) for end in ends))
    writer = F.struct(*(F.col(f"writer_{end}").alias(end) for end in ends))
    seen = F.col("seen")
    pairs = edges.where("reader_kind != 'pub'").select(
        "run",
        F.when(seen, writer).otherwise(reader).alias("one"),
        F.when(seen, reader).otherwise(writer).alias("other"),
    )
    graphs = (
        pairs.distinct().groupBy("run").agg(F.collect_list(F.struct("one", "other")).alias("pairs"))
    )
    isolated = txs.where("outcome = 'committed'").where(F.col("engine").isin(*ISOLATED))
    steps = (
        traces.where("kind IN ('begin', 'end')")
        .join(isolated.select("run", "tx"), ["run", "tx"], "left_semi")
        .groupBy("run", "node", "tx", "kind")
        .agg(F.min("seq").alias("seq"))
        .groupBy("run")
        .agg(F.collect_list(F.struct("node", "seq", "kind", "tx")).alias("steps"))
    )
    return (
        # A transaction without dependencies is in no cycle.
        graphs.join(steps, "run", "left")
        .select("run", F.explode(_blamed("pairs", "steps")).alias("one"))
        .select("run", F.lit("cycle").alias("kind"), "one.engine", "one.tx")
    )


def blamed(pairs: Iterable[Any], steps: Iterable[Any] | None) -> list[tuple[str, str]]:
    """For each cyclic component of one run's graph, a transaction of the shortest cycle in it."""
    graph: Graph = {}
    engines: dict[Unit, str] = {}
    for pair in pairs:
        units: list[Unit] = []
        for end in (pair["one"], pair["other"]):
            unit = Unit(end["kind"], end["name"], end["life"])
            engines[unit] = end["engine"]
            units.append(unit)
        add_edge(graph, *units)
    boundaries = (
        Boundary(step["node"], step["seq"], step["kind"] == "end", Unit("tx", step["tx"]))
        for step in steps or ()
    )
    add_moments(graph, boundaries)
    found: list[tuple[str, str]] = []
    for component in cyclic_components(graph):
        cycle = shortest_cycle(graph, component)
        txs = sorted(unit for unit in cycle if isinstance(unit, Unit) and unit.kind == "tx")
        one = next((tx for tx in txs if engines[tx] in ISOLATED), txs[0])
        found.append((engines[one], one.name))
    return found


by_value(__name__)
_blamed = F.udf(blamed, BLAMED)
