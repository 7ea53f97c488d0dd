"""A connection about to be made: await it, or enter it with `async with`."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar


class Connectable(Protocol):
    """A client or an operator, as far as `Connecting` needs it."""

    async def open(self, timeout_s: float, *, retry: bool = True) -> None: ...

    async def close(self) -> None: ...


C = TypeVar("C", bound=Connectable)


class Connecting(Generic[C]):
    """A client or an operator that is about to be connected."""

    def __init__(self, connected: C, timeout_s: float, *, retry: bool = True) -> None:
        self._connected = connected
        self._timeout_s = timeout_s
        self._retry = retry

    def __await__(self) -> Generator[Any, None, C]:
        return self._open().__await__()

    async def __aenter__(self) -> C:
        return await self._open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await close_after(self._connected, error)

    async def _open(self) -> C:
        await self._connected.open(self._timeout_s, retry=self._retry)
        return self._connected


async def close_after(connected: Connectable, error: BaseException | None) -> None:
    """Close at the end of a block that has raised this error, or none."""
    try:
        await connected.close()
    except Exception:
        # Keep the block's own exception; the failure to send is only a consequence.
        if error is None:
            raise


def unique_name(stem: str) -> str:
    """A name that no other client has."""
    return f"{stem}-{secrets.token_hex(6)}"
