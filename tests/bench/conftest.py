"""One Spark session for all tests, and records to try it with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.report.results import Results, load
from bench.spark import synthetic
from bench.spark.records import look_into
from bench.spark.session import SMALL, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Planted in each run of D-TX; lost to doubled are of plain events, so of Figure 9's runs only.
FAULTS = {"lost": 2, "doubled": 3, "misrouted": 4, "out_of_order": 5, "partial": 1}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with session("local[2]", settings=SMALL) as made:
        yield made


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment with faults in what D-TX did, bad lines, and a run that is not complete."""
    # What is in a path must not be taken for a pattern.
    directory = tmp_path_factory.mktemp("records") / "a [b] {c}+d e"
    synthetic.write(
        directory, transactions=6, seconds=3, repetitions=2, figures=(5, 9), faults=FAULTS
    )
    cut = directory / "runs" / "base-three-s-tx-c1-i1-r1" / "clients" / "E.1.jsonl"
    whole = cut.read_bytes()
    cut.write_bytes(whole[:-20])
    other = directory / "runs" / "base-three-s-tx-c1-i1-r2" / "clients" / "A1.1.jsonl"
    with other.open("ab") as file:
        file.write(b'not json\n{"run":"r","client":7}\n\xff\xfe\n')
    unfinished = directory / "runs" / "base-three-d-tx-c1-i1-r9"
    unfinished.mkdir()
    (unfinished / "run.json").write_text("{}")
    return directory


@pytest.fixture(scope="session")
def results(spark: SparkSession, records: Path) -> Results:
    from bench.spark import job

    job.run(spark, look_into(records))
    return load(records)
