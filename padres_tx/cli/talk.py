"""`padres-tx adv`, `sub` and `pub`: a client of a running overlay, in PADRES notation.

Only arguments, lines and exit codes are dealt with here; clients are
`padres_tx.client.asyncio.client`'s.
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
    Place,
    WrongInput,
    find_place,
    place_options,
    say,
)
from padres_tx.client.asyncio.client import connect
from padres_tx.client.asyncio.connecting import unique_name
from padres_tx.client.session import Notification

_as_option = click.option(
    "--as", "client", metavar="NAME", help="What to call the client. [default: a unique name]"
)


@click.command(
    epilog="""
\b
Examples:
  padres-tx sub "[class,eq,'order'],[price,>,100]"
  padres-tx sub "[class,eq,'order'],[customer,str-prefix,'A']" --broker B3 --json
  padres-tx sub "[class,isPresent]" --at 127.0.0.1:7002 --count 1 --timeout 10

\b
Operators: eq = > < >= <= isPresent str-prefix; several predicates mean all of them.
"""
)
@click.argument("filter_text", metavar="FILTER")
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after N publications.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="End after so long; exit code 1 if fewer than N have come.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each as a line of JSON.")
@_as_option
@place_options
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
    """Subscribe to FILTER, and print each publication as it comes, until Ctrl-C."""
    box = parse_filter(filter_text)
    place = find_place(overlay, broker, at)
    _run(_sub(box, place, client, count=count, timeout_s=timeout_s, as_json=as_json))


async def _sub(
    box: Filter,
    place: Place,
    name: str | None,
    *,
    count: int | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    line = _json_line if as_json else _human_line
    seen = 0
    async with connect(place.address, name=_name(name, "sub"), retry=False) as client:
        # Who only looks on has no part in others' transactions.
        await client.subscribe(box, events_only=True)
        say(f"{client.name} at {place.label} is subscribed to {format_filter(box)}; Ctrl-C ends it")
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
        raise CheckFailed(f"{seen} of {count} publications came within {timeout_s:g} s")


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
    # On one line, and nothing that a terminal would obey.
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
@click.option("--payload", metavar="TEXT", help="What it carries beside its attributes.")
@click.option("--json-payload", metavar="JSON", help="The same as JSON, checked.")
@_as_option
@place_options
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
    """Publish PUBLICATION to whoever has subscribed to it.

    It is advertised first, so that the subscriptions that want it find the way here, then
    published. The command returns when the broker has it.
    """
    point = parse_publication(publication)
    content = _payload(payload, json_payload)
    place = find_place(overlay, broker, at)

    async def publish() -> None:
        async with connect(place.address, name=_name(client, "pub"), retry=False) as publisher:
            await publisher.advertise(Filter(point))
            await publisher.publish(point, content)
        say(f"{publisher.name} has published {format_publication(point)} at {place.label}")

    if not _run(publish()):
        raise CheckFailed("interrupted; it may not have been published")


def _payload(text: str | None, json_text: str | None) -> bytes:
    if text is not None and json_text is not None:
        raise WrongInput("give --payload or --json-payload, not both")
    if json_text is None:
        return (text or "").encode()
    try:
        return json.dumps(json.loads(json_text), ensure_ascii=False).encode()
    except ValueError as error:
        raise WrongInput(f"--json-payload: not JSON: {error}") from None


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
@place_options
def adv(
    filter_text: str,
    *,
    client: str | None,
    overlay: str | None,
    broker: str | None,
    at: str | None,
) -> None:
    """Advertise FILTER until Ctrl-C: subscriptions that overlap it find their way here."""
    box = parse_filter(filter_text)
    place = find_place(overlay, broker, at)

    async def hold() -> None:
        async with connect(place.address, name=_name(client, "adv"), retry=False) as holder:
            await holder.advertise(box)
            say(f"{holder.name} at {place.label} advertises {format_filter(box)}; Ctrl-C ends it")
            await holder.wait_closed()

    _run(hold())


# --- what they share ---


def _name(given: str | None, command: str) -> str:
    return unique_name(command) if given is None else given


def _run(talk: Coroutine[Any, Any, None]) -> bool:
    """Run a client to its end, or until Ctrl-C or SIGTERM, which lets it say goodbye.

    Answers whether it came to its end by itself.
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
