"""The thread with the event loop of all blocking clients of this process.

It starts with the first client and ends with the last. No code of the program runs there, apart
from `on_error`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from padres_tx.errors import ClientClosed

#: How long the thread may take to end, after its last client has been closed.
JOIN_S = 5.0

T = TypeVar("T")


class BackgroundLoop:
    """An event loop on a thread of its own."""

    _lock = threading.Lock()
    #: The loop of this process, if it has open clients.
    shared: BackgroundLoop | None = None

    def __init__(self) -> None:
        self._pid = os.getpid()
        #: The clients that use it.
        self.clients: list[Any] = []
        self.loop = asyncio.new_event_loop()
        # A daemon, so that a program that forgets to close can still end.
        self._thread = threading.Thread(target=self._serve, name="padres_tx", daemon=True)
        self._thread.start()

    @classmethod
    def enter(cls, client: object) -> BackgroundLoop:
        """The loop for a new client, started if it is the first."""
        with cls._lock:
            # A forked child has the object, but not the thread.
            if cls.shared is None or cls.shared._pid != os.getpid():
                cls.shared = cls()
            cls.shared.clients.append(client)
            return cls.shared

    def leave(self, client: object) -> None:
        """Let go of a client that has been closed; the last one ends the thread."""
        with self._lock:
            if client in self.clients:
                self.clients.remove(client)
            if self.clients or not self.loop.is_running():
                return
            if BackgroundLoop.shared is self:
                BackgroundLoop.shared = None
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(JOIN_S)

    @property
    def running(self) -> bool:
        return self._pid == os.getpid() and self._thread.is_alive()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for it; an interrupt cancels it.

        Raises ClientClosed if there is no loop to run it, and what the coroutine raises.
        """
        if not self.running or threading.current_thread() is self._thread:
            call.close()
            raise ClientClosed(
                "a blocking client cannot be used from its own event loop"
                if self.running
                else "the client was made before a fork, or its thread has ended"
            )
        future = asyncio.run_coroutine_threadsafe(call, self.loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClientClosed("the client was closed during the call") from None
        except BaseException:
            future.cancel()
            raise

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=JOIN_S))
        finally:
            self.loop.close()
