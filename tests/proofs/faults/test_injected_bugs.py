"""Each injected bug is found by its checker in a random run; without the bug the run is clean."""

from __future__ import annotations

from functools import cache

import pytest

from proofs.checkers import Anomaly, check
from proofs.faults.injected_bugs import BUGS
from proofs.faults.paper_rules import UnreadLooks
from proofs.history import History
from proofs.sim.many_runs import run_and_check
from proofs.sim.program import Shape
from proofs.sim.random_run import RandomRun
from proofs.sim.simulated_overlay import all_engines

#: Seeds, found by search, of runs in which the bug shows.
SEEDS = {
    "order-d-tx": 5,
    "order-d-tx-ni": 5,
    "order-s-tx": 0,
    "partial-d-tx": 1,
    "partial-d-tx-ni": 1,
    "partial-s-tx": 0,
    "split-d-tx": 0,
    "split-d-tx-ni": 0,
    "split-alone": 23,
    "split-s-tx": 0,
    "ghost-d-tx": 0,
    "ghost-d-tx-ni": 0,
    "ghost-s-tx": 2,
    "divergence-d-tx": 14,
    "divergence-d-tx-ni": 5,
    "divergence-s-tx": 0,
    "undecided-d-tx": 0,
    "undecided-d-tx-ni": 0,
    "undecided-s-tx": 1,
    "duplicate-d-tx": 1,
    "duplicate-d-tx-ni": 1,
    "duplicate-s-tx": 0,
    "dirty-d-tx": 0,
    "cycle-d-tx": 0,
    "handover-d-tx": 7,
    "handover-dropped-d-tx": 7,
    "held-nothing": 10,
    "held-others-at-once": 56,
    "held-overtaken-by-plan": 189,
    "held-behind-a-yes": 139,
    "held-further-on": 452,
    "absent-after-yes": 118,
    "absent-after-answer": 41,
    "absent-untold": 0,
    "absent-reordered": 2,
    "absent-unawaited": 29,
    "sliced-overtaken": 3,
}

#: Runs change when the engines' messages do, so a few more seeds are searched.
NEAR = 12


def run(name: str, seed: int) -> RandomRun:
    bug = BUGS[name]
    shape = bug.shape
    made = RandomRun(shape, shape.tape(seed), factories=bug.factories())
    made.go()
    return made


def found(name: str) -> list[Anomaly]:
    """The anomalies of the first run, from the bug's seed on, in which the bug shows."""
    for seed in range(SEEDS[name], SEEDS[name] + NEAR):
        anomalies = check(run(name, seed).history())
        mine = [one for one in anomalies if one.kind == BUGS[name].kind]
        if mine:
            return mine
    return []


@cache
def clean(shape: Shape, seed: int) -> list[Anomaly]:
    made = RandomRun(shape, shape.tape(seed))
    made.go()
    return check(made.history())


def test_there_is_a_bug_for_every_anomaly_and_a_seed_for_every_bug() -> None:
    kinds = {bug.kind for bug in BUGS.values()}
    assert kinds == {
        *("order", "partial", "split", "ghost", "divergence", "undecided", "duplicate"),
        *("dirty", "cycle", "handover"),
    }
    assert SEEDS.keys() == BUGS.keys()


@pytest.mark.parametrize("name", BUGS)
def test_an_injected_bug_is_found(name: str) -> None:
    anomalies = found(name)
    assert anomalies
    assert anomalies[0].engine in (BUGS[name].engine, "")
    assert anomalies[0].story


@pytest.mark.parametrize("name", BUGS)
def test_the_same_run_without_the_bug_is_clean(name: str) -> None:
    assert clean(BUGS[name].shape, SEEDS[name]) == []


def test_without_validating_looks_two_clients_own_the_stream() -> None:
    """Found at the end of the run: a look changes no table, so it leaves no record."""
    shape = Shape("d-tx")
    texts = []
    for seed in range(144, 144 + NEAR):
        weak = RandomRun(shape, shape.tape(seed), factories={**all_engines(), "d-tx": UnreadLooks})
        texts += [one.story for one in run_and_check(weak) if one.kind == "handover"]
        assert run_and_check(RandomRun(shape, shape.tape(seed))) == []
    assert any("hold the stream" in text for text in texts)


#: Bugs that leave no record: marks that stay on entries, and a message that was sent twice.
UNRECORDED = ("ghost-d-tx", "duplicate-s-tx")


@pytest.mark.parametrize("name", [name for name in BUGS if name not in UNRECORDED])
def test_records_alone_are_enough(name: str) -> None:
    """The files of broker processes contain neither what clients were told nor the tables."""
    kind = BUGS[name].kind
    seeds = range(SEEDS[name], SEEDS[name] + NEAR)
    assert any(
        kind in {one.kind for one in check(History(run(name, seed).world.sim.records))}
        for seed in seeds
    )


def test_a_cycle_is_explained_step_by_step() -> None:
    """Each line says which transaction comes before which, and why."""
    lines = found("cycle-d-tx")[0].story.splitlines()
    assert len(lines) >= 4
    assert any("decided at B" in line for line in lines)
    befores = [line for line in lines if " comes before " in line]
    names = [line.partition(" comes before ") for line in befores]
    assert [second.partition(":")[0] for _, _, second in names] != []
    for (_, _, rest), (following, _, _) in zip(names, names[1:] + names[:1], strict=True):
        assert rest.startswith(f"{following}: ")
