"""`padres-tx adv`, `sub` and `pub`: a client of a running overlay, in PADRES notation.

This module handles arguments, output and exit codes; the client is
`padres_tx.client.asyncio.client`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import signal
from collections.abc import Coroutine
from typing import Any

import click

from overlay.filters import Filter
from overlay.notation import format_filter, format_publication, parse_filter, parse_publication
from padres_tx.cli.common import (
    CheckFailed,
    SelectedBroker,
    WrongInput,
    broker_options,
    note,
    select_broker,
)
from padres_tx.client.asyncio.client import connect
from padres_tx.client.asyncio.connecting import unique_name
from padres_tx.client.asyncio.notifications import describe
from padres_tx.client.session import Notification

_as_option = click.option(
    "--as", "client", metavar="NAME", help="The name of the client. [default: a unique name]"
)


@click.command(
    epilog="""
\b
Examples:
  padres-tx sub "[class,eq,'order'],[price,>,100]"
  padres-tx sub "[class,eq,'order'],[customer,str-prefix,'A']" --broker B3 --json
  padres-tx sub "[class,isPresent]" --at 127.0.0.1:7002 --count 1 --timeout 10

\b
Operators: eq = > < >= <= isPresent str-prefix.
A publication matches if it satisfies all predicates.
"""
)
@click.argument("filter_text", metavar="FILTER")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N publications.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Stop after this time; exit code 1 if fewer than N publications have arrived.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each publication as a line of JSON.")
@_as_option
@broker_options
def sub(
    filter_text: str,
    *,
    count: int | None,
    timeout_s: float | None,
    as_json: bool,
    client: str | None,
    overlay: str | None,
    broker: str | None,
    at: str | None,
) -> None:
    """Subscribe to FILTER and print each matching publication until Ctrl-C."""
    box = parse_filter(filter_text)
    selected = select_broker(overlay, broker, at)
    _run(_sub(box, selected, client, count=count, timeout_s=timeout_s, as_json=as_json))


async def _sub(
    box: Filter,
    selected: SelectedBroker,
    name: str | None,
    *,
    count: int | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    line = _json_line if as_json else _human_line
    seen = 0
    async with connect(selected.address, name=_name(name, "sub"), retry=False) as client:
        # A subscriber that only prints events takes no part in transactions of other clients.
        await client.subscribe(box, events_only=True)
        note(
            f"{client.name} at {selected.label} is subscribed to {format_filter(box)}; "
            "stop it with Ctrl-C"
        )
        client.on_gap(lambda gap: note(f"{client.name}: {describe(gap)}"))
        try:
            async with asyncio.timeout(timeout_s) as limit:
                async for notification in client:
                    click.echo(line(notification))
                    seen += 1
                    if seen == count:
                        return
        except TimeoutError:
            if not limit.expired():
                raise
    if count is not None:
        raise CheckFailed(f"{seen} of {count} publications arrived within {timeout_s:g} s")


def _human_line(notification: Notification) -> str:
    payload = notification.payload
    text = f"  {_printable(payload)}" if payload else ""
    sender = click.style(f"from {notification.publisher}", dim=True)
    return f"{format_publication(notification.point)}  {sender}{text}"


def _printable(payload: bytes) -> str:
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return f"({len(payload)} bytes)"
    # On one line, and without control characters for the terminal.
    return text if text.isprintable() else ascii(text)[1:-1]


def _json_line(notification: Notification) -> str:
    try:
        payload = {"payload": notification.payload.decode()}
    except UnicodeDecodeError:
        payload = {"payload_base64": base64.b64encode(notification.payload).decode()}
    publication: dict[str, Any] = {
        "publisher": notification.publisher,
        "seq": notification.seq,
        "name": notification.name,
        "point": notification.point,
    }
    return json.dumps(publication | payload)


@click.command(
    epilog="""
\b
Examples:
  padres-tx pub "[class,'order'],[price,150]"
  padres-tx pub "[class,'order'],[price,150]" --payload "two chairs" --broker B3
  padres-tx pub "[class,'order'],[price,150]" --json-payload '{"items": ["chair", "chair"]}'
"""
)
@click.argument("publication", metavar="PUBLICATION")
@click.option("--payload", metavar="TEXT", help="The payload, as text. [default: empty]")
@click.option("--json-payload", metavar="JSON", help="The payload, as JSON, which is checked.")
@_as_option
@broker_options
def pub(
    publication: str,
    *,
    payload: str | None,
    json_payload: str | None,
    client: str | None,
    overlay: str | None,
    broker: str | None,
    at: str | None,
) -> None:
    """Publish PUBLICATION to the clients that have subscribed to it.

    The command advertises the publication first, so that matching subscriptions are forwarded to
    this broker, and then publishes it. It returns when the broker has accepted the publication.
    """
    point = parse_publication(publication)
    content = _payload(payload, json_payload)
    selected = select_broker(overlay, broker, at)

    async def publish() -> None:
        async with connect(selected.address, name=_name(client, "pub"), retry=False) as publisher:
            await publisher.advertise(Filter(point))
            await publisher.publish(point, content)
        note(f"{publisher.name} published {format_publication(point)} at {selected.label}")

    if not _run(publish()):
        raise CheckFailed("interrupted; the publication may not have been published")


def _payload(text: str | None, json_text: str | None) -> bytes:
    if text is not None and json_text is not None:
        raise WrongInput("--payload and --json-payload cannot be combined")
    if json_text is None:
        return (text or "").encode()
    try:
        return json.dumps(json.loads(json_text), ensure_ascii=False).encode()
    except ValueError as error:
        raise WrongInput(f"invalid --json-payload: {error}") from None


@click.command(
    epilog="""
\b
Examples:
  padres-tx adv "[class,eq,'order'],[price,>,0]"
  padres-tx adv "[class,eq,'order']" --broker B3 --as shop
"""
)
@click.argument("filter_text", metavar="FILTER")
@_as_option
@broker_options
def adv(
    filter_text: str,
    *,
    client: str | None,
    overlay: str | None,
    broker: str | None,
    at: str | None,
) -> None:
    """Advertise FILTER until Ctrl-C, so that overlapping subscriptions are forwarded here."""
    box = parse_filter(filter_text)
    selected = select_broker(overlay, broker, at)

    async def hold() -> None:
        async with connect(selected.address, name=_name(client, "adv"), retry=False) as holder:
            await holder.advertise(box)
            note(
                f"{holder.name} at {selected.label} advertises {format_filter(box)}; "
                "stop it with Ctrl-C"
            )
            await holder.wait_closed()

    _run(hold())


# --- shared ---


def _name(given: str | None, command: str) -> str:
    return unique_name(command) if given is None else given


def _run(talk: Coroutine[Any, Any, None]) -> bool:
    """Run a client until it ends, or until Ctrl-C or SIGTERM, which closes it cleanly.

    Returns whether it ended by itself.
    """

    async def interruptible() -> bool:
        task = asyncio.ensure_future(talk)
        interrupted = False

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            task.cancel()

        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, interrupt)
        try:
            await task
        except asyncio.CancelledError:
            if not interrupted:
                raise
            return False
        return True

    return asyncio.run(interruptible())
