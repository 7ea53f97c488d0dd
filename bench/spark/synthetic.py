"""Synthetic experiments of any size, for testing the readers of records.

Everything is in the layout of `records`, and drawn from a seed: latencies around a formula, a
stream at an even rate, and on demand a number of injected faults. The manifest marks them as
synthetic, and reports say so.

`python -m bench.spark.synthetic` measures how the Spark job's time grows with the number of
records: it should grow at most in proportion. The first job of a session pays for starting up, so a
small one runs before the measurement; two sizes are measured in one session, the small one first.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from bench.records import BROKERS, CLIENTS, DONE, LAYOUT, MANIFEST, RUN, RUNS, RecordWriter
from bench.spark import synthetic_traces
from bench.spark.synthetic_traces import LIFE
from overlay.identity import name_text
from padres_tx import registry
from padres_tx.audit.promises import ISOLATED

#: The series of a synthetic experiment, with their engines.
SERIES: Final = {
    "d-tx": "d-tx",
    "d-tx-ni": "d-tx-ni",
    "s-tx": "s-tx",
    "bl-wait-smallest": "bl-wait",
    "bl-wait-paper": "bl-wait",
}

#: Synthetic mean latencies on one broker.
BASE_MS: Final = {
    "d-tx": 62.0,
    "d-tx-ni": 52.0,
    "s-tx": 31.0,
    "bl-wait-smallest": 48.0,
    "bl-wait-paper": 165.0,
}

TOPOLOGIES: Final = {1: "one", 3: "three", 5: "five", 9: "nine"}

#: The beginning of all runs, in nanoseconds; arbitrary.
EPOCH_NS: Final = 1_700_000_000_000_000_000

MS: Final = 1_000_000

#: Plain events per second in a stream.
RATE_PER_S: Final = 1000

Options = Mapping[str, Any]


def write(
    directory: Path,
    *,
    transactions: int = 20,
    seconds: int = 8,
    repetitions: int = 3,
    figures: Sequence[int] = (5, 6, 7, 8, 9),
    seed: int = 1,
    slower: float = 1.0,
    faults: Mapping[str, int] | None = None,
    traced: bool = False,
) -> int:
    """Write an experiment of all figures; returns its number of records.

    `slower` multiplies every latency. `faults` are injected into every run of an isolated engine:
    by name, how many (`lost`, `doubled`, `misrouted`, `partial`, `out_of_order`). If `traced`,
    brokers have records as well, without faults.
    """
    directory.mkdir(parents=True, exist_ok=True)
    manifest = {
        "layout": LAYOUT,
        "synthetic": True,
        "seed": seed,
        "command": "python -m bench.spark.synthetic",
        "machine": {"cpus": 0, "system": "nowhere"},
        "specs": [],
    }
    (directory / MANIFEST).write_text(json.dumps(manifest))
    written = 0
    for fields in _sweep(figures, repetitions):
        fields |= {"transactions": transactions, "seed": seed, "trace": traced, "quick": True}
        chance = random.Random(repr((seed, fields["run_id"])))
        injected = dict(faults or {}) if fields["engine"] in ISOLATED else {}
        written += _write_run(directory, fields, chance, seconds, slower, injected)
    return written


def _sweep(figures: Sequence[int], repetitions: int) -> Iterator[dict[str, Any]]:
    points: list[tuple[int, str, int, int, int, str, Options]] = []
    if 5 in figures:
        points.append((5, "base", 3, 1, 1, "", {}))
    if 6 in figures:
        points += [(6, "overlay_size", brokers, 1, 1, "", {}) for brokers in TOPOLOGIES]
    if 7 in figures:
        points += [(7, "concurrency", 3, several, 1, "", {}) for several in (1, 2, 5, 10)]
    if 8 in figures:
        points += [(8, "clients", 3, 1, several, "", {}) for several in (1, 2, 5, 10)]
    if 9 in figures:
        for variant, dispatch in (("dispatching", True), ("quiet", False)):
            options: Options = {"dispatch": dispatch, "rate_per_s": RATE_PER_S}
            points.append((9, "regular_traffic", 3, 1, 1, variant, options))
    for figure, name, brokers, concurrency, instances, variant, options in points:
        for series, engine in SERIES.items():
            decided = registry.load(engine).broker is not None
            if figure == 9 and not decided:
                continue  # BL-WAIT has no transactions that could disturb a stream.
            for repetition in range(1, repetitions + 1):
                topology = TOPOLOGIES[brokers]
                parts = [name, topology, series, f"c{concurrency}", f"i{instances}", variant]
                yield {
                    "run_id": "-".join([*filter(None, parts), f"r{repetition}"]),
                    "experiment": name,
                    "figure": figure,
                    "series": series,
                    "engine": engine,
                    "topology": topology,
                    "brokers": brokers,
                    "clients": 4 * instances,
                    "concurrency": concurrency,
                    "instances": instances,
                    "repetition": repetition,
                    "delay_ms": 5.0,
                    "client_delay_ms": 5.0,
                    "workload": "stream" if figure == 9 else "dispatching",
                    "options": dict(options),
                    "variant": variant,
                    "bl_wait": "" if decided else series.removeprefix(f"{engine}-"),
                    "bl_wait_s": None if decided else 0.05,
                    "counted_delays": _delays(engine, brokers) if decided else None,
                    "placement": {},
                }


def _delays(engine: str, brokers: int) -> float:
    return 4.0 + (2 if registry.load(engine).is_static else 4) * math.log2(brokers)


def _write_run(
    directory: Path,
    fields: dict[str, Any],
    chance: random.Random,
    seconds: int,
    slower: float,
    injected: dict[str, int],
) -> int:
    place = directory / RUNS / fields["run_id"]
    (place / CLIENTS).mkdir(parents=True)
    (place / RUN).write_bytes(msgspec.json.encode(fields))
    writers: dict[str, RecordWriter] = {}

    def writer(client: str) -> RecordWriter:
        if client not in writers:
            path = place / CLIENTS / f"{client}.jsonl"
            writers[client] = RecordWriter(fields["run_id"], client, path, lambda: 0)
        return writers[client]

    luck = chance.gauss(1.0, 0.03)
    load = fields["concurrency"] * fields["instances"]
    factor = (1 + 0.35 * math.log2(fields["brokers"])) * (1 + 0.08 * (load - 1)) * luck * slower
    mean_ms = BASE_MS[fields["series"]] * factor
    statuses: dict[str, int] = {}
    for instance in range(1, fields["instances"] + 1):
        names = {role: f"{role}.{instance}" for role in ("E", "A1", "A2")}
        clocks = [EPOCH_NS] * fields["concurrency"]
        if fields["options"].get("dispatch", True):
            pause_ms = 1000.0 if fields["workload"] == "stream" else 0.0
            for number in range(1, fields["transactions"] + 1):
                worker = number % len(clocks)
                latency_ms = max(1.0, chance.gauss(mean_ms, mean_ms / 10))
                begin_ns = clocks[worker]
                clocks[worker] += round((latency_ms + pause_ms) * MS)
                status = _dispatched(
                    writer,
                    names,
                    fields,
                    number,
                    begin_ns,
                    begin_ns + round(latency_ms * MS),
                    injected,
                )
                statuses[status] = statuses.get(status, 0) + 1
        if fields["workload"] == "stream":
            _stream(writer, names, fields, seconds, injected)
    for each in writers.values():
        each.close()
    records = _count(writers)
    traced = 0
    if fields["trace"]:
        events = seconds * RATE_PER_S if fields["workload"] == "stream" else 0
        traced = synthetic_traces.write(place / BROKERS, fields, events)
    done = {
        "run_id": fields["run_id"],
        "transactions": sum(statuses.values()),
        "statuses": statuses,
        "sent": 0,
        "events": 0,
        "took_s": float(seconds),
        "cpu_s": {},
        "client_records": records,
        "broker_records": traced,
    }
    (place / DONE).write_bytes(msgspec.json.encode(done))
    return records + traced


def _count(writers: Mapping[str, RecordWriter]) -> int:
    counts = [writer.written for writer in writers.values()]
    return sum(c if isinstance(c, int) else c.total() for c in counts)


#: Faults of plain events; the others are of transactions.
_IN_A_STREAM: Final = ("lost", "doubled", "misrouted", "out_of_order")


def _next(injected: dict[str, int], faults: Sequence[str]) -> str:
    """The next of these faults that is still to be injected, or ""."""
    fault = next((name for name in faults if injected.get(name, 0) > 0), "")
    if fault:
        injected[fault] -= 1
    return fault


def _dispatched(
    writer: Any,
    names: Mapping[str, str],
    fields: Mapping[str, Any],
    number: int,
    begin_ns: int,
    end_ns: int,
    injected: dict[str, int],
) -> str:
    tx, owner = name_text(names["E"], LIFE, number), names["A1" if number % 2 else "A2"]
    status = "aborted" if _next(injected, ("partial",)) else "committed"
    e = writer(names["E"])
    n = 1_000_000 + number
    common = {"tx": tx, "engine": fields["engine"], "x": number, "owner": owner}
    e.write("tx", **common, status=status, begin_ns=begin_ns, end_ns=end_ns)
    e.write("sent", **common, publisher=names["E"], n=n, at_ns=begin_ns)
    writer(owner).write("event", publisher=names["E"], n=n, x=number, at_ns=end_ns)
    return status


def _stream(
    writer: Any,
    names: Mapping[str, str],
    fields: Mapping[str, Any],
    seconds: int,
    injected: dict[str, int],
) -> None:
    publisher, e = names["E"], writer(names["E"])
    step_ns = 1_000 * MS // RATE_PER_S
    for n in range(1, seconds * RATE_PER_S + 1):
        owner = names["A1" if n % 2 else "A2"]
        at_ns = EPOCH_NS + n * step_ns
        e.write("sent", publisher=publisher, n=n, x=n % 4, owner=owner, at_ns=at_ns)
        # Far enough from each other that each counts once.
        fault = _next(injected, _IN_A_STREAM) if n % 10 == 0 else ""
        if fault == "lost":
            continue
        if fault == "out_of_order":
            # It arrives after the next one to the same client.
            at_ns += 3 * step_ns
        receivers = [names["A1"] if fault == "misrouted" else owner]
        if fault == "doubled":
            receivers = [owner, owner]
        for receiver in receivers:
            writer(receiver).write("event", publisher=publisher, n=n, x=n % 4, at_ns=at_ns + 5 * MS)


# --- how the job's time grows -------------------------------------------------------------------


#: Records of a stream's event: of its sender and its receiver, and of three brokers.
EVENT_RECORDS: Final = 2
TRACED_RECORDS: Final = 5


def of_size(directory: Path, records: int, *, traced: bool = False) -> int:
    """Write an experiment of about `records` records, mostly of streams; returns how many."""
    runs = 2 * 3 * 2
    each = records // runs
    of_event = EVENT_RECORDS + (TRACED_RECORDS if traced else 0)
    seconds = max(1, each // (of_event * RATE_PER_S))
    return write(
        directory, seconds=seconds, repetitions=2, figures=(9,), transactions=10, traced=traced
    )


def grows(
    sizes: Sequence[int],
    master: str | None,
    directory: Path,
    settings: Mapping[str, str],
    *,
    traced: bool = False,
) -> list[dict[str, float]]:
    """The job's time for each size, in one session."""
    from bench.spark import job
    from bench.spark.records import look_into
    from bench.spark.session import session

    rows: list[dict[str, float]] = []
    with session(master, settings=settings) as spark:
        write(directory / "warm-up", seconds=1, repetitions=1, figures=(9,), traced=traced)
        job.run(spark, look_into(directory / "warm-up"))
        for number, size in enumerate(sizes):
            place = directory / f"size-{number}"
            records = of_size(place, size, traced=traced)
            began = time.perf_counter()
            job.run(spark, look_into(place))
            rows.append({"records": records, "seconds": round(time.perf_counter() - began, 2)})
    return rows


