"""Was the run correct? What brokers recorded, joined: the same rules as the checkers of histories.

Each function answers rows (run, kind, engine, tx); `tx` is the transaction, or where there is none
the publication's name.

    order      at some broker an operation was handled before one that comes first (Section 3.2)
    partial    a transaction's publication was delivered without, or before, its commit; or it was
               committed, and its publication did not get to where a broker sent it
    split      an outcome differs from broker to broker, or from what its coordinator was told
    undecided  a transaction has begun at a broker, and is never decided or over there
    duplicate  a publication was handed to one client twice
    lost       a plain publication did not get to where a broker sent it

What takes more than joins (ghost routes, divergence, dirty reads, cycles) is not here.
Nothing here reads or writes files; `after`, `trigger` and `outcome` of records are explained in
`overlay.trace`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

KINDS: Final = ("order", "partial", "split", "undecided", "duplicate", "lost")

VERDICT: Final = ("run", "kind", "engine", "tx")

#: A publication; `life` tells apart a client's that left and came back, and began to count anew.
PUBLICATION: Final = ("run", "op_id", "life")

PAIRS: Final = ArrayType(
    StructType([StructField("name", StringType()), StructField("earlier", StringType())])
)


def verdicts(traces: DataFrame, told: DataFrame | None = None) -> DataFrame:
    """All that is wrong with all runs, each thing once.

    `told` has what coordinators were told: run, tx, outcome.
    """
    traces = with_lives(traces)
    txs = transactions(traces)
    publications = published(traces, txs)
    found = split(traces, txs, told)
    for more in (
        undecided(traces, txs),
        duplicates(traces, publications),
        untimely(traces, publications),
        missing(traces, publications),
        misordered(traces, txs, publications),
    ):
        found = found.unionByName(more)
    return found.distinct().orderBy(*VERDICT)


def with_lives(traces: DataFrame) -> DataFrame:
    """The records with the life of their client: how often it had gone before, at that node."""
    gone = (F.col("kind") == "end") & (F.col("tx") == "") & (F.col("client") != "")
    before = (
        Window.partitionBy("run", "node", "client")
        .orderBy("seq")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    lives = F.coalesce(F.sum(gone.cast("int")).over(before), F.lit(0))
    return traces.withColumn("life", lives)


def transactions(traces: DataFrame) -> DataFrame:
    """run, tx, engine, outcome: the coordinator's edge broker has the say, if it has decided."""
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
        .groupBy(*PUBLICATION)
        .agg(F.min_by("tx", "seq").alias("tx"), F.min_by("op_kind", "seq").alias("op_kind"))
    )
    return own.join(txs, ["run", "tx"], "left").fillna("", ["engine", "outcome"])


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
    handed = _handed(traces).groupBy(*PUBLICATION, "hop").agg(F.count(F.lit(1)).alias("times"))
    found = handed.where("times > 1").join(publications, list(PUBLICATION))
    return _verdict(found, "duplicate", "op_id")


def _handed(traces: DataFrame) -> DataFrame:
    return traces.where("kind = 'deliver'").select(*PUBLICATION, F.explode("dests").alias("hop"))


def untimely(traces: DataFrame, publications: DataFrame) -> DataFrame:
    """Only what is committed is delivered, and not before."""
    node = ["run", "tx", "node"]
    of_tx = traces.where("tx != ''")
    begun = of_tx.where("kind = 'begin'").select(*node, F.lit(True).alias("begun")).distinct()
    first = of_tx.where("kind = 'decide'").groupBy(*node)
    decided = first.agg(
        F.min("seq").alias("decided_at"), F.min_by("outcome", "seq").alias("decided_here")
    )
    delivered = (
        traces.where("kind = 'deliver'")
        .select(*PUBLICATION, "node", "seq")
        .join(publications.where("tx != ''"), list(PUBLICATION))
        .join(begun, node, "left")
        .join(decided, node, "left")
    )
    in_time = (F.col("decided_here") == "committed") & (F.col("decided_at") < F.col("seq"))
    early = F.col("begun") & ~F.coalesce(in_time, F.lit(False))
    wrong = (F.col("outcome") != "committed") | F.coalesce(early, F.lit(False))
    return _verdict(delivered.where(wrong), "partial")


def missing(traces: DataFrame, publications: DataFrame) -> DataFrame:
    """Where a publication was sent, it came; whom it was for, it was handed to."""
    due = publications.where("tx = '' OR outcome = 'committed'")
    matched = traces.where("kind = 'match'").join(
        due.select(*PUBLICATION), list(PUBLICATION), "left_semi"
    )
    sent = matched.select(*PUBLICATION, F.explode("dests").alias("hop")).distinct()
    came = matched.select(*PUBLICATION, F.col("node").alias("hop")).distinct()
    got = _handed(traces).distinct()
    lost = sent.join(came.unionByName(got), [*PUBLICATION, "hop"], "left_anti")
    # A tcm ends at its receiver, who answers in the transaction; nothing is delivered.
    about = lost.join(due, list(PUBLICATION)).where("op_kind != 'tcm' OR hop NOT LIKE '@%'")
    plain = F.col("tx") == ""
    kind = F.when(plain, F.lit("lost")).otherwise(F.lit("partial"))
    return _verdict(about, kind, F.when(plain, F.col("op_id")).otherwise(F.col("tx")))


# --- order --------------------------------------------------------------------------------------


