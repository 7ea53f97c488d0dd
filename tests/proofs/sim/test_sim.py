"""Many random runs without an anomaly; and a failing run that is found, replayed and shrunk."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

import proofs.sim.simulated_overlay
from overlay.broker.waiting import WaitingOperations
from overlay.messages import Hop, Leave, Operation
from proofs.faults.injected_bugs import BUGS
from proofs.sim.cli import command, sim
from proofs.sim.many_runs import EngineTotals, Tally, TapeFile, run_many
from proofs.sim.program import ENGINES, FAULTS, RESTART, Shape
from proofs.sim.random_run import RandomRun

#: Runs of each engine, with every fault. Thousands are for `padres-tx sim`.
RUNS = 50


@pytest.mark.parametrize("engine", ENGINES)
def test_random_runs_are_clean(engine: str) -> None:
    shape = Shape(engine, faults=FAULTS)
    tally = Tally(engine)
    for results in run_many(shape, range(RUNS), jobs=1):  # The tests themselves run side by side.
        tally.add(results)
    assert [(one.seed, one.anomalies) for one in tally.failures] == []
    # Runs in which nothing happens would show nothing.
    assert tally.totals.runs == RUNS
    assert tally.totals.commits >= RUNS and tally.totals.aborts >= RUNS / 4


@pytest.mark.parametrize(("brokers", "clients"), [(1, 2), (2, 3), (9, 8)])
def test_other_shapes_are_clean(brokers: int, clients: int) -> None:
    shape = Shape("mixed", brokers, clients, 6, FAULTS)
    for results in run_many(shape, range(8), jobs=1):
        assert [(one.seed, one.anomalies) for one in results if one.anomalies] == []


@pytest.mark.parametrize("engine", ENGINES)
def test_crowded_runs_are_clean(engine: str) -> None:
    shape = Shape(engine, 4, 6, 6, FAULTS, crowded=True)
    for results in run_many(shape, range(16), jobs=1):
        assert [(one.seed, one.anomalies) for one in results if one.anomalies] == []


@pytest.mark.parametrize("engine", ["d-tx-ni", "mixed"])
def test_restarts_split_no_decision_of_d_tx_ni(engine: str) -> None:
    """A broker that loses its state loses no decision but its own."""
    shape = Shape(engine, faults=(*FAULTS, RESTART))
    tally = Tally(engine)
    for results in run_many(shape, range(RUNS), jobs=1):
        tally.add(results)
    assert [(one.seed, one.anomalies) for one in tally.failures] == []
    assert tally.totals.commits >= RUNS


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("engine", ["s-tx", "d-tx", "d-tx-ni", "mixed"])
def test_runs_in_which_all_work_is_split_into_slices_are_clean(engine: str, crowded: bool) -> None:
    shape = Shape(engine, 4, 6, 6, FAULTS, crowded=crowded, slice=1)
    for results in run_many(shape, range(16), jobs=1):
        assert [(one.seed, one.anomalies) for one in results if one.anomalies] == []


def test_a_sliced_run_is_replayed_as_one() -> None:
    shape = Shape("s-tx", slice=2)
    assert shlex.split(command(shape, 4))[-2:] == ["--slice", "2"]
    replayed = padres_tx(*shlex.split(command(shape, 4))[2:])
    run = RandomRun(shape, shape.tape(4))
    run.go()
    assert f"digest {run.world.sim.digest}" in replayed.stdout


@pytest.mark.slow
def test_operations_wait_in_more_crowded_runs_than_usual_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: set[int] = set()
    seed = 0
    must_wait = WaitingOperations._must_wait

    def counted(
        broker: WaitingOperations, source: Hop, message: Operation | Leave, engine: str = ""
    ) -> bool:
        waits = must_wait(broker, source, message, engine)
        if waits:
            held.add(seed)
        return waits

    monkeypatch.setattr(WaitingOperations, "_must_wait", counted)
    counts: list[int] = []
    for shape in (Shape("d-tx", 4, 6, 6), Shape("d-tx", 4, 6, 6, crowded=True)):
        held.clear()
        for seed in range(40):
            RandomRun(shape, shape.tape(seed)).go()
        counts.append(len(held))
    assert counts[1] > 2 * counts[0] > 0


def test_a_crowded_run_is_replayed_as_one() -> None:
    shape = Shape("d-tx", 4, 6, 6, crowded=True)
    assert shlex.split(command(shape, 3))[-1] == "--crowded"
    replayed = padres_tx(*shlex.split(command(shape, 3))[2:])
    run = RandomRun(shape.of_seed(3), shape.tape(3))
    run.go()
    assert f"digest {run.world.sim.digest}" in replayed.stdout


SCRIPT = """
import sys
from proofs.sim.many_runs import BATCH, Tally, run_many
from proofs.sim.program import FAULTS, Shape

if __name__ == "__main__":
    tally = Tally("mixed")
    # More seeds than one process takes at once.
    for results in run_many(Shape("mixed", faults=FAULTS), range(BATCH + 2), jobs=int(sys.argv[1])):
        tally.add(results)
    print(tally.totals.digest, tally.totals.steps, tally.totals.commits)
