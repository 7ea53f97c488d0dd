"""Ask brokers how they are, all at once.

For the launcher, which waits until an overlay is up, and for people who look at one. Blocking, and
on a thread with an event loop of its own, so that it also works where a loop runs already
(notebooks). A broker that does not answer in time is an answer, too.

This module must not know who started the brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec

from overlay.errors import OverlayError, ProtocolError
from padres_tx.client.asyncio.operator import operator

#: A broker on this machine or the next answers in milliseconds; one that needs this is not well.
ANSWER_S = 2.0

#: Brokers that are asked at a time: far below the number of files that a process may have open.
AT_A_TIME = 100


class LinkStatus(msgspec.Struct, frozen=True):
    """One neighbour, as a broker sees it."""

    neighbour: str
    up: bool
    unacked: int = 0
    outbox: int = 0
    congested: bool = False
    #: Second processes: under the neighbour's name that were refused, and where the last was; what
    #: the neighbour says of one under this broker's name; why the neighbour refuses this broker.
    rivals: int = 0
    last_rival: str = ""
    notice: str = ""
    refusal: str = ""

    @property
    def warnings(self) -> list[str]:
        """What a person should look after."""
        found = []
        if self.refusal:
            found.append(f"refused by {self.neighbour}: {self.refusal}")
        if self.notice:
            found.append(f"{self.neighbour} says: {self.notice}")
        if self.rivals:
            found.append(
                f"a second process called {self.neighbour} was refused {self.rivals} times, "
                f"the last time from {self.last_rival}"
            )
        return found


class ClientStatus(msgspec.Struct, frozen=True):
    """One client, as its broker sees it; one that is not up may still come back."""

    client: str
    up: bool


class TraceStatus(msgspec.Struct, frozen=True):
    """A broker's trace; with a problem it is off."""

    file: str
    missing: int = 0
    problem: str = ""


class LogStatus(msgspec.Struct, frozen=True):
    """Lines that a broker could not log, and why it still cannot."""

    lost: int = 0
    problem: str = ""


class ConnectionsStatus(msgspec.Struct, frozen=True):
    """The connections of a broker: those refused, by the code that they were told."""

    pending: int = 0
    refused: dict[str, int] = {}


class UnreachableBroker(msgspec.Struct, frozen=True):
    """A broker that another one cannot reach, and the neighbour of it that has lost it."""

    broker: str
    reported_by: str


class Status(msgspec.Struct, frozen=True):
    """What a broker says of itself; what is more than this is ignored."""

    broker: str
    pid: int
    uptime_s: float
    links: list[LinkStatus]
    clients: list[ClientStatus]
    messages_in: int
    messages_out: int
    trace: TraceStatus | None = None
    log: LogStatus = LogStatus()
    connections: ConnectionsStatus = ConnectionsStatus()
    unreachable: list[UnreachableBroker] = []

    @property
    def warnings(self) -> list[str]:
        """What a person should look after, although the broker runs."""
        found = [warning for link in self.links for warning in link.warnings]
        if self.beyond:
            found.append(f"cannot reach {', '.join(self.beyond)}")
        if self.trace is not None and self.trace.problem:
            found.append(
                f"the trace is off, {self.trace.missing} records are missing in "
                f"{self.trace.file}: {self.trace.problem}"
            )
        if self.log.lost:
            why = f": {self.log.problem}" if self.log.problem else ""
            found.append(f"{self.log.lost} lines of the log were lost{why}")
        for code in ("broker-full", "overloaded"):
            if count := self.connections.refused.get(code, 0):
                found.append(f"{count} connections were refused for want of room ({code})")
        return found

    @property
    def missing(self) -> list[str]:
        """The neighbours that it has no link to."""
        return [link.neighbour for link in self.links if not link.up]

    @property
    def beyond(self) -> list[str]:
        """The brokers that it cannot reach, though it has all links on its own side."""
        return [
            f"{missing.broker} (no link from {missing.reported_by})"
            for missing in self.unreachable
            if missing.reported_by != self.broker
        ]


def survey(addresses: Mapping[str, str], timeout_s: float = ANSWER_S) -> dict[str, Status | str]:
    """The status of each broker, by name, or in its place why there is none."""
    with ThreadPoolExecutor(1, thread_name_prefix="survey") as thread:
        return thread.submit(asyncio.run, _survey(addresses, timeout_s)).result()


async def _survey(addresses: Mapping[str, str], timeout_s: float) -> dict[str, Status | str]:
    turn = asyncio.Semaphore(AT_A_TIME)

    async def ask(at: str) -> Status | str:
        try:
            async with turn, asyncio.timeout(timeout_s):
                return await _status(at)
        except TimeoutError:
            return f"no answer within {timeout_s:g} s"
        except OverlayError as error:
            return str(error)

    answers = await asyncio.gather(*(ask(at) for at in addresses.values()))
    return dict(zip(addresses, answers, strict=True))


async def _status(at: str) -> Status:
    # One attempt: whoever asks wants to know how it is now.
    async with operator(at, retry=False) as broker:
        body = await broker.inspect("status")
    try:
        return msgspec.convert(body, Status)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"{at} gives a status that is none: {error}") from None
