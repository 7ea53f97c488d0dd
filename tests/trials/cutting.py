"""A TCP proxy on asyncio that cuts its connections when it is told to."""

from __future__ import annotations

import asyncio
import contextlib


class CuttingProxy:
    """Listens at `address`, connects each caller with the target, and resets both ends on `cut`."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._pairs: dict[tuple[asyncio.StreamWriter, asyncio.StreamWriter], None] = {}
        self._server: asyncio.Server | None = None
        self.address = ""
        self.cuts = 0

    async def __aenter__(self) -> CuttingProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Reset every connection; what is under way in them is lost."""
        for pair in list(self._pairs):
            self.cuts += 1
            for end in pair:
                end.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, caller: asyncio.StreamWriter) -> None:
        try:
            answers, target = await asyncio.open_connection(self._host, self._port)
        except OSError:
            caller.transport.abort()
            return
        pair = (caller, target)
        self._pairs[pair] = None
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(_pump(reader, target), _pump(answers, caller))
        del self._pairs[pair]


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
