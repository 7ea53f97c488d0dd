"""`padres-tx tx`: the transactions of a running overlay, for whoever operates it.

Every broker is asked, all at once, for the transactions that it knows, engine by engine. The line
of the coordinator's edge broker stands for a transaction as a whole, because that broker decides
it; where only others could be asked, one of theirs does. What the words in a line mean is the
engines' business; here they are gathered and printed.
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
from padres_tx.cli.common import CheckFailed, WrongInput, overlay_option, say
from padres_tx.cli.layout import Cell, Column
from padres_tx.client.asyncio.operator import Operator, operator
from padres_tx.client_messages import parse_tx
from padres_tx.errors import TX_EXAMPLE
from padres_tx.launcher.broker_status import ANSWER_S

#: How long an abort may take to reach every broker: a message or two over each link, and more only
#: where a link is just coming back.
SPREAD_S = 10.0
SPREAD_LOOK_S = 0.05

#: What a transaction's status can be when it is decided; everything else is open.
DECIDED = ("committed", "aborted", "finished")


class Line(msgspec.Struct, frozen=True):
    """One transaction, as one broker sees it; what a broker says beyond this is ignored."""

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
    #: Of one that has ended: how long ago, and why it was aborted.
    ended_s: float | None = None
    code: str = ""
    reason: str = ""

    @property
    def open(self) -> bool:
        return self.status not in DECIDED


class Seen(msgspec.Struct, frozen=True):
    """What the brokers have answered, and why some have not."""

    lines: list[Line]
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
    """See what transactions are open or have ended, and abort one."""


def _where(command: Any) -> Any:
    """Which brokers are asked; give these to `_places`."""
    command = click.option(
        "--at",
        metavar="HOST:PORT",
        multiple=True,
        help="Ask the broker at this address, and no overlay; may be given several times.",
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
@_where
@click.option("--ended", is_flag=True, help="List those that have ended, the last one first.")
@click.option("--json", "as_json", is_flag=True, help="Print them as a JSON list.")
def ls(*, overlay: str | None, at: tuple[str, ...], ended: bool, as_json: bool) -> None:
    """List the transactions: since when, which engine, and what each waits for.

    A decided one is listed until every broker has heard of the decision. With --ended: how the last
    ones have ended, and why, as long as brokers remember them (some minutes).

    Exit code 1 if a broker did not answer.
    """
    seen = _ask(_places(overlay, at), "ended" if ended else "")
    lines = [_summary(lines) for lines in _by_tx(seen.lines).values()]
    if ended:
        lines.sort(key=lambda line: line.ended_s or 0.0)
    if as_json:
        click.echo(json.dumps([_fields(line) for line in lines], indent=2))
    elif lines and ended:
        _show(lines, ("tx", "engine", "broker", *_END))
    elif ended:
        say("no broker remembers a transaction that has ended")
    elif lines:
        _show(lines, ("tx", "engine", "broker", *_STATE))
    else:
        say("no transaction is open")
    _end(seen)


@tx.command(
    epilog="""
\b
Examples:
  padres-tx tx show E:mfq0zk3p.b7c1:17
  padres-tx tx show E:mfq0zk3p.b7c1:17 --json
"""
)
@click.argument("name", metavar="ID")
@_where
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def show(name: str, *, overlay: str | None, at: tuple[str, ...], as_json: bool) -> None:
    """Show how the transaction ID stands at every broker that knows it, or how it has ended there.

    Brokers remember for some minutes how transactions have ended.
    """
    seen = _ask(_places(overlay, at), name=name)
    lines = _find(name, seen)
    head = _spokesman(lines)
    if as_json:
        told = {"tx": head.tx, "engine": head.engine, "coordinator": head.coordinator}
        brokers = [_without(line, told) for line in lines]
        click.echo(json.dumps({**told, "brokers": brokers}, indent=2))
    else:
        verb = "decides" if head.open else "decided"
        decides = f"; {head.broker} {verb} it" if head.edge else ""
        title = f"{head.tx}: {head.engine}, coordinated by {head.coordinator}{decides}"
        Console().print(Text(title, "bold"), soft_wrap=True)
        known = [line for line in lines if line.ended_s is None]
        ended = [line for line in lines if line.ended_s is not None]
        if known:
            _show(known, ("broker", *_STATE, "clients"))
        if ended:
            _show(ended, ("broker", *_END, "clients"))
    _end(seen)


@tx.command(
    epilog="""
