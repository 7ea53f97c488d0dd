"""Errors of a client that no call can raise: they are logged, and passed to `on_error`.

There are two kinds: exceptions of the program's callbacks and handlers, and publications that the
broker has refused after the call. All are logged at once, with the traceback if there is one. A
refused publication is kept for `close` if there is no `on_error`.

For asyncio clients, and so for blocking ones; this module knows neither sessions nor channels.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from overlay.errors import OverlayError
from padres_tx.client.session import Notification, PublicationRefused
from padres_tx.client.transactions import Result
from padres_tx.errors import TransactionAborted

#: Called with each error that no call can raise.
OnError: TypeAlias = Callable[[Exception], Awaitable[None] | None]

logger = logging.getLogger("padres_tx")


class ErrorReports:
    """The errors of one client."""

    def __init__(self, client: str, on_error: OnError | None) -> None:
        self._client = client
        self.on_error = on_error
        #: The first publication that was refused, for `close`, and how many more were.
        self._refused: OverlayError | None = None
        self._refused_more = 0
        #: Tasks of an asynchronous `on_error`. A loop does not keep tasks alive.
        self._reporting: set[asyncio.Future[None]] = set()

    def callback_failed(
        self, callback: Callable[[Any], Any], argument: Any, error: Exception
    ) -> None:
        """A callback has raised."""
        name, what = callback_name(callback), _short(argument)
        logger.error("%s of client %s failed on %s", name, self._client, what, exc_info=error)
        self._report(error)

    def handler_failed(self, tx: str, error: Exception) -> None:
        """A handler has raised, which aborts its transaction; passing on an abort is no error."""
        if not isinstance(error, TransactionAborted):
            logger.warning(
                "a handler of client %s failed, which aborts %s", self._client, tx, exc_info=error
            )
            self._report(error)

    def publication_refused(self, refused: PublicationRefused) -> None:
        """The broker has refused a publication."""
        what = f"publication {refused.seq}" if refused.seq else "an operation in a transaction"
        logger.error("%s of client %s was refused: %s", what, self._client, refused.error)
        if self.on_error is not None:
            self._report(refused.error)
        elif self._refused is None:
            self._refused = refused.error
        else:
            self._refused_more += 1

    def raise_refused(self) -> None:
        """Raises the first refused publication that was not passed to `on_error`, once."""
        error, self._refused = self._refused, None
        if error is not None:
            if self._refused_more:
                error.add_note(f"{self._refused_more} more publications were refused")
            raise error

    def _report(self, error: Exception) -> None:
        if self.on_error is None:
            return
        loop = asyncio.get_running_loop()
        try:
            awaitable = self.on_error(error)
            if inspect.isawaitable(awaitable):
                task = asyncio.ensure_future(awaitable)
                self._reporting.add(task)
                task.add_done_callback(self._reporting.discard)
        except Exception as worse:
            # Only the loop is left to report to.
            loop.call_exception_handler(
                {"message": f"on_error of {self._client} failed", "exception": worse}
            )


def callback_name(callback: object) -> str:
    """The name of a callback in a log."""
    return getattr(callback, "__qualname__", None) or repr(callback)


def _short(argument: object) -> str:
    """The argument of a callback, in a few words."""
    if isinstance(argument, Notification):
        return f"publication {argument.name}"
    if isinstance(argument, Result):
        return f"{argument.tx}, {argument.status}"
    return str(argument)
