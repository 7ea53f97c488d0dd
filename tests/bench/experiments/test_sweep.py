"""Experiments on real processes: what they leave behind, and that they leave nothing running."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from bench.experiments import manifest, single_run, spec, sweep
from bench.experiments.cli import experiment
from bench.records import (
    BROKERS,
    CLIENTS,
    DONE,
    FAILED,
    RUN,
    ClientRecord,
    RunDone,
    RunFailure,
    RunParameters,
)
from overlay.trace import Record
from padres_tx.launcher import processes
from padres_tx.scenarios.calibrate import NO_WAIT_S
from tests.platform_needs import needs_proc
from topologies import load

#: What the end of a process may take on a busy machine.
GONE_S = 30.0

#: Between two looks at whether a process has got somewhere.
LOOK_S = 0.05

#: A workload whose role does not end, and one whose role fails.
ROLES = """
import asyncio
from bench.experiments.roles import Role, Workload

class Endless(Role):
    async def run(self):
        await asyncio.Event().wait()

class StallingWorkload(Workload):
    roles = {"E": Endless}

class Failing(Role):
    async def run(self):
        raise RuntimeError("a role has failed")

class FailingWorkload(Workload):
    roles = {"E": Failing}
"""


def write_spec(directory: Path, **fields: Any) -> str:
    file = directory / "mine.json"
    data = {"name": "mine", "topology": "one", "engines": ["d-tx"], "transactions": 3} | fields
    file.write_text(json.dumps(data))
    return str(file)


def run(out: Path, *arguments: str) -> Result:
    return CliRunner().invoke(experiment, ["run", *arguments, "--out", str(out)])


def records(directory: Path) -> list[ClientRecord]:
    return [
        msgspec.json.decode(line, type=ClientRecord)
        for file in sorted((directory / CLIENTS).glob("*.jsonl"))
        for line in file.read_bytes().splitlines()
    ]


def owners(found: list[ClientRecord]) -> dict[tuple[str, int], list[str]]:
    """Event -> who has received it."""
    received: dict[tuple[str, int], list[str]] = {}
    for record in found:
        if record.kind == "event":
            received.setdefault((record.publisher, record.n), []).append(record.client)
    return received


def left_in(directory: Path) -> list[processes.ProcessIdentity]:
    """Processes of which an argument is in the directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            process = processes.identify(int(entry.name))
            if str(directory).encode() in command and process is not None:
                found.append(process)
    return found


@pytest.mark.slow
def test_a_sweep_leaves_its_records_and_resumes(tmp_path: Path) -> None:
    file = write_spec(
        tmp_path,
        topology="three",
        engines=["d-tx", "s-tx", "bl-wait"],
        bl_wait_ms=100,
        instances=2,
        trace=True,
    )
    out = tmp_path / "out"
    result = run(out, file)
    assert result.exit_code == 0, result.output
    written = manifest.read(out)
    assert written.experiments["mine"]["transactions"] == 3
    assert len(written.runs) == 3 and len(written.commands) == 1
    assert written.commands[0].versions["padres-tx"] and written.commands[0].machine["cores"]

    places = set()
    for name in written.runs:
        directory = out / "runs" / name
        described = msgspec.json.decode((directory / RUN).read_bytes(), type=RunParameters)
        done = msgspec.json.decode((directory / DONE).read_bytes(), type=RunDone)
        places.add(str(described.placement))
        assert described.run_id == done.run_id == name and described.clients == 8
        assert done.transactions == 6 and sum(done.statuses.values()) == 6
        assert (described.counted_delays is None) == (described.engine == "bl-wait")
        found = records(directory)
        assert Counter(record.kind for record in found) == {
            "tx": 6,
            "sent": 6,
            "event": done.events,
        }
        assert done.client_records == len(found)
        assert {record.run for record in found} == {name}
        if described.engine != "bl-wait":
            assert done.statuses == {"committed": 6}
            # The first event of each instance comes to its agent, and only there.
            received = owners(found)
            for record in found:
                if record.kind == "sent":
                    assert received[record.publisher, record.n] == [record.owner]
                assert record.begin_ns <= record.end_ns
        traces = sorted((directory / BROKERS).glob("*.jsonl"))
        lines = [line for trace in traces for line in trace.read_bytes().splitlines()]
        assert len(traces) == 3 and len(lines) == done.broker_records
        assert {msgspec.json.decode(line, type=Record).run for line in lines} == {name}
    assert len(places) == 1

    # The run that was cut off is repeated, the others are kept.
    first, second, third = (out / "runs" / name for name in written.runs)
    (second / DONE).unlink()
    inodes = [(path / RUN).stat().st_ino for path in (first, second, third)]
    again = run(out, file)
    assert again.exit_code == 0 and "2 of 3 runs are complete already" in again.output
    assert (second / DONE).exists()
    kept = [(path / RUN).stat().st_ino for path in (first, second, third)]
    assert (kept[0], kept[2]) == (inodes[0], inodes[2])
    assert len(records(second)) == len(records(first))
    assert len(manifest.read(out).commands) == 2

    # Another sweep is refused there.
    other = run(out, file, "--seed", "77")
    assert other.exit_code == 2 and "seed" in other.output and len(other.output.splitlines()) == 1
    assert run(out, file, "--quick").exit_code == 2
    assert run(tmp_path, file).exit_code == 2


