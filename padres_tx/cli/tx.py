"""`padres-tx tx`: list, show and abort the transactions of a running overlay.

The command queries all brokers at once for the transactions that they know, engine by engine. The
report of the coordinator's edge broker represents a transaction, because that broker decides it; if
it was not queried, the report of another broker does. The engines define what the texts in a report
mean; this module collects and prints them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.text import Text

from overlay.errors import OperationError, OverlayError, ProtocolError
from padres_tx import registry
from padres_tx.cli import layout
from padres_tx.cli.common import CheckFailed, WrongInput, note, overlay_option
from padres_tx.cli.durability_table import show_durability
from padres_tx.cli.layout import Column, TableCell
from padres_tx.client.asyncio.channel import parse_address
from padres_tx.client.asyncio.operator import Operator, operator
from padres_tx.client_messages import parse_tx
from padres_tx.errors import TX_EXAMPLE
from padres_tx.launcher.broker_status import REPLY_S, BrokerStatus, query_all

#: How long an abort may take to reach every broker: one or two messages over each link, or longer
#: while a link reconnects.
SPREAD_S = 10.0
SPREAD_LOOK_S = 0.05

#: The statuses of a decided transaction; with any other status it is open.
DECIDED = ("committed", "aborted", "finished")


class TransactionReport(msgspec.Struct, frozen=True):
    """One transaction, as one broker reports it; unknown fields are ignored."""

    tx: str
    engine: str
    coordinator: str
    #: Whether this broker decides it.
    edge: bool
    status: str
    since_s: float
    waits_for: str
    clients: list[str]
    broker: str = ""
    #: For a transaction that has ended: how long ago, and why it was aborted.
    ended_s: float | None = None
    code: str = ""
    reason: str = ""

    @property
    def open(self) -> bool:
        return self.status not in DECIDED


class Replies(msgspec.Struct, frozen=True):
    """The reports of the brokers, and why some brokers did not reply."""

    reports: list[TransactionReport]
    silent: dict[str, str]


# --- the commands ---


@click.group(
    epilog="""
\b
Examples:
  padres-tx tx ls
  padres-tx tx ls --ended
  padres-tx tx show E:mfq0zk3p.b7c1:17
  padres-tx tx abort E:mfq0zk3p.b7c1:17
"""
)
def tx() -> None:
    """List, show and abort transactions."""


def _brokers_options(command: Any) -> Any:
    """Add the options that select the brokers to query; pass them to `_addresses`."""
    command = click.option(
        "--at",
        metavar="HOST:PORT",
        multiple=True,
        help="Query the broker at this address; may be given several times.",
    )(command)
    return overlay_option(command)


@tx.command(
    epilog="""
\b
Examples:
  padres-tx tx ls
  padres-tx tx ls --ended
  padres-tx tx ls --overlay second --json
  padres-tx tx ls --at 10.0.0.1:7001 --at 10.0.0.2:7002
"""
)
@_brokers_options
@click.option("--ended", is_flag=True, help="List ended transactions, the latest first.")
@click.option("--json", "as_json", is_flag=True, help="Print the transactions as a JSON list.")
def ls(*, overlay: str | None, at: tuple[str, ...], ended: bool, as_json: bool) -> None:
    """List open transactions: their engines, ages, and what each waits for.

    A decided transaction is listed until every broker has learned the decision. With --ended, list
    how transactions ended and why, as long as brokers remember them (some minutes).

    Exit code 1 if a broker did not reply.
    """
    addresses = _addresses(overlay, at)
    replies = _query(addresses, "ended" if ended else "")
    summaries = [_summary(reports) for reports in _by_tx(replies.reports).values()]
    if ended:
        summaries.sort(key=lambda report: report.ended_s or 0.0)
    if as_json:
        click.echo(json.dumps([_fields(report) for report in summaries], indent=2))
    elif summaries and ended:
        _show(summaries, ("tx", "engine", "broker", *_END))
    elif ended:
        note("no broker remembers a transaction that has ended")
    elif summaries:
        _show(summaries, ("tx", "engine", "broker", *_STATE))
    else:
        note("no transaction is open")
    if not as_json:
        _show_durability(addresses)
    _check_complete(replies)


@tx.command(
    epilog="""
\b
Examples:
  padres-tx tx show E:mfq0zk3p.b7c1:17
  padres-tx tx show E:mfq0zk3p.b7c1:17 --json
