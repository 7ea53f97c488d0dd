"""`padres-tx broker` as people and launchers run it: start, log, trace, signals, exit codes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from twisted.logger import LogLevel
from twisted.python.failure import Failure

from overlay.files.logs import JsonLines
from overlay.filters import Filter
from overlay.messages import Pub
from padres_tx.cli.broker import broker as command
from tests.overlay.broker_processes import (
    PATIENCE_S,
    ROOT,
    Lines,
    RawClient,
    Refused,
    free_ports,
    inspect,
    one,
    running,
    running_all,
)

RUN = [sys.executable, "-c", "from padres_tx.cli.broker import broker; broker()"]


@contextmanager
def command_line(*args: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process of a command line, and its port once it listens."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [*RUN, *args, "--ready-fd", str(writing)],
        cwd=ROOT,
        env={**os.environ, **environment},
        pass_fds=[writing],
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    try:
        with os.fdopen(reading) as ready:
            port = ready.readline()
        assert port, process.communicate(timeout=PATIENCE_S)[1]
        yield process, int(port)
    finally:
        process.kill()
        process.communicate()


def write_topology(directory: Path, port: int = 0, **more: Any) -> str:
    path = directory / "t.json"
    path.write_text(json.dumps(one(port, **more)))
    return str(path)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_and_clients_are_told(tmp_path: Path, how: signal.Signals) -> None:
    with command_line(write_topology(tmp_path), "B1") as (process, port):
        client = RawClient("c").join(port)
        silent = socket.create_connection(("127.0.0.1", port))
        process.send_signal(how)
        with pytest.raises(Refused) as refused:
            client.receive()
        assert (refused.value.code, refused.value.reason) == (
            "closing",
            "broker B1 is shutting down",
        )
        client.cut()
        silent.close()
        _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["event"] for line in lines if line["level"] == "info"] == [
        "listening",
        "peer connected",
        "stopping",
        "stopped",
    ]
    assert all(line["broker"] == "B1" and line["time"].endswith("Z") for line in lines)
    assert lines[0]["port"] == port


def test_a_busy_port_is_one_line_and_exit_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = subprocess.run(
            [*RUN, write_topology(tmp_path, port), "B1"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"B1: cannot listen at 127.0.0.1:{port}" in done.stderr
    assert "in use" in done.stderr


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["nowhere.yaml", "B1"], "nowhere.yaml"),
        (["three", "B9"], "unknown broker 'B9'"),
        (["three", "B1", "--secret-env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE is not set"),
        (["three", "B1", "--secret-file", "/does/not/exist"], "cannot read the secret"),
        (
            ["three", "B1", "--secret-env", "A", "--secret-file", "b"],
            "--secret-env and --secret-file cannot",
        ),
        (["three", "B1", "--trace", "/does/not/exist/t"], "cannot write the trace"),
        (["three", "B1", "--log-file", "/does/not/exist/t"], "cannot write the log"),
        (["three", "B1", "--port", "70000"], "70000"),
    ],
)
def test_what_is_wrong_is_said_with_exit_2(args: list[str], reason: str) -> None:
    result = CliRunner().invoke(command, args)
    assert result.exit_code == 2, result.output
    assert reason in result.output


def test_neighbours_without_ports_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    brokers = [{"name": "B1", "port": 0}, {"name": "B2", "port": 0}]
    path.write_text(json.dumps({"name": "t", "brokers": brokers, "edges": [["B1", "B2"]]}))
    result = CliRunner().invoke(command, [str(path), "B1"])
    assert result.exit_code == 2
    assert "no port for its neighbour B2" in result.output


def test_secret_trace_and_log_file(tmp_path: Path) -> None:
    trace, log = tmp_path / "trace.jsonl", tmp_path / "log.jsonl"
    arguments = [write_topology(tmp_path), "B1", "--trace", str(trace), "--run", "r1"]
    with command_line(*arguments, "--log-file", str(log), PADRES_TX_SECRET="abc") as (
        process,
        port,
    ):
        with pytest.raises(Refused) as refused:
            RawClient("c").connect(port)
        assert refused.value.code == "unauthorized"
        client = RawClient("c", secret="abc").join(port)
        client.operate("adv", Filter(x=1))
        client.operate("sub", Filter(x=1))
        client.send(Pub("c", 1, {"x": 1}))
        assert client.receive() == Pub("c", 1, {"x": 1}, life=client.life)
        client.cut()
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    records = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [record["kind"] for record in records] == [
        "begin",
        "apply",
        "apply",
        "publish",
        "match",
        "deliver",
    ]
    assert {record["run"] for record in records} == {"r1"}
    assert json.loads(log.read_text().splitlines()[0])["event"] == "listening"


def test_an_error_in_the_core_crashes_the_process(tmp_path: Path) -> None:
    with running(tmp_path, "B1", one(), fragile=True) as process:
        client = RawClient("c").join(process.port)
        client.operate("adv", Filter(x=1))
        client.send(Pub("c", 1, {"x": 1}, b"bug"))
        with pytest.raises(ConnectionError):
            client.receive()
        assert process.popen.wait(PATIENCE_S) == 1
        (crash,) = process.events("the broker has crashed")
        assert crash["level"] == "critical"
        assert "KeyError: 'planted'" in crash["traceback"]


def test_all_links_up_is_logged_once(tmp_path: Path) -> None:
    b1, b2 = free_ports(2)
    topology = {
        "name": "pair",
        "brokers": [{"name": "B1", "port": b1}, {"name": "B2", "port": b2}],
        "edges": [["B1", "B2"]],
    }
    tasks = {name: {"topology": topology} for name in ("B1", "B2")}
    with running_all(tmp_path, tasks) as (first, second):
        client = RawClient("c").join(b1)
        for process in (first, second):
            assert len(process.events("all links up")) == 1
        links = inspect(b2, "status")["links"]
        assert [(link["neighbour"], link["up"]) for link in links] == [("B1", True)]
        client.cut()
        # The older one goes while the younger has a link to it: both end cleanly.
        assert first.end() == 0
        assert second.end() == 0


def test_a_log_line_holds_fields_and_tracebacks() -> None:
    file = Lines()
    observer = JsonLines("B1", file)
    observer(
        {
            "log_time": 0.0,
            "log_level": LogLevel.warn,
            "log_namespace": "overlay.x",
            "log_format": "link down",
            "neighbour": "B2",
        }
    )
    observer(
        {
            "log_time": 0.0,
            "log_level": LogLevel.critical,
            "log_namespace": "twisted.x",
            "log_format": "{what} failed",
            "what": "it",
            "log_failure": Failure(ValueError("why")),
        }
    )
    first, second = map(json.loads, file.lines())
    assert first == {
        "time": "1970-01-01T00:00:00.000Z",
        "level": "warn",
        "broker": "B1",
        "event": "link down",
        "neighbour": "B2",
    }
    assert second["event"] == "it failed"
    assert "ValueError: why" in second["traceback"]
