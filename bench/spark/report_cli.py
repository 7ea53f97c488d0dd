"""`padres-tx experiment report`: the Spark job, and the page made from its results."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from padres_tx.cli.common import WrongInput


@click.command(
    epilog="""
\b
Examples:
  padres-tx experiment report base-quick
  padres-tx experiment report paper --master spark://host:7077
"""
)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--master", metavar="URL", help="A Spark master.  [default: local[*]]")
@click.option(
    "--redraw", is_flag=True, help="Write the page again from existing results, without Spark."
)
@click.option("--strict", is_flag=True, help="Exit with code 1 if a claim did not hold.")
def report(directory: Path, *, master: str | None, redraw: bool, strict: bool) -> None:
    """Aggregate an experiment's records and write DIRECTORY/report/index.html.

    Tables are in DIRECTORY/results, as Parquet and CSV. The workers of a cluster have to see the
    directory under the same path.
    """
    from bench.report import page
    from bench.report.claims import claims
    from bench.report.results import NoResults, load

    if not redraw:
        _aggregate(directory, master)
    try:
        results = load(directory)
    except NoResults as error:
        raise WrongInput(str(error)) from None
    path = page.write(results)
    judged = claims(results)
    for claim in judged:
        click.echo(f"{claim.verdict}: {claim.what}: {claim.seen or claim.note}")
    skipped = results.skipped
    if len(skipped):
        lines = int(skipped["lines"].sum())
        click.echo(
            f"skipped: {len(skipped)} files or runs, {lines} lines (see the report)", err=True
        )
    click.echo(str(path))
    if strict and page.missed(judged):
        raise click.exceptions.Exit(1)


def _aggregate(directory: Path, master: str | None) -> None:
    from bench.spark import job, records
    from bench.spark.session import SMALL, SMALL_BYTES, SparkError, session

    try:
        experiment = records.look_into(directory)
    except records.DirectoryError as error:
        raise WrongInput(str(error)) from None
    small = master is None and experiment.size_bytes() <= SMALL_BYTES
    console = Console(stderr=True)
    with console.status("starting Spark") as status:
        try:
            with session(master, settings=SMALL if small else None) as spark:
                job.run(spark, experiment, status.update)
        except SparkError as error:
            raise WrongInput(str(error)) from None
