"""Runs in which brokers are replaced by what their snapshots thaw to are the runs without."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from hashlib import sha256
from typing import NamedTuple

import pytest

from overlay.broker.core import Broker
from overlay.effects import Effect, Send
from overlay.messages import BrokerName
from overlay.snapshots import freeze
from overlay.trace import Record
from overlay.wire.codec import encode
from proofs.sim.program import FAULTS, RESTART, Shape
from proofs.sim.random_run import RandomRun
from proofs.sim.simulated_overlay import all_engines
from proofs.sim.thawed_brokers import ThawedBrokers

ALL_FAULTS = (*FAULTS, RESTART)

#: All engines at once; crowds in which most operations have to wait; and all work in slices.
SHAPES = {
    "mixed": Shape("mixed", faults=ALL_FAULTS),
    "crowded": Shape("mixed", faults=ALL_FAULTS, crowded=True),
    "sliced": Shape("mixed", faults=ALL_FAULTS, crowded=True, slice=1),
    "bl-wait": Shape("bl-wait", faults=ALL_FAULTS),
}


class Seen(NamedTuple):
    """All that a run has shown: frames in their order, effects, records, and states in the end."""

    digest: str
    effects: str
    records: list[Record]
    states: dict[str, bytes]


def again(old: Broker) -> Broker:
    """A new broker of the same name and place."""
    neighbours = map(BrokerName, old.routing.neighbours)
    made = Broker(old.name, neighbours, engines=all_engines(), trace=old.trace)
    if old.slice != Broker.slice:
        made.slice = old.slice
    return made


def seen(shape: Shape, seed: int, *, thaw_every: int = 0) -> tuple[Seen, int]:
    """A run, and how many snapshots were taken in it."""
    run = RandomRun(shape.of_seed(seed), shape.tape(seed))
    sim = run.world.sim
    thawed = ThawedBrokers(sim.brokers, again, every=thaw_every or sys.maxsize)
    sim.brokers = thawed
    effects = sha256()

    def observe(broker: BrokerName, effect: Effect) -> None:
        if isinstance(effect, Send):
            effects.update(f"{broker} {effect.hops}".encode() + encode(effect.message))
        elif not isinstance(effect, Record):
            effects.update(f"{broker} {effect!r}".encode())

    sim.observe = observe
    run.go()
    states = {str(name): freeze(broker) for name, broker in thawed.items()}
    return Seen(sim.digest, effects.hexdigest(), sim.records, states), thawed.snapshots


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_a_run_with_thawed_brokers_is_the_run_without(name: str, seed: int) -> None:
    plain, _ = seen(SHAPES[name], seed)
    for every in (2, 7):
        thawed, snapshots = seen(SHAPES[name], seed, thaw_every=every)
        assert snapshots > 10
        assert thawed.digest == plain.digest
        assert thawed.effects == plain.effects
        assert thawed.records == plain.records
        assert thawed.states == plain.states


def digests() -> str:
    """Names for some runs with thawed brokers, and for the bytes of their states."""
    found = sha256()
    for shape in SHAPES.values():
        result, _ = seen(shape, 5, thaw_every=5)
        found.update(result.digest.encode())
        for state in result.states.values():
            found.update(state)
    return found.hexdigest()


def test_snapshots_are_the_same_under_another_hash_seed() -> None:
    program = "from tests.proofs.sim.test_thawed_runs import digests; print(digests())"
    start = partial(subprocess.Popen, [sys.executable, "-c", program], stdout=subprocess.PIPE)
    runs = [start(env={**os.environ, "PYTHONHASHSEED": seed}) for seed in ("1", "2")]
    outputs = [run.communicate()[0] for run in runs]
    assert outputs[0].strip()
    assert outputs[0] == outputs[1]
