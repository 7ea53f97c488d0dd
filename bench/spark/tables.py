"""The tables at rest: nothing of what was aborted, and just what all that counts comes to.

    ghost       a routing entry that an aborted transaction has left, or that is still marked
    divergence  a broker's SRT or PRT differs from what the words of clients come to

What tables hold in the end is what brokers' records tell (`spark.replay`). What they should hold
is worked out from what clients have said at their edge brokers, in the order of their numbers: an
advertisement stands everywhere, a subscription on every way from its client to somebody who may
publish for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from bench.spark.shipped import by_value, ship
from overlay.filters import Filter
from overlay.matching.index import Index
from overlay.notation import parse_filter
from overlay.tables.last_word import reaches, settle

if TYPE_CHECKING:
    # Messages do not go with the job.
    from overlay.messages import Hop, Version

#: What two lines have to agree in; a client's numbers have gaps where operations were aborted.
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
        # Who has recorded nothing is not judged; and who has ghosts, for those.
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
    """run, node, engine, tx: what a transaction has left that should not have."""
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
    """run, node, LINE, times: what all words together come to at each broker."""
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


class Held:
    """A word that counts, as the index takes it; the broker where it was said is its hop."""

    __slots__ = ("added_by", "client", "filter", "hop", "positive", "removed_by", "seq", "word")

    def __init__(self, word: Any, client: str) -> None:
        self.word = word
        self.client = client
        self.filter = parse_filter(word["filter"])
        self.hop: Hop = word["node"]
        self.positive = word["op_kind"] in ("sub", "adv")
        self.seq: int = word["number"]
        self.added_by: Version | None = None
        self.removed_by: tuple[Version, ...] = ()


WORDS: Final = ArrayType(
    StructType(
        [
            StructField("number", LongType()),
            *(StructField(name, StringType()) for name in ("op_kind", "filter", "node")),
        ]
    )
)


def live(said: Iterable[Any]) -> list[Any]:
    """What still counts of one client's words in one table: the last word decides."""
    index: Index[Held] = Index()
    held: dict[int, Held] = {}
    for word in sorted(said, key=lambda word: word["number"]):
        new = Held(word, "")
        settled = settle(index.overlapping, new.filter, new.positive)
        for gone in settled.drop:
            index.remove(held.pop(gone))
        if settled.store:
            held[new.seq] = new
            index.insert(new)
    return [each.word for each in held.values()]


def stands(
    live: Iterable[Any], links: Iterable[Any]
) -> list[tuple[str, str, str, str, str, str, int]]:
    """Where each word that counts stands in one run, and how often the same is there."""
    tree = _Tree(links)
    words = [(word["table"], Held(word, word["client"])) for word in live]
    publishers = _Publishers(held for table, held in words if table == "srt")
    lines: Counter[tuple[str, str, str, str, str, str]] = Counter()
    for table, held in words:
        towards = tree.towards(held.hop)
        where: Iterable[str] = (held.hop, *towards)
        if table == "prt":
            where = _on_the_ways(held.hop, publishers.edges(held), towards)
        for node in where:
            hop = towards.get(node, f"@{held.client}")
            kind, text = held.word["op_kind"], held.word["filter"]
            lines[node, table, held.client, kind, text, hop] += 1
    return [(*line, times) for line, times in lines.items()]


class _Tree:
    """The overlay, as far as anything went between brokers."""

    def __init__(self, links: Iterable[Any]) -> None:
        self._next: defaultdict[str, set[str]] = defaultdict(set)
        for link in links:
            self._next[link["node"]].add(link["hop"])
            self._next[link["hop"]].add(link["node"])
        self._towards: dict[str, dict[str, str]] = {}

    def towards(self, edge: str) -> dict[str, str]:
        """At each other broker, the neighbour that leads to this one."""
        found = self._towards.get(edge)
        if found is None:
            found = self._towards[edge] = {}
            todo = [edge]
            for node in todo:
                for other in sorted(self._next[node]):
                    if other != edge and other not in found:
                        found[other] = node
                        todo.append(other)
        return found


def _on_the_ways(edge: str, others: Iterable[str], towards: dict[str, str]) -> dict[str, None]:
    """The brokers between one and others, itself included."""
    found = {edge: None}
    for other in others:
        while other not in found and other in towards:
            found[other] = None
            other = towards[other]
    return found


class _Publishers:
    """Behind which brokers somebody may publish for a subscription."""

    def __init__(self, advertised: Iterable[Held]) -> None:
        self._yes: Index[Held] = Index()
        self._no: Index[Held] = Index()
        self._found: dict[str, tuple[str, ...]] = {}
        for held in advertised:
            (self._yes if held.positive else self._no).insert(held)

    def edges(self, held: Held) -> tuple[str, ...]:
        """Edge brokers; asked again and again for few filters."""
        text = held.word["filter"]
        found = self._found.get(text)
        if found is None:
            found = self._found[text] = tuple(self._search(held.filter))
        return found

    def _search(self, filter: Filter) -> Iterator[str]:
        holes: defaultdict[str, list[Held]] = defaultdict(list)
        for hole in self._no.overlapping(filter):
            holes[hole.client].append(hole)
        edges: dict[str, None] = {}
        for yes in self._yes.overlapping(filter):
            if yes.hop not in edges and reaches(yes, filter, holes[yes.client]):
                edges[yes.hop] = None
        yield from edges


by_value(__name__)
_live = F.udf(live, WORDS)
_stands = F.udf(stands, LINES)
