"""The columns of DataFrames are the fields of the structs that their records are written from."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from pyspark.sql import SparkSession

from bench.records import ClientRecord, RunDone, RunParameters
from bench.spark.records import CLIENT_SCHEMA, RUN_SCHEMA, TRACE_SCHEMA
from bench.spark.replay import ReplayInput, ReplayResult
from bench.spark.schemas import schema_of
from bench.spark.steps import INPUT_SCHEMA, RESULT_SCHEMA
from overlay import trace
from overlay.trace import Record
from padres_tx.audit.replayed_tables import ReplayStep

CLIENT_TYPES = {
    **dict.fromkeys(("run", "client", "kind", "tx", "engine", "op_id", "publisher"), "string"),
    **dict.fromkeys(("owner", "status", "code", "reason"), "string"),
    **dict.fromkeys(("n", "x", "begin_ns", "end_ns", "at_ns"), "bigint"),
}
TRACE_TYPES = {
    **dict.fromkeys(("run", "node", "kind", "tx", "engine", "op_id", "op_kind"), "string"),
    **dict.fromkeys(("client", "filter", "source", "version", "outcome", "trigger"), "string"),
    **dict.fromkeys(("seq", "at_ns"), "bigint"),
    **dict.fromkeys(("dests", "after"), "array<string>"),
}
RUN_TYPES = {
    **dict.fromkeys(("run", "experiment", "series", "engine", "topology"), "string"),
    **dict.fromkeys(("variant", "workload"), "string"),
    **dict.fromkeys(("figure", "brokers", "clients", "instances", "concurrency"), "bigint"),
    **dict.fromkeys(("transactions", "repetition"), "bigint"),
    **dict.fromkeys(("client_records", "broker_records"), "bigint"),
    **dict.fromkeys(("delay_ms", "client_delay_ms", "bl_wait_s", "counted_delays"), "double"),
    **dict.fromkeys(("rate_per_s", "took_s"), "double"),
    **dict.fromkeys(("dispatch", "trace", "quick"), "boolean"),
}


def test_the_columns_have_the_types_that_results_depend_on() -> None:
    for schema, types in (
        (CLIENT_SCHEMA, CLIENT_TYPES),
        (TRACE_SCHEMA, TRACE_TYPES),
        (RUN_SCHEMA, RUN_TYPES),
    ):
        assert {field.name: field.dataType.simpleString() for field in schema} == types


def test_the_columns_are_the_fields_in_their_order() -> None:
    assert CLIENT_SCHEMA.fieldNames() == list(ClientRecord.__struct_fields__)
    assert TRACE_SCHEMA.fieldNames() == list(Record.__struct_fields__)
    assert INPUT_SCHEMA.fieldNames() == list(ReplayInput._fields)
    assert RESULT_SCHEMA.fieldNames() == list(ReplayResult._fields)
    of_runs = {
        *RunParameters.__struct_fields__,
        *RunDone.__struct_fields__,
        "run",
        "rate_per_s",
        "dispatch",
    }
    assert set(RUN_SCHEMA.fieldNames()) <= of_runs


def test_a_row_for_the_replay_begins_with_the_fields_of_a_step() -> None:
    assert ReplayInput._fields[1 : 1 + len(ReplayStep._fields)] == ReplayStep._fields
    steps, rows = schema_of(ReplayStep), INPUT_SCHEMA
    assert [steps[name].dataType for name in ReplayStep._fields] == [
        rows[name].dataType for name in ReplayStep._fields
    ]


def test_a_record_that_was_written_is_read_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    record = Record(
        *(3, "B1", "match", 17, "r", "T:0:1", "d-tx", "E:0:1", "pub", "E", "[x,4]", "@E"),
        *(("B2", "@A"), "T:0:1", "to A", ("E#1",), "E:0:0"),
    )
    with (tmp_path / "B1.jsonl").open("wb") as file:
        trace.write(record, file)
    (row,) = spark.read.schema(TRACE_SCHEMA).json(str(tmp_path)).collect()
    found = {name: tuple(v) if isinstance(v, list) else v for name, v in row.asDict().items()}
    assert found == msgspec.structs.asdict(record)


def test_a_type_without_a_column_is_refused() -> None:
    class Nested(NamedTuple):
        values: dict[str, int]

    with pytest.raises(TypeError, match=r"Nested\.values"):
        schema_of(Nested)
