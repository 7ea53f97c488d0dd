"""Tiny runs of `bench all`, `bench clients` and `bench start`: output, figures and errors."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from bench.errors import CannotMeasure, FiguresError
from bench.micro import idle_clients, regression
from bench.micro.cli import bench
from bench.micro.regression import BEGIN, END, BenchmarkReport, Figure, with_table, worse
from tests.platform_needs import needs_proc


def run(*arguments: str) -> Result:
    return CliRunner().invoke(bench, arguments)


def report(value: float, *, more_is_better: bool = False) -> BenchmarkReport:
    return BenchmarkReport("a machine", 1.0, [Figure("x / y", value, "5 µs", 3.0, more_is_better)])


# --- regressions ---


def test_noise_is_not_worse_and_more_than_noise_is() -> None:
    assert worse(report(2.3), report(2.0)) == []
    assert worse(report(2.5), report(2.0)) == ["x / y: 2.5, was 2"]
    assert worse(report(1.0), report(2.0)) == []
    assert worse(report(9.0), None) == []
    shares = [report(share, more_is_better=True) for share in (0.9, 0.8, 0.5)]
    assert worse(shares[1], shares[0]) == []
    assert worse(shares[2], shares[0]) == ["x / y: 0.5, was 0.9"]


def test_a_worse_run_ends_with_1_and_saving_it_makes_it_the_measure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures, readme = tmp_path / "figures.json", tmp_path / "README.md"
    monkeypatch.setattr(regression, "COMMITTED", figures)
    monkeypatch.setattr(regression.committed, "__defaults__", (figures,))
    monkeypatch.setattr(regression, "README", readme)
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_bytes(msgspec.json.encode(report(2.0)))
    bad.write_bytes(msgspec.json.encode(report(4.0)))
    assert run("all", "--from", str(bad)).exit_code == 0, "nothing is committed yet"
    assert run("all", "--save", "--from", str(good)).exit_code == 0
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| x / y | 2 | at most 3 | 5 µs |" in text
    result = run("all", "--from", str(bad))
    assert result.exit_code == 1
    assert "x / y: 4, was 2" in result.stdout
    assert "Goals missed (!): x / y." in result.stdout
    assert json.loads(run("all", "--json", "--from", str(good)).stdout)["worse"] == []
    assert run("all", "--save", "--from", str(bad)).exit_code == 0
    assert run("all", "--from", str(bad)).exit_code == 0


def test_the_readme_has_its_marks() -> None:
    text = regression.README.read_text(encoding="utf-8")
    assert "| x / y |" in with_table(text, regression.readme_table(report(2.0)))
    with pytest.raises(FiguresError, match="marks"):
        with_table("no marks", "table")


@pytest.mark.parametrize("arguments", [("--only", "hip"), ("--only", "hop", "--save")])
def test_invalid_options_are_refused(arguments: tuple[str, ...]) -> None:
    result = run("all", *arguments)
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_run_of_one_benchmark_writes_its_figures(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "bench.json"
    result = run("all", "--only", "path", "--out", str(out), "--json")
    assert result.exit_code in (0, 1), result.output
    [figure] = msgspec.json.decode(out.read_bytes(), type=BenchmarkReport).figures
    assert figure.name.startswith("D-TX / S-TX")
    assert figure.value > 0


# --- many clients, and starting ---


@pytest.mark.slow
@needs_proc
def test_clients_prints_a_broker_with_many_clients_beside_one_with_few() -> None:
    result = run(
        *("clients", "--json", "--clients", "20", "--subscriptions", "50"),
        *("--publications", "50"),
    )
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)
    assert (row["clients"], row["subscriptions"]) == (20, 50)
    assert all(row[key] > 0 for key in row)


@needs_proc
def test_more_clients_than_a_process_may_have_are_refused() -> None:
    with pytest.raises(CannotMeasure, match="raise it"):
        idle_clients.allow_connections(2**40)
    result = run("clients", "--clients", str(2**40))
    assert result.exit_code == 2
    assert "open files" in result.stderr


@pytest.mark.slow
@needs_proc
def test_start_prints_brokers_beside_bare_interpreters() -> None:
    result = run("start", "--topology", "one", "--json")
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)
    assert list(row)[:3] == ["topology", "brokers", "start_s"]
    assert all(row[key] > 0 for key in list(row)[1:])
    assert row["brokers"] == 1
