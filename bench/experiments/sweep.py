"""A sweep: every run of some experiments, one after the other, into one directory.

A run that is complete (`done.json`) is kept, so the same command run again goes on where it was
interrupted; one that failed, or was cut off, is made anew. A run that fails is told of and written
down (`failed.json`), and the sweep goes on.

Some things have to be found out beforehand, on brokers of their own: the waits of BL-WAIT by
`padres_tx.scenarios.calibrate`, and how many events go through if a workload's rate is a share of
that. They are kept in the directory too, so that all runs that are compared have the same.

How one run is made is `single_run`'s; how all this looks is the command's.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from bench.experiments import manifest
from bench.experiments.roles import Scene
from bench.experiments.single_run import (
    STALL_S,
    Interrupted,
    Play,
    RunFailed,
    Watch,
    clear,
    perform,
)
from bench.experiments.spec import PAPER_STEP_MS, Combination, Spec
from bench.experiments.workloads import Dispatching
from bench.micro.path import Dispatch
from bench.records import BEFOREHAND, DONE, FAILED, RUN, RUNS, Done, Failed, Run
from overlay.errors import OverlayError
from padres_tx import launcher, registry
from padres_tx.launcher import Cancelled, LaunchError
from padres_tx.scenarios import calibrate
from padres_tx.scenarios.calibrate import Calibration, CalibrationError
from padres_tx.scenarios.placement import spread
from topologies import Topology

#: Where the runs are that only find something out.
PROBES: Final = "probes"


#: The search for a wait begins with so many times the longest way's delay: the operations that it
#: is to cover cross the overlay four times or so. (If that fails, the search goes up by itself.)
START_WAYS: Final = 12.0


class Looker(Protocol):
    """Who is told how a sweep goes."""

    def began(self, run_id: str, steps: int) -> None: ...
    def moved(self, done: int) -> None: ...
    def noted(self, text: str) -> None: ...
    def ended(self, run_id: str, done: Done | Failed) -> None: ...


class Beforehand(msgspec.Struct):
    """What has been found out before the runs."""

    #: By topology, delays, step and number of trials.
    waits: dict[str, Calibration] = {}
    #: Events a second that go through, by experiment, topology, series, instances and repetition.
    rates: dict[str, float] = {}


class Sweep:
    """The runs of some specs in a directory."""

    def __init__(
        self,
        directory: Path,
        specs: Sequence[Spec],
        looker: Looker,
        *,
        quick: bool,
        stopping: Callable[[], bool] = lambda: False,
        hurry: Callable[[], bool] = lambda: False,
        stall_s: float = STALL_S,
    ) -> None:
        self.directory = directory
        self.combinations = [each for spec in specs for each in spec.combinations()]
        self._looker = looker
        self._quick = quick
        self._watch = Watch(looker.moved, stopping, hurry, stall_s)
        manifest.record(directory, specs, [each.run_id for each in self.combinations], quick=quick)
        self._found = self._read_found()

    def _read_found(self) -> Beforehand:
        path = self.directory / BEFOREHAND
        return (
            msgspec.json.decode(path.read_bytes(), type=Beforehand)
            if path.exists()
            else Beforehand()
        )

    def done(self, combination: Combination) -> bool:
        """Whether a run is complete."""
        return (self._directory_of(combination) / DONE).exists()

    def _directory_of(self, combination: Combination) -> Path:
        return self.directory / RUNS / combination.run_id

    def run(self) -> list[Failed]:
        """Make the runs that are not complete; answers those that failed.

        Raises Interrupted.
        """
        failed = []
        for combination in self.combinations:
            if self.done(combination):
                continue
            outcome = self._run(combination)
            if isinstance(outcome, Failed):
                failed.append(outcome)
            self._looker.ended(combination.run_id, outcome)
        return failed

    def _run(self, combination: Combination) -> Done | Failed:
        directory = self._directory_of(combination)
        clear(directory)
        began_at = time.monotonic()
        try:
            options = self._options(combination)
            wait_s = self._wait_s(combination)
            run = describe(combination, options, wait_s, quick=self._quick)
            directory.mkdir(parents=True)
            manifest.replace(directory / RUN, run)
            spec = combination.spec
            steps = spec.workload_class.steps(spec.transactions, options) * combination.instances
            self._looker.began(combination.run_id, steps)
            done = perform(play(combination, run, directory), self._watch)
        except RunFailed as error:
            after_s = round(time.monotonic() - began_at, 3)
            failed = Failed(run_id=combination.run_id, reason=str(error), after_s=after_s)
            directory.mkdir(parents=True, exist_ok=True)
            manifest.replace(directory / FAILED, failed)
            return failed
        manifest.replace(directory / DONE, done)
        return done

    # --- beforehand ---

    def _wait_s(self, combination: Combination) -> float | None:
        """How long the engine waits, if it does. Raises RunFailed, Interrupted."""
        if combination.wait is None:
            return None
        if not isinstance(combination.wait, str):
            return combination.wait / 1000
        topology, trials = combination.topology, combination.spec.bl_wait_trials
        key = f"{_delays_of(topology)} {combination.wait} {trials}"
        if key not in self._found.waits:
            step_ms = PAPER_STEP_MS if combination.wait == "paper" else None
            self._looker.noted(
                f"{topology.name}: looking for the wait of {combination.engine} "
                f"({combination.wait}, {trials} in a row)"
            )
            self._found.waits[key] = self._calibrated(topology, step_ms, trials)
            self._write_found()
        # No wait at all may work where everybody is at one broker.
        return max(self._found.waits[key].wait_ms / 1000, calibrate.NO_WAIT_S)

    def _calibrated(self, topology: Topology, step_ms: float | None, trials: int) -> Calibration:
        def progress(wait_ms: float, done: int) -> None:
            if self._watch.stopping():
                raise Interrupted

        try:
            running = launcher.launch(
                launcher.with_free_ports(topology),
                self.directory / PROBES / f"wait-{topology.name}",
                cancelled=self._watch.stopping,
            )
            try:
                return asyncio.run(
                    calibrate.run(
                        running,
                        transactions=trials,
                        step_ms=step_ms,
                        start_ms=start_ms(topology),
                        progress=progress,
                    )
                )
            finally:
                running.stop(hurry=self._watch.hurry)
        except Cancelled:
            raise Interrupted from None
        except (CalibrationError, LaunchError, OverlayError) as error:
            raise RunFailed(f"no wait was found: {error}") from None

    def _options(self, combination: Combination) -> Any:
        """The workload's options, now that it is known what goes through."""
        spec, options = combination.spec, combination.options
        probe = spec.workload_class.probe(options)
        if probe is None:
            return options
        # No engine has anything to do with it, but machines are not always equally fast: it is
        # found right before the runs that are compared with one another.
        key = (
            f"{spec.name}-{combination.topology.name}-{combination.series}"
            f"-i{combination.instances}-r{combination.repetition}"
        )
        if key not in self._found.rates:
            self._looker.noted(f"{key}: looking how many events go through")
            transactions, probing = probe
            directory = self.directory / PROBES / key
            clear(directory)
            run = describe(combination, probing, None, quick=self._quick)
            run = msgspec.structs.replace(run, run_id=key, transactions=transactions, trace=False)
            watch = self._watch._replace(moved=lambda done: None)
            done = perform(play(combination, run, directory), watch)
            self._found.rates[key] = round(done.events / done.took_s, 1)
            self._write_found()
        return spec.workload_class.settle(options, self._found.rates[key])

    def _write_found(self) -> None:
        manifest.replace(self.directory / BEFOREHAND, self._found)


