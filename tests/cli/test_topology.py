"""`padres-tx topology`: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from padres_tx.cli.topology import topology
from topologies import load
from topologies.generators import balanced, chain, random_tree, star


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(topology, [str(argument) for argument in arguments])
    # Anything but a clean exit is a traceback to the user.
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def refused(*arguments: str | Path) -> str:
    """The one line of an input error."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1
    return result.stderr


def test_show_draws_a_tree() -> None:
    result = run("show", "five")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[:3] == [
        "B1  127.0.0.1:7001",
        "├── B2  127.0.0.1:7002",
        "│   ├── B4  127.0.0.1:7004",
    ]


def test_show_json_loads_again(tmp_path: Path) -> None:
    result = run("show", "nine", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["edges"][0] == {"a": "B1", "b": "B2", "delay_ms": 0.0}
    (tmp_path / "copy.json").write_text(result.stdout)
    assert load(tmp_path / "copy.json") == load("nine")


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_show_out_draws_into_a_file(tmp_path: Path, suffix: str) -> None:
    picture = tmp_path / f"t{suffix}"
    result = run("show", "three", "--out", picture)
    assert (result.exit_code, result.stdout) == (0, "")
    assert str(picture) in result.stderr
    assert picture.stat().st_size > 0


def test_show_out_and_json_together(tmp_path: Path) -> None:
    result = run("show", "three", "--json", "--out", tmp_path / "t.svg")
    assert json.loads(result.stdout)["name"] == "three"
    assert (tmp_path / "t.svg").exists()


def test_show_refuses_what_is_no_topology(tmp_path: Path) -> None:
    ring = tmp_path / "ring.yaml"
    ring.write_text(chain(3).to_yaml() + "- [B3, B1]\n")
    assert "cycle, B1-B2-B3-B1" in refused("show", ring)
    assert "did you mean three?" in refused("show", "thre")
    assert "no such file" in refused("show", tmp_path / "none.yaml")
    assert ".png or .svg" in refused("show", "one", "--out", tmp_path / "t.gif")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("chain", "4"), chain(4)),
        (("star", "4", "--base-port", "0"), star(4, base_port=0)),
        (("balanced", "3", "2", "--delay-ms", "2.5"), balanced(3, 2, delay_ms=2.5)),
        (("random", "9"), random_tree(9, 0)),
        (("random", "9", "--seed", "7"), random_tree(9, 7)),
    ],
)
def test_new_prints_yaml_that_loads(
    tmp_path: Path, arguments: tuple[str, ...], expected: object
) -> None:
    result = run("new", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    (tmp_path / "t.yaml").write_text(result.stdout)
    assert load(tmp_path / "t.yaml") == expected


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".json"])
def test_new_out_writes_by_suffix(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"t{suffix}"
    result = run("new", "chain", "2", "--name", "mine", "--out", file)
    assert (result.exit_code, result.stdout) == (0, "")
    assert load(file).name == "mine"
    assert file.read_text().startswith("{") == (suffix == ".json")
    assert run("show", file).exit_code == 0


def test_new_overwrites_only_by_force(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    run("new", "chain", "2", "--out", file)
    assert "--force" in refused("new", "chain", "3", "--out", file)
    assert load(file) == chain(2)
    assert run("new", "chain", "3", "--out", file, "--force").exit_code == 0
    assert load(file) == chain(3)


def test_new_refuses_bad_numbers_names_and_files(tmp_path: Path) -> None:
    assert "invalid number of brokers 0: expected 1 to 1000" in refused("new", "chain", "0")
    assert "more than 1000 brokers" in refused("new", "balanced", "10", "10")
    assert "base port 65535" in refused("new", "star", "3", "--base-port", "65535")
    assert "delay_ms" in refused("new", "chain", "2", "--delay-ms", "nan")
    assert "seed" in refused("new", "random", "3", "--seed", "-1")
    assert "name: should be a letter" in refused("new", "chain", "2", "--name", "a b")
    assert ".yaml, .yml, .json" in refused("new", "chain", "2", "--out", tmp_path / "t.txt")
    assert "cannot write" in refused("new", "chain", "2", "--out", tmp_path / "no" / "t.yaml")


@pytest.mark.parametrize("arguments", [("show",), ("new", "ring", "3"), ("new", "chain", "many")])
def test_wrong_usage_ends_with_two(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("show",),
        ("new",),
        ("new", "chain"),
        ("new", "star"),
        ("new", "balanced"),
        ("new", "random"),
    ],
)
def test_help_has_examples(arguments: tuple[str, ...]) -> None:
    result = run(*arguments, "--help")
    assert result.exit_code == 0
    assert "  padres-tx topology " in result.stdout
