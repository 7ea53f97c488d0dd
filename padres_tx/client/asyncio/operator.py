"""An operator: a program that inspects a broker and takes no part in the overlay."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

import msgspec

from padres_tx.client.asyncio.channel import (
    CONNECT_TIMEOUT_S,
    Channel,
    TcpChannel,
    parse_address,
)
from padres_tx.client.asyncio.connecting import Connecting, close_after, unique_name
from padres_tx.client.asyncio.requests import CALL_TIMEOUT_S, Requests
from padres_tx.client.session import Session
from padres_tx.environment import secret_or_environment


def operator(
    at: str,
    *,
    secret: str | None = None,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    retry: bool = True,
) -> Connecting[Operator]:
    """An operator at the broker "host:port"; the arguments are as in `padres_tx.connect`.

    Entering raises BadAddress, Unreachable, or the error that the broker refuses with.
    """
    address = parse_address(at)
    session = Session(unique_name("operator"))
    channel = TcpChannel(
        address, "operator", session.name, secret=secret_or_environment(secret), reconnect_s=0
    )
    return Connecting(Operator(session, channel), connect_timeout_s, retry=retry)


class Operator:
    """A connection that inspects a broker."""

    def __init__(self, session: Session, channel: Channel) -> None:
        self._requests = Requests("Operator", session, channel)

    @property
    def name(self) -> str:
        return self._requests.name

    @property
    def closed(self) -> bool:
        """Whether the operator has been closed, or has lost its broker for good."""
        return self._requests.error is not None

    def __repr__(self) -> str:
        return repr(self._requests)

    async def open(self, timeout_s: float, *, retry: bool = True) -> None:
        """Connect to the broker; `Connecting` does this."""
        await self._requests.open(timeout_s, retry=retry)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await close_after(self, error)

    async def close(self) -> None:
        """End the connection. Closing twice is fine."""
        if not self._requests.closed:
            await self._requests.close()

    async def inspect(
        self, what: str, argument: str = "", *, timeout_s: float = CALL_TIMEOUT_S
    ) -> Any:
        """A part of the broker's state as plain data: "tables" (its first page) or "status".

        Raises OperationError if there is no such part.
        """
        requests = self._requests
        await requests.wait_room()
        return (await requests.request(requests.session.inspect(what, argument), timeout_s)).body

    async def tables(
        self,
        *,
        client: str = "",
        hop: str = "",
        matching: str = "",
        limit: int | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> dict[str, Any]:
        """The broker's SRT, PRT and clients, gathered page by page.

        `client`, `hop` and `matching` (a publication in PADRES notation that the filter contains)
        choose rows. With a `limit` no more rows than that are returned; `complete` says whether
        these are all.

        Raises OperationError for a question that the broker does not understand.
        """
        query: dict[str, Any] = {"client": client, "hop": hop, "matching": matching}
        gathered: dict[str, Any] = {"srt": [], "prt": [], "clients": []}
        room = sys.maxsize if limit is None else limit
        while True:
            question = msgspec.json.encode(query).decode()
            page = await self.inspect("tables", question, timeout_s=timeout_s)
            left_out = False
            for table, rows in gathered.items():
                rows += page[table][:room]
                left_out = left_out or len(page[table]) > room
                room -= min(room, len(page[table]))
            complete = page["next"] is None and not left_out
            if complete or left_out:
                return {"broker": page["broker"], **gathered, "complete": complete}
            query["after"] = page["next"]
