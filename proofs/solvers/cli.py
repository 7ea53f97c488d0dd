"""`padres-tx prove`: check the specifications, the traces and the lemmas with TLC and Z3.

Only options, the table and exit codes are handled here; `prove` does the work.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from padres_tx.cli.common import CheckFailed, WrongInput
from padres_tx.java import NoJava

if TYPE_CHECKING:
    from proofs.solvers.prove import ClaimResult

#: A row of the table, printed as soon as it is known, because some claims take a minute.
ROW: Final = "{:<6}{:>9}{:>9}  {:<27}{:<27}{}"


def _row(found: ClaimResult) -> str:
    states = f"{found.states:,}" if found.states else ""
    mark = found.found if found.as_expected else f"{found.found} (!)"
    return ROW.format(found.kind, states, f"{found.seconds:.1f}", found.expected, mark, found.what)


@click.command(
    epilog="""
\b
Examples:
  padres-tx prove
  padres-tx prove --only DTx
  padres-tx prove --json

Needs the extra `proofs`: pip install 'padres-tx[proofs]'.
"""
)
@click.option("--only", default="", metavar="TEXT", help="Only claims with this text in the name.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=os.cpu_count() or 1,
    show_default="one per core",
    help="Number of claims to check at a time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def prove(*, only: str, jobs: int, as_json: bool) -> None:
    """Check the specifications of the engines, traces of real runs, and the lemmas.

    Each claim has an expected result: models with all rules hold, and models without one rule
    violate a named property. Exit code 1 if a result is not as expected.
    """
    try:
        from proofs.solvers.prove import claims, prove_all
        from proofs.solvers.tlc import NoTLC, TLCFailed
    except ModuleNotFoundError as error:
        raise WrongInput(f"{error.name} is missing; pip install 'padres-tx[proofs]'") from None
    try:
        listed = [claim for claim in claims() if only in f"{claim.kind} {claim.what}"]
    except ModuleNotFoundError as error:
        raise WrongInput(f"{error.name} is missing; pip install 'padres-tx[proofs]'") from None
    except (NoTLC, NoJava) as error:
        raise WrongInput(str(error)) from None
    if not listed:
        raise WrongInput(f"no claim has {only!r} in its name")
    console = Console(stderr=True)
    columns = (TextColumn("proving"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    results = []
    try:
        with Progress(*columns, console=console, transient=True, disable=as_json) as progress:
            bar = progress.add_task("", total=len(listed))
            if not as_json:
                click.echo(ROW.format("by", "states", "seconds", "expected", "found", "what"))
            for found in prove_all(listed, jobs):
                results.append(found)
                progress.advance(bar)
                if not as_json:
                    click.echo(_row(found))
    except TLCFailed as error:
        raise CheckFailed(str(error)) from None
    if as_json:
        rows = [found._asdict() | {"as_expected": found.as_expected} for found in results]
        click.echo(msgspec.json.encode(rows).decode())
    wrong = sum(not found.as_expected for found in results)
    if wrong:
        raise CheckFailed(f"{wrong} of {len(results)} are not as expected")
