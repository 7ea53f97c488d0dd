"""`padres-tx status`: how the brokers of an overlay are, by what they say themselves.

The brokers are those of an overlay that `up` has started, those of a topology file that run
wherever it says, or those at some addresses. What a launcher has written down explains a broker
that does not answer; one that answers is up, whoever has started it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.text import Text

from padres_tx.cli.common import CheckFailed, WrongInput, say
from padres_tx.cli.layout import Cell, Column, show
from padres_tx.client.asyncio.channel import parse_address
from padres_tx.launcher import processes
from padres_tx.launcher.broker_status import Status, survey
from padres_tx.launcher.overlay_files import BrokerRecord, OverlayRecord, Registry
from padres_tx.launcher.overlay_processes import ending
from topologies import load

#: For a state that is neither of these, see the text below the table.
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


class Expected(NamedTuple):
    """A broker that should be at an address; "" and None where that is not known beforehand."""

    address: str
    name: str = ""
    neighbours: tuple[str, ...] = ()
    record: BrokerRecord | None = None


@click.command(
    epilog="""
\b
Examples:
  padres-tx status
  padres-tx status --name second --json
  padres-tx status --topology mine.yaml
  padres-tx status --at 10.0.0.1:7001 --at 10.0.0.2:7002
"""
)
@click.option(
    "--name",
    "--overlay",
    "name",
    metavar="NAME",
    help="Which overlay is meant. [default: the only one]",
)
@click.option(
    "--topology",
    metavar="TOPOLOGY",
    help="Ask the brokers of this topology where it says that they are, however they were started.",
)
@click.option(
    "--at",
    metavar="HOST:PORT",
    multiple=True,
    help="Ask the broker at this address, and no overlay; may be given several times.",
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def status(*, name: str | None, topology: str | None, at: tuple[str, ...], as_json: bool) -> None:
    """Ask the brokers of an overlay how they are.

    Below the table stands what needs a person: why a broker is not up, a second process under a
    broker's name, a trace that is switched off, log lines that were lost, connections that were
    refused for want of room.

    Exit code 1 if one of the brokers is not up, with all its links.
    """
    if sum(given is not None for given in (name, topology, at or None)) > 1:
        raise WrongInput("give one of --name, --topology and --at: each says it all")
    if topology is not None:
        tree = load(topology)
        expected = [
            Expected(broker.address, broker.name, tree.neighbours(broker.name))
            for broker in tree.brokers
        ]
        about: dict[str, Any] = {"name": tree.name, "topology": tree.name}
        up = show_status(expected, about, f"topology {tree.name}", as_json=as_json, counters=True)
    elif at:
        # Raises BadAddress: what is no address cannot be asked.
        expected = [Expected(str(parse_address(address))) for address in dict.fromkeys(at)]
        up = show_status(expected, {}, "brokers", as_json=as_json, counters=True)
    else:
        record = Registry(notice=say).find(name, option="--name")
        up = show_overlay(record, as_json=as_json, counters=True) and record.phase == "up"
    if not up:
        raise SystemExit(CheckFailed.exit_code)


def show_overlay(record: OverlayRecord, *, as_json: bool, counters: bool = False) -> bool:
    """Print how an overlay of this machine is; returns whether all of its brokers are up."""
    expected = [
        Expected(broker.address, broker.name, broker.neighbours, broker)
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
    expected: Sequence[Expected],
    about: dict[str, Any],
    title: str,
    *,
    as_json: bool,
    counters: bool,
) -> bool:
    """Ask brokers and print how they are; returns whether all are up."""
    answers = survey({broker.address: broker.address for broker in expected})
    views = [view(broker, answers[broker.address]) for broker in expected]
    if as_json:
        click.echo(json.dumps({**about, "brokers": views}, indent=2))
    else:
        console = Console()
        columns = (*COLUMNS, *COUNTERS) if counters else COLUMNS
        show(console, columns, [_row(each, counters=counters) for each in views], title)
        for each in views:
            problem = [f"{each['state']}: {each['problem']}"] if each["problem"] else []
            for told in (*problem, *each.get("warnings", ())):
                console.print(Text(f"{each['name']}: {told}", "yellow"), soft_wrap=True)
    return all(each["state"] == "up" for each in views)


def view(expected: Expected, answer: Status | str) -> dict[str, Any]:
    """One broker, as data: what is known of it, and what it says itself."""
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
    if isinstance(answer, str):
        return found | _silence(record, answer)
    if expected.name and answer.broker != expected.name:
        return found | {"state": "down", "problem": f"broker {answer.broker} is at its address"}
    found |= {
        "name": answer.broker,
        "neighbours": [link.neighbour for link in answer.links],
        "pid": answer.pid,
        "uptime_s": answer.uptime_s,
        "clients": [client.client for client in answer.clients],
        "messages_in": answer.messages_in,
        "messages_out": answer.messages_out,
        "unreachable": [missing.broker for missing in answer.unreachable],
        "warnings": answer.warnings,
    }
    if answer.missing:
        found |= {"state": "linking", "problem": f"no link to {', '.join(answer.missing)}"}
    if record is not None and record.process.pid != answer.pid:
        # Its launcher's process has ended, and somebody has started another.
        found["warnings"] = [
            *answer.warnings,
            f"runs as process {answer.pid}, which the launcher has not started",
        ]
    return found


def _silence(record: BrokerRecord | None, reason: str) -> dict[str, Any]:
    """The state of a broker that does not answer."""
    if record is not None and record.exit_code is not None:
        return {"state": "down", "problem": ending(record.exit_code)}
    if record is not None and not processes.alive(record.process):
        return {"state": "down", "problem": "its process has gone"}
    return {"state": "silent", "problem": reason}


def _row(found: dict[str, Any], *, counters: bool) -> list[Cell]:
    row = [
        Cell(found["name"]),
        Cell(found["address"]),
        Cell(" ".join(found["neighbours"])),
        Cell("" if found["pid"] is None else str(found["pid"])),
        Cell(found["state"], STATE_STYLES.get(found["state"], OTHER_STATE_STYLE)),
    ]
    if counters:
        clients = found.get("clients")
        row.append(Cell("" if clients is None else str(len(clients))))
        row += [Cell(str(found.get(key, ""))) for key in ("messages_in", "messages_out")]
    return row
