"""A sweep: every run of some experiments, one after the other, into one directory.

A complete run (`done.json`) is kept, so repeating the command continues where it was interrupted;
a run that failed or was cut off is repeated. A failed run is reported and recorded (`failed.json`),
and the sweep continues.

Two things are calibrated before the runs, on brokers of their own: the waits of BL-WAIT, by
`padres_tx.scenarios.calibrate`; and the throughput, if a workload's rate is a share of it. They
are kept in the directory (`calibration.json`), so that all runs that are compared use the same.

`single_run` makes one run; the command shows the progress.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from bench.experiments import manifest, single_run
from bench.experiments.roles import ScenarioInstance
from bench.experiments.single_run import (
    STALL_S,
    Interrupted,
    RunControl,
    RunFailed,
    RunPlan,
    clear,
)
from bench.experiments.spec import PAPER_STEP_MS, Combination, Spec
from bench.experiments.workloads import DispatchingWorkload
from bench.micro.path import Dispatch
from bench.records import (
    CALIBRATION,
    DONE,
    FAILED,
    OLD_CALIBRATION,
    RUN,
    RUNS,
    RunDone,
    RunFailure,
    RunParameters,
)
from overlay.errors import OverlayError
from padres_tx import launcher, registry
from padres_tx.launcher import Cancelled, LaunchError
from padres_tx.scenarios import calibrate
from padres_tx.scenarios.calibrate import Calibration, CalibrationError
from padres_tx.scenarios.placement import spread
from topologies import Topology

#: The directory of the runs that only calibrate.
PROBES: Final = "probes"


#: The search for a wait begins with so many times the delay of the longest path: the operations
#: that the wait has to cover cross the overlay about four times.
START_PATHS: Final = 12.0


class SweepProgress(Protocol):
    """Called as a sweep proceeds; the command shows it."""

    def began(self, run_id: str, steps: int) -> None: ...
    def progressed(self, done: int) -> None: ...
    def noted(self, text: str) -> None: ...
    def ended(self, run_id: str, done: RunDone | RunFailure) -> None: ...


class SweepCalibration(msgspec.Struct):
    """The results of the calibration, as stored in the directory."""

    #: By topology, delays, step and number of trials.
    waits: dict[str, Calibration] = {}
    #: Throughput in events per second, by experiment, topology, series, instances and repetition.
    rates: dict[str, float] = {}


class Sweep:
    """The runs of some specs in a directory."""

    def __init__(
        self,
        directory: Path,
        specs: Sequence[Spec],
        progress: SweepProgress,
        *,
        quick: bool,
        stopping: Callable[[], bool] = lambda: False,
        hurry: Callable[[], bool] = lambda: False,
        stall_s: float = STALL_S,
    ) -> None:
        self.directory = directory
        self.combinations = [each for spec in specs for each in spec.combinations()]
        self._progress = progress
        self._quick = quick
        self._control = RunControl(progress.progressed, stopping, hurry, stall_s)
        manifest.record(directory, specs, [each.run_id for each in self.combinations], quick=quick)
        self._calibration = self._read_calibration()

    def _read_calibration(self) -> SweepCalibration:
        for name in (CALIBRATION, OLD_CALIBRATION):
            path = self.directory / name
            if path.exists():
                return msgspec.json.decode(path.read_bytes(), type=SweepCalibration)
        return SweepCalibration()

    def done(self, combination: Combination) -> bool:
        """Whether a run is complete."""
        return (self._directory_of(combination) / DONE).exists()

    def _directory_of(self, combination: Combination) -> Path:
        return self.directory / RUNS / combination.run_id

    def run(self) -> list[RunFailure]:
        """Make the runs that are not complete; returns those that failed.

        Raises Interrupted.
        """
        failed = []
        for combination in self.combinations:
            if self.done(combination):
                continue
            outcome = self._run(combination)
            if isinstance(outcome, RunFailure):
                failed.append(outcome)
            self._progress.ended(combination.run_id, outcome)
        return failed

    def _run(self, combination: Combination) -> RunDone | RunFailure:
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
            self._progress.began(combination.run_id, steps)
            done = single_run.run(plan(combination, run, directory), self._control)
        except RunFailed as error:
            after_s = round(time.monotonic() - began_at, 3)
            failed = RunFailure(run_id=combination.run_id, reason=str(error), after_s=after_s)
            directory.mkdir(parents=True, exist_ok=True)
            manifest.replace(directory / FAILED, failed)
            return failed
        manifest.replace(directory / DONE, done)
        return done

    # --- calibration ---

    def _wait_s(self, combination: Combination) -> float | None:
        """The wait of an engine that waits, or None. Raises RunFailed, Interrupted."""
        if combination.wait is None:
            return None
        if not isinstance(combination.wait, str):
            return combination.wait / 1000
        topology, trials = combination.topology, combination.spec.bl_wait_trials
        key = f"{_delays_of(topology)} {combination.wait} {trials}"
        if key not in self._calibration.waits:
            step_ms = PAPER_STEP_MS if combination.wait == "paper" else None
            self._progress.noted(
                f"{topology.name}: calibrating the wait of {combination.engine} "
                f"({combination.wait}, {trials} in a row)"
            )
            self._calibration.waits[key] = self._calibrated(topology, step_ms, trials)
            self._write_calibration()
        # If all clients are at one broker, no wait at all may work.
        return max(self._calibration.waits[key].wait_ms / 1000, calibrate.NO_WAIT_S)

    def _calibrated(self, topology: Topology, step_ms: float | None, trials: int) -> Calibration:
        def progress(wait_ms: float, done: int) -> None:
            if self._control.stopping():
                raise Interrupted

        try:
            running = launcher.launch(
                launcher.with_free_ports(topology),
                self.directory / PROBES / f"wait-{topology.name}",
                cancelled=self._control.stopping,
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
                running.stop(hurry=self._control.hurry)
        except Cancelled:
            raise Interrupted from None
        except (CalibrationError, LaunchError, OverlayError) as error:
            raise RunFailed(f"calibration failed: {error}") from None

    def _options(self, combination: Combination) -> Any:
        """The workload's options, with a rate where they ask for a share of the throughput."""
        spec, options = combination.spec, combination.options
        probe = spec.workload_class.probe(options)
        if probe is None:
            return options
        # It does not depend on the engine, but the speed of a machine changes: it is measured right
        # before the runs that are compared with each other.
        key = (
            f"{spec.name}-{combination.topology.name}-{combination.series}"
            f"-i{combination.instances}-r{combination.repetition}"
        )
        if key not in self._calibration.rates:
            self._progress.noted(f"{key}: measuring the throughput")
            transactions, probing = probe
            directory = self.directory / PROBES / key
            clear(directory)
            run = describe(combination, probing, None, quick=self._quick)
            run = msgspec.structs.replace(run, run_id=key, transactions=transactions, trace=False)
            control = self._control._replace(progressed=lambda done: None)
            done = single_run.run(plan(combination, run, directory), control)
            self._calibration.rates[key] = round(done.events / done.took_s, 1)
            self._write_calibration()
        return spec.workload_class.with_rate(options, self._calibration.rates[key])

    def _write_calibration(self) -> None:
        manifest.replace(self.directory / CALIBRATION, self._calibration)


