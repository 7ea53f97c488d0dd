"""`padres-tx log`: what it prints of logs that are intact, damaged, in use, or not there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from overlay.log.file_log import FileLog
from padres_tx.cli.main import main


def run(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["log", *map(str, arguments)], env={"COLUMNS": "150"})
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.exit_code == code, result.output
    return result


def make_log(directory: Path, broker: str, batches: int = 5) -> FileLog:
    log = FileLog(directory, broker=broker, version="1.0+abc", birth="0" * 32, segment_bytes=1)
    for n in range(batches):
        log.append(log.last, b"batch %d" % n, lambda outcome: None)
    return log


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A state directory of two brokers; the log of the second is in use."""
    log = make_log(tmp_path / "shop" / "B1", "B1")
    for position in (2, 4):
        log.snapshot(position, b"state", lambda outcome: None)
    log.compact(4)
    log.close()
    snapshot = tmp_path / "shop" / "B1" / "snap-00000000000000000004"
    os.utime(snapshot, (snapshot.stat().st_mtime - 7200,) * 2)
    make_log(tmp_path / "shop" / "B2", "B2", batches=0)
    return tmp_path


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_stat_shows_each_log_on_a_line(shop: Path) -> None:
    before = contents(shop)
    _, _, first, second = (line.split() for line in run("stat", shop).stdout.splitlines())
    assert first[:5] == ["B1", "3", "to", "5", "3"]
    assert first[-2:] == ["1.0+abc", "intact"]
    assert " ".join(first[7:-2]).startswith("2 (") and " ".join(first[7:-2]).endswith("4 (2 h ago)")
    assert second[:6] == ["B2", "none", "up", "to", "0", "1"]
    assert second[-3:] == ["none", "1.0+abc", "intact"]
    assert contents(shop) == before


def test_stat_json_has_every_file(shop: Path) -> None:
    (log,) = json.loads(run("stat", shop / "shop" / "B1", "--json").stdout)
    assert {key: log[key] for key in ("broker", "code", "first", "last", "torn_bytes")} == {
        "broker": "B1",
        "code": "1.0+abc",
        "first": 3,
        "last": 5,
        "torn_bytes": 0,
    }
    assert [(each["first"], each["batches"]) for each in log["segments"]] == [
        (3, 1),
        (4, 1),
        (5, 1),
    ]
    assert log["bytes"] == sum(each["bytes"] for each in log["segments"])
    files = {path.name for path in (shop / "shop" / "B1").iterdir()} - {"LOCK"}
    assert {each["file"] for each in log["segments"] + log["snapshots"]} == files
    older, newest = log["snapshots"]
    assert (older["position"], newest["position"], newest["intact"]) == (2, 4, True)
    assert newest["age_s"] >= 7200 > older["age_s"]
    # Whoever knows the token can make batches.
    assert "0" * 32 not in json.dumps(log)


def test_verify_says_that_all_is_intact(shop: Path) -> None:
    result = run("verify", shop)
    directory = shop / "shop"
    assert result.stdout.splitlines() == [
        f"{directory / 'B1'}: intact, 3 to 5",
        f"{directory / 'B2'}: intact, none up to 0",
    ]
    assert result.stderr == ""


def test_verify_says_where_a_log_is_damaged(shop: Path) -> None:
    path = shop / "shop" / "B1" / "log-00000000000000000004"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"batch 3", b"batch 9"))
    before = contents(shop)
    offset = data.index(b"batch 3") - 24
    for command in ("verify", "stat"):
        result = run(command, shop, code=1)
        assert result.stderr.splitlines() == [
            f"{path}: damaged at offset {offset}, behind batch 3: another segment follows",
            "Error: 1 of 2 logs are damaged",
        ]
    result = run("verify", shop, "--json", code=1)
    damaged, intact = json.loads(result.stdout)
    assert intact["problems"] == [] and len(damaged["problems"]) == 1
    assert contents(shop) == before


def test_verify_reports_a_damaged_snapshot_though_the_log_can_be_opened(shop: Path) -> None:
    path = shop / "shop" / "B1" / "snap-00000000000000000002"
    path.write_bytes(path.read_bytes()[:-1])
    reason, _ = run("verify", shop, code=1).stderr.splitlines()
    assert reason == f"{path}: expected 5 bytes of state, found 4"


def test_a_torn_tail_is_no_damage(shop: Path) -> None:
    path = shop / "shop" / "B1" / "log-00000000000000000005"
    path.write_bytes(path.read_bytes()[:-1])
    result = run("verify", shop / "shop" / "B1")
    assert result.stdout == f"{shop / 'shop' / 'B1'}: intact, 3 to 4\n"
    assert "30 bytes at offset" in result.stderr
    assert "torn tail" in run("stat", shop).stdout


@pytest.mark.parametrize("command", ["stat", "verify"])
def test_where_there_is_no_log(tmp_path: Path, command: str) -> None:
    def reason(directory: Path) -> str:
        result = run(command, directory, code=2)
        assert result.stdout == "" and result.stderr.count("\n") == 1
        return result.stderr.strip()

    missing = tmp_path / "missing"
    assert reason(missing) == f"Error: cannot read {str(missing)!r}: No such file or directory"
    assert reason(tmp_path) == f"Error: {str(tmp_path)!r} contains no log"
    (tmp_path / "file").write_bytes(b"mine")
    assert reason(tmp_path / "file").endswith("Not a directory")
    stranger = tmp_path / "B1"
    stranger.mkdir()
    (stranger / "log-00000000000000000001").write_bytes(b"Dear diary, this is no log.")
    result: Any = run(command, tmp_path, code=1)
    assert "log-00000000000000000001: not a file of a log" in result.stderr
