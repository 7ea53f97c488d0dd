"""The whole job on a small experiment with planted faults: what it computes, and what it skips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import bench
from bench.report.results import NoResults, Results
from bench.spark.checks import FAULTS as KINDS
from bench.spark.records import DirectoryError, look_into
from tests.bench.conftest import FAULTS

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow]


def row(frame: pd.DataFrame, **at: Any) -> dict[str, Any]:
    """The one row at which these columns have these values."""
    for column, value in at.items():
        frame = frame[frame[column] == value]
    assert len(frame) == 1
    found: dict[str, Any] = frame.iloc[0].to_dict()
    return found


def test_planted_faults_are_counted_and_nothing_else(results: Results) -> None:
    stream = row(results.engine_checks, series="d-tx", workload="stream")
    # Without dispatching there is no transaction to be partial.
    wanted = {name: FAULTS[name] * stream["runs"] for name in FAULTS}
    wanted["partial"] = FAULTS["partial"] * stream["runs"] // 2
    assert {name: stream[name] for name in wanted} == wanted
    assert stream["unsent"] == 0
    clean = row(results.engine_checks, series="d-tx-ni", workload="stream")
    assert not any(clean[name] for name in KINDS)


def test_latency_is_of_committed_transactions_and_matches_the_records(results: Results) -> None:
    transactions = results.transactions()
    chosen = (transactions["run"] == "base-three-d-tx-c1-i1-r1") & (
        transactions["status"] == "committed"
    )
    mine = transactions[chosen]
    found = row(results.runs, run="base-three-d-tx-c1-i1-r1")
    assert (found["transactions"], found["committed"], found["aborted"]) == (6, 5, 1)
    assert found["latency_ms_mean"] == pytest.approx(mine["latency_ms"].mean())
    assert found["latency_ms_p99"] == pytest.approx(mine["latency_ms"].max())


def test_intervals_are_student_s_over_repetitions(results: Results) -> None:
    point = row(results.points, series="d-tx", figure=5)
    means = results.runs[(results.runs["series"] == "d-tx") & (results.runs["figure"] == 5)]
    values = means["latency_ms_mean"]
    assert point["repetitions"] == 2
    # Two values: 12.706 standard errors.
    assert point["latency_ms_mean_ci"] == pytest.approx(12.7062 * values.std() / 2**0.5, rel=1e-4)


def test_rates_count_whole_seconds_and_see_what_is_open(results: Results) -> None:
    rates = results.rates()
    quiet = rates[rates["run"] == "regular_traffic-three-s-tx-c1-i1-quiet-r1"]
    assert list(quiet.sort_values("second")["events"]) == [1000, 1000]
    assert not quiet["open_transactions"].any()
    busy = rates[rates["run"] == "regular_traffic-three-s-tx-c1-i1-dispatching-r1"]
    assert busy["open_transactions"].all()


def test_what_cannot_be_used_is_told_by_file_and_count(results: Results) -> None:
    skipped = {what: (lines, why) for what, lines, why in results.skipped.itertuples(index=False)}
    cut = skipped["runs/base-three-s-tx-c1-i1-r1/clients/E.1.jsonl"]
    assert cut == (1, "invalid lines, of 12")
    assert skipped["runs/base-three-s-tx-c1-i1-r2/clients/A1.1.jsonl"][0] == 3
    assert skipped["run base-three-d-tx-c1-i1-r9"] == (0, "not complete")
    assert skipped["run base-three-s-tx-c1-i1-r1"][0] == 1  # What the cut line was.
    assert len(skipped) == 4


def test_tables_are_partitioned_and_there_as_csv(results: Results) -> None:
    place = results.directory / "results"
    for kind in ("parquet", "csv"):
        assert (place / f"transactions.{kind}" / "experiment=base" / "series=s-tx").is_dir()
    assert pd.read_csv(place / "points.csv")["series"].tolist() == results.points["series"].tolist()


def test_a_directory_without_an_experiment_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(DirectoryError, match="no such directory"):
        look_into(tmp_path / "nowhere")
    with pytest.raises(DirectoryError, match=r"no experiment in .*: runs/ is missing"):
        look_into(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(DirectoryError, match="no complete run in"):
        look_into(tmp_path)
    with pytest.raises(NoResults, match="padres-tx experiment report"):
        bench.load(tmp_path)
