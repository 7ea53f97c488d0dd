"""`padres-tx demo`: the tour of `padres_tx.scenarios.demo`, then a short comparison of the engines.

The comparison is the plug-in command `experiment`; this package must not import it.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

import click
from rich.console import Console

from padres_tx.cli.common import CheckFailed


@click.command(
    epilog="""
\b
Examples:
  padres-tx demo
  padres-tx demo --story
  padres-tx demo --out my-first-comparison
"""
)
@click.option("--story", is_flag=True, help="Run only the first part, which takes half a minute.")
@click.option(
    "--out",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the comparison and its report to DIR. [default: a new temporary directory]",
)
def demo(*, story: bool, directory: Path | None) -> None:
    """Show routing by content, a handover of a stream, and the cost of each engine.

    The comparison of the engines is a short version of 'padres-tx experiment run base'; Spark
    makes a report of it. The demo takes some minutes and leaves nothing running. Exit code 1 if a
    promise was broken.
    """
    from padres_tx.scenarios import demo as tour

    console = Console(highlight=False)
    if not tour.run(console):
        raise CheckFailed("a promise was broken; see the lines marked '!' above")
    report = None
    if not story:
        directory = directory or Path(tempfile.mkdtemp(prefix="padres-tx-demo-"))
        report = _compare(console, directory)
    console.print()
    console.print("Now try it yourself, in three terminals:")
    for command in (
        "padres-tx up three",
        "padres-tx sub \"[class,eq,'order'],[price,>,100]\" --broker B3",
        "padres-tx pub \"[class,'order'],[price,150]\" --payload hello",
    ):
        console.print(f"  {command}", markup=False)
    console.print("Or a longer handover, on more brokers:")
    console.print("  padres-tx handover --engine d-tx --topology nine", markup=False)
    if report is not None:
        console.print(f"\nReport: {report}", markup=False, soft_wrap=True)


def _compare(console: Console, directory: Path) -> Path | None:
    """Run the comparison and make its report; returns the path of the report, if there is one."""
    console.rule("[bold]6. The cost of each engine")
    console.print(
        "Each engine does the same work: an environment, a dispatcher and two agents, in a process "
        "of their own, dispatch workflow instances over three brokers whose links have a delay of "
        "5 ms. bl-wait is measured twice: with the smallest wait that works here, and with the "
        "smallest multiple of 50 ms that does. This takes a minute or two."
    )
    # Spark needs as long for traces as for everything else; the clients' records are checked
    # without them.
    _experiment("run", "base", "--quick", "--no-trace", "--out", str(directory))
    if importlib.util.find_spec("pyspark") is None:
        console.print("\nThe report needs Spark: pip install 'padres-tx\\[spark]', then run")
        console.print(f"  padres-tx experiment report {directory}", markup=False, soft_wrap=True)
        return None
    console.rule("[bold]7. A report of the clients' records, made by Spark")
    _experiment("report", str(directory))
    return (directory / "report" / "index.html").absolute()


def _experiment(*arguments: str) -> None:
    from padres_tx.cli.main import main

    command = main.get_command(click.Context(main), "experiment")
    if command is None:
        raise CheckFailed("this installation has no 'experiment' command")
    command.main(list(arguments), prog_name="padres-tx experiment", standalone_mode=False)