\b
Example:
  padres-tx tx abort E:mfq0zk3p.b7c1:17
"""
)
@click.argument("name", metavar="ID")
@_where
def abort(name: str, *, overlay: str | None, at: tuple[str, ...]) -> None:
    """Abort the open transaction ID, and wait until every broker knows.

    Its coordinator and all who take part are told that an operator did it. Exit code 1 if it was
    decided before, or cannot be aborted from here.
    """
    places = _places(overlay, at)
    head = _spokesman(_find(name, _ask(places, name=name)))
    if not head.open:
        raise CheckFailed(f"{name} is {head.status} already")
    if not head.edge:
        raise CheckFailed(
            f"no broker that answers decides {name}: that is the one of {head.coordinator}, its "
            "coordinator"
        )
    asyncio.run(_abort(places[head.broker], head))
    deadline = time.monotonic() + SPREAD_S
    while late := [line.broker for line in _of(name, _ask(places).lines) if line.open]:
        if time.monotonic() >= deadline:
            raise CheckFailed(
                f"{name} is aborted, but after {SPREAD_S:g} s {', '.join(late)} still "
                "had to hear of it"
            )
        time.sleep(SPREAD_LOOK_S)
    click.echo(f"{name} ({head.engine}) is aborted, at every broker")


# --- asking ---


def _places(overlay: str | None, at: tuple[str, ...]) -> dict[str, str]:
    """Where the brokers are that are meant, by name; by address where no name is known.

    Raises StateError, WrongInput.
    """
    if at:
        if overlay is not None:
            raise WrongInput("--at says it all: it cannot stand beside an overlay")
        return {address: address for address in at}
    from padres_tx.launcher.overlay_files import Registry

    record = Registry(notice=say).find(overlay)
    return {broker.name: broker.address for broker in record.brokers}


def _ask(places: Mapping[str, str], what: str = "", *, name: str = "") -> Seen:
    """All transactions at these brokers, or those that have "ended"; and the one of that name,
    whether it has ended or not.

    Raises CheckFailed if none of them answers.
    """
    answers = asyncio.run(_ask_all(places, [what, f"ended {name}"] if name else [what]))
    silent = {name: answer for name, answer in answers.items() if isinstance(answer, str)}
    if answers and len(silent) == len(answers):
        name, reason = next(iter(silent.items()))
        raise CheckFailed(f"no broker answers; {name}: {reason}")
    lines = [line for answer in answers.values() if not isinstance(answer, str) for line in answer]
    return Seen(lines, silent)


async def _ask_all(places: Mapping[str, str], arguments: list[str]) -> dict[str, list[Line] | str]:
    names = sorted(registry.broker_factories())

    async def ask(name: str, at: str) -> list[Line] | str:
        try:
            async with asyncio.timeout(ANSWER_S), operator(at, retry=False) as broker:
                found: dict[str, Line] = {}
                for engine in names:
                    for argument in arguments:
                        for line in await _lines(broker, engine, argument):
                            found.setdefault(line.tx, msgspec.structs.replace(line, broker=name))
                return list(found.values())
        except TimeoutError:
            return f"no answer within {ANSWER_S:g} s"
        except OverlayError as error:
            return str(error)

    answers = await asyncio.gather(*(ask(name, at) for name, at in places.items()))
    return dict(zip(places, answers, strict=True))


async def _lines(broker: Operator, engine: str, argument: str) -> list[Line]:
    try:
        body = await broker.inspect(engine, argument, timeout_s=ANSWER_S)
    except OperationError:
        return []  # A broker that does not have the engine has no transactions of it.
    try:
        return msgspec.convert(body, list[Line])
    except msgspec.ValidationError as error:
        raise ProtocolError(f"a list of {engine} transactions that is none: {error}") from None


async def _abort(at: str, line: Line) -> None:
    async with operator(at, retry=False) as broker:
        try:
            await broker.inspect(line.engine, f"abort {line.tx}", timeout_s=ANSWER_S)
        except OperationError as error:
            # It was decided since we looked.
            raise CheckFailed(str(error)) from None


# --- what was answered ---


def _by_tx(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """The lines of each transaction, the oldest transaction first."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line.tx, []).append(line)
    return dict(sorted(found.items(), key=lambda item: -_spokesman(item[1]).since_s))


