"""Brokers that die in the middle of anything and come back from their disks: nothing is noticed."""

from __future__ import annotations

from collections import Counter

import pytest
from click.testing import CliRunner

from overlay.messages import BrokerName
from proofs.sim.broker_processes import PLACES, Death
from proofs.sim.cli import command, sim
from proofs.sim.durable_simulator import DurableSimulator
from proofs.sim.many_runs import run_and_check
from proofs.sim.program import CRASH, DISK_FULL, DURABLE, ENGINES, FAULTS, MIXED, Shape
from proofs.sim.random_run import RandomRun

#: Runs of each engine, with every fault. Thousands are for `padres-tx sim`.
RUNS = 8


def simulated(run: RandomRun) -> DurableSimulator:
    sim = run.world.sim
    assert isinstance(sim, DurableSimulator)
    return sim


@pytest.mark.parametrize("engine", ENGINES)
def test_runs_with_crashes_are_clean(engine: str) -> None:
    shape = Shape(engine, faults=(*FAULTS, *DURABLE))
    deaths: Counter[str] = Counter()
    for seed in range(RUNS):
        run = RandomRun(shape.of_seed(seed), shape.tape(seed))
        assert run_and_check(run) == [], seed
        deaths.update(simulated(run).deaths)
    assert deaths.total() >= RUNS


def test_brokers_die_everywhere_in_their_work() -> None:
    """Otherwise the runs would show nothing about these places."""
    shape = Shape(MIXED, faults=("delay", "link-cut", CRASH, DISK_FULL))
    deaths: Counter[str] = Counter()
    power = 0
    for seed in range(24):
        run = RandomRun(shape.of_seed(seed), shape.tape(seed))
        run.go()
        deaths.update(simulated(run).deaths)
        power += sum(fault.power for fault in run.program.faults)
    assert set(deaths) >= set(PLACES)
    assert power


def test_crowded_and_sliced_runs_with_crashes_are_clean() -> None:
    for slice in (0, 1):
        shape = Shape(MIXED, 4, 6, 6, (*FAULTS, *DURABLE), crowded=True, slice=slice)
        for seed in range(6):
            run = RandomRun(shape.of_seed(seed), shape.tape(seed))
            assert run_and_check(run) == [], seed


def test_all_brokers_die_at_once_amid_a_run() -> None:
    shape = Shape(MIXED, faults=("delay", *DURABLE))
    for power in (False, True):
        run = RandomRun(shape.of_seed(1), shape.tape(1))
        run.program.faults.clear()
        overlay = simulated(run)

        def kill(overlay: DurableSimulator = overlay, power: bool = power) -> None:
            for name in overlay.processes:
                overlay.kill(name, Death("now", 0, power), 0.02)

        for at_ms in (20, 60, 110):
            run._at(at_ms, kill)
        assert run_and_check(run) == []
        assert overlay.deaths["now"] >= 3


def test_a_run_with_crashes_is_replayed_as_it_was() -> None:
    shape = Shape("d-tx", faults=(*FAULTS, *DURABLE))
    assert ",".join(DURABLE) in command(shape, 3)
    digests = set()
    for _ in range(2):
        run = RandomRun(shape.of_seed(3), shape.tape(3))
        run.go()
        digests.add(run.world.sim.digest)
    assert len(digests) == 1


def test_a_full_disk_only_holds_a_broker_up() -> None:
    shape = Shape("d-tx", brokers=2, faults=("delay", DISK_FULL))
    run = RandomRun(shape.of_seed(1), shape.tape(1))
    run.program.faults.clear()
    overlay, problems = simulated(run), list[str]()

    def look() -> None:
        journal = overlay.processes[BrokerName("B1")].host.journal
        assert journal is not None
        problems.append(journal.problem)

    run._at(5, lambda: overlay.fill_disk("B1", 0.3))
    run._at(250, look)
    assert run_and_check(run) == []
    assert "space" in problems[0]


def test_crashes_are_added_to_all_faults() -> None:
    done = CliRunner().invoke(
        sim, ["--engine", "d-tx", "--seeds", "1", "--faults", "all,broker-crash,disk-full"]
    )
    assert done.exit_code == 0, done.output


def test_memory_and_disk_are_not_mixed_in_one_run() -> None:
    refused = CliRunner().invoke(sim, ["--faults", "broker-crash,broker-restart"])
    assert refused.exit_code == 2
    assert "cannot be combined" in refused.output
