"""A process with clients of an experiment, started by `single_run`.

The command is `python -m bench.experiments.client_process CAST`.
CAST is a file that says which players are in this process, and where their brokers are. The process
connects and prepares them and says so; at the word "go" they play, while it tells how far they are;
when all have played it says so, and at the word "leave" they leave. They stay until then because a
client that leaves takes its subscriptions back at every broker, while others still measure.

It speaks by the line: what it says is on standard output, one JSON object (`Said`) each; what it is
told comes by standard input, which is also its leash: when that is closed, nobody wants the
process any more, and it ends at once. Records go to files, one for each client.

The scenarios are in `workloads`; this module must not know what they do.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import traceback
from collections import Counter
from collections.abc import Awaitable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

import padres_tx
from bench.experiments import workloads
from bench.experiments.roles import Player, Scene
from bench.records import Book, clock
from overlay.errors import OverlayError
from padres_tx import registry

#: How often it tells how far it is: as often as a person sees a difference.
REPORT_S: Final = 0.25

#: What a process that is killed may lose of its records.
FLUSH_S: Final = 1.0

#: Orders.
GO: Final = b"go\n"
LEAVE: Final = b"leave\n"

FAILED: Final = 1
#: Nobody holds the leash any more.
ABANDONED: Final = 3


class Group(msgspec.Struct, frozen=True):
    """The players of one instance of the scenario that are in one process."""

    scene: Scene
    roles: tuple[str, ...]


class Cast(msgspec.Struct, frozen=True):
    """What one process is given."""

    run_id: str
    epoch_ns: int
    workload: str
    groups: tuple[Group, ...]
    #: Client -> "host:port" of its broker.
    addresses: dict[str, str]
    #: Where the records go.
    directory: str


class Ready(msgspec.Struct, tag=True):
    """All players are prepared."""


class Going(msgspec.Struct, tag=True):
    """How far they are: steps of the workload, and records of any kind."""

    done: int
    records: int


class Played(msgspec.Struct, tag=True):
    """All have played to the end: records by kind, transactions by status."""

    done: int
    records: dict[str, int]
    statuses: dict[str, int]


class Broken(msgspec.Struct, tag=True):
    """It cannot go on."""

    reason: str


Said: TypeAlias = Ready | Going | Played | Broken

said_decoder = msgspec.json.Decoder(Said)


class Ensemble:
    """The players of this process."""

    def __init__(self, cast: Cast) -> None:
        self.cast = cast
        self.players: list[Player] = []
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, orders: asyncio.StreamReader) -> None:
        """From connecting to leaving. Raises what players raise."""
        async with AsyncExitStack() as stack:
            for group in self.cast.groups:
                # Or the first transaction would wait until its engine is imported.
                registry.load(group.scene.engine)
                for role in group.roles:
                    self.players.append(await self._player(stack, group.scene, role))
            await self._all(player.prepare() for player in self.players)
            # What is there now stays: the collector need not look at it again.
            gc.collect()
            gc.freeze()
            say(Ready())
            await self._ordered(orders, GO)
            telling = asyncio.create_task(self._tell())
            try:
                await self._all(player.play() for player in self.players)
            finally:
                telling.cancel()
            for player in self.players:
                player.book.flush()
            written, statuses = Counter[str](), Counter[str]()
            for player in self.players:
                written += player.book.written
                statuses += player.book.statuses
            say(Played(self._done, dict(written), dict(sorted(statuses.items()))))
            await self._ordered(orders, LEAVE)

    async def _player(self, stack: AsyncExitStack, scene: Scene, role: str) -> Player:
        workload = workloads.load(self.cast.workload)
        name = scene.names[role]
        book = Book(
            self.cast.run_id,
            name,
            Path(self.cast.directory) / f"{name}.jsonl",
            clock(self.cast.epoch_ns),
        )
        stack.callback(book.close)

        def failed(error: Exception) -> None:
            # An operation that comes too late may be refused: what waits takes that into account.
            if not (scene.waits and isinstance(error, OverlayError)) and not self._failure.done():
                self._failure.set_exception(error)

        client = await stack.enter_async_context(
            padres_tx.connect(self.cast.addresses[name], name=name, on_error=failed)
        )
        options = workload.Options.model_validate(scene.options)
        return workload.roles[role](role, client, scene, book, options)

    async def _all(self, doings: Iterable[Awaitable[None]]) -> None:
        """Let all do it; the first failure of any kind ends it."""
        together = asyncio.gather(*doings)
        try:
            await asyncio.wait((together, self._failure), return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            await together
        finally:
            together.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await together

    @staticmethod
    async def _ordered(orders: asyncio.StreamReader, word: bytes) -> None:
        told = await orders.readline()
        if told != word:
            assert not told, f"{told!r} where {word!r} is due"
            os._exit(ABANDONED)

    @property
    def _done(self) -> int:
        return sum(player.done for player in self.players)

    async def _tell(self) -> None:
        flush_in_s = FLUSH_S
        while True:
            await asyncio.sleep(REPORT_S)
            records = sum(player.book.written.total() for player in self.players)
            say(Going(self._done, records))
            flush_in_s -= REPORT_S
            if flush_in_s <= 0:
                flush_in_s = FLUSH_S
                for player in self.players:
                    player.book.flush()


def say(what: Said) -> None:
    """Tell the runner, which reads all the time."""
    try:
        os.write(sys.stdout.fileno(), msgspec.json.encode(what) + b"\n")
    except BrokenPipeError:
        os._exit(ABANDONED)


async def perform(cast: Cast) -> int:
    """Run a cast; answers the exit code."""
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    gone = asyncio.Event()

    class Leash(asyncio.StreamReaderProtocol):
        def connection_lost(self, error: Exception | None) -> None:
            gone.set()

        def eof_received(self) -> bool:
            gone.set()
            return super().eof_received() or False

    await loop.connect_read_pipe(lambda: Leash(orders), sys.stdin)
    performing = asyncio.create_task(Ensemble(cast).run(orders))
    abandoned = asyncio.create_task(gone.wait())
    await asyncio.wait((performing, abandoned), return_when=asyncio.FIRST_COMPLETED)
    if not performing.done():
        # Brokers see the connections break; goodbyes could take as long as they like.
        os._exit(ABANDONED)
    abandoned.cancel()
    try:
        performing.result()
    except Exception as error:  # Whatever a player of one's own does; the runner tells it.
        traceback.print_exc()
        say(Broken(f"{type(error).__name__}: {error}"))
        return FAILED
    return 0


def main() -> None:
    """Run the cast in the file that the argument names."""
    cast = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Cast)
    sys.exit(asyncio.run(perform(cast)))


if __name__ == "__main__":
    main()
