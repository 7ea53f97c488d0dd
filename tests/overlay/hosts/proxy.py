"""A TCP proxy for tests: it passes bytes on in both directions, and cuts or holds them."""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import struct
import threading
from collections.abc import Iterator

#: A reset instead of an orderly end, so that what is under way is lost on both sides.
_RESET = struct.pack("ii", 1, 0)

#: How long the proxy's thread may not look at its orders.
_POLL_S = 0.05


class Proxy:
    """Listens at `port` and connects each caller with `target`.

    With `cut_every`, a connection is reset after some number of bytes up to that, drawn anew for
    each; `hold` keeps all bytes back until `release`.
    """

    def __init__(self, target: int, *, cut_every: int = 0, seed: int = 0) -> None:
        self.target = target
        self.cuts = 0
        self.passed = 0
        self._cut_every = cut_every
        self._random = random.Random(seed)
        self._holding = threading.Event()
        self._stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def hold(self) -> None:
        self._holding.set()

    def release(self) -> None:
        self._holding.clear()

    def calm(self) -> None:
        """Cut no more."""
        self._cut_every = 0

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        # One connection at a time is enough between two brokers.
        self._listener.settimeout(_POLL_S)
        while not self._stopped.is_set():
            with contextlib.suppress(TimeoutError, ConnectionError):
                caller, _ = self._listener.accept()
                with caller, socket.create_connection(("127.0.0.1", self.target)) as target:
                    self._relay(caller, target)

    def _relay(self, a: socket.socket, b: socket.socket) -> None:
        other = {a: b, b: a}
        budget = self._random.randint(1, self._cut_every) if self._cut_every else None
        with selectors.DefaultSelector() as selector:
            for end in (a, b):
                selector.register(end, selectors.EVENT_READ)
            while not self._stopped.is_set():
                if self._holding.is_set():
                    self._stopped.wait(_POLL_S)
                    continue
                for key, _ in selector.select(_POLL_S):
                    assert isinstance(key.fileobj, socket.socket)
                    data = key.fileobj.recv(1 << 16)
                    if not data:
                        return
                    if budget is not None and self._cut_every:
                        data, budget = data[:budget], budget - len(data)
                    other[key.fileobj].sendall(data)
                    self.passed += len(data)
                    if budget is not None and budget <= 0 and self._cut_every:
                        self.cuts += 1
                        for end in (a, b):
                            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                        return


@contextlib.contextmanager
def proxied(target: int, *, cut_every: int = 0, seed: int = 0) -> Iterator[Proxy]:
    proxy = Proxy(target, cut_every=cut_every, seed=seed)
    try:
        yield proxy
    finally:
        proxy.stop()
