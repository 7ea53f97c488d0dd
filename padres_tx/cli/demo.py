"""`padres-tx demo`: the first look; the story is `scenarios.demo`'s, the comparison `experiment`'s.

What compares the engines comes through the plug-in commands: this package must not know it.
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
@click.option("--story", is_flag=True, help="Only the first part, of half a minute.")
@click.option(
    "--out",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the comparison and its report go. [default: a new temporary directory]",
)
def demo(*, story: bool, directory: Path | None) -> None:
    """Start three brokers, see who gets what and why, a stream that changes hands, and what each
    engine costs.

    The comparison is the short version of 'padres-tx experiment run base', made into a report by
    Spark. It takes some minutes and leaves nothing running. Exit code 1 if a promise was broken.
    """
    from padres_tx.scenarios import demo as first_look

    console = Console(highlight=False)
    if not first_look.run(console):
        raise CheckFailed("a publication did not go where it should have gone; see above")
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
    console.print("Or hand over more, on more brokers:")
    console.print("  padres-tx handover --engine d-tx --topology nine", markup=False)
    if report is not None:
        console.print(f"\nThe report: {report}", markup=False, soft_wrap=True)


def _compare(console: Console, directory: Path) -> Path | None:
    """Run the comparison and report on it; answers where the report is, if there can be one."""
    console.rule("[bold]6. What it costs")
    console.print(
        "The same work for each engine: an environment, a dispatcher and two agents, in a process "
        "of their own, dispatch workflow instances over three brokers whose links take 5 ms. "
        "bl-wait is measured twice, with the smallest wait that works here, and with the smallest "
        "multiple of 50 ms. It takes a minute or two."
    )
    # Traces take Spark as long again as all the rest; what clients see is checked without them.
    _experiment("run", "base", "--quick", "--no-trace", "--out", str(directory))
    if importlib.util.find_spec("pyspark") is None:
        console.print("\nThe report needs Spark: pip install 'padres-tx\\[spark]', and then")
        console.print(f"  padres-tx experiment report {directory}", markup=False, soft_wrap=True)
        return None
    console.rule("[bold]7. Spark makes a report of what the clients have recorded")
    _experiment("report", str(directory))
    return (directory / "report" / "index.html").absolute()


def _experiment(*arguments: str) -> None:
    from padres_tx.cli.main import main

    command = main.get_command(click.Context(main), "experiment")
    if command is None:
        raise CheckFailed("this installation has no 'experiment' command")
    command.main(list(arguments), prog_name="padres-tx experiment", standalone_mode=False)