@pytest.mark.slow
def test_streams_and_consolidation_lose_nothing_with_d_tx(tmp_path: Path) -> None:
    (tmp_path / "stream").mkdir()
    stream = write_spec(
        tmp_path / "stream",
        name="streaming",
        topology="three",
        workload="stream",
        transactions=4,
        options={"events_between": 200, "new_instances": 2, "share": 0.5, "probe_events": 300},
        variants={"plain": {"dispatch": False}, "dispatching": {}},
    )
    consolidation = write_spec(
        tmp_path,
        name="consolidating",
        topology="three",
        workload="consolidation",
        transactions=8,
        concurrency=2,
        options={"rate_per_s": 500},
    )
    out = tmp_path / "out"
    result = run(out, stream, consolidation)
    assert result.exit_code == 0, result.output
    sent = {}
    for directory in sorted((out / "runs").iterdir()):
        found = records(directory)
        received = owners(found)
        own = [record for record in found if record.kind == "sent"]
        assert own
        sent[directory.name] = len(own)
        for record in own:
            (owner,) = received[record.publisher, record.n]
            assert record.owner in ("", owner)
        assert len(received) == len(own)
    # 600 plain ones, and the first of each instance.
    assert sent["streaming-three-d-tx-c1-i1-plain-r1"] == 600
    assert sent["streaming-three-d-tx-c1-i1-dispatching-r1"] == 604
    rates = {
        json.loads((directory / RUN).read_bytes())["options"]["rate_per_s"]
        for directory in (out / "runs").glob("streaming*")
    }
    assert len(rates) == 1 and rates != {None}


@pytest.mark.slow
def test_waits_are_calibrated_before_the_runs_and_only_once(tmp_path: Path) -> None:
    file = write_spec(
        tmp_path,
        engines=["bl-wait"],
        bl_wait_ms="paper",
        bl_wait_trials=2,
        transactions=1,
        concurrency=[1, 2],
    )
    result = run(tmp_path / "out", file)
    assert result.exit_code == 0, result.output
    assert result.output.count("calibrating the wait of bl-wait (paper, 2 in a row)") == 1
    calibration = json.loads((tmp_path / "out" / "calibration.json").read_bytes())
    ((_, found),) = calibration["waits"].items()
    assert found["step_ms"] == 50 and found["wait_ms"] % 50 == 0
    for path in (tmp_path / "out" / "runs").iterdir():
        described = msgspec.json.decode((path / RUN).read_bytes(), type=RunParameters)
        assert described.bl_wait == "paper" and described.series == "bl-wait-paper"
        assert described.bl_wait_s == max(found["wait_ms"] / 1000, NO_WAIT_S)


