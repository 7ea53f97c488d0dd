"""`padres-tx sim`: many random runs of an overlay, and replays of single ones.

Only options, tables and exit codes are handled here; `many_runs` does the work.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from padres_tx.cli.common import WrongInput
from padres_tx.launcher.overlay_files import default_directory

#: Failing runs that are printed one by one; further ones mostly have the same causes.
SHOWN_FAILURES = 3

#: Failing runs of each engine that are shrunk, which takes up to half a minute each.
SHRUNK_FAILURES = 1

#: No overlay can have this name, so no overlay's logs are in this folder.
TAPES = ".tapes"

#: Limit of brokers, clients and transactions of one run: larger runs show nothing new, and at this
#: size a run still takes seconds.
SIZE_LIMIT = 64


class Faults(click.ParamType[tuple[str, ...]]):
    """Kinds of faults, separated by commas."""

    name = "faults"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "KIND,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        from proofs.sim.program import DURABLE, FAULTS, RESTART

        if isinstance(value, tuple):
            return value
        kinds = [kind.strip() for kind in value.split(",") if kind.strip()]
        if "all" in kinds:
            kinds += FAULTS
        there = (*FAULTS, RESTART, *DURABLE)
        for kind in kinds:
            if kind not in (*there, "all", "none"):
                self.fail(f"unknown fault {kind!r}: expected {', '.join(there)}, all or none")
        if RESTART in kinds and not set(DURABLE).isdisjoint(kinds):
            self.fail(f"{RESTART} is for brokers in memory: it cannot be combined with the others")
        return tuple(kind for kind in there if kind in kinds)


@click.command(
    epilog="""
\b
Examples:
  padres-tx sim --engine all --seeds 200
  padres-tx sim --engine d-tx --seeds 1000 --faults all --json
  padres-tx sim --engine all --faults all,broker-crash,disk-full
  padres-tx sim --engine d-tx --replay 17
  padres-tx sim --tape d-tx-17.tape
