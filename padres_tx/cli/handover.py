"""`padres-tx handover`: hand a stream over between two workers, and count the events that go wrong.

The scenario and its judge are in `padres_tx.scenarios`; this module handles arguments, output and
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
from padres_tx.cli.common import CheckFailed, WrongInput, durability_option, note
from padres_tx.launcher import Running
from padres_tx.scenarios import handover as scenario
from padres_tx.scenarios.handover import HandoverError, HandoverOutcome
from padres_tx.scenarios.handover_table import EXPLANATION, run, table
from topologies import Durability, load


@click.command(
    epilog="""
\b
Examples:
  padres-tx handover
  padres-tx handover --engine d-tx --events 20000 --handovers 50
  padres-tx handover --engine s-tx --topology nine --rate 2000 --json
  padres-tx handover --engine d-tx --durability disk --kill-brokers 10

\b
d-tx promises that no event is lost, doubled or misrouted. The other engines promise only that no
worker receives an event twice. Exit code 1 if a promise was broken.
"""
)
@click.option(
    "--engine",
    default="all",
    show_default=True,
    metavar="NAME",
    help="The name of an engine, or all for the four engines of this package.",
)
@click.option(
    "--events",
    type=click.IntRange(1),
    default=20_000,
    show_default=True,
    help="The number of events, published by two publishers.",
)
@click.option(
    "--handovers",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="The number of handovers.",
)
@click.option(
    "--topology",
    default="three",
    show_default=True,
    metavar="NAME",
    help="The topology: one, three, five, nine, or a .yaml, .yml or .json file.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="Publish N events per second. [default: as many as the overlay accepts]",
)
@click.option(
    "--seed",
    type=int,
    metavar="N",
    help="Connect clients to random brokers. [default: to distant brokers]",
)
@click.option(
    "--wait-ms",
    type=click.FloatRange(0, min_open=True),
    metavar="MS",
    help="The wait of bl-wait; 'padres-tx calibrate' finds the smallest. [default: the engine's]",
)
@durability_option
@click.option(
    "--kill-brokers",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="In each run kill a random broker N times, and start it again. Needs --durability disk.",
)
@click.option(
    "--kill-all",
    is_flag=True,
    help="In each run kill all brokers at once, one time. Needs --durability disk.",
)
@click.option(
    "--trace",
    "trace_directory",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIRECTORY",
    help="Write the brokers' traces and logs to DIRECTORY.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as a JSON list.")
def handover(
    *,
    engine: str,
    events: int,
    handovers: int,
    topology: str,
    rate: float | None,
    seed: int | None,
    wait_ms: float | None,
    durability: Durability | None,
    kill_brokers: int,
    kill_all: bool,
    trace_directory: Path | None,
    as_json: bool,
) -> None:
    """Hand a stream over between two workers, and count lost, doubled and misrouted events.

    The command starts the brokers of a topology as processes. Two publishers publish numbered
    plain events while two workers hand the stream to each other with transactions of an engine.
    Clients connect to different brokers if there are enough.

    Brokers can be killed with SIGKILL meanwhile, at random moments that depend on the seed. In disk
    mode that changes no count. (In memory mode a killed broker forgets everything, so there is
    nothing to check.)
    """
    tree = load(topology)
    if durability is not None:
        tree = tree.model_copy(update={"durability": durability})
    if (kill_brokers or kill_all) and tree.durability != "disk":
        raise WrongInput(
            "--kill-brokers and --kill-all need --durability disk: a broker that is killed in "
            "memory mode forgets everything"
        )
    names = registry.by_promises(own=True) if engine == "all" else [engine]
    waits = registry.where(lambda engine: "wait_s" in engine.options)
    if wait_ms is not None and not set(names) & set(waits):
        raise WrongInput(
            f"--wait-ms cannot be used with {engine}: expected {', '.join(waits)} or all"
        )
    try:
        scenario.check(names, events=events, handovers=handovers)
    except HandoverError as error:
        raise WrongInput(str(error)) from None
    terminal = Console(stderr=True)
    with (
        terminal.status("starting the brokers") as starting,
        launcher.overlay(
            tree, directory=trace_directory, trace=trace_directory is not None
        ) as running,
    ):
        starting.stop()  # A terminal can show one live display at a time.
        with crashes_reported(running):
            outcomes = run(
                terminal,
                running,
                names,
                events=events,
                handovers=handovers,
                rate=rate,
                seed=seed,
                wait_s=None if wait_ms is None else wait_ms / 1000,
                kill_brokers=kill_brokers,
                kill_all=kill_all,
            )
    if as_json:
        rows = [msgspec.to_builtins(outcome.counts) for outcome in outcomes]
        click.echo(json.dumps(rows, indent=2))
    else:
        console = Console()
        console.print(table(outcome.counts for outcome in outcomes))
        console.print(Text(EXPLANATION, "dim"))
    check(outcomes)


@contextmanager
def crashes_reported(running: Running) -> Iterator[None]:
    """Turn the errors of clients whose broker has crashed into CheckFailed, with the broker's log.

    The log is deleted with the overlay, so it has to be shown now.
    """
    try:
        yield
    except OverlayError:
        for crash in running.crashes():
            raise CheckFailed(str(crash)) from None
        raise


def check(outcomes: Iterable[HandoverOutcome]) -> None:
    """Raise CheckFailed if an engine has broken a promise, after printing the details."""
    broken = [outcome for outcome in outcomes if outcome.broken]
    for outcome in broken:
        for line in (*outcome.broken, *outcome.faults):
            note(f"{outcome.counts.engine}: {line}")
    if broken:
        names = ", ".join(outcome.counts.engine for outcome in broken)
        raise CheckFailed(f"broken promises: {names}")
