"""`padres-tx experiment compare`: the changes beyond noise, as a table or as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.report.compare import VALUES, Comparison, Difference
from bench.report.compare import compare as compare_results
from bench.report.results import NoResults, Results, load
from padres_tx.cli.common import WrongInput


@click.command(
    epilog="""
\b
Examples:
  padres-tx experiment compare before after
  padres-tx experiment compare before after --json
"""
)
@click.argument("one", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path))
@click.option("--all", "show_all", is_flag=True, help="Also show values within noise.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object and nothing else.")
def compare(one: Path, other: Path, *, show_all: bool, as_json: bool) -> None:
    """Report how OTHER differs from ONE, beyond the noise of repetitions.

    Both must have results ('padres-tx experiment report'). Exit codes: 0 no change beyond noise,
    1 at least one, 2 the two cannot be compared.
    """
    found = compare_results(_load(one), _load(other))
    if not found.differences:
        raise WrongInput("the two experiments have no point in common")
    if as_json:
        data: dict[str, Any] = {
            "differences": [each.as_data() for each in found.differences],
            "only_one": found.only_one,
            "only_other": found.only_other,
        }
        click.echo(json.dumps(data, indent=2, default=_as_plain))
    else:
        _print(found, show_all=show_all)
    if found.changed:
        raise click.exceptions.Exit(1)


def _load(directory: Path) -> Results:
    try:
        return load(directory)
    except NoResults as error:
        raise WrongInput(str(error)) from None


def _as_plain(value: Any) -> Any:
    # The numbers of a table are numpy's.
    return value.item()


def _print(found: Comparison, *, show_all: bool) -> None:
    console = Console()
    shown = found.differences if show_all else found.changed
    if shown:
        table = Table()
        for head in ("point", "value"):
            table.add_column(head)
        for head in ("one", "other", "ratio", "p"):
            table.add_column(head, justify="right")
        table.add_column("verdict")
        for each in shown:
            chance = "" if each.probability is None else f"{each.probability:.2g}"
            cells = [_name(each), VALUES[each.value], str(each.one), str(each.other)]
            cells += [f"{each.ratio:.2f}", chance, each.verdict]
            # Names from files must not be taken for markup.
            table.add_row(*(Text(cell) for cell in cells))
        console.print(table)
    unknown = sum(each.probability is None for each in found.differences)
    click.echo(
        f"{len(found.changed)} of {len(found.differences)} values changed beyond noise"
        + (f"; {unknown} cannot be judged: they have one repetition only" if unknown else "")
    )
    for points, where in ((found.only_one, "the first"), (found.only_other, "the second")):
        if points:
            click.echo(f"{len(points)} points are in {where} only")


def _name(each: Difference) -> str:
    point = each.point
    parts = [point["experiment"], point["series"], point["topology"]]
    parts += [f"c{point['concurrency']}", f"{point['clients']} clients", point["variant"]]
    return " ".join(str(part) for part in parts if part)
