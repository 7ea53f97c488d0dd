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
from padres_tx.aio import operator

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


class ClientStatus(msgspec.Struct, frozen=True):
    """One client, as its broker sees it; one that is not up may still come back."""

    client: str
    up: bool


class Status(msgspec.Struct, frozen=True):
    """What a broker says of itself; what is more than this is ignored."""

    broker: str
    pid: int
    uptime_s: float
    links: list[LinkStatus]
    clients: list[ClientStatus]
    messages_in: int
    messages_out: int

    @property
    def missing(self) -> list[str]:
        """The neighbours that it has no link to."""
        return [link.neighbour for link in self.links if not link.up]


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
