"""Brokers' records as the replay takes them: each with its unit, each broker's in order.

Joins find the `Unit` of each step: a record of a transaction names it; a plain one may belong to a
transaction's publication, or be the consequence of a transaction's operation. The transactions of
the run come before the steps of each broker.

The frame is partitioned by run and broker, so a partition is read in one pass (`spark.replay`), and
the records of a broker need not fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BooleanType, DataType, LongType, StringType

from bench.spark.history import NAMED, Keep, changes
from bench.spark.replay import ReplayInput, ReplayResult, replay
from bench.spark.schemas import schema_of
from bench.spark.shipped import by_value, ship
from overlay.trace import Record
from padres_tx.audit.promises import REPLICATED, VERSIONED

if TYPE_CHECKING:
    from pyspark.sql.pandas._typing import ArrowMapIterFunction

INPUT_SCHEMA: Final = schema_of(ReplayInput)
RESULT_SCHEMA: Final = schema_of(ReplayResult)

_EMPTY: Final[dict[DataType, object]] = {StringType(): "", LongType(): 0, BooleanType(): False}

#: Rows of a batch, as many as in those of Spark.
BATCH_ROWS: Final = 10_000

#: The fields of a step that are those of its record.
_RECORD: Final = tuple(name for name in ReplayInput._fields if name in Record.__struct_fields__)


def replayed(
    traces: DataFrame,
    txs: DataFrame,
    words: DataFrame,
    causes: DataFrame,
    keep: Keep,
) -> DataFrame:
    """The results of the replay of all brokers: RESULT_SCHEMA."""
    ship(traces.sparkSession)
    ordered = (
        steps(traces, txs, words, causes, keep)
        .repartition("run", "node")
        .sortWithinPartitions("run", "node", "seq")
    )
    return ordered.mapInArrow(_in_batches(), RESULT_SCHEMA)


def _in_batches() -> ArrowMapIterFunction:
    schema = to_arrow_schema(RESULT_SCHEMA)

    def each(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (
            ReplayInput._make(row)
            for batch in batches
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        )
        found = replay(rows, versioned=VERSIONED, replicated=REPLICATED)
        while some := list(islice(found, BATCH_ROWS)):
            columns = [
                pa.array(column, field.type)
                for column, field in zip(zip(*some, strict=True), schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return each


def steps(
    traces: DataFrame, txs: DataFrame, words: DataFrame, causes: DataFrame, keep: Keep
) -> DataFrame:
    """The rows of `ReplayInput`, in no order yet."""
    # Each is used twice: for the steps, and for the first and last step of each transaction.
    routed = keep("routed", _routed(traces))
    changed = keep("changed", _changed(traces, words, causes))
    of_versions = traces.where("tx != '' AND kind IN ('begin', 'decide', 'end')").where(
        F.col("engine").isin(*VERSIONED)
    )
    known = _known(traces, txs, routed, changed)
    parts = (
        routed.where("kind = 'match'"),
        changed,
        of_versions,
        known.withColumn("kind", F.lit("tx")).withColumn("seq", F.lit(0).cast("long")),
    )
    found: DataFrame | None = None
    for part in parts:
        named = part.select(*(_column(part, name) for name in ReplayInput._fields))
        found = named if found is None else found.unionByName(named)
    assert found is not None
    return found


def _column(part: DataFrame, name: str) -> Column:
    """A column of a step, with its type; empty if this part does not have it."""
    kind = INPUT_SCHEMA[name].dataType
    empty = F.array() if isinstance(kind, ArrayType) else F.lit(_EMPTY[kind])
    if name in part.columns:
        return F.coalesce(F.col(name).cast(kind), empty.cast(kind)).alias(name)
    return empty.cast(kind).alias(name)


def _routed(traces: DataFrame) -> DataFrame:
    """Matches and deliveries, with their publication."""
    named = (
        traces.where("kind = 'publish'")
        .groupBy("run", "op_id")
        .agg(F.min(F.struct("at_ns", "node", "tx")).alias("one"))
    )
    here = traces.where("kind IN ('match', 'deliver')").join(named, ["run", "op_id"], "left")
    # The record of where it entered may be missing.
    issued_in = F.coalesce(F.col("one.tx"), F.col("tx"))
    whose = F.when(F.col("tx") != "", F.col("tx")).otherwise(issued_in)
    of_tx = whose != ""
    return here.select(
        *_RECORD,
        issued_in.alias("issued_in"),
        (F.col("one.node") == F.col("node")).alias("entered"),
        F.when(of_tx, F.lit("tx")).otherwise(F.lit("pub")).alias("unit_kind"),
        F.when(of_tx, whose).otherwise(F.col("op_id")).alias("unit_name"),
        F.lit(0).alias("unit_life"),
    )


def _changed(traces: DataFrame, words: DataFrame, causes: DataFrame) -> DataFrame:
    """The changes of the tables, with their units."""
    changed = changes(traces)
    said = words.select(*NAMED, F.col("tx").alias("issued_in"), F.lit(True).alias("is_word"))
    led = said.select(
        "run",
        F.col("op_id").alias("cause"),
        F.col("life").alias("cause_life"),
        F.col("issued_in").alias("led_in"),
        F.lit(True).alias("is_led"),
    )
    first = Window.partitionBy("run", "node", "op_id", "life").orderBy("seq")
    own = F.col("cause").isNull()
    here = (
        changed.join(causes, ["run", "node", "seq"], "left")
        .join(said, list(NAMED), "left")
        .join(led, ["run", "cause", "cause_life"], "left")
        .withColumn("first_seq", F.first("seq").over(first))
        .withColumn("first_own", F.first(own).over(first))
    )
    known = F.coalesce(F.when(own, F.col("is_word")).otherwise(F.col("is_led")), F.lit(False))
    whose = F.coalesce(F.when(own, F.col("issued_in")).otherwise(F.col("led_in")), F.lit(""))
    # An abort restores what it had dropped.
    again = own & known & (F.col("first_seq") < F.col("seq")) & F.col("first_own")
    plain, apply = F.col("tx") == "", F.col("kind") == "apply"
    kind = (
        F.when(~plain, F.lit("tx"))
        .when(F.col("kind") == "end", F.lit("leave"))
        .when(~apply | again, F.lit(""))
        .when(~known, F.lit("leave"))
        .when(whose != "", F.lit("tx"))
        .otherwise(F.lit("op"))
    )
    by = F.when(own, F.col("client")).otherwise(F.col("cause_client"))
    life = F.when(own, F.col("life")).otherwise(F.col("cause_life"))
    here = here.withColumn("unit_kind", kind)
    name = (
        F.when(~plain, F.col("tx"))
        .when(F.col("unit_kind") == "tx", whose)
        .when(F.col("unit_kind") == "leave", by)
        .when(F.col("unit_kind") == "op", F.coalesce("cause", "op_id"))
        .otherwise(F.lit(""))
    )
    return here.select(
        *_RECORD,
        F.coalesce("issued_in", F.lit("")).alias("issued_in"),
        "unit_kind",
        name.alias("unit_name"),
        F.when(F.col("unit_kind").isin("op", "leave"), life).otherwise(F.lit(0)).alias("unit_life"),
    )


def _known(traces: DataFrame, txs: DataFrame, routed: DataFrame, changed: DataFrame) -> DataFrame:
    """Each transaction at each broker of its run: when it was there, and its outcome."""
    here = ["run", "node", "tx"]
    of_tx = traces.where("tx != ''")
    begun = (
        of_tx.where("kind = 'begin'")
        .groupBy(*here)
        .agg(F.max_by(F.concat("dests", F.array("source")), "seq").alias("dests"))
    )
    decided = (
        of_tx.where("kind = 'decide'")
        .groupBy(*here)
        .agg(F.min("seq").alias("decided_at"), F.min_by("outcome", "seq").alias("decided"))
    )
    at = of_tx.select(*here, "seq")
    for part in (routed, changed):
        as_tx = part.where("tx = '' AND unit_kind = 'tx'")
        at = at.unionByName(as_tx.select("run", "node", F.col("unit_name").alias("tx"), "seq"))
    stays = at.groupBy(*here).agg(F.min("seq").alias("first_at"), F.max("seq").alias("last_at"))
    nodes = traces.select("run", "node").distinct()
    return (
        txs.join(F.broadcast(nodes), "run")
        .join(begun, here, "left")
        .join(decided, here, "left")
        .join(stays, here, "left")
        .withColumn("dests", F.coalesce("dests", F.array().cast("array<string>")))
    )


by_value(ReplayInput.__module__, __name__)
