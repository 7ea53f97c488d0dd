"""Spark and the checkers of histories agree on the same traces, planted bugs included."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from bench.spark import checks
from bench.spark.records import (
    CLIENT_SCHEMA,
    RUN_SCHEMA,
    TRACE_SCHEMA,
    nothing_for_missing,
)
from bench.spark.traces import verdicts
from overlay import trace
from padres_tx.audit import promises
from proofs.checkers import check
from proofs.faults.injected_bugs import BUGS
from proofs.history import History
from proofs.sim.program import Shape
from proofs.sim.random_checks import RandomRunChecks
from proofs.sim.random_run import RandomRun
from tests.proofs.faults.test_injected_bugs import NEAR, SEEDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow]

#: Clean runs of each engine beside the planted ones.
CLEAN = range(2)

#: The planted bugs that do other things than they record: they show in the tables alone.
UNRECORDED = {"ghost-d-tx"}

ENGINES = ("d-tx", "d-tx-ni", "s-tx", "bl-wait", "mixed")

#: Where to look for a run in which a stream is disturbed so that its clients notice; found by
#: search, and what is there may move with the engines' messages.
DISTURBED = range(50, 150)

Verdicts = set[tuple[str, str, str, str]]


def play(shape: Shape, seed: int, bug: str | None = None) -> RandomRun:
    factories = None if bug is None else BUGS[bug].factories()
    run = RandomRun(shape, shape.tape(seed), factories=factories)
    run.go()
    return run


def shown(bug: str) -> RandomRun:
    """A run in which the bug shows itself in the records, if they can tell."""
    for seed in range(SEEDS[bug], SEEDS[bug] + NEAR):
        run = play(BUGS[bug].shape, seed, bug)
        anomalies = check(History(run.world.sim.records), strict=True)
        if any(anomaly.kind == BUGS[bug].kind for anomaly in anomalies):
            break
    return run


@pytest.fixture(scope="module")
def runs() -> dict[str, RandomRun]:
    """By name: every planted bug in a run in which it shows itself, and runs without any."""
    planted = {bug: shown(bug) for bug in SEEDS}
    return planted | {f"{e}-{s}": play(Shape(e), s) for e in ENGINES for s in CLEAN}


def of_checkers(name: str, run: RandomRun) -> Verdicts:
    """What the checkers find in the records, promised or not."""
    found: Verdicts = set()
    for anomaly in check(History(run.world.sim.records), strict=True):
        found.add((name, anomaly.kind, anomaly.engine, anomaly.tx))
    return found


def test_the_same_verdicts_on_the_same_traces(
    spark: SparkSession, runs: dict[str, RandomRun], tmp_path: Path
) -> None:
    for name, run in runs.items():
        with (tmp_path / f"{name}.jsonl").open("wb") as file:
            for record in run.world.sim.records:
                trace.write(msgspec.structs.replace(record, run=name), file)
    recorded = nothing_for_missing(spark.read.schema(TRACE_SCHEMA).json(str(tmp_path))).cache()
    found = {tuple(row) for row in verdicts(recorded).collect()}
    wanted = set[tuple[str, str, str, str]]().union(*(of_checkers(*each) for each in runs.items()))
    assert found == wanted
    # It is not that nobody finds anything: each kind was planted, and is there.
    for bug in SEEDS.keys() - UNRECORDED:
        assert (bug, BUGS[bug].kind) in {(run, kind) for run, kind, *_ in found}, bug
    assert {kind for _, kind, *_ in found} == set(promises.KINDS) - {"lost"}
    # And nobody breaks a promise without a bug.
    for run, kind, engine, _ in found:
        assert run in SEEDS or run.startswith("mixed") or not promises.is_promised(kind, engine)


def noticed() -> RandomRun:
    """A run with a planted bug that loses, doubles or misroutes an event of the stream."""
    for seed in DISTURBED:
        run = play(Shape("d-tx"), seed, "handover-dropped-d-tx")
        if any(anomaly.kind == "handover" for anomaly in RandomRunChecks(run).anomalies()):
            return run
    raise AssertionError(f"no client noticed anything in {DISTURBED}")


def test_the_same_verdicts_on_the_same_stream(
    spark: SparkSession, runs: dict[str, RandomRun]
) -> None:
    """Events that are handed over, as their clients would have recorded them."""
    rows, about = [], []
    wanted: dict[str, bool] = {}
    for name, run in {**runs, "noticed": noticed()}.items():
        handovers = run.program.handovers
        if handovers is None or handovers.engine != "d-tx" or run.crashed:
            continue
        rows += _client_rows(name, run)
        about.append({"run": name, "engine": "d-tx", "series": name})
        wanted[name] = any(
            anomaly.kind == "handover" for anomaly in RandomRunChecks(run).anomalies()
        )
    assert set(wanted.values()) == {True, False}
    records = spark.createDataFrame(rows, CLIENT_SCHEMA).fillna("").fillna(0)
    checked = checks.run_checks(records, spark.createDataFrame(about, RUN_SCHEMA))
    found = {
        row["run"]: bool(row["lost"] + row["doubled"] + row["misrouted"])
        for row in checked.collect()
    }
    assert found == wanted


def _client_rows(name: str, run: RandomRun) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for record in run.world.sim.records:
        if record.kind == "publish" and record.filter.startswith("[class,'s']"):
            n = int(record.filter.rpartition(",")[2].rstrip("]"))
            rows.append({"run": name, "kind": "sent", "publisher": record.client, "n": n})
    for worker in run.program.clients:
        for pub in run.world.got[worker]:
            if pub.point["class"] == "s":
                n = int(pub.point["n"])
                rows.append(
                    {
                        "run": name,
                        "kind": "event",
                        "client": worker,
                        "publisher": pub.client,
                        "n": n,
                    }
                )
    judge = RandomRunChecks(run)
    for tx in run.handovers:
        if judge.committed(tx):
            rows.append({"run": name, "kind": "tx", "tx": str(tx), "status": "committed"})
    return rows
