"""`padres-tx tables`: print the routing tables and clients of a broker.

`overlay.tables.routing` explains what the tables mean.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.text import Text

from padres_tx.cli.common import SelectedBroker, WrongInput, overlay_option, select_broker
from padres_tx.cli.durability_table import show_durability
from padres_tx.cli.layout import Column, TableCell, show
from padres_tx.client.asyncio.operator import operator
from padres_tx.launcher.broker_status import DurabilityStatus, query

#: Default limit of printed rows: as many as a person can scroll through.
ROWS_SHOWN = 10_000

_ENTRY = {
    "kind": Column(""),
    "filter": Column("filter", "text"),
    "client": Column("client"),
    "seq": Column("number", "number"),
    "hop": Column("last hop"),
}

#: Title and columns of each table in a broker's report.
TABLES = {
    "srt": (
        "SRT: advertisements and their last hops",
        _ENTRY,
    ),
    "prt": (
        "PRT: subscriptions and their last hops",
        _ENTRY,
    ),
    "clients": (
        "Clients, their edge brokers, and the next hop to them",
        {"client": Column("client"), "edge": Column("edge broker"), "hop": Column("next hop")},
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
A last hop is the neighbour that an entry came from, or @client for a client of this broker.
A publication is forwarded to the last hops of the subscriptions that match it.
"""
)
@click.argument("broker", metavar="[BROKER]", required=False)
@overlay_option
@click.option("--at", metavar="HOST:PORT", help="Query the broker at this address instead.")
@click.option("--client", default="", metavar="NAME", help="Print only entries of this client.")
@click.option("--hop", default="", metavar="HOP", help="Print only entries with this last hop.")
@click.option(
    "--matching",
    default="",
    metavar="PUBLICATION",
    help="Print only entries whose filter matches this publication.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=ROWS_SHOWN,
    show_default=True,
    help="Print at most this many rows.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the tables as JSON.")
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
        raise WrongInput("no broker given: expected its name or --at HOST:PORT")
    selected = select_broker(overlay, broker, at)
    wanted = {"client": client, "hop": hop, "matching": matching, "limit": limit}
    report, durability = asyncio.run(_query(selected, wanted))
    if as_json:
        report["durability"] = msgspec.to_builtins(durability)
        click.echo(json.dumps(report, indent=2))
    else:
        _print(report, durability, Console())


async def _query(
    selected: SelectedBroker, wanted: dict[str, Any]
) -> tuple[dict[str, Any], DurabilityStatus]:
    async with operator(selected.address, retry=False) as broker:
        return await broker.tables(**wanted), (await query(broker)).durability


def _print(report: dict[str, Any], durability: DurabilityStatus, console: Console) -> None:
    console.print(Text(f"broker {report['broker']}", "bold"))
    show_durability(console, {report["broker"]: durability})
    for key, (title, columns) in TABLES.items():
        rows = report[key]
        if not rows:
            console.print(Text(f"{title}: none", "dim"))
            continue
        rows = [
            {**row, "kind": f"{row['kind']}, events only"} if row.get("events") else row
            for row in rows
        ]
        cells = [[TableCell(str(row[field])) for field in columns] for row in rows]
        show(console, list(columns.values()), cells, title)
    if not report["complete"]:
        console.print(
            Text(
                "There are more rows: raise --limit, or use --client, --hop or --matching.",
                "yellow",
            )
        )