"""
)
@click.argument("name", metavar="ID")
@_brokers_options
@click.option("--json", "as_json", is_flag=True, help="Print the transaction as JSON.")
def show(name: str, *, overlay: str | None, at: tuple[str, ...], as_json: bool) -> None:
    """Show the state of transaction ID at every broker that knows it, or how it ended there.

    Brokers remember for some minutes how transactions ended.
    """
    _check_id(name)
    replies = _query(_addresses(overlay, at), name=name)
    reports = _find(name, replies)
    head = _representative(reports)
    if as_json:
        common = {"tx": head.tx, "engine": head.engine, "coordinator": head.coordinator}
        brokers = [_without(report, common) for report in reports]
        click.echo(json.dumps({**common, "brokers": brokers}, indent=2))
    else:
        verb = "decides" if head.open else "decided"
        decides = f"; {head.broker} {verb} it" if head.edge else ""
        title = f"{head.tx}: {head.engine}, coordinated by {head.coordinator}{decides}"
        Console().print(Text(title, "bold"), soft_wrap=True)
        present = [report for report in reports if report.ended_s is None]
        ended = [report for report in reports if report.ended_s is not None]
        if present:
            _show(present, ("broker", *_STATE, "clients"))
        if ended:
            _show(ended, ("broker", *_END, "clients"))
    _check_complete(replies)


@tx.command(
    epilog="""
\b
Example:
  padres-tx tx abort E:mfq0zk3p.b7c1:17
