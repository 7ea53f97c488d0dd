"""Query the status of brokers, all at once.

For the launcher, which waits until an overlay is up, and for `padres-tx status`. The call blocks;
it runs an event loop on a thread of its own, so that it also works where a loop is already running
(notebooks). A broker that does not reply in time gives a reason instead of a status.

This module must not know who started the brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec

from overlay.errors import OverlayError, ProtocolError
from padres_tx.client.asyncio.operator import Operator, operator

#: A broker on a local network replies in milliseconds; one that takes longer than this is in
#: trouble.
REPLY_S = 2.0

#: Brokers queried at a time: far below the limit of open files of a process.
AT_A_TIME = 100


class LinkStatus(msgspec.Struct, frozen=True):
    """One neighbour, as a broker sees it."""

    neighbour: str
    up: bool
    #: Number of processes refused because they used the neighbour's name a second time, and the
    #: address of the last one.
    rivals: int = 0
    last_rival: str = ""
    #: The neighbour's warning about a second process with this broker's name.
    notice: str = ""
    #: Why the neighbour refuses this broker.
    refusal: str = ""
    #: How many messages wait for the neighbour, and whether that is as much as may.
    outbox: int = 0
    full: bool = False

    @property
    def warnings(self) -> list[str]:
        """Problems of this link that need attention."""
        found = []
        if self.full:
            found.append(
                f"{self.outbox} messages wait for {self.neighbour}: publications for clients "
                "behind it are refused"
            )
        if self.refusal:
            found.append(f"refused by {self.neighbour}: {self.refusal}")
        if self.notice:
            found.append(f"{self.neighbour} reports: {self.notice}")
        if self.rivals:
            found.append(
                f"a second process named {self.neighbour} was refused {self.rivals} times, "
                f"most recently from {self.last_rival}"
            )
        return found


class ClientStatus(msgspec.Struct, frozen=True):
    """One client, as its broker sees it; a client that is not up may still reconnect."""

    client: str
    up: bool


class TraceStatus(msgspec.Struct, frozen=True):
    """A broker's trace file; after a problem, tracing is off."""

    file: str
    missing: int = 0
    problem: str = ""


class LogStatus(msgspec.Struct, frozen=True):
    """The number of lines that a broker could not log, and why, if it still cannot."""

    lost: int = 0
    problem: str = ""


class ConnectionsStatus(msgspec.Struct, frozen=True):
    """The connections of a broker: pending ones, and refused ones by error code."""

    pending: int = 0
    refused: dict[str, int] = {}


class UnreachableBroker(msgspec.Struct, frozen=True):
    """A broker that cannot be reached, and the neighbour of it that reported this."""

    broker: str
    reported_by: str


class UsageStatus(msgspec.Struct, frozen=True):
    """How much of a limit of a broker is used."""

    name: str
    used: int
    limit: int

    def __str__(self) -> str:
        return f"{self.name} {self.used}/{self.limit}"


class DurabilityStatus(msgspec.Struct, frozen=True):
    """How a broker keeps its state; in memory mode only the mode and the directory are known."""

    mode: str = "memory"
    #: Where it keeps its state, or leaves it when it is restarted as planned; "" for nowhere.
    directory: str = ""
    #: The number of inputs that the broker has taken in its life, and those of the last snapshot.
    position: int = 0
    snapshot_position: int | None = None
    snapshot_age_s: float | None = None
    log_bytes: int = 0
    #: Inputs that are not on disk yet, and for how long the oldest of them has waited.
    staged: int = 0
    unsynced_age_s: float = 0.0
    #: Why the broker cannot write now.
    problem: str = ""


class BrokerStatus(msgspec.Struct, frozen=True):
    """A broker's report about itself; unknown fields are ignored."""

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
    usage: list[UsageStatus] = []
    durability: DurabilityStatus = DurabilityStatus()

    @property
    def warnings(self) -> list[str]:
        """Problems that need attention although the broker is running."""
        found = [warning for link in self.links for warning in link.warnings]
        if self.beyond:
            found.append(f"cannot reach {', '.join(self.beyond)}")
        if self.trace is not None and self.trace.problem:
            found.append(
                f"tracing is off, {self.trace.missing} records are missing in "
                f"{self.trace.file}: {self.trace.problem}"
            )
        if self.log.lost:
            why = f": {self.log.problem}" if self.log.problem else ""
            found.append(f"{self.log.lost} log lines were lost{why}")
        if self.durability.problem:
            found.append(
                f"the log cannot be written, and no input is taken: {self.durability.problem}"
            )
        found += [f"nearly full: {each}" for each in self.usage if each.used > 0.9 * each.limit]
        for code in ("broker-full", "overloaded"):
            if count := self.connections.refused.get(code, 0):
                found.append(f"{count} connections were refused for lack of capacity ({code})")
        return found

    @property
    def missing(self) -> list[str]:
        """The neighbours without a link."""
        return [link.neighbour for link in self.links if not link.up]

    @property
    def beyond(self) -> list[str]:
        """The brokers further away that cannot be reached, although the own links are up."""
        return [
            f"{missing.broker} (no link from {missing.reported_by})"
            for missing in self.unreachable
            if missing.reported_by != self.broker
        ]


def query_all(
    addresses: Mapping[str, str], timeout_s: float = REPLY_S
) -> dict[str, BrokerStatus | str]:
    """Return the status of each broker, by name, or the reason why there is none."""
    with ThreadPoolExecutor(1, thread_name_prefix="broker status") as thread:
        return thread.submit(asyncio.run, _query_all(addresses, timeout_s)).result()


async def _query_all(
    addresses: Mapping[str, str], timeout_s: float
) -> dict[str, BrokerStatus | str]:
    slots = asyncio.Semaphore(AT_A_TIME)

    async def status_or_reason(address: str) -> BrokerStatus | str:
        try:
            async with slots, asyncio.timeout(timeout_s):
                return await _query(address)
        except TimeoutError:
            return f"no reply within {timeout_s:g} s"
        except OverlayError as error:
            return str(error)

    replies = await asyncio.gather(*map(status_or_reason, addresses.values()))
    return dict(zip(addresses, replies, strict=True))


async def _query(address: str) -> BrokerStatus:
    # One attempt: the caller wants to know the status now.
    async with operator(address, retry=False) as broker:
        return await query(broker)


async def query(broker: Operator) -> BrokerStatus:
    """Return the status of the broker that an operator is connected to.

    Raises ProtocolError if it is malformed, and as `Operator.inspect` does.
    """
    body = await broker.inspect("status")
    try:
        return msgspec.convert(body, BrokerStatus)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"malformed status of a broker: {error}") from None
