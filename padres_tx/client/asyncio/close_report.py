"""Reports the end of a client to `on_close`, once.

The end is the program's own `close`, or a broker that is lost for good. A client that could not
join has no end to report.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from overlay.errors import OverlayError
from padres_tx.client.asyncio.callbacks import Callbacks
from padres_tx.client.asyncio.requests import Requests, again
from padres_tx.errors import ClientClosed

#: Called at the end of a client, with the reason, or with None after its own `close`.
OnClose: TypeAlias = Callable[[OverlayError | None], Awaitable[None] | None]


class CloseReport:
    """The report of one client's end."""

    def __init__(self, requests: Requests, callbacks: Callbacks, on_close: OnClose | None) -> None:
        self._requests = requests
        self._callbacks = callbacks
        #: To be called at the end; None when it has been, or is being.
        self.on_close = on_close
        #: Whether the broker has let the client in, so that there can be an end.
        self.joined = False
        callbacks.when_over = self.report

    async def report(self) -> None:
        """Call `on_close`, unless that has been done."""
        on_close = self.take()
        if on_close is not None:
            await self._callbacks.call(on_close, self.reason())

    def take(self) -> OnClose | None:
        """The callback, for the first caller only: it is called once."""
        on_close, self.on_close = self.on_close, None
        return on_close if self.joined else None

    def reason(self) -> OverlayError | None:
        """Why the client has ended; None if the program has closed it."""
        error = self._requests.error
        return None if error is None or isinstance(error, ClientClosed) else again(error)
