"""Simulation at scale: many random runs, each judged, on all cores.

A run is named by its shape and its seed, so a failing one is replayed by naming it; a tape
replays a run that was made smaller (`shrink`). Seeds are dealt out in small batches to processes
that share nothing; what comes back is put in the order of the seeds, so the answer, digests
included, does not depend on how many processes there were, nor on PYTHONHASHSEED.

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

#: Seeds that a process takes at once: a second of work, so that progress is seen and the end is
#: not waited for, and little enough to say about it.
BATCH = 20

#: A run of the usual size takes some thousand steps; what takes more than this goes in circles.
STEP_LIMIT = 200_000


class RunResult(NamedTuple):
    """What came of one run."""

    seed: int
    steps: int
    commits: int
    aborts: int
    anomalies: list[Anomaly]
    digest: str
    #: Of what can be left out of it, how much there was: clients, operations, faults, ...
    parts: int = 0


class EngineTotals(msgspec.Struct):
    """What came of many runs of one engine, in the order of their seeds."""

    engine: str
    runs: int = 0
    steps: int = 0
    steps_per_s: float = 0.0
    commits: int = 0
    aborts: int = 0
    anomalies: int = 0
    #: Names everything that was delivered in all runs.
    digest: str = ""


class TapeFile(msgspec.Struct):
    """A run that was made smaller, to be replayed."""

    shape: Shape
    choices: list[int]
    #: How much is left in it that can be left out.
    parts: int = 0

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self) + b"\n")

    @classmethod
    def read(cls, path: Path) -> TapeFile:
        """Raises OSError, and msgspec.DecodeError if it is no tape."""
        return msgspec.json.decode(path.read_bytes(), type=cls)


def run_and_check(run: RandomRun) -> list[Anomaly]:
    """Let a run happen, and say what is wrong with it."""
    try:
        run.go(STEP_LIMIT)
        return [*check(run.history()), *RandomRunChecks(run).anomalies()]
    except NeverSettles as error:
        return [Anomaly("undecided", run.shape.engine, "", str(error))]
    except Exception as error:  # Whatever it is: a core has failed, or a judge, and that is news.
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}, {where.name}"
        return [Anomaly("error", run.shape.engine, place, f"{type(error).__name__}: {error}")]


def run_one(run: RandomRun, seed: int) -> RunResult:
    """Let a run happen, and count."""
    anomalies = run_and_check(run)
    judge = RandomRunChecks(run)
    sim = run.world.sim
    parts = len(run.program.parts)
    return RunResult(seed, sim.steps, judge.commits, judge.aborts, anomalies, sim.digest, parts)


def run_batch(shape: Shape, seeds: Sequence[int]) -> list[RunResult]:
    """Some runs, one after the other, in this process."""
    return [run_one(RandomRun(shape.of_seed(seed), shape.tape(seed)), seed) for seed in seeds]


def run_many(shape: Shape, seeds: range, jobs: int) -> Iterator[list[RunResult]]:
    """All runs of these seeds, batch by batch, in the order of the seeds."""
    batches = [seeds[at : at + BATCH] for at in range(0, len(seeds), BATCH)]
    if jobs == 1 or len(batches) == 1:
        yield from map(partial(run_batch, shape), batches)
        return
    # Forked processes would inherit whatever threads and files the caller has.
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(jobs, len(batches)), _ignore_interrupts) as pool:
        yield from pool.imap(partial(run_batch, shape), batches)


def _ignore_interrupts() -> None:
    # Ctrl-C goes to all processes of a terminal; the first of them ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Tally:
    """Adds results up; they have to come in the order of their seeds."""

    def __init__(self, engine: str) -> None:
        self.report = EngineTotals(engine)
        self.failures: list[RunResult] = []
        self._hash = hashlib.sha256()
        self._began_at = time.perf_counter()

    def add(self, results: Sequence[RunResult]) -> None:
        report = self.report
        for one in results:
            report.runs += 1
            report.steps += one.steps
            report.commits += one.commits
            report.aborts += one.aborts
            report.anomalies += len(one.anomalies)
            self._hash.update(one.digest.encode())
            if one.anomalies:
                self.failures.append(one)
        report.digest = self._hash.hexdigest()[:16]
        report.steps_per_s = round(report.steps / (time.perf_counter() - self._began_at), 1)


# --- making a failing run smaller ---


def failure_kind(anomaly: Anomaly) -> tuple[str, str, str]:
    """Two failures are of the same kind if they agree in this; names change while runs shrink."""
    return anomaly.kind, anomaly.engine, anomaly.tx if anomaly.kind == "error" else ""


def failure_check(shape: Shape, anomaly: Anomaly) -> FailureCheck:
    """Whether a tape still leads to such an anomaly."""

    def fails(choices: Sequence[int], seed: int | None) -> FailingTape | None:
        run = RandomRun(shape, Tape(choices=choices, seed=seed))
        found = run_and_check(run)
        if failure_kind(anomaly) not in map(failure_kind, found):
            return None
        return FailingTape(tuple(run.tape.choices), tuple(run.program.parts), run.program.length)

    return fails


def shrink_run(shape: Shape, seed: int, anomaly: Anomaly) -> TapeFile:
    """The shortest tape that could be found on which the same goes wrong."""
    shape = shape.of_seed(seed)
    fails = failure_check(shape, anomaly)
    first = fails(shape.sizes, seed)
    assert first is not None, "the same run must fail in the same way"
    least = shrink(first, fails)
    return TapeFile(shape, list(least.choices), len(least.parts))