def describe(
    combination: Combination, options: Any, wait_s: float | None, *, quick: bool
) -> RunParameters:
    """The contents of run.json."""
    spec, topology = combination.spec, combination.topology
    placement = places(combination)
    wait = combination.wait
    return RunParameters(
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


def plan(combination: Combination, run: RunParameters, directory: Path) -> RunPlan:
    """The plan for a run that `describe` has described."""
    scenarios = [
        ScenarioInstance(
            number=instance,
            engine=run.engine,
            wait_s=run.bl_wait_s,
            transactions=run.transactions,
            concurrency=run.concurrency,
            names=names(combination, instance),
            options=run.options,
        )
        for instance in range(1, run.instances + 1)
    ]
    return RunPlan(
        run.run_id,
        combination.topology,
        run.workload,
        combination.spec.workload_class,
        scenarios,
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
    """Random brokers for `count` clients; their numbers of clients differ by at most one."""
    chance = random.Random(seed)
    brokers = [broker.name for broker in topology.brokers]
    all_alike, more = divmod(count, len(brokers))
    chosen = brokers * all_alike + chance.sample(brokers, more)
    chance.shuffle(chosen)
    return chosen


def _counted_delays(combination: Combination, placement: dict[str, str]) -> float | None:
    if combination.spec.workload_class is not DispatchingWorkload:
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
    """Where the search for a wait begins: well above any wait that works, but not by minutes."""
    path_ms = calibrate.fitting_step_ms(topology) / calibrate.STEP_SHARE
    return min(START_PATHS * path_ms, calibrate.START_MS)


def _delays_of(topology: Topology) -> str:
    edges: Iterable[str] = (f"{edge.delay_ms:g}" for edge in topology.edges)
    return f"{topology.name} {topology.client_delay_ms:g}/{','.join(edges)}"
