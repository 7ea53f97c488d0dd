"""`padres-tx status`: query the brokers of an overlay and print their status.

The brokers are those of an overlay that `up` has started, those of a topology file, or those at the
given addresses. The launcher's state file explains why a broker does not reply; a broker that
replies is up, however it was started.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
import msgspec
from rich.console import Console
from rich.text import Text

from padres_tx.cli.common import CheckFailed, WrongInput, note, overlay_option
from padres_tx.cli.durability_table import show_durability
from padres_tx.cli.layout import Column, TableCell, show
from padres_tx.client.asyncio.channel import parse_address
from padres_tx.launcher import processes
from padres_tx.launcher.broker_status import BrokerStatus, query_all
from padres_tx.launcher.overlay_files import BrokerRecord, OverlayFiles, OverlayRecord
from padres_tx.launcher.overlay_processes import ending
from topologies import load

#: Any other state is explained below the table.
STATE_STYLES = {"up": "green", "down": "red"}
OTHER_STATE_STYLE = "yellow"

COLUMNS = (
    Column("broker"),
    Column("address"),
    Column("neighbours", "text"),
    Column("pid", "number"),
    Column("state"),
)
COUNTERS = (Column("clients", "number"), Column("in", "number"), Column("out", "number"))


class ExpectedBroker(NamedTuple):
    """A broker that is expected at an address; the other fields may be unknown."""

    address: str
    name: str = ""
    neighbours: tuple[str, ...] = ()
    record: BrokerRecord | None = None


@click.command(
    epilog="""
\b
Examples:
  padres-tx status
  padres-tx status --overlay second --json
  padres-tx status --topology mine.yaml
  padres-tx status --at 10.0.0.1:7001 --at 10.0.0.2:7002
