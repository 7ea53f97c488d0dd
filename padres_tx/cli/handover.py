"""`padres-tx handover`: a stream changes hands, and nothing goes astray, or how much does.

The scenario and its judge are `padres_tx.scenarios.handover`'s; here are arguments, a table and
exit codes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.text import Text

from overlay.errors import OverlayError
from padres_tx import launcher, registry
from padres_tx.cli.common import CheckFailed, WrongInput, say
from padres_tx.launcher import Running
from padres_tx.scenarios import handover as scenario
from padres_tx.scenarios.handover import HandoverError, Outcome
from padres_tx.scenarios.handover_table import EXPLANATION, run, table


@click.command(
    epilog="""
\b
Examples:
  padres-tx handover
  padres-tx handover --engine d-tx --events 20000 --handovers 50
  padres-tx handover --engine s-tx --topology nine --rate 2000 --json

\b
d-tx promises three zeros, the others promise nothing here; no engine may give one worker an event
twice. Exit code 1 if a promise was broken.
"""
)
@click.option(
    "--engine",
    default="all",
    show_default=True,
    metavar="NAME",
    help="The name of an engine, or all for those of this package.",
)
@click.option(
    "--events",
    type=click.IntRange(1),
    default=20_000,
    show_default=True,
    help="How many are published in all, by two publishers.",
)
@click.option(
    "--handovers",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="How often the stream changes hands meanwhile.",
)
@click.option(
    "--topology",
    default="three",
    show_default=True,
    metavar="NAME",
    help="The brokers: one, three, five, nine, or a .yaml, .yml or .json file.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="Publish so many events a second. [default: as many as the overlay takes]",
)
@click.option(
    "--seed",
    type=int,
    metavar="N",
    help="Draw the clients' brokers. [default: far apart]",
)
@click.option(
    "--wait-ms",
    type=click.FloatRange(0, min_open=True),
    metavar="MS",
    help="The wait of bl-wait; 'padres-tx calibrate' finds the smallest. [default: its own]",
)
@click.option(
    "--trace",
    "trace_directory",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIRECTORY",
    help="Let the brokers write their traces, and leave them there with their logs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as a JSON list.")
def handover(
    *,
    engine: str,
    events: int,
    handovers: int,
    topology: str,
    rate: float | None,
    seed: int | None,
    wait_ms: float | None,
    trace_directory: Path | None,
    as_json: bool,
) -> None:
    """Hand a stream of events from worker to worker by transactions, and count what goes astray.

    Starts the brokers of a topology as processes. Two publishers stream numbered plain events
    while two workers hand the stream to each other, as often as you say, by transactions of an
    engine. Clients sit at different brokers, as far as there are enough.
    """
    names = registry.by_promises(own=True) if engine == "all" else [engine]
    waits = registry.where(lambda engine: "wait_s" in engine.options)
    if wait_ms is not None and not set(names) & set(waits):
        raise WrongInput(f"--wait-ms is for {', '.join(waits)}, not for {engine}")
    try:
        scenario.check(names, events=events, handovers=handovers)
    except HandoverError as error:
        raise WrongInput(str(error)) from None
    terminal = Console(stderr=True)
    with (
        terminal.status("starting the brokers") as starting,
        launcher.overlay(
            topology, directory=trace_directory, trace=trace_directory is not None
        ) as running,
    ):
        starting.stop()  # A terminal has one live display at a time.
        with crashes_told(running):
            outcomes = run(
                terminal,
                running,
                names,
                events=events,
                handovers=handovers,
                rate=rate,
                seed=seed,
                wait_s=None if wait_ms is None else wait_ms / 1000,
            )
    if as_json:
        rows = [msgspec.to_builtins(outcome.row) for outcome in outcomes]
        click.echo(json.dumps(rows, indent=2))
    else:
        console = Console()
        console.print(table(outcome.row for outcome in outcomes))
        console.print(Text(EXPLANATION, "dim"))
    check(outcomes)


@contextmanager
def crashes_told(running: Running) -> Iterator[None]:
    """What clients run into because a broker has died ends as CheckFailed, with the broker's log.

    The log goes with the overlay, so this is the last chance to see it.
    """
    try:
        yield
    except OverlayError:
        for crash in running.crashes():
            raise CheckFailed(str(crash)) from None
        raise


def check(outcomes: Iterable[Outcome]) -> None:
    """Raises CheckFailed if an engine has broken a promise, and says how before that."""
    broken = [outcome for outcome in outcomes if outcome.broken]
    for outcome in broken:
        for line in (*outcome.broken, *outcome.faults):
            say(f"{outcome.row.engine}: {line}")
    if broken:
        names = ", ".join(outcome.row.engine for outcome in broken)
        raise CheckFailed(f"a promise was broken: {names}")