def _of(name: str, lines: Iterable[Line]) -> list[Line]:
    return [line for line in lines if line.tx == name]


def _find(name: str, seen: Seen) -> list[Line]:
    """The lines of one transaction, at least one. Raises WrongInput, CheckFailed."""
    if parse_tx(name) is None:
        raise WrongInput(f"{name!r} names no transaction; one is named like {TX_EXAMPLE}")
    lines = _of(name, seen.lines)
    if not lines and seen.silent:
        _end(seen)
    if not lines:
        there = ", ".join(_by_tx(seen.lines)) or "none"
        raise WrongInput(f"no broker knows of a transaction {name}; open: {there}")
    return lines


def _spokesman(lines: list[Line]) -> Line:
    """The line that stands for the transaction: that of the broker which decides it."""
    return next((line for line in lines if line.edge), lines[0])


def _summary(lines: list[Line]) -> Line:
    """The spokesman's line, with what is waited for elsewhere, where clients take part."""
    head = _spokesman(lines)
    elsewhere = [
        f"{line.broker}: {line.waits_for}"
        for line in lines
        if line is not head and line.open and line.clients and line.waits_for != head.waits_for
    ]
    return msgspec.structs.replace(head, waits_for="; ".join([head.waits_for, *elsewhere]))


def _without(line: Line, told: Mapping[str, str]) -> dict[str, Any]:
    return {key: value for key, value in _fields(line).items() if key not in told}


def _fields(line: Line) -> dict[str, Any]:
    """A line as data; an open one has no end to tell of."""
    fields: dict[str, Any] = msgspec.to_builtins(line)
    if line.ended_s is None:
        for key in ("ended_s", "code", "reason"):
            del fields[key]
    return fields


def _end(seen: Seen) -> None:
    """Raises CheckFailed if not all was seen."""
    for name, reason in seen.silent.items():
        say(f"{name} does not answer: {reason}")
    if seen.silent:
        raise CheckFailed("there may be more: not every broker has answered")


# --- tables ---

#: "waits_for" and "reason" are sentences.
_COLUMNS = {
    "tx": Column("transaction"),
    "engine": Column("engine"),
    "coordinator": Column("coordinator"),
    "broker": Column("at broker"),
    "status": Column("status"),
    "since_s": Column("since", "number"),
    "waits_for": Column("waits for", "text"),
    "clients": Column("clients there", "text"),
    "ended_s": Column("ended", "number"),
    "code": Column("code"),
    "reason": Column("reason", "text"),
}
_STATE = ("status", "since_s", "waits_for")
_END = ("status", "ended_s", "code", "reason")


def _show(lines: Sequence[Line], columns: Sequence[str]) -> None:
    rows = [[Cell(_cell(line, column)) for column in columns] for line in lines]
    layout.show(Console(), [_COLUMNS[column] for column in columns], rows)


def _cell(line: Line, column: str) -> str:
    value = getattr(line, column)
    if column in ("since_s", "ended_s"):
        text = f"{value:.1f} s" if value < 100 else f"{value / 60:.0f} min"
        return f"{text} ago" if column == "ended_s" else text
    text = ", ".join(value) if isinstance(value, list) else str(value)
    # A client says why it aborts; a terminal must not take that for commands.
    return "".join(character if character.isprintable() else "?" for character in text)
