"""A crowd of clients in one process: connected, subscribed, and silent but for signs of life.

It is what a broker has to bear beside its traffic (`bench clients`). Each client is a connection
and a link of its own, as lean as the other ends of a benchmark (`ends`). Their subscriptions lie in
the advertised space and match no event.

It runs as a child (`children`): its first line is a `Crowd`, which it answers when all have
subscribed; then it keeps the links alive until the leash is let go.
"""

from __future__ import annotations

import resource
import select
import sys
from typing import Final

import msgspec

from bench.errors import CannotMeasure
from bench.micro.endpoints import TICK_S, Linked, Task, connect

#: Descriptors that a process needs for itself.
SPARE: Final = 64


class Crowd(msgspec.Struct, frozen=True):
    """So many clients of a broker, with so many subscriptions in all."""

    port: int
    clients: int
    subscriptions: int


def allow_connections(count: int) -> None:
    """Raise this process's limit of open files, if need be and as far as it may.

    Raises CannotMeasure, which says what to do.
    """
    needed = count + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise CannotMeasure(
                f"{count} clients need {needed} open files in a process, and the limit is {hard}; "
                f"raise it (ulimit -Hn) or take fewer --clients"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def gather(crowd: Crowd) -> list[Linked]:
    """The clients, connected and subscribed."""
    lines = []
    for number in range(crowd.clients):
        filters = [
            f"[class,eq,'order'],[instance,eq,'c{each}']"
            for each in range(number, crowd.subscriptions, crowd.clients)
        ]
        line, _, _ = connect(Task("subscriber", "client", crowd.port, f"crowd{number}", filters))
        assert isinstance(line, Linked)
        lines.append(line)
    return lines


def main() -> None:
    """Be a crowd until the leash is let go."""
    orders = sys.stdin.buffer
    crowd = msgspec.json.decode(orders.readline(), type=Crowd)
    allow_connections(crowd.clients)
    lines = gather(crowd)
    sys.stdout.buffer.write(b"ready\n")
    sys.stdout.buffer.flush()
    leash = select.poll()
    leash.register(orders, select.POLLIN)
    while not leash.poll(TICK_S * 1000):
        for line in lines:
            line.attend()


if __name__ == "__main__":
    main()
