"""What was read: one state of the tables, that of its view, at all brokers; and in one order.

    dirty      a transaction's publication was routed on what was not committed, or saw a part of
               what another transaction has changed and not the rest
    handover   a plain publication did: it fell on both sides of a commit, or on neither; or of one
               client's publications a later one fell on the side before
    partial    a transaction's publication did not go to somebody for whom its tables have it
    divergence a plain publication did not go where the tables say, with no transaction near
    cycle      no order of some transactions and plain operations could have led to what they read

Who has read whose changes is found at each broker (`spark.replay`); here brokers are put together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from bench.spark.replay import Unit
from bench.spark.shipped import by_value
from padres_tx import registry

#: Engines whose transactions come one after the other, as if nobody else were there.
ISOLATED: Final = tuple(registry.where(lambda engine: engine.isolated))

KINDS: Final = ("dirty", "handover", "cycle")

BLAMED: Final = ArrayType(
    StructType([StructField("engine", StringType()), StructField("tx", StringType())])
)

#: A unit, or a moment at a broker.
Node: TypeAlias = Unit | tuple[str, int]
Graph: TypeAlias = dict[Node, set[Node]]

_WRITER: Final = ("run", "writer_name", "writer_engine")


def verdicts(traces: DataFrame, txs: DataFrame, replayed: DataFrame) -> DataFrame:
    """run, kind, engine, tx of all that was read wrongly."""
    alone = replayed.where("what = 'verdict'").select("run", "kind", "engine", "tx")
    edges = replayed.where("what = 'edge'")
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

    Of what is not versioned, a later one may fall before at another broker.
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
    """Serializability: the graph of who comes before whom has no cycle.

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
        # Who has nothing to do with anybody makes no cycle.
        graphs.join(steps, "run", "left")
        .select("run", F.explode(_blamed("pairs", "steps")).alias("one"))
        .select("run", F.lit("cycle").alias("kind"), "one.engine", "one.tx")
    )


def blamed(pairs: Iterable[Any], steps: Iterable[Any] | None) -> list[tuple[str, str]]:
    """For each knot in one run's graph, a transaction of the shortest cycle in it."""
    graph: Graph = {}
    engines: dict[Unit, str] = {}
    for pair in pairs:
        units: list[Unit] = []
        for end in (pair["one"], pair["other"]):
            unit = Unit(end["kind"], end["name"], end["life"])
            engines[unit] = end["engine"]
            units.append(unit)
        _join(graph, *units)
    _add_moments(graph, steps or ())
    found: list[tuple[str, str]] = []
    for knot in _knots(graph):
        cycle = _shortest_cycle(graph, knot)
        txs = sorted(unit for unit in cycle if isinstance(unit, Unit) and unit.kind == "tx")
        one = next((tx for tx in txs if engines[tx] in ISOLATED), txs[0])
        found.append((engines[one], one.name))
    return found


def _join(graph: Graph, one: Node, other: Node) -> None:
    graph.setdefault(one, set()).add(other)
    graph.setdefault(other, set())


def _add_moments(graph: Graph, steps: Iterable[Any]) -> None:
    """Instead of an edge for each two that follow each other at a broker, a chain of moments.

    Transactions enter it when they are over, and leave it when they begin.
    """
    by_node: defaultdict[str, list[tuple[int, bool, Unit]]] = defaultdict(list)
    for step in steps:
        unit = Unit("tx", step["tx"])
        if unit in graph:
            by_node[step["node"]].append((step["seq"], step["kind"] == "end", unit))
    for node in sorted(by_node):
        moment = 0
        fresh = False
        for _, is_over, unit in sorted(by_node[node]):
            if is_over:
                if not fresh:
                    moment += 1
                    _join(graph, (node, moment - 1), (node, moment))
                    fresh = True
                _join(graph, unit, (node, moment))
            else:
                _join(graph, (node, moment), unit)
                fresh = False


def _knots(graph: Graph) -> Iterator[set[Node]]:
    """The strongly connected parts of more than one node (Tarjan), without recursion."""
    number: dict[Node, int] = {}
    low: dict[Node, int] = {}
    open_: dict[Node, None] = {}
    for root in graph:
        if root in number:
            continue
        way: list[tuple[Node, Iterator[Node]]] = [(root, iter(graph[root]))]
        number[root] = low[root] = len(number)
        open_[root] = None
        while way:
            node, rest = way[-1]
            after = next(rest, None)
            if after is None:
                way.pop()
                if way:
                    low[way[-1][0]] = min(low[way[-1][0]], low[node])
                if low[node] == number[node]:
                    knot: set[Node] = set()
                    while node not in knot:
                        knot.add(open_.popitem()[0])
                    if len(knot) > 1:
                        yield knot
            elif after not in number:
                number[after] = low[after] = len(number)
                open_[after] = None
                way.append((after, iter(graph[after])))
            elif after in open_:
                low[node] = min(low[node], number[after])


def _shortest_cycle(graph: Graph, knot: set[Node]) -> list[Node]:
    """The first by name of the shortest; some way leads back from every unit of a knot."""
    best: list[Node] = []
    for unit in sorted(node for node in knot if isinstance(node, Unit)):
        found = _back_to(graph, knot, unit)
        if found and (not best or len(found) < len(best)):
            best = found
        if len(best) == 2:
            break
    return best


def _back_to(graph: Graph, knot: set[Node], start: Node) -> list[Node]:
    """The shortest way from a node back to itself."""
    came: dict[Node, Node] = {}
    todo = [start]
    for node in todo:
        for after in sorted(graph[node] & knot, key=str):
            if after == start:
                way = [node]
                while way[-1] != start:
                    way.append(came[way[-1]])
                return way[::-1]
            if after not in came:
                came[after] = node
                todo.append(after)
    return []


by_value(__name__)
_blamed = F.udf(blamed, BLAMED)