"""
)
@click.argument("name", metavar="ID")
@_brokers_options
def abort(name: str, *, overlay: str | None, at: tuple[str, ...]) -> None:
    """Abort the open transaction ID, and wait until every broker has aborted it.

    The reason given to its clients is that an operator aborted it. Exit code 1 if the transaction
    is already decided, or if no queried broker can abort it.
    """
    _check_id(name)
    addresses = _addresses(overlay, at)
    head = _representative(_find(name, _query(addresses, name=name)))
    if not head.open:
        raise CheckFailed(f"{name} is already {head.status}")
    if not head.edge:
        raise CheckFailed(
            f"{name} can only be aborted at the broker of its coordinator, {head.coordinator}, "
            "which did not reply or was not queried"
        )
    asyncio.run(_abort(addresses[head.broker], head))
    deadline = time.monotonic() + SPREAD_S
    while late := [report.broker for report in _of(name, _query(addresses).reports) if report.open]:
        if time.monotonic() >= deadline:
            raise CheckFailed(
                f"{name} is aborted, but {', '.join(late)} did not learn that within {SPREAD_S:g} s"
            )
        time.sleep(SPREAD_LOOK_S)
    click.echo(f"{name} ({head.engine}) is aborted at every broker")


# --- queries ---


def _addresses(overlay: str | None, at: tuple[str, ...]) -> dict[str, str]:
    """Return the addresses of the selected brokers, by name, or by address if no name is known.

    Raises StateError, WrongInput, BadAddress.
    """
    if at:
        if overlay is not None:
            raise WrongInput("--at cannot be combined with --overlay")
        return {address: str(parse_address(address)) for address in at}
    from padres_tx.launcher.overlay_files import OverlayFiles

    record = OverlayFiles(notice=note).find(overlay)
    return {broker.name: broker.address for broker in record.brokers}


def _query(addresses: Mapping[str, str], what: str = "", *, name: str = "") -> Replies:
    """Query the open transactions at these brokers, or with "ended" those that have ended; in
    addition the one of that name, whether it has ended or not.

    Raises CheckFailed if no broker replies.
    """
    replies = asyncio.run(_query_all(addresses, [what, f"ended {name}"] if name else [what]))
    silent = {name: reply for name, reply in replies.items() if isinstance(reply, str)}
    if replies and len(silent) == len(replies):
        name, reason = next(iter(silent.items()))
        raise CheckFailed(f"no broker replies; {name}: {reason}")
    reports = [
        report for reply in replies.values() if not isinstance(reply, str) for report in reply
    ]
    return Replies(reports, silent)


async def _query_all(
    addresses: Mapping[str, str], arguments: list[str]
) -> dict[str, list[TransactionReport] | str]:
    engines = sorted(registry.broker_factories())

    async def reports_or_reason(name: str, address: str) -> list[TransactionReport] | str:
        try:
            async with asyncio.timeout(REPLY_S), operator(address, retry=False) as broker:
                found: dict[str, TransactionReport] = {}
                for engine in engines:
                    for argument in arguments:
                        for report in await _reports(broker, engine, argument):
                            named = msgspec.structs.replace(report, broker=name)
                            found.setdefault(report.tx, named)
                return list(found.values())
        except TimeoutError:
            return f"no reply within {REPLY_S:g} s"
        except OverlayError as error:
            return str(error)

    replies = await asyncio.gather(
        *(reports_or_reason(name, address) for name, address in addresses.items())
    )
    return dict(zip(addresses, replies, strict=True))


async def _reports(broker: Operator, engine: str, argument: str) -> list[TransactionReport]:
    try:
        body = await broker.inspect(engine, argument, timeout_s=REPLY_S)
    except OperationError:
        return []  # A broker without the engine has no transactions of it.
    try:
        return msgspec.convert(body, list[TransactionReport])
    except msgspec.ValidationError as error:
        raise ProtocolError(f"malformed list of {engine} transactions: {error}") from None


async def _abort(address: str, report: TransactionReport) -> None:
    async with operator(address, retry=False) as broker:
        try:
            await broker.inspect(report.engine, f"abort {report.tx}", timeout_s=REPLY_S)
        except OperationError as error:
            # It was decided after the query.
            raise CheckFailed(str(error)) from None


# --- reports ---


def _by_tx(reports: Iterable[TransactionReport]) -> dict[str, list[TransactionReport]]:
    """Return the reports of each transaction, the oldest transaction first."""
    found: dict[str, list[TransactionReport]] = {}
    for report in reports:
        found.setdefault(report.tx, []).append(report)
    return dict(sorted(found.items(), key=lambda item: -_representative(item[1]).since_s))


def _of(name: str, reports: Iterable[TransactionReport]) -> list[TransactionReport]:
    return [report for report in reports if report.tx == name]


def _check_id(name: str) -> None:
    """Raise WrongInput if this cannot be the id of a transaction."""
    if parse_tx(name) is None:
        raise WrongInput(f"invalid transaction id {name!r}: expected one like {TX_EXAMPLE}")


def _find(name: str, replies: Replies) -> list[TransactionReport]:
    """Return the reports of one transaction, at least one. Raises WrongInput, CheckFailed."""
    reports = _of(name, replies.reports)
    if not reports:
        _check_complete(replies)
        others = ", ".join(_by_tx(replies.reports)) or "none"
        raise WrongInput(f"no broker knows transaction {name}; open: {others}")
    return reports


def _representative(reports: list[TransactionReport]) -> TransactionReport:
    """Return the report that represents the transaction: that of the broker which decides it."""
    return next((report for report in reports if report.edge), reports[0])


def _summary(reports: list[TransactionReport]) -> TransactionReport:
    """Return the representative report, extended by what brokers of other clients wait for."""
    head = _representative(reports)
    elsewhere = [
        f"{report.broker}: {report.waits_for}"
        for report in reports
        if report is not head
        and report.open
        and report.clients
        and report.waits_for != head.waits_for
    ]
    return msgspec.structs.replace(head, waits_for="; ".join([head.waits_for, *elsewhere]))


def _without(report: TransactionReport, common: Mapping[str, str]) -> dict[str, Any]:
    return {key: value for key, value in _fields(report).items() if key not in common}


def _fields(report: TransactionReport) -> dict[str, Any]:
    """Return a report as data; an open transaction has no fields about its end."""
    fields: dict[str, Any] = msgspec.to_builtins(report)
    if report.ended_s is None:
        for key in ("ended_s", "code", "reason"):
            del fields[key]
    return fields


def _check_complete(replies: Replies) -> None:
    """Raise CheckFailed if a broker did not reply."""
    for name, reason in replies.silent.items():
        note(f"{name} does not reply: {reason}")
    if replies.silent:
        raise CheckFailed("the list may be incomplete: not every broker replied")


# --- tables ---

#: "waits_for" and "reason" are sentences.
_COLUMNS = {
    "tx": Column("transaction"),
    "engine": Column("engine"),
    "coordinator": Column("coordinator"),
    "broker": Column("broker"),
    "status": Column("status"),
    "since_s": Column("age", "number"),
    "waits_for": Column("waits for", "text"),
    "clients": Column("clients", "text"),
    "ended_s": Column("ended", "number"),
    "code": Column("code"),
    "reason": Column("reason", "text"),
}
_STATE = ("status", "since_s", "waits_for")
_END = ("status", "ended_s", "code", "reason")


def _show(reports: Sequence[TransactionReport], columns: Sequence[str]) -> None:
    rows = [[TableCell(_cell(report, column)) for column in columns] for report in reports]
    layout.show(Console(), [_COLUMNS[column] for column in columns], rows)


def _show_durability(addresses: Mapping[str, str]) -> None:
    """Print where the brokers keep what is decided, if any of them keeps it on disk."""
    statuses = query_all(addresses).values()
    brokers = {each.broker: each.durability for each in statuses if isinstance(each, BrokerStatus)}
    if any(durability.mode == "disk" for durability in brokers.values()):
        show_durability(Console(), brokers)


def _cell(report: TransactionReport, column: str) -> str:
    value = getattr(report, column)
    if column in ("since_s", "ended_s"):
        text = f"{value:.1f} s" if value < 100 else f"{value / 60:.0f} min"
        return f"{text} ago" if column == "ended_s" else text
    text = ", ".join(value) if isinstance(value, list) else str(value)
    # The reason of an abort comes from a client and must not control the terminal.
    return "".join(character if character.isprintable() else "?" for character in text)
