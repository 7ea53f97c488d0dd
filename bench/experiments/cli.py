"""`padres-tx experiment`: the group, and the command `run`.

The group loads its other commands when they are used, since `run` must work where Spark is not
installed. A sweep's progress is shown as bars in a terminal, otherwise as a line for each run.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Self

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from bench.experiments.single_run import STALL_S, Interrupted
from bench.records import RunDone, RunFailure
from padres_tx.cli.common import CheckFailed, WrongInput

#: Command -> module and attribute.
COMMANDS = {
    "report": "bench.spark.report_cli:report",
    "compare": "bench.report.compare_cli:compare",
}


class ExperimentGroup(click.Group):
    """Loads a command when it is first used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        where = COMMANDS.get(cmd_name)
        if where is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = where.partition(":")
        try:
            command: click.Command = getattr(importlib.import_module(module), attribute)
        except ImportError as error:
            return _missing(cmd_name, error)
        return command


def _missing(name: str, error: ImportError) -> click.Command:
    """A substitute for a command that needs packages that are not installed."""
    reason = f"cannot load {name} ({error}); it requires pip install 'padres-tx[spark]'"

    def refuse(arguments: tuple[str, ...]) -> None:
        raise WrongInput(reason)

    return click.Command(
        name,
        callback=refuse,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
        short_help="(needs the extra spark)",
    )


@click.group(cls=ExperimentGroup)
def experiment() -> None:
    """Compare engines on overlays of real processes: the paper's experiments, or your own."""


@experiment.command(
    epilog="""
\b
Examples:
  padres-tx experiment run base --quick --out base-quick
  padres-tx experiment run base overlay_size --out paper
  padres-tx experiment run mine.yaml --out mine --seed 7

\b
If interrupted, repeat the command to continue with the missing runs.
"""
)
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...")
@click.option(
    "--out",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="The directory for the records.",
)
@click.option("--quick", is_flag=True, help="Run the short version, which takes a few minutes.")
@click.option(
    "--seed", type=int, metavar="N", help="Seed of the random placement. [default: the spec's]"
)
@click.option(
    "--repetitions",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Number of repetitions of each run. [default: the spec's]",
)
@click.option(
    "--trace/--no-trace",
    default=None,
    help="Whether brokers write traces, which costs time. [default: the spec's]",
)
@click.option(
    "--stall-s",
    type=click.FloatRange(0, min_open=True),
    default=STALL_S,
    show_default=True,
    metavar="S",
    help="Fail a run that makes no progress for so long.",
)
@click.option("--dry-run", is_flag=True, help="List the runs without running them.")
def run(
    *,
    specs: tuple[str, ...],
    directory: Path,
    quick: bool,
    seed: int | None,
    repetitions: int | None,
    trace: bool | None,
    stall_s: float,
    dry_run: bool,
) -> None:
    """Run experiments with real brokers and clients, and store their records in DIR.

    SPEC is base, overlay_size, concurrency, clients or regular_traffic (Figures 5 to 9), or a
    .yaml, .yml or .json file of your own. Each combination of a spec's lists is a run, with its own
    processes. Exits with code 1 if a run failed.
    """
    # Imported here: `padres-tx --help` should not wait for it.
    from bench.experiments import spec
    from bench.experiments.manifest import ManifestError
    from bench.experiments.sweep import Sweep
    from padres_tx.launcher.supervisor import StopSignals

    changes = {"seed": seed, "repetitions": repetitions, "trace": trace}
    changes = {field: value for field, value in changes.items() if value is not None}
    try:
        chosen = [spec.load(name, quick=quick, **changes) for name in specs]
        names = [each.name for each in chosen]
        for name in names:
            if names.count(name) > 1:
                raise WrongInput(f"two specs have the name {name}")
        if dry_run:
            for each in chosen:
                for combination in each.combinations():
                    click.echo(combination.run_id)
            return
        signals = StopSignals()
        progress = ProgressBars(Console(stderr=True))
        with signals.caught():
            sweep = Sweep(
                directory,
                chosen,
                progress,
                quick=quick,
                stopping=signals.stopping,
                hurry=signals.hurry,
                stall_s=stall_s,
            )
            kept = sum(map(sweep.done, sweep.combinations))
            with progress.showing(len(sweep.combinations), kept):
                failed = sweep.run()
    except (spec.SpecError, ManifestError) as error:
        raise WrongInput(str(error)) from None
    except Interrupted:
        raise CheckFailed("interrupted; repeat the command to continue") from None
    if failed:
        raise CheckFailed(
            f"{len(failed)} of {len(sweep.combinations)} runs failed; repeat the command to run "
            "them again"
        )
    click.echo(f"{len(sweep.combinations)} runs are in {directory}")


class ProgressBars:
    """Shows the progress of a sweep."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._runs: TaskID | None = None
        self._run: TaskID | None = None
        self._total = self._ended = 0

    def showing(self, total: int, kept: int) -> Self:
        """For a `with` around the sweep: the number of runs, and how many are complete already."""
        self._total, self._ended = total, kept
        if kept:
            self._line(f"{kept} of {total} runs are complete already")
        self._runs = self._bars.add_task("runs", total=total, completed=kept)
        self._run = self._bars.add_task("", total=None, visible=False)
        return self

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def began(self, run_id: str, steps: int) -> None:
        assert self._run is not None
        self._bars.reset(self._run, description=run_id, total=steps, visible=True)

    def progressed(self, done: int) -> None:
        assert self._run is not None
        self._bars.update(self._run, completed=done)

    def noted(self, text: str) -> None:
        assert self._run is not None
        self._bars.reset(self._run, description=text, total=None, visible=True)
        if not self._console.is_terminal:
            self._line(text)

    def ended(self, run_id: str, done: RunDone | RunFailure) -> None:
        assert self._runs is not None
        self._ended += 1
        self._bars.update(self._runs, completed=self._ended)
        if isinstance(done, RunFailure):
            result = f"FAILED after {done.after_s:.1f} s: {done.reason}"
        else:
            statuses = ", ".join(f"{count} {status}" for status, count in done.statuses.items())
            result = f"{done.took_s:.1f} s: {statuses or 'no transactions'}, {done.events} events"
        self._line(f"[{self._ended}/{self._total}] {run_id}: {result}")

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