def describe(combination: Combination, options: Any, wait_s: float | None, *, quick: bool) -> Run:
    """What run.json says of a run."""
    spec, topology = combination.spec, combination.topology
    placement = places(combination)
    wait = combination.wait
    return Run(
        run_id=combination.run_id,
        experiment=spec.name,
        figure=spec.figure,
        series=combination.series,
        engine=combination.engine,
        topology=topology.name,
        brokers=len(topology.brokers),
        clients=len(placement),
        concurrency=combination.concurrency,
        instances=combination.instances,
        transactions=spec.transactions,
        repetition=combination.repetition,
        seed=combination.seed,
        delay_ms=max((edge.delay_ms for edge in topology.edges), default=0.0),
        client_delay_ms=topology.client_delay_ms,
        workload=spec.workload,
        options=options.model_dump(mode="json"),
        variant=combination.variant,
        counted_delays=_counted_delays(combination, placement),
        bl_wait="" if wait is None else wait if isinstance(wait, str) else "fixed",
        bl_wait_s=wait_s,
        placement=placement,
        trace=spec.trace,
        quick=quick,
    )


def play(combination: Combination, run: Run, directory: Path) -> Play:
    """How a run is to be performed."""
    scenes = [
        Scene(
            instance=instance,
            engine=run.engine,
            wait_s=run.bl_wait_s,
            transactions=run.transactions,
            concurrency=run.concurrency,
            names=names(combination, instance),
            options=run.options,
        )
        for instance in range(1, run.instances + 1)
    ]
    return Play(
        run.run_id,
        combination.topology,
        run.workload,
        combination.spec.workload_class,
        scenes,
        run.placement,
        run.trace,
        directory,
    )


def names(combination: Combination, instance: int) -> dict[str, str]:
    """Role -> client, in one instance of the scenario."""
    return {role: f"{role}.{instance}" for role in combination.spec.workload_class.roles}


def places(combination: Combination) -> dict[str, str]:
    """Client -> broker, for all instances."""
    clients = [
        client
        for instance in range(1, combination.instances + 1)
        for client in names(combination, instance).values()
    ]
    if combination.spec.placement == "spread":
        brokers = spread(combination.topology, len(clients))
    else:
        brokers = drawn(combination.topology, len(clients), combination.seed)
    return dict(zip(clients, brokers, strict=True))


def drawn(topology: Topology, count: int, seed: int) -> list[str]:
    """Brokers for so many clients: at random, and no broker has two more clients than another."""
    chance = random.Random(seed)
    brokers = [broker.name for broker in topology.brokers]
    all_alike, more = divmod(count, len(brokers))
    chosen = brokers * all_alike + chance.sample(brokers, more)
    chance.shuffle(chosen)
    return chosen


def _counted_delays(combination: Combination, placement: dict[str, str]) -> float | None:
    if combination.spec.workload_class is not Dispatching:
        return None
    if registry.load(combination.engine).broker is None:
        return None
    counts = []
    for instance in range(1, combination.instances + 1):
        of = names(combination, instance)
        for agent in ("A1", "A2"):
            at = [placement[of[role]] for role in ("E", "D", agent)]
            counts.append(Dispatch(combination.topology, combination.engine, at).run()[0])
    return sum(counts) / len(counts)


def start_ms(topology: Topology) -> float:
    """Where the search for a wait begins: far above what is needed, and not a minute too high."""
    ways_ms = calibrate.fitting_step_ms(topology) / calibrate.STEP_SHARE
    return min(START_WAYS * ways_ms, calibrate.START_MS)


def _delays_of(topology: Topology) -> str:
    edges: Iterable[str] = (f"{edge.delay_ms:g}" for edge in topology.edges)
    return f"{topology.name} {topology.client_delay_ms:g}/{','.join(edges)}"
