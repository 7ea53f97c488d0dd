"""What the example programs share: where the overlay is, who stands where, and what came.

Not an example itself; a program of yours has its own addresses and its own output.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import click

import padres_tx
from overlay.notation import format_publication
from padres_tx import Client, Notification, registry
from padres_tx.cli.common import failure_of
from padres_tx.launcher.overlay_files import Registry

#: Each client closes with this, so that all know when everything has come.
BYE = {"class": "bye"}

#: A publication takes milliseconds; an example must end all the same.
PATIENCE_S = 20.0

#: What each client has received, by name.
Received: TypeAlias = dict[str, list[Notification]]


def is_static(engine: str) -> bool:
    """Whether the coordinator has to say beforehand what everybody does."""
    return registry.load(engine).is_static


async def received(speaker: Client, clients: Iterable[Client]) -> Received:
    """What has come to each client up to a last word of the speaker."""
    clients = list(clients)
    await speaker.advertise(BYE)
    for client in clients:
        await client.subscribe(BYE)
    await speaker.publish(BYE)
    came: Received = {}
    for client in clients:
        came[client.name] = []
        async for notification in client.notifications(timeout_s=PATIENCE_S):
            if notification["class"] == "bye":
                break
            came[client.name].append(notification)
    return came


def command(story: Callable[..., Awaitable[Received]], names: list[str]) -> click.Command:
    """A command line for a story that is told with clients of these names."""

    @click.command(help=story.__doc__)
    @click.option("--engine", default="d-tx", show_default=True, help="d-tx, d-tx-ni, s-tx, ...")
    @click.option("--at", multiple=True, metavar="HOST:PORT", help="Brokers, for the clients.")
    def main(engine: str, at: tuple[str, ...]) -> None:
        try:
            addresses = at or tuple(broker.address for broker in Registry().find().brokers)
            came = asyncio.run(_tell(story, names, addresses, engine))
        except Exception as error:  # As the command line does; what is no user's error goes on.
            raise failure_of(error) or error from None
        for name, notifications in came.items():
            texts = [format_publication(n.point) for n in notifications] or ["nothing"]
            click.echo(f"{name:2} received " + "\n            ".join(texts))

    return main


async def _tell(
    story: Callable[..., Awaitable[Received]],
    names: list[str],
    addresses: tuple[str, ...],
    engine: str,
) -> Received:
    async with contextlib.AsyncExitStack() as stack:
        clients: list[Any] = []
        for at, name in enumerate(names):
            place = addresses[at % len(addresses)]
            connecting = padres_tx.connect(place, name=name, retry=False)
            clients.append(await stack.enter_async_context(connecting))
        return await story(*clients, engine=engine)
