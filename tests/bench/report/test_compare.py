"""What changed beyond noise: few repetitions, many points."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from bench.report import compare as comparing
from bench.report import compare_cli
from bench.report.compare import CHANGED, SAME, UNKNOWN, compare
from bench.report.intervals import Sample, holm, interval, share_lost, welch
from bench.report.results import DONE, RESULTS, SUMMARIES, Results, load


def a_run(series: str, repetition: int, latency_ms: float, experiment: str = "base") -> dict:
    point = dict.fromkeys(comparing.POINT, "")
    numbers = {"concurrency": 1, "clients": 4, "delay_ms": 5.0, "client_delay_ms": 5.0}
    return (
        point
        | numbers
        | {
            "experiment": experiment,
            "series": series,
            "topology": "three",
            "repetition": repetition,
            "latency_ms_mean": latency_ms,
            "throughput_per_s": 1000 / latency_ms,
        }
    )


def written(directory: Path, runs: list[dict]) -> Path:
    """A directory with results that have only these runs."""
    place = directory / RESULTS
    place.mkdir(parents=True)
    for name in SUMMARIES:
        table = place / f"{name}.parquet"
        table.mkdir()
        frame = pd.DataFrame(runs if name == "runs" else {"nothing": []})
        frame.to_parquet(table / "part.parquet")
    (place / DONE).write_text("{}")
    return directory


def results(directory: Path, runs: list[dict]) -> Results:
    return load(written(directory, runs))


SLOW = [a_run("d-tx", r, 100.0 + r) for r in range(1, 5)]
FAST = [a_run("d-tx", r, 50.0 + r) for r in range(1, 5)]


def test_a_difference_beyond_noise_is_told_with_its_ratio(tmp_path: Path) -> None:
    found = compare(results(tmp_path / "a", SLOW), results(tmp_path / "b", FAST))
    latency, throughput = found.differences
    assert (latency.value, latency.verdict) == ("latency_ms_mean", CHANGED)
    assert latency.ratio == pytest.approx(52.5 / 102.5)
    assert throughput.verdict == CHANGED


def test_what_repetitions_differ_by_themselves_is_noise(tmp_path: Path) -> None:
    one = [a_run("s-tx", r, ms) for r, ms in enumerate((30, 50, 40), 1)]
    other = [a_run("s-tx", r, ms) for r, ms in enumerate((35, 52, 44), 1)]
    found = compare(results(tmp_path / "a", one), results(tmp_path / "b", other))
    assert {each.verdict for each in found.differences} == {SAME}


def test_one_repetition_tells_nothing(tmp_path: Path) -> None:
    found = compare(results(tmp_path / "a", SLOW[:1]), results(tmp_path / "b", FAST))
    assert {each.verdict for each in found.differences} == {UNKNOWN}
    assert not found.changed


def test_points_of_one_side_are_listed(tmp_path: Path) -> None:
    more = [*FAST, a_run("s-tx", 1, 20.0)]
    found = compare(results(tmp_path / "a", SLOW), results(tmp_path / "b", more))
    assert [point["series"] for point in found.only_other] == ["s-tx"]
    assert not found.only_one


def test_the_command_s_exit_codes(tmp_path: Path) -> None:
    slow, fast = written(tmp_path / "a", SLOW), written(tmp_path / "b", FAST)
    other = written(tmp_path / "c", [a_run("d-tx", 1, 5.0, experiment="mine")])

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(compare_cli.compare, arguments)
        return done.exit_code, done.output

    code, output = run(str(slow), str(fast))
    assert code == 1 and "2 of 2 values changed beyond noise" in output
    assert run(str(slow), str(slow))[0] == 0
    code, output = run(str(slow), str(fast), "--json")
    assert code == 1
    assert [each["verdict"] for each in json.loads(output)["differences"]] == [CHANGED] * 2
    assert run(str(slow), str(other)) == (2, "Error: the two experiments have no point in common\n")
    code, output = run(str(slow), str(tmp_path / "nowhere"))
    assert code == 2 and "no such directory" in output


# --- numbers, against values that anybody can look up ---


def test_intervals_follow_the_t_distribution() -> None:
    found = interval([1.0, 2.0, 3.0])
    # 4.303 standard errors of 1 / sqrt(3).
    assert found.low == pytest.approx(2 - 4.3027 / 3**0.5, abs=1e-3)
    assert interval([5.0])[1:3] == (None, None)
    with pytest.raises(ValueError, match="no values"):
        interval([])


def test_welch_and_holm() -> None:
    # By hand: t = -3 / sqrt(1/3 + 1/3), 4 degrees of freedom.
    assert welch([1, 2, 3], [4, 5, 6]) == pytest.approx(0.0213, abs=1e-4)
    assert welch([1, 1], [1, 1]) == 1.0
    assert welch([1], [2, 3]) is None
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_the_share_lost_has_an_interval() -> None:
    found = share_lost(Sample(30, 100.0, 1.0), Sample(30, 95.0, 1.0))
    assert found.mean == pytest.approx(0.05)
    assert found.low is not None and found.high is not None
    assert 0.04 < found.low < 0.05 < found.high < 0.06