@needs_proc
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left(tmp_path: Path, signum: signal.Signals) -> None:
    file = write_spec(tmp_path, transactions=1_000_000)
    out = tmp_path / "out"
    directory = out / "runs" / "mine-one-d-tx-c1-i1-r1"
    command = [sys.executable, "-m", "padres_tx.cli.main", "experiment", "run", file]
    with subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.PIPE) as process:
        # It is under way when a client has opened its file.
        while not list(directory.glob("clients/*.jsonl")):
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert process.wait(LOOK_S) is None
        assert left_in(out / "runs")
        process.send_signal(signum)
        _, told = process.communicate()
    if signum is signal.SIGKILL:
        assert processes.wait_gone(left_in(out / "runs"), GONE_S) == []
    else:
        assert process.returncode == 1 and b"repeat the command to continue" in told
    assert left_in(out / "runs") == []
    assert not (directory / DONE).exists() and not (directory / FAILED).exists()


@pytest.mark.slow
def test_a_run_in_which_nothing_moves_fails_and_the_sweep_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_roles.py").write_text(ROLES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "b").mkdir()
    stalls = write_spec(tmp_path, name="stalls", workload="some_roles:StallingWorkload")
    fails = write_spec(tmp_path / "b", name="fails", workload="some_roles:FailingWorkload")
    out = tmp_path / "out"
    result = run(out, stalls, fails, "--stall-s", "1.5")
    assert result.exit_code == 1 and "2 of 2 runs failed" in result.output
    for name, words in (("stalls", "no progress for 1.5 s"), ("fails", "a role has failed")):
        directory = out / "runs" / f"{name}-one-d-tx-c1-i1-r1"
        failed = msgspec.json.decode((directory / FAILED).read_bytes(), type=RunFailure)
        assert words in failed.reason and words in result.output
        assert not (directory / DONE).exists()
    assert left_in(out) == []


@needs_proc
def test_a_broker_that_dies_ends_the_run_with_its_name(tmp_path: Path) -> None:
    (combination,) = spec.load(write_spec(tmp_path, transactions=1_000_000)).combinations()
    described = sweep.describe(combination, combination.options, None, quick=False)
    killed = []

    def progressed(done: int) -> None:
        for process in left_in(tmp_path / "run" / BROKERS):
            killed.append(process)
            processes.send(process, signal.SIGKILL)

    plan = sweep.plan(combination, described, tmp_path / "run")
    with pytest.raises(single_run.RunFailed, match=r"B1.*killed by SIGKILL"):
        single_run.run(plan, single_run.RunControl(progressed))
    assert killed and left_in(tmp_path) == []


def test_places_are_drawn_uniformly_and_from_the_seed() -> None:
    nine = load("nine")
    assert sweep.drawn(nine, 40, 5) == sweep.drawn(nine, 40, 5) != sweep.drawn(nine, 40, 6)
    for seed in range(50):
        counts = Counter(sweep.drawn(nine, 40, seed))
        assert set(counts.values()) <= {4, 5} and len(counts) == 9
        assert len(set(sweep.drawn(nine, 4, seed))) == 4
    # Each client comes to each broker, in the long run.
    drawn = [sweep.drawn(nine, 4, seed) for seed in range(300)]
    for client in range(4):
        assert {places[client] for places in drawn} == {broker.name for broker in nine.brokers}


def test_a_bad_spec_is_one_line(tmp_path: Path) -> None:
    result = run(tmp_path / "out", write_spec(tmp_path, transactions=0))
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    assert "mine.json" in line and "transactions" in line
    assert not (tmp_path / "out").exists()


def test_a_dry_run_lists_the_runs(tmp_path: Path) -> None:
    result = run(tmp_path / "out", "base", "--quick", "--dry-run")
    assert result.exit_code == 0 and "base-three-d-tx-c1-i1-r1" in result.output.splitlines()
    assert not (tmp_path / "out").exists()
