"""`padres-tx tables`: what a broker knows, as tables.

What the tables mean is `overlay.tables.routing`'s; here they are printed.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from padres_tx.cli.common import Place, WrongInput, find_place, overlay_option
from padres_tx.cli.layout import Cell, Column, show
from padres_tx.client.asyncio.operator import operator

#: Rows that are printed unless more are asked for: what a person can scroll through.
ROWS_SHOWN = 10_000

_ENTRY = {
    "kind": Column(""),
    "filter": Column("filter", "text"),
    "client": Column("client"),
    "seq": Column("number", "number"),
    "hop": Column("from"),
}

#: Title of each table in a broker's report, and what its columns are called here.
TABLES = {
    "srt": (
        "SRT: advertisements, and where they came from",
        _ENTRY,
    ),
    "prt": (
        "PRT: subscriptions, and where they came from",
        _ENTRY,
    ),
    "clients": (
        "Clients, their brokers, and the way there",
        {"client": Column("client"), "edge": Column("at broker"), "hop": Column("by way of")},
    ),
}


@click.command(
    epilog="""
\b
Examples:
  padres-tx tables B2
  padres-tx tables B2 --matching "[class,'order'],[price,150]"
  padres-tx tables B2 --client shop --json
  padres-tx tables --at 127.0.0.1:7002

\b
Where something came from is a neighbour's name, or @client for a client of this broker.
Publications go where the subscriptions that want them came from.
"""
)
@click.argument("broker", metavar="[BROKER]", required=False)
@overlay_option
@click.option("--at", metavar="HOST:PORT", help="Ask the broker at this address instead.")
@click.option("--client", default="", metavar="NAME", help="Only entries of this client.")
@click.option("--hop", default="", metavar="HOP", help="Only what came from here.")
@click.option(
    "--matching",
    default="",
    metavar="PUBLICATION",
    help="Only entries whose filter contains this publication.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=ROWS_SHOWN,
    show_default=True,
    help="Print at most so many rows.",
)
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def tables(
    broker: str | None,
    *,
    overlay: str | None,
    at: str | None,
    client: str,
    hop: str,
    matching: str,
    limit: int,
    as_json: bool,
) -> None:
    """Show the routing tables and clients of BROKER."""
    if broker is None and at is None:
        raise WrongInput("say which broker: its name, or --at HOST:PORT")
    place = find_place(overlay, broker, at)
    wanted = {"client": client, "hop": hop, "matching": matching, "limit": limit}
    report = asyncio.run(_report(place, wanted))
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        _print(report, Console())


async def _report(place: Place, wanted: dict[str, Any]) -> dict[str, Any]:
    async with operator(place.address, retry=False) as somebody:
        return await somebody.tables(**wanted)


def _print(report: dict[str, Any], console: Console) -> None:
    console.print(Text(f"broker {report['broker']}", "bold"))
    for key, (title, columns) in TABLES.items():
        rows = report[key]
        if not rows:
            console.print(Text(f"{title}: none", "dim"))
            continue
        rows = [
            {**row, "kind": f"{row['kind']}, events only"} if row.get("events") else row
            for row in rows
        ]
        cells = [[Cell(str(row[field])) for field in columns] for row in rows]
        show(console, list(columns.values()), cells, title)
    if not report["complete"]:
        console.print(Text("There are more rows: choose some, or raise --limit.", "yellow"))
