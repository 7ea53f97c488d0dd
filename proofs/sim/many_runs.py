"""Many random runs, each checked, on all cores.

A run is determined by its shape and its seed, so a failing run is replayed by naming them; a tape
replays a run that was shrunk (`shrink`). Processes that share nothing take the seeds in small
batches. Results are put in the order of the seeds, so the totals, digests included, depend neither
on the number of processes nor on PYTHONHASHSEED.

This module knows nothing of terminals.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from overlay.hosts.simulator import NeverSettles, Tape
from proofs.checkers import Anomaly, check
from proofs.sim.program import Shape
from proofs.sim.random_checks import RandomRunChecks
from proofs.sim.random_run import RandomRun
from proofs.sim.shrink import FailingTape, FailureCheck, shrink

#: Seeds that a process takes at once: about a second of work, so that progress is visible and no
#: process is idle for long at the end, yet few messages go between the processes.
BATCH = 20

#: A run of the usual size takes some thousand steps; one that takes more than this never ends.
STEP_LIMIT = 200_000


class RunResult(NamedTuple):
    """The result of one run."""

    seed: int
    steps: int
    commits: int
    aborts: int
    anomalies: list[Anomaly]
    digest: str
    #: The number of parts that shrinking could leave out: clients, operations, faults, ...
    parts: int = 0


class EngineTotals(msgspec.Struct):
    """The totals of many runs of one engine, in the order of their seeds."""

    engine: str
    runs: int = 0
    steps: int = 0
    steps_per_s: float = 0.0
    commits: int = 0
    aborts: int = 0
    anomalies: int = 0
    #: A hash of everything that was delivered in all runs.
    digest: str = ""


class TapeFile(msgspec.Struct):
    """A shrunk run, to be replayed."""

    shape: Shape
    choices: list[int]
    #: The number of parts that are left in it.
    parts: int = 0

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self) + b"\n")

    @classmethod
    def read(cls, path: Path) -> TapeFile:
        """Read a tape. Raises OSError, and msgspec.DecodeError if the file is not a tape."""
        return msgspec.json.decode(path.read_bytes(), type=cls)


def run_and_check(run: RandomRun) -> list[Anomaly]:
    """Carry out a run, and return its anomalies."""
    try:
        run.go(STEP_LIMIT)
        return [*check(run.history()), *RandomRunChecks(run).anomalies()]
    except NeverSettles as error:
        return [Anomaly("undecided", run.shape.engine, "", str(error))]
    except Exception as error:  # Any failure of a core or of a check is a finding.
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}, {where.name}"
        return [Anomaly("error", run.shape.engine, place, f"{type(error).__name__}: {error}")]


def run_one(run: RandomRun, seed: int) -> RunResult:
    """Carry out a run and check it; returns its counts and anomalies."""
    anomalies = run_and_check(run)
    checks = RandomRunChecks(run)
    sim = run.world.sim
    parts = len(run.program.parts)
    return RunResult(seed, sim.steps, checks.commits, checks.aborts, anomalies, sim.digest, parts)


def run_batch(shape: Shape, seeds: Sequence[int]) -> list[RunResult]:
    """Carry out some runs, one after the other, in this process."""
    return [run_one(RandomRun(shape.of_seed(seed), shape.tape(seed)), seed) for seed in seeds]


def run_many(shape: Shape, seeds: range, jobs: int) -> Iterator[list[RunResult]]:
    """Carry out the runs of these seeds; yields batches of results, in the order of the seeds."""
    batches = [seeds[at : at + BATCH] for at in range(0, len(seeds), BATCH)]
    if jobs == 1 or len(batches) == 1:
        yield from map(partial(run_batch, shape), batches)
        return
    # Forked processes would inherit whatever threads and files the caller has.
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(jobs, len(batches)), _ignore_interrupts) as pool:
        yield from pool.imap(partial(run_batch, shape), batches)


def _ignore_interrupts() -> None:
    # Ctrl-C goes to all processes of a terminal; the parent process ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Tally:
    """Adds up results, which have to come in the order of their seeds."""

    def __init__(self, engine: str) -> None:
        self.totals = EngineTotals(engine)
        self.failures: list[RunResult] = []
        self._hash = hashlib.sha256()
        self._began_at = time.perf_counter()

    def add(self, results: Sequence[RunResult]) -> None:
        totals = self.totals
        for one in results:
            totals.runs += 1
            totals.steps += one.steps
            totals.commits += one.commits
            totals.aborts += one.aborts
            totals.anomalies += len(one.anomalies)
            self._hash.update(one.digest.encode())
            if one.anomalies:
                self.failures.append(one)
        totals.digest = self._hash.hexdigest()[:16]
        totals.steps_per_s = round(totals.steps / (time.perf_counter() - self._began_at), 1)


# --- shrinking a failing run ---


def failure_kind(anomaly: Anomaly) -> tuple[str, str, str]:
    """What two failures must share to count as the same; names change while a run shrinks."""
    return anomaly.kind, anomaly.engine, anomaly.tx if anomaly.kind == "error" else ""


def failure_check(shape: Shape, anomaly: Anomaly) -> FailureCheck:
    """A check whether a tape still leads to such an anomaly."""

    def fails(choices: Sequence[int], seed: int | None) -> FailingTape | None:
        run = RandomRun(shape, Tape(choices=choices, seed=seed))
        found = run_and_check(run)
        if failure_kind(anomaly) not in map(failure_kind, found):
            return None
        return FailingTape(tuple(run.tape.choices), tuple(run.program.parts), run.program.length)

    return fails


def shrink_run(shape: Shape, seed: int, anomaly: Anomaly) -> TapeFile:
    """Find a tape, as small as possible, with the same failure."""
    shape = shape.of_seed(seed)
    fails = failure_check(shape, anomaly)
    first = fails(shape.sizes, seed)
    assert first is not None, "the run did not fail in the same way again"
    least = shrink(first, fails)
    return TapeFile(shape, list(least.choices), len(least.parts))
