"""`padres-tx demo`: the first look; the story is `padres_tx.demo`'s."""

from __future__ import annotations

import click
from rich.console import Console

from padres_tx.cli.common import CheckFailed


@click.command(
    epilog="""
\b
Example:
  padres-tx demo
"""
)
def demo() -> None:
    """Start three brokers, see who gets what and why, and a stream that changes hands.

    It takes half a minute at most and leaves nothing behind. Exit code 1 if a promise was broken.
    """
    from padres_tx import demo as story

    console = Console(highlight=False)
    if not story.run(console):
        raise CheckFailed("a publication did not go where it should have gone; see above")
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