"""
)
@overlay_option
@click.option(
    "--topology",
    metavar="TOPOLOGY",
    help="Query the brokers at the addresses in this topology, however they were started.",
)
@click.option(
    "--at",
    metavar="HOST:PORT",
    multiple=True,
    help="Query the broker at this address; may be given several times.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
def status(
    *, overlay: str | None, topology: str | None, at: tuple[str, ...], as_json: bool
) -> None:
    """Show the status of the brokers of an overlay.

    Below the table: where the brokers keep their state; in disk mode how many inputs each has
    taken, how many its last snapshot holds and how old that is, the size of its log, and for how
    long an input has been waiting for the disk. Then problems: why a broker is not up, a second
    process with a broker's name, a log that cannot be written, a trace that was switched off, lost
    log lines, connections refused for lack of capacity.

    Exit code 1 if a broker or one of its links is not up.
    """
    if sum(given is not None for given in (overlay, topology, at or None)) > 1:
        raise WrongInput("--overlay, --topology and --at cannot be combined")
    if topology is not None:
        tree = load(topology)
        expected = [
            ExpectedBroker(broker.address, broker.name, tree.neighbours(broker.name))
            for broker in tree.brokers
        ]
        about: dict[str, Any] = {"name": tree.name, "topology": tree.name}
        up = show_status(expected, about, f"topology {tree.name}", as_json=as_json, counters=True)
    elif at:
        # Raises BadAddress, before any broker is queried.
        expected = [ExpectedBroker(str(parse_address(address))) for address in dict.fromkeys(at)]
        up = show_status(expected, {}, "brokers", as_json=as_json, counters=True)
    else:
        record = OverlayFiles(notice=note).find(overlay)
        up = show_overlay(record, as_json=as_json, counters=True) and record.phase == "up"
    if not up:
        raise SystemExit(CheckFailed.exit_code)


def show_overlay(record: OverlayRecord, *, as_json: bool, counters: bool = False) -> bool:
    """Print the status of an overlay of this machine; returns whether all its brokers are up."""
    expected = [
        ExpectedBroker(broker.address, broker.name, broker.neighbours, broker)
        for broker in record.brokers
    ]
    about = {
        "name": record.name,
        "topology": record.topology,
        "phase": record.phase,
        "launcher_pid": record.launcher.pid,
        "directory": record.directory,
    }
    title = f"overlay {record.name} ({record.phase})"
    return show_status(expected, about, title, as_json=as_json, counters=counters)


def show_status(
    expected: Sequence[ExpectedBroker],
    about: dict[str, Any],
    title: str,
    *,
    as_json: bool,
    counters: bool,
) -> bool:
    """Query brokers and print their status; returns whether all are up."""
    statuses = query_all({broker.address: broker.address for broker in expected})
    views = [view(broker, statuses[broker.address]) for broker in expected]
    if as_json:
        click.echo(json.dumps({**about, "brokers": views}, indent=2))
    else:
        console = Console()
        columns = (*COLUMNS, *COUNTERS) if counters else COLUMNS
        show(console, columns, [_row(each, counters=counters) for each in views], title)
        if counters:
            replied = [status for status in statuses.values() if isinstance(status, BrokerStatus)]
            show_durability(console, {status.broker: status.durability for status in replied})
        for each in views if counters else ():
            used = [f"{name} {u['used']}/{u['limit']}" for name, u in each.get("usage", {}).items()]
            if used:
                console.print(Text(f"{each['name']}: {', '.join(used)}"), soft_wrap=True)
        for each in views:
            problem = [f"{each['state']}: {each['problem']}"] if each["problem"] else []
            for line in (*problem, *each.get("warnings", ())):
                console.print(Text(f"{each['name']}: {line}", "yellow"), soft_wrap=True)
    return all(each["state"] == "up" for each in views)


def view(expected: ExpectedBroker, status: BrokerStatus | str) -> dict[str, Any]:
    """Return one broker as data: what was known beforehand, and what it reports itself."""
    record = expected.record
    found: dict[str, Any] = {
        "name": expected.name or expected.address,
        "address": expected.address,
        "neighbours": list(expected.neighbours),
        "pid": None if record is None else record.process.pid,
        "state": "up",
        "problem": "",
    }
    if record is not None:
        found["log"] = record.log
    if isinstance(status, str):
        return found | _silence(record, status)
    if expected.name and status.broker != expected.name:
        return found | {"state": "down", "problem": f"broker {status.broker} is at its address"}
    found |= {
        "name": status.broker,
        "neighbours": [link.neighbour for link in status.links],
        "pid": status.pid,
        "uptime_s": status.uptime_s,
        "clients": [client.client for client in status.clients],
        "messages_in": status.messages_in,
        "messages_out": status.messages_out,
        "unreachable": [missing.broker for missing in status.unreachable],
        "usage": {each.name: {"used": each.used, "limit": each.limit} for each in status.usage},
        "durability": msgspec.to_builtins(status.durability),
        "warnings": status.warnings,
    }
    if status.missing:
        found |= {"state": "linking", "problem": f"no link to {', '.join(status.missing)}"}
    if record is not None and record.process.pid != status.pid:
        # The launcher's process has ended, and the broker was started again by hand.
        found["warnings"] = [
            *status.warnings,
            f"runs as process {status.pid}, which was not started by the launcher",
        ]
    return found


def _silence(record: BrokerRecord | None, reason: str) -> dict[str, Any]:
    """Return the state of a broker that does not reply."""
    if record is not None and record.exit_code is not None:
        return {"state": "down", "problem": ending(record.exit_code)}
    if record is not None and not processes.alive(record.process):
        return {"state": "down", "problem": "its process has ended"}
    return {"state": "silent", "problem": reason}


def _row(found: dict[str, Any], *, counters: bool) -> list[TableCell]:
    row = [
        TableCell(found["name"]),
        TableCell(found["address"]),
        TableCell(" ".join(found["neighbours"])),
        TableCell("" if found["pid"] is None else str(found["pid"])),
        TableCell(found["state"], STATE_STYLES.get(found["state"], OTHER_STATE_STYLE)),
    ]
    if counters:
        clients = found.get("clients")
        row.append(TableCell("" if clients is None else str(len(clients))))
        row += [TableCell(str(found.get(key, ""))) for key in ("messages_in", "messages_out")]
    return row
