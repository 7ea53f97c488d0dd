"""Traffic from a publisher to a subscriber, through brokers or through bare relays.

The events and subscriptions of `bench hop` and `bench chain`, and the processes that send and
receive them. Events are small ones of a workflow: three attributes and 64 bytes of payload, 125
bytes as a frame.

What is measured must not be known here.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench.children import Child
from bench.micro.endpoints import EndpointProtocol, EndpointTask, Round, RoundResult

#: The publisher's advertisement, and the subscription, which every event matches.
ADVERTISED: Final = "[class,eq,'order'],[instance,isPresent],[price,>=,0]"
WANTED: Final = "[class,eq,'order'],[price,<,1000]"


def not_matching(count: int) -> list[str]:
    """Subscriptions in the advertised space that no event matches: alternately to an instance
    without events, and to a range of prices above all others."""
    return [
        f"[class,eq,'order'],[price,>=,{1000 + number}],[price,<,{1002 + number}]"
        if number % 2
        else f"[class,eq,'order'],[instance,eq,'y{number}']"
        for number in range(count)
    ]


def all_matching(count: int) -> list[str]:
    """Subscriptions that every event matches, and of which none covers another."""
    return [
        f"[class,eq,'order'],[price,>=,{-number}],[price,<,{1000 + count - number}]"
        for number in range(count)
    ]


class Passage(NamedTuple):
    """The result of one round of traffic."""

    publications_per_s: float
    latencies_us: list[float]


class Traffic:
    """A connected publisher and subscriber, and the rounds between them."""

    def __init__(self, publisher: Child, subscriber: Child) -> None:
        self._publisher = publisher
        self._subscriber = subscriber

    def run(self, count: int, per_s: float = 0.0) -> Passage:
        """Send `count` publications, as fast as possible or `per_s` per second.

        Raises ChildFailed if not all of them arrive, once and in order.
        """
        order = msgspec.json.encode(Round(count, per_s))
        self._subscriber.tell(order)
        self._publisher.tell(order)
        started, ended = (
            msgspec.json.decode(end.answer(), type=RoundResult)
            for end in (self._publisher, self._subscriber)
        )
        duration_s = (ended.at_ns - started.at_ns) / 1e9
        return Passage(count / duration_s, [ns / 1000 for ns in ended.latencies_ns])


class TrafficProcesses:
    """Starts processes that end with the stack; their logs go to the directory."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self._stack = stack
        self._directory = directory

    def start(self, name: str, module: str, *arguments: str) -> Child:
        return self._stack.enter_context(Child(name, module, *arguments, directory=self._directory))

    def relays(self, count: int) -> list[tuple[Child, int]]:
        """Relays in a row, the first one first, with their ports."""
        relays: list[tuple[Child, int]] = []
        for number in range(count, 0, -1):  # Each needs the port of the next one.
            following = [str(port) for _, port in relays[:1]]
            relay = self.start(f"relay{number}", "bench.micro.relay", *following)
            relays.insert(0, (relay, int(relay.ready())))
        return relays

    def publisher(self, protocol: EndpointProtocol, name: str, port: int) -> Child:
        return self._end(EndpointTask("publisher", protocol, port, name, [ADVERTISED]))

    def subscriber(
        self, protocol: EndpointProtocol, name: str, port: int, filters: list[str]
    ) -> Child:
        return self._end(EndpointTask("subscriber", protocol, port, name, filters))

    def _end(self, task: EndpointTask) -> Child:
        """A process that is still connecting; wait until it is `ready` before anything is sent."""
        end = self.start(f"{task.side}-{task.name}-{task.port}", "bench.micro.endpoints")
        end.tell(msgspec.json.encode(task))
        return end