@click.command()
@click.option(
    "--records",
    "sizes",
    type=click.IntRange(min=1000),
    multiple=True,
    default=(1_000_000, 10_000_000),
    show_default=True,
    help="A size; may be repeated, the smallest first.",
)
@click.option("--master", metavar="URL", help="A Spark master.  [default: local[*]]")
@click.option("--driver-memory", default="1g", show_default=True)
@click.option(
    "--trace", "traced", is_flag=True, help="Include brokers' records, which the job judges."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list and nothing else.")
def synthetic(
    sizes: tuple[int, ...], master: str | None, driver_memory: str, traced: bool, as_json: bool
) -> None:
    """Measure how the Spark job's time grows with the number of synthetic records.

    Exits with code 1 if it grows more than in proportion.
    """
    from bench.spark.session import SparkError
    from padres_tx.cli.common import WrongInput

    with tempfile.TemporaryDirectory(prefix="padres-tx-") as place:
        try:
            settings = {"spark.driver.memory": driver_memory}
            rows = grows(sizes, master, Path(place), settings, traced=traced)
        except SparkError as error:
            raise WrongInput(str(error)) from None
    first = rows[0]
    for row in rows:
        row["records_ratio"] = round(row["records"] / first["records"], 2)
        row["seconds_ratio"] = round(row["seconds"] / first["seconds"], 2)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        for row in rows:
            ratios = f"{row['records_ratio']:g} times as many, {row['seconds_ratio']:g} as long"
            click.echo(f"{int(row['records']):>12,} records {row['seconds']:>8.1f} s   {ratios}")
    if any(row["seconds_ratio"] > row["records_ratio"] for row in rows):
        raise click.exceptions.Exit(1)


if __name__ == "__main__":
    synthetic()
