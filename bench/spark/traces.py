"""Checks of what brokers recorded, by the same rules as the checkers of histories.

Each verdict is a row (run, kind, engine, tx); `tx` is the transaction, or without one the name of
the publication or the broker.

    order      at some broker an operation was handled before one that comes first (Section 3.2)
    partial    a transaction's publication was delivered without, or before, its commit; or the
               transaction committed, and the publication did not reach a place where a broker, or
               its tables, sent it
    split      an outcome differs between brokers, or from the coordinator's record
    undecided  a transaction has begun at a broker, and is never decided or over there
    duplicate  a publication was delivered to one client twice
    lost       a plain publication did not reach a place where a broker sent it

These are joins, in this module. `spark.tables` finds ghost and divergence, `spark.reads` dirty,
handover and cycle, both from brokers' tables that are rebuilt from the records (`spark.replay`).
`padres_tx.audit.promises` knows which engine promises what.

Nothing here reads or writes files; `overlay.trace` documents `after`, `trigger` and `outcome` of
records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from bench.spark import history, reads, steps, tables
from bench.spark.history import NAMED, Keep
from bench.spark.shipped import by_value
from padres_tx.audit.promises import REPLICATED

VERDICT: Final = ("run", "kind", "engine", "tx")

PAIRS: Final = ArrayType(
    StructType([StructField("name", StringType()), StructField("earlier", StringType())])
)


def verdicts(
    traces: DataFrame,
    told: DataFrame | None = None,
    *,
    keep: Keep = history.in_executors,
) -> DataFrame:
    """All anomalies of all runs, each once, whether promised or not.

    `told` has the outcomes that coordinators received: run, tx, outcome. The transactions of a run
    should be of one engine, as in experiments: a cycle through several engines is attributed to one
    with isolation, though it cannot prevent that cycle alone.
    """
    traces = keep("traces", history.with_lives(traces))
    txs = keep("txs", history.transactions(traces))
    publications = history.published(traces, txs)
    words = keep("words", history.words(traces))
    causes = keep("causes", history.causes(traces))
    numbers = keep("numbers", _numbers(traces))
    at_rest = _without(traces, numbers.where("records != last"))
    in_order = _without(traces, numbers.where("records < last OR began_again"))
    replayed = keep("replayed", steps.replayed(in_order, txs, words, causes, keep))
    parts = {
        "split": split(traces, txs, told),
        "undecided": undecided(at_rest, txs),
        "duplicates": duplicates(traces, publications),
        "untimely": untimely(traces, publications),
        "missing": missing(at_rest, publications),
        "misordered": misordered(traces, txs, words, causes, publications),
        "reads": reads.verdicts(in_order, txs, replayed),
        "tables": tables.verdicts(at_rest, txs, words, replayed),
    }
    # One plan for all would take longer to plan than to compute.
    kept = [keep(name, part) for name, part in parts.items()]
    return reduce(DataFrame.unionByName, kept).distinct().orderBy(*VERDICT)


def _numbers(traces: DataFrame) -> DataFrame:
    """By run and broker, how many records there are, and how many there should be.

    If some are missing, or if a broker has begun to count again because its state was lost, its
    tables cannot be rebuilt; if some are there twice, the state at the end is unknown.
    """
    first = F.when(F.col("seq") == 1, F.col("at_ns"))
    return traces.groupBy("run", "node").agg(
        F.count(F.lit(1)).alias("records"),
        F.max("seq").alias("last"),
        (F.min(first) < F.max(first)).alias("began_again"),
    )


def counts(found: DataFrame) -> DataFrame:
    """By engine and kind, the number of anomalies, and of runs that show them."""
    return (
        found.groupBy("engine", "kind")
        .agg(F.count(F.lit(1)).alias("found"), F.count_distinct("run").alias("runs"))
        .orderBy("engine", "kind")
    )


def not_judged(traces: DataFrame) -> DataFrame:
    """what, lines, reason: the runs whose tables cannot be rebuilt."""
    missing = F.sum(F.greatest(F.col("last") - F.col("records"), F.lit(0)))
    return (
        _numbers(traces)
        .groupBy("run")
        .agg(missing.alias("lines"), F.max("began_again").alias("again"))
        .where("lines > 0 OR again")
        .select(
            F.concat(F.lit("run "), F.col("run")).alias("what"),
            "lines",
            F.lit("records of brokers are missing: reads and tables are not judged").alias(
                "reason"
            ),
        )
    )


def _without(traces: DataFrame, those: DataFrame) -> DataFrame:
    return traces.join(F.broadcast(those.select("run").distinct()), "run", "left_anti")


def _verdict(found: DataFrame, kind: str | Column, tx: Column | str = "tx") -> DataFrame:
    named = F.lit(kind) if isinstance(kind, str) else kind
    about = F.col(tx) if isinstance(tx, str) else tx
    return found.select("run", named.alias("kind"), "engine", about.alias("tx"))


# --- outcomes -----------------------------------------------------------------------------------


def split(traces: DataFrame, txs: DataFrame, told: DataFrame | None = None) -> DataFrame:
    heard = traces.where("kind = 'decide'").select("run", "tx", "outcome")
    if told is not None:
        heard = heard.unionByName(told.select("run", "tx", "outcome"))
    several = (
        heard.groupBy("run", "tx")
        .agg(F.count_distinct("outcome").alias("outcomes"))
        .where("outcomes > 1")
    )
    return _verdict(several.join(txs, ["run", "tx"]), "split")


def undecided(traces: DataFrame, txs: DataFrame) -> DataFrame:
    key = ["run", "tx", "node"]
    of_tx = traces.where("tx != ''")
    begun, decided, over = (
        of_tx.where(F.col("kind") == kind).select(*key).distinct()
        for kind in ("begin", "decide", "end")
    )
    left = begun.join(decided.join(over, key), key, "left_anti")
    return _verdict(left.join(txs, ["run", "tx"]), "undecided")


# --- publications -------------------------------------------------------------------------------


def duplicates(traces: DataFrame, publications: DataFrame) -> DataFrame:
    handed = _handed(traces).groupBy(*NAMED, "hop").agg(F.count(F.lit(1)).alias("times"))
    found = handed.where("times > 1").join(publications, list(NAMED))
    return _verdict(found, "duplicate", "op_id")


def _handed(traces: DataFrame) -> DataFrame:
    return traces.where("kind = 'deliver'").select(*NAMED, F.explode("dests").alias("hop"))


def untimely(traces: DataFrame, publications: DataFrame) -> DataFrame:
    """Publications of a transaction are delivered after its commit only."""
    node = ["run", "tx", "node"]
    of_tx = traces.where("tx != ''")
    begun = of_tx.where("kind = 'begin'").select(*node, F.lit(True).alias("begun")).distinct()
    first = of_tx.where("kind = 'decide'").groupBy(*node)
    decided = first.agg(
        F.min("seq").alias("decided_at"), F.min_by("outcome", "seq").alias("decided_here")
    )
    delivered = (
        traces.where("kind = 'deliver'")
        .select(*NAMED, "node", "seq")
        .join(publications.where("tx != ''"), list(NAMED))
        .join(begun, node, "left")
        .join(decided, node, "left")
    )
    in_time = (F.col("decided_here") == "committed") & (F.col("decided_at") < F.col("seq"))
    early = F.col("begun") & ~F.coalesce(in_time, F.lit(False))
    wrong = (F.col("outcome") != "committed") | F.coalesce(early, F.lit(False))
    return _verdict(delivered.where(wrong), "partial")


def missing(traces: DataFrame, publications: DataFrame) -> DataFrame:
    """A publication arrives at every broker and client that it was sent to."""
    due = publications.where("tx = '' OR outcome = 'committed'")
    matched = traces.where("kind = 'match'").join(due.select(*NAMED), list(NAMED), "left_semi")
    sent = matched.select(*NAMED, F.explode("dests").alias("hop")).distinct()
    came = matched.select(*NAMED, F.col("node").alias("hop")).distinct()
    got = _handed(traces).distinct()
    lost = sent.join(came.unionByName(got), [*NAMED, "hop"], "left_anti")
    # A tcm ends at its receiver, which answers in the transaction; nothing is delivered.
    about = lost.join(due, list(NAMED)).where("op_kind != 'tcm' OR hop NOT LIKE '@%'")
    plain = F.col("tx") == ""
    kind = F.when(plain, F.lit("lost")).otherwise(F.lit("partial"))
    return _verdict(about, kind, F.when(plain, F.col("op_id")).otherwise(F.col("tx")))


# --- order --------------------------------------------------------------------------------------


def misordered(
    traces: DataFrame,
    txs: DataFrame,
    words: DataFrame,
    causes: DataFrame,
    publications: DataFrame,
) -> DataFrame:
    """At a broker, an operation before one that comes first, or before an entry it has moved."""
    entered = words.where("tx != ''").select("run", "tx", "op_id", "after", "trigger")
    said = traces.where("kind = 'publish' AND tx != ''")
    entered = entered.unionByName(said.select(*entered.columns))
    pairs = (
        entered.groupBy("run", "tx")
        .agg(F.collect_list(F.struct("op_id", "after", "trigger")).alias("operations"))
        .select("run", "tx", F.explode(_come_before("operations")).alias("pair"))
        .select("run", "tx", "pair.name", "pair.earlier")
    )
    here = _handled(traces, words, causes, publications)
    first = here.select("run", "tx", "node", F.col("op_id").alias("name"), "first")
    last = here.select("run", "tx", "node", F.col("op_id").alias("earlier"), "last")
    wrong = (
        pairs.join(first, ["run", "tx", "name"])
        .join(last, ["run", "tx", "node", "earlier"])
        .where("first < last")
    )
    return _verdict(wrong.join(txs, ["run", "tx"]), "order")


def _handled(
    traces: DataFrame, words: DataFrame, causes: DataFrame, publications: DataFrame
) -> DataFrame:
    """run, tx, node, op_id, first, last: when each broker handled each operation.

    `last` is when it handled the last entry that the operation had moved there.
    """
    matched = (
        traces.where("kind = 'match'")
        .select(*NAMED, "node", "seq")
        .join(publications.where("tx != ''"), list(NAMED))
        .select("run", "tx", "node", "op_id", "seq", F.lit(True).alias("own"))
    )
    applied = (
        traces.where("kind = 'apply'")
        .select("run", "node", "seq", "tx", "op_id", "life")
        .join(causes, ["run", "node", "seq"], "left")
        .withColumn("own", F.col("cause").isNull())
        .withColumn("op_id", F.coalesce("cause", "op_id"))
        .withColumn("life", F.when(F.col("own"), F.col("life")).otherwise(F.col("cause_life")))
        .join(words.select(*NAMED, F.col("tx").alias("word_tx"), "engine"), list(NAMED))
        .where("word_tx != ''")
        # After an abort, operations that were under way arrive as if they were plain.
        .where(F.col("engine").isin(*REPLICATED) | (F.col("tx") == F.col("word_tx")))
        .select("run", F.col("word_tx").alias("tx"), "node", "op_id", "seq", "own")
    )
    key = ("run", "tx", "node", "op_id")
    over = (
        traces.where("kind = 'end' AND tx != ''")
        .groupBy("run", "tx", "node")
        .agg(F.min("seq").alias("over"))
    )
    each = (
        matched.unionByName(applied)
        .join(over, ["run", "tx", "node"], "left")
        # A later compensation may repeat the operation.
        .where("over IS NULL OR seq <= over")
    )
    first = each.where("own").groupBy(*key).agg(F.min("seq").alias("first"))
    return (
        each.join(first, list(key))
        # With a replicated plan, neighbours repeat the operation; those repetitions do not count.
        .where("seq = first OR (seq > first AND NOT own)")
        .groupBy(*key, "first")
        .agg(F.max("seq").alias("last"))
    )


def come_before(operations: Iterable[Any]) -> list[tuple[str, str]]:
    """All pairs (operation, one that comes before it) of a transaction.

    An operation is its name, those that it comes after, and the tcm that it answers.
    """
    listed = [(op["op_id"], list(op["after"]), op["trigger"]) for op in operations]
    names = {name for name, _, _ in listed}
    triggered: defaultdict[str, list[str]] = defaultdict(list)
    for name, _, trigger in listed:
        if trigger:
            triggered[trigger].append(name)
    direct: dict[str, set[str]] = {}
    for name, after, trigger in listed:
        mine = {*after, trigger} & names
        # An operation after a tcm comes after everything that the tcm has led to, at any depth.
        todo = [other for other in after if other in names]
        while todo:
            for other in triggered[todo.pop()]:
                if other != name and other not in mine:
                    mine.add(other)
                    todo.append(other)
        direct[name] = mine
    pairs: list[tuple[str, str]] = []
    for name in direct:
        seen: set[str] = set()
        todo = list(direct[name])
        while todo:
            other = todo.pop()
            if other not in seen:
                seen.add(other)
                todo += direct[other]
        pairs += [(name, other) for other in sorted(seen - {name})]
    return pairs


by_value(__name__)
_come_before = F.udf(come_before, PAIRS)