"""
)
@click.option(
    "--engine",
    default="all",
    show_default=True,
    help="d-tx, d-tx-ni, s-tx, bl-wait; mixed, which runs the first three side by side; or all.",
)
@click.option(
    "--seeds", type=click.IntRange(min=1), default=100, show_default=True, help="Runs per engine."
)
@click.option(
    "--first", type=click.IntRange(min=0), default=0, show_default=True, help="The first seed."
)
@click.option("--brokers", type=click.IntRange(1, SIZE_LIMIT), default=5, show_default=True)
@click.option("--clients", type=click.IntRange(1, SIZE_LIMIT), default=6, show_default=True)
@click.option(
    "--transactions",
    type=click.IntRange(0, SIZE_LIMIT),
    default=4,
    show_default=True,
    help="Concurrent transactions, in addition to the handovers of a stream.",
)
@click.option(
    "--faults",
    type=Faults(),
    default="delay",
    show_default=True,
    help="Faults, separated by commas: delay, link-cut, client-crash, partition; all (these four), "
    "or none. broker-crash and disk-full can be added: brokers log on disk, and everything is "
    "checked. Or broker-restart: brokers lose their state, and only outcomes and deliveries are "
    "checked.",
)
@click.option(
    "--crowded",
    is_flag=True,
    help="All clients use the same filters at the same time over silent links, so that many "
    "operations have to wait.",
)
@click.option(
    "--slice",
    type=click.IntRange(min=1),
    metavar="UNITS",
    help="Units of work in one slice; with 1 or 2 all long work is split. "
    "[default: as in a real broker]",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, SIZE_LIMIT),
    default=os.cpu_count() or 1,
    show_default="one per core",
    help="Processes that share the work.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list and nothing else.")
@click.option("--replay", type=click.IntRange(min=0), metavar="SEED", help="Print one run in full.")
@click.option(
    "--tape",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Print a shrunk run in full; engine and sizes come from the file.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --replay or --tape: write all trace records of the run as JSON lines.",
)
@click.option(
    "--tapes",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder for tapes of failing runs. [default: .tapes in the folder of running overlays, "
    "$PADRES_TX_STATE or ~/.local/state/padres-tx]",
)
def sim(
    *,
    engine: str,
    seeds: int,
    first: int,
    brokers: int,
    clients: int,
    transactions: int,
    faults: tuple[str, ...],
    crowded: bool,
    slice: int | None,
    jobs: int,
    as_json: bool,
    replay: int | None,
    tape: Path | None,
    trace: Path | None,
    tapes: Path | None,
) -> None:
    """Run random overlays in virtual time, and check every run.

    A run has a random tree, clients, conflicting concurrent transactions, plain traffic, a stream
    that is handed from worker to worker, and faults. It is determined by its seed. A run that
    breaks a promise is printed with the command that replays it, and shrunk. Exit code 1 if any run
    breaks a promise.
    """
    from proofs.sim.program import ENGINES, Shape

    if engine not in (*ENGINES, "all"):
        raise WrongInput(f"unknown engine {engine!r}: expected {', '.join(ENGINES)} or all")
    shapes = [
        Shape(name, brokers, clients, transactions, faults, crowded, slice=slice or 0)
        for name in (ENGINES if engine == "all" else (engine,))
    ]
    if replay is not None or tape is not None:
        if replay is not None and tape is not None:
            raise WrongInput("--replay and --tape cannot be combined")
        if tape is None and engine == "all":
            raise WrongInput("--replay requires --engine")
        _replay(shapes[0], replay, tape, trace)
    elif trace is not None:
        raise WrongInput("--trace requires --replay or --tape")
    else:
        where = tapes if tapes is not None else default_directory() / TAPES
        _run_all(shapes, range(first, first + seeds), jobs, where, as_json=as_json)


# --- many ---


def _run_all(shapes: Sequence[Any], seeds: range, jobs: int, tapes: Path, *, as_json: bool) -> None:
    from proofs.sim.many_runs import Tally, run_many

    tallies: list[Tally] = []
    with _progress() as progress:
        for shape in shapes:
            task = progress.add_task(shape.engine, total=len(seeds), anomalies="")
            tally = Tally(shape.engine)
            for results in run_many(shape, seeds, jobs):
                tally.add(results)
                told = f"{tally.totals.anomalies} anomalies" if tally.failures else ""
                progress.update(task, completed=tally.totals.runs, anomalies=told)
            tallies.append(tally)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode([t.totals for t in tallies])).decode())
    else:
        Console().print(_table(tallies))
    failed = False
    for shape, tally in zip(shapes, tallies, strict=True):
        failed |= bool(tally.failures)
        for shown, failure in enumerate(tally.failures[:SHOWN_FAILURES]):
            click.echo(f"\nseed {failure.seed}: {_line(failure.anomalies[0])}", err=True)
            click.echo(f"  replay: {command(shape, failure.seed)}", err=True)
            if shown < SHRUNK_FAILURES:
                _shrink(shape, failure, tapes)
    if failed:
        raise SystemExit(1)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description:8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("[red]{task.fields[anomalies]}"),
        console=Console(stderr=True),
        transient=True,
    )


def _table(tallies: Sequence[Any]) -> Table:
    shown = Table(box=box.SIMPLE_HEAD)
    shown.add_column("engine")
    for heading in ("runs", "steps", "steps/s", "commits", "aborts", "anomalies"):
        shown.add_column(heading, justify="right")
    shown.add_column("digest")
    for tally in tallies:
        totals = tally.totals
        shown.add_row(
            totals.engine,
            f"{totals.runs:,}",
            f"{totals.steps:,}",
            f"{totals.steps_per_s:,.0f}",
            f"{totals.commits:,}",
            f"{totals.aborts:,}",
            f"[{'red' if totals.anomalies else 'green'}]{totals.anomalies}",
            totals.digest,
        )
    return shown


def _shrink(shape: Any, failure: Any, tapes: Path) -> None:
    """Shrink a failing run, write its tape, and print the command that replays it."""
    from proofs.sim.many_runs import shrink_run

    sizes = f"{shape.brokers}-{shape.clients}-{shape.transactions}"
    if shape.crowded:
        sizes += "-crowded"
    if shape.slice:
        sizes += f"-slice-{shape.slice}"
    path = tapes / f"{shape.engine}-{sizes}-seed-{failure.seed}.tape"
    found = shrink_run(shape, failure.seed, failure.anomalies[0])
    try:
        tapes.mkdir(parents=True, exist_ok=True)
        found.write(path)
    except OSError as error:
        raise WrongInput(f"cannot write the tape: {error}") from None
    parts = f" to {found.parts} of {failure.parts} parts" if failure.parts else ""
    click.echo(f"  shrunk{parts}: padres-tx sim --tape {shlex.quote(str(path))}", err=True)


def command(shape: Any, seed: int) -> str:
    """The command that replays a run."""
    from proofs.sim.program import Shape

    usual = Shape(shape.engine)
    options = [f"--engine {shape.engine}", f"--replay {seed}"]
    for name in ("brokers", "clients", "transactions"):
        if getattr(shape, name) != getattr(usual, name):
            options.append(f"--{name} {getattr(shape, name)}")
    if shape.faults != usual.faults:
        options.append(f"--faults {','.join(shape.faults) or 'none'}")
    if shape.crowded:
        options.append("--crowded")
    if shape.slice:
        options.append(f"--slice {shape.slice}")
    return f"padres-tx sim {' '.join(options)}"


def _line(anomaly: Any) -> str:
    what = " ".join(part for part in (anomaly.engine, anomaly.tx) if part)
    text = anomaly.story.replace("\n", "\n    ")
    return f"{anomaly.kind} ({what}): {text}"


# --- one ---


def _replay(shape: Any, seed: int | None, tape: Path | None, trace: Path | None) -> None:
    from overlay.hosts.simulator import Tape
    from overlay.trace import write
    from proofs.sim.many_runs import TapeFile, run_and_check
    from proofs.sim.random_run import RandomRun
    from proofs.sim.render import describe

    if tape is not None:
        try:
            file = TapeFile.read(tape)
        except (OSError, msgspec.DecodeError) as error:
            raise WrongInput(f"{tape} is not a tape: {error}") from None
        run = RandomRun(file.shape, Tape(choices=file.choices))
    else:
        assert seed is not None
        run = RandomRun(shape.of_seed(seed), shape.tape(seed))
    anomalies = run_and_check(run)
    for line in describe(run):
        click.echo(line)
    if trace is not None:
        try:
            with trace.open("wb") as out:
                for record in run.world.sim.records:
                    write(record, out)
        except OSError as error:
            raise WrongInput(f"cannot write the trace: {error}") from None
    click.echo(f"digest {run.world.sim.digest}")
    for anomaly in anomalies:
        click.echo(_line(anomaly))
    if anomalies:
        raise SystemExit(1)
    click.echo("no anomaly in this run")