"""


@pytest.mark.slow
def test_a_run_depends_on_its_seed_only(tmp_path: Path) -> None:
    """It depends neither on PYTHONHASHSEED nor on the number of processes."""
    script = tmp_path / "runs.py"
    script.write_text(SCRIPT, encoding="utf-8")
    root = str(Path(__file__).parents[3])
    printed = {
        subprocess.run(
            [sys.executable, str(script), str(jobs)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for seed, jobs in (("1", 1), ("2", 2))
    }
    assert len(printed) == 1 and len(printed.pop().split()) == 3


def test_texts_of_anomalies_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    script = tmp_path / "anomalies.py"
    script.write_text(
        "from proofs.checkers import check\n"
        "from proofs.faults.injected_bugs import BUGS\n"
        "from proofs.sim.program import Shape\n"
        "from proofs.sim.random_run import RandomRun\n"
        "for name in ('cycle-d-tx', 'split-d-tx', 'dirty-d-tx', 'divergence-s-tx'):\n"
        "    for seed in range(2):\n"
        "        shape = Shape(BUGS[name].engine)\n"
        "        run = RandomRun(shape, shape.tape(seed), factories=BUGS[name].factories())\n"
        "        run.go()\n"
        "        print(check(run.history()))\n",
        encoding="utf-8",
    )
    root = str(Path(__file__).parents[3])
    printed = {
        subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1 and b"Anomaly" in printed.pop()


# --- the command ---


def padres_tx(*arguments: str) -> Result:
    return CliRunner().invoke(sim, arguments)


def test_the_command_prints_a_list_for_programs() -> None:
    result = padres_tx(
        "--engine", "all", "--seeds", "2", "--jobs", "1", "--faults", "all", "--json"
    )
    assert result.exit_code == 0, result.output
    reports = msgspec.json.decode(result.stdout, type=list[EngineTotals])
    assert [one.engine for one in reports] == list(ENGINES)
    assert all(one.runs == 2 and not one.anomalies for one in reports)
    assert all(one.steps_per_s > 0 for one in reports)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--engine", "none"),
        ("--faults", "flood"),
        ("--replay", "1"),
        ("--trace", "file"),
        ("--engine", "d-tx", "--replay", "1", "--tape", __file__),
        ("--tape", __file__),
    ],
)
def test_wrong_input_is_rejected_without_a_traceback(arguments: tuple[str, ...]) -> None:
    result = padres_tx(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_a_failing_run_is_replayed_and_shrunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = BUGS["duplicate-d-tx"]
    factories = bug.factories()
    monkeypatch.setattr(proofs.sim.simulated_overlay, "all_engines", lambda: factories)
    shape = ("--brokers", "3", "--clients", "3", "--transactions", "2", "--faults", "none")
    tapes = tmp_path / "tapes"
    found = padres_tx(
        *("--engine", "d-tx", "--seeds", "8", "--jobs", "1", "--tapes", str(tapes)), *shape
    )
    assert found.exit_code == 1, found.output
    lines = found.stderr.splitlines()
    assert any(line.startswith("seed ") and "duplicate (d-tx" in line for line in lines)

    replay = next(line for line in lines if "replay: " in line).partition("padres-tx sim ")[2]
    again = padres_tx(*shlex.split(replay))
    assert again.exit_code == 1 and "duplicate (d-tx" in again.stdout

    command = next(line for line in lines if "--tape" in line).partition("padres-tx sim ")[2]
    shrunk = padres_tx(*shlex.split(command))
    assert shrunk.exit_code == 1 and "duplicate (d-tx" in shrunk.stdout

    (path,) = tapes.iterdir()
    tape = TapeFile.read(path)
    seed = int(path.stem.rpartition("-")[2])
    whole = Shape("d-tx", 3, 3, 2, ()).tape(seed)
    run = RandomRun(tape.shape, whole)
    run.go()
    assert len(tape.choices) < len(run.tape.choices) / 2
    assert len(shrunk.stdout) < len(again.stdout)


def test_tapes_have_a_folder_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written to the current folder."""
    factories = BUGS["split-s-tx"].factories()
    monkeypatch.setattr(proofs.sim.simulated_overlay, "all_engines", lambda: factories)
    monkeypatch.setenv("PADRES_TX_STATE", str(tmp_path / "state"))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    found = padres_tx(
        *("--engine", "s-tx", "--seeds", "4", "--jobs", "1", "--faults", "none"),
        *("--brokers", "3", "--clients", "3", "--transactions", "2"),
    )
    assert found.exit_code == 1
    assert list(here.iterdir()) == []
    assert [path.suffix for path in (tmp_path / "state" / ".tapes").iterdir()] == [".tape"]


def test_brokers_find_several_messages_in_their_inboxes_at_once() -> None:
    """So runs of publications are simulated as production routes them."""
    shape = Shape("d-tx", 4, 6, 6, FAULTS)
    largest = []
    for seed in range(4):
        run = RandomRun(shape.of_seed(seed), shape.tape(seed))
        run.go()
        largest.append(run.world.sim.largest_batch)
    assert max(largest) > 1


def test_what_a_leaving_client_takes_back_is_not_taken_for_its_operations() -> None:
    """In slices it takes its entries back one by one, each under the number of its operation."""
    faults = "delay,link-cut,client-crash,partition,broker-restart"
    replay = ("--engine", "s-tx", "--replay", "9067", "--faults", faults, "--crowded")
    assert "no anomaly in this run" in padres_tx(*replay, "--slice", "1").stdout
