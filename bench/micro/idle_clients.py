"""Idle clients in one process: connected, subscribed, and sending nothing but heartbeats.

They are the load of a broker beside its traffic in `bench clients`. Each client has its own
connection and link, as lean as the other `endpoints`. Their subscriptions are in the advertised
space and match no event.

The process is a child (`children`): the first line that it reads is an `IdleClients`; it replies
when all are subscribed, and then keeps the links alive until its standard input is closed.
"""

from __future__ import annotations

import resource
import select
import sys
from typing import Final

import msgspec

from bench.errors import CannotMeasure
from bench.micro.endpoints import TICK_S, EndpointTask, LinkConnection, connect

#: Descriptors that a process needs for itself.
SPARE: Final = 64


class IdleClients(msgspec.Struct, frozen=True):
    """The number of clients of a broker, and of their subscriptions in all."""

    port: int
    clients: int
    subscriptions: int


def allow_connections(count: int) -> None:
    """Raise this process's limit of open files, if necessary and allowed.

    Raises CannotMeasure, with what to do.
    """
    needed = count + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise CannotMeasure(
                f"{count} clients need {needed} open files in a process, and the limit is {hard}; "
                f"raise it (ulimit -Hn) or use fewer --clients"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def connect_all(idle: IdleClients) -> list[LinkConnection]:
    """The clients, connected and subscribed."""
    lines = []
    for number in range(idle.clients):
        filters = [
            f"[class,eq,'order'],[instance,eq,'c{each}']"
            for each in range(number, idle.subscriptions, idle.clients)
        ]
        line, _, _ = connect(
            EndpointTask("subscriber", "client", idle.port, f"idle{number}", filters)
        )
        assert isinstance(line, LinkConnection)
        lines.append(line)
        for each in lines:  # Or they would be taken for dead while others subscribe.
            each.attend()
    return lines


def main() -> None:
    """Keep the clients connected until standard input is closed."""
    commands = sys.stdin.buffer
    idle = msgspec.json.decode(commands.readline(), type=IdleClients)
    allow_connections(idle.clients)
    lines = connect_all(idle)
    sys.stdout.buffer.write(b"ready\n")
    sys.stdout.buffer.flush()
    closing = select.poll()
    closing.register(commands, select.POLLIN)
    while not closing.poll(TICK_S * 1000):
        for line in lines:
            line.attend()


if __name__ == "__main__":
    main()