def misordered(traces: DataFrame, txs: DataFrame, publications: DataFrame) -> DataFrame:
    """At a broker, an operation before one that comes first, or before what that has moved."""
    words = _entering(traces)
    entered = words.where("tx != ''").select("run", "tx", "op_id", "after", "trigger")
    said = traces.where("kind = 'publish' AND tx != ''")
    entered = entered.unionByName(said.select(*entered.columns))
    pairs = (
        entered.groupBy("run", "tx")
        .agg(F.collect_list(F.struct("op_id", "after", "trigger")).alias("operations"))
        .select("run", "tx", F.explode(_come_before("operations")).alias("pair"))
        .select("run", "tx", "pair.name", "pair.earlier")
    )
    here = _handled(traces, words, txs, publications)
    first = here.select("run", "tx", "node", F.col("op_id").alias("name"), "first")
    last = here.select("run", "tx", "node", F.col("op_id").alias("earlier"), "last")
    wrong = (
        pairs.join(first, ["run", "tx", "name"])
        .join(last, ["run", "tx", "node", "earlier"])
        .where("first < last")
    )
    return _verdict(wrong.join(txs, ["run", "tx"]), "order")


def _entering(traces: DataFrame) -> DataFrame:
    """Each routing operation where it came in, in its transaction."""
    entry = traces.where("kind = 'apply' AND source = concat('@', client)")
    columns = ("tx", "after", "trigger", "engine")
    return entry.groupBy("run", "op_id", "life").agg(
        *(F.min_by(column, "seq").alias(column) for column in columns)
    )


def _handled(
    traces: DataFrame, words: DataFrame, txs: DataFrame, publications: DataFrame
) -> DataFrame:
    """run, tx, node, op_id, first, last: when each broker handled each operation.

    The last is when it handled the last of what the operation had moved there.
    """
    matched = (
        traces.where("kind = 'match'")
        .select(*PUBLICATION, "node", "seq")
        .join(publications.where("tx != ''"), list(PUBLICATION))
        .select("run", "tx", "node", "op_id", "seq", F.lit(True).alias("own"))
    )
    applied = (
        _with_causes(traces)
        .withColumn("own", F.col("cause").isNull())
        .withColumn("op_id", F.coalesce("cause", "op_id"))
        .join(
            words.select("run", "op_id", "life", F.col("tx").alias("word_tx"), "engine"),
            list(PUBLICATION),
        )
        .where("word_tx != ''")
        # After an abort, what was under way arrives as if it were plain; nobody waits for it.
        .where("engine = 's-tx' OR tx = word_tx")
        .select("run", F.col("word_tx").alias("tx"), "node", "op_id", "seq", "own")
    )
    key = ("run", "tx", "node", "op_id")
    each = matched.unionByName(applied)
    first = each.where("own").groupBy(*key).agg(F.min("seq").alias("first"))
    return (
        each.join(first, list(key))
        # What neighbours say of the same operation once more, in S-TX, is nobody's to wait for.
        .where("seq = first OR (seq > first AND NOT own)")
        .groupBy(*key, "first")
        .agg(F.max("seq").alias("last"))
    )


def _with_causes(traces: DataFrame) -> DataFrame:
    """The operations that were applied, each with what moved it there; null if it came itself.

    The sender's record says what went to whom. Links are FIFO, so of the same thing that was sent
    several times, the first that arrives is the first that was sent.
    """
    changes = traces.where("kind IN ('apply', 'undo') OR (kind = 'end' AND tx = '')")
    link = ["run", "from", "to", "tx", "moving"]
    own = changes.where("op_id != ''").select(
        "run",
        F.col("node").alias("from"),
        F.explode("dests").alias("to"),
        "tx",
        F.col("op_id").alias("moving"),
        F.lit(None).cast("string").alias("cause"),
        "seq",
        F.lit(0).alias("rank_in_record"),
    )
    token = r"^(.+)>([^>]+)$"
    moved = (
        changes.select("*", F.posexplode(F.split("outcome", " ")).alias("rank_in_record", "token"))
        .where(F.col("token").rlike(token))
        .select(
            "run",
            F.col("node").alias("from"),
            F.regexp_extract("token", token, 2).alias("to"),
            "tx",
            F.regexp_extract("token", token, 1).alias("moving"),
            F.when(F.col("op_id") != "", F.col("op_id")).otherwise(F.col("client")).alias("cause"),
            "seq",
            (F.col("rank_in_record") + 1).alias("rank_in_record"),
        )
    )
    sent_order = Window.partitionBy(*link).orderBy("seq", "rank_in_record")
    sent = own.unionByName(moved).withColumn("nth", F.row_number().over(sent_order))
    applied = (
        changes.where("op_id != ''")
        .withColumn("from", F.col("source"))
        .withColumn("to", F.col("node"))
        .withColumn("moving", F.col("op_id"))
    )
    came = applied.withColumn("nth", F.row_number().over(Window.partitionBy(*link).orderBy("seq")))
    return (
        came.join(sent.select(*link, "nth", "cause"), [*link, "nth"], "left")
        .where("kind = 'apply'")
        .select("run", "node", "seq", "tx", "op_id", "life", "cause")
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
        # What comes after a tcm comes after all that it has led to, at any depth.
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


# Executors need not have this package: what they run of it goes with the job.
# (cloudpickle comes without types.)
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
_come_before = F.udf(come_before, PAIRS)
