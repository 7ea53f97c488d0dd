"""`padres-tx status` for brokers however they were started, and for what needs a person."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from padres_tx import launcher
from padres_tx.cli.durability_table import show_durability
from padres_tx.launcher.broker_status import (
    BrokerStatus,
    ConnectionsStatus,
    DurabilityStatus,
    LinkStatus,
    LogStatus,
    TraceStatus,
)
from tests.cli.test_cli import Shell, until
from tests.overlay.broker_processes import RawClient, free_ports


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "state")


def brokers(shell: Shell, *arguments: object, code: int = 0) -> list[dict[str, Any]]:
    done = shell.run("status", "--json", *arguments)
    assert done.exit_code == code, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["brokers"]
    return found


def test_brokers_started_by_hand(shell: Shell, tmp_path: Path) -> None:
    b1, b2 = free_ports(2)
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"name: mine\nbrokers: [{{name: B1, port: {b1}}}, {{name: B2, port: {b2}}}]\n"
        "edges: [[B1, B2]]\n"
    )
    here = ("--at", f"127.0.0.1:{b1}", "--at", f"127.0.0.1:{b2}")
    with shell.start("broker", file, "B1", "--log-file", tmp_path / "1.log") as first:
        until(lambda: brokers(shell, "--topology", file, code=1)[0]["state"] == "linking")
        alone = brokers(shell, "--topology", file, code=1)
        assert [(b["name"], b["state"], b["problem"]) for b in alone] == [
            ("B1", "linking", "no link to B2"),
            ("B2", "silent", f"no broker at 127.0.0.1:{b2}: Connection refused"),
        ]
        with shell.start("broker", file, "B2", "--log-file", tmp_path / "2.log") as second:
            until(lambda: shell.run("status", "--topology", file).exit_code == 0)
            for arguments in (("--topology", file), here):
                found = brokers(shell, *arguments)
                assert [(b["name"], b["state"], b["neighbours"]) for b in found] == [
                    ("B1", "up", ["B2"]),
                    ("B2", "up", ["B1"]),
                ]
                assert [b["pid"] for b in found] == [first.process.pid, second.process.pid]
                table = shell.ok("status", *arguments)
                assert "B1" in table and f"127.0.0.1:{b2}" in table
            second.signal(signal.SIGTERM)
            assert second.end()[0] == 0
        # Another broker at B2's address is not B2.
        with shell.start("broker", "one", "B1", "--port", b2):
            until(lambda: brokers(shell, *here, code=1)[1]["name"] == "B1")
            found = brokers(shell, "--topology", file, code=1)
            assert found[1]["state"] == "down"
            assert found[1]["problem"] == "broker B1 is at its address"


def test_what_cannot_be_asked_is_one_line(shell: Shell) -> None:
    assert "host:port" in shell.refused("status", "--at", "nowhere")
    assert "--overlay, --topology and --at cannot be combined" in shell.refused(
        "status", "--at", "h:1", "--topology", "three"
    )
    assert "nowhere.yaml" in shell.refused("status", "--topology", "nowhere.yaml")


def test_a_broker_that_was_restarted_by_hand_is_up(shell: Shell, tmp_path: Path) -> None:
    with shell.start("up", "three", "--free-ports") as up:
        up.line_with("overlay three is up")
        record = shell.overlay("three")
        os.kill(record.broker("B2").process.pid, signal.SIGKILL)
        up.line_with("broker B2 is down")
        until(lambda: [b["state"] for b in brokers(shell, code=1)][1] == "down")
        topology = Path(record.directory) / "topology.json"
        with shell.start("broker", topology, "B2", "--log-file", tmp_path / "b2.log") as again:
            until(lambda: shell.run("status").exit_code == 0)
            found = brokers(shell)[1]
            assert (found["state"], found["pid"]) == ("up", again.process.pid)
            assert "not started" in found["warnings"][0]
            assert f"B2: runs as process {again.process.pid}" in shell.ok("status")
            again.signal(signal.SIGTERM)
            assert again.end()[0] == 0
        up.signal(signal.SIGTERM)
        assert up.end()[0] == 0


def test_ids_are_whole_in_80_columns(tmp_path: Path) -> None:
    shell = Shell(tmp_path, columns=80)
    client = "warehouse-dispatcher-of-the-eastern-region-1"
    with launcher.overlay("one", directory=tmp_path / "overlay") as running:
        port = int(running.address().rpartition(":")[2])
        RawClient(client).join(port)
        text = shell.ok("tables", "--at", running.address())
        assert client in text and f"@{client}" in text
        assert running.address() in shell.ok("status", "--at", running.address())


def test_warnings_name_what_needs_a_person() -> None:
    well = BrokerStatus("B1", 1, 1.0, [LinkStatus("B2", True)], [], 0, 0)
    assert well.warnings == []
    ill = BrokerStatus(
        "B1",
        1,
        1.0,
        [
            LinkStatus("B2", True, rivals=3, last_rival="10.0.0.9:5"),
            LinkStatus("B3", True, notice="a second process called B1 connects from 10.0.0.8:5"),
            LinkStatus("B4", False, refusal="duplicate-broker: another process called B1"),
            LinkStatus("B5", False, outbox=1_000_001, full=True),
        ],
        [],
        0,
        0,
        trace=TraceStatus("t.jsonl", 7, "No space left on device"),
        log=LogStatus(2, "No space left on device"),
        connections=ConnectionsStatus(0, {"overloaded": 5, "protocol": 9}),
    )
    assert ill.warnings == [
        "a second process named B2 was refused 3 times, most recently from 10.0.0.9:5",
        "B3 reports: a second process called B1 connects from 10.0.0.8:5",
        "refused by B4: duplicate-broker: another process called B1",
        "1000001 messages wait for B5: publications for clients behind it are refused",
        "tracing is off, 7 records are missing in t.jsonl: No space left on device",
        "2 log lines were lost: No space left on device",
        "5 connections were refused for lack of capacity (overloaded)",
    ]


def test_how_brokers_keep_their_state_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    on_disk = DurabilityStatus(
        mode="disk",
        directory="/var/lib/padres/B1",
        position=12_345_678_901,
        snapshot_position=12_345_600_000,
        snapshot_age_s=7200.0,
        log_bytes=100 << 20,
        unsynced_age_s=1.5,
    )
    show_durability(Console(width=80), {"B1": on_disk, "B2": DurabilityStatus()})
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if line.startswith("B1"))
    expected = "B1 disk 12345678901 12345600000 120 min 100.0 MiB 2 s"
    assert " ".join(row.split()) == expected
    assert next(line for line in lines if line.startswith("B2")).split() == ["B2", "memory"]
    show_durability(Console(width=80), {"B1": DurabilityStatus()})
    assert capsys.readouterr().out == "state: in memory\n"


def test_a_log_that_cannot_be_written_needs_a_person() -> None:
    full = DurabilityStatus(mode="disk", problem="No space left on device")
    status = BrokerStatus("B1", 1, 1.0, [LinkStatus("B2", True)], [], 0, 0, durability=full)
    (warning,) = status.warnings
    assert "the log cannot be written" in warning and "No space left on device" in warning
