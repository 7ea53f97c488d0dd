"""A process with clients of an experiment: `python -m bench.experiments.client_process SPEC`.

SPEC is a file with a `ProcessSpec`: the roles in this process, and the addresses of their brokers.
The process connects and prepares the clients and reports `ClientsReady`. At the command "go" the
roles run, and the process reports their progress; when all have finished it reports that, and at
the command "leave" the clients leave. They stay connected until then because a leaving client's
subscriptions are removed at every broker, which would disturb processes that still measure.

Reports are lines on standard output, one JSON object each (`ProcessReport`); commands are lines on
standard input. When standard input is closed, `single_run` has ended, and this process ends at
once. Records go to files, one for each client.

The scenarios are in `workloads`; what they do must not be known here.
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
from bench.experiments.roles import Role, ScenarioInstance
from bench.records import RecordWriter, clock
from overlay.errors import OverlayError
from padres_tx import registry

#: How often it reports progress: as often as a person sees a difference.
REPORT_S: Final = 0.25

#: Records are in the file after this time; a process that is killed loses at most the rest.
FLUSH_S: Final = 1.0

#: Commands.
GO: Final = b"go"
LEAVE: Final = b"leave"

#: Exit codes: a role has failed; standard input was closed.
EXIT_FAILED: Final = 1
EXIT_ABANDONED: Final = 3


class RoleGroup(msgspec.Struct, frozen=True):
    """The roles of one scenario instance that share a process."""

    scenario: ScenarioInstance
    roles: tuple[str, ...]


class ProcessSpec(msgspec.Struct, frozen=True):
    """What one client process runs."""

    run_id: str
    epoch_ns: int
    workload: str
    groups: tuple[RoleGroup, ...]
    #: Client -> "host:port" of its broker.
    addresses: dict[str, str]
    #: Where the records go.
    directory: str


class ClientsReady(msgspec.Struct, tag=True):
    """All roles are prepared."""


class ClientsProgress(msgspec.Struct, tag=True):
    """Completed steps of the workload, and records of all kinds, so far."""

    done: int
    records: int


class ClientsFinished(msgspec.Struct, tag=True):
    """All roles have finished: records by kind, transactions by status."""

    done: int
    records: dict[str, int]
    statuses: dict[str, int]


class ClientsFailed(msgspec.Struct, tag=True):
    """A role has failed, and the process ends."""

    reason: str


ProcessReport: TypeAlias = ClientsReady | ClientsProgress | ClientsFinished | ClientsFailed

report_decoder = msgspec.json.Decoder(ProcessReport)


class Clients:
    """The clients of this process in their roles."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.roles: list[Role] = []
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, commands: asyncio.StreamReader) -> None:
        """From connecting to leaving. Raises what roles raise."""
        async with AsyncExitStack() as stack:
            for group in self.spec.groups:
                # Otherwise the first transaction would include the import of its engine.
                registry.load(group.scenario.engine)
                for name in group.roles:
                    self.roles.append(await self._connect(stack, group.scenario, name))
            await self._all(role.prepare() for role in self.roles)
            # What exists now stays: the garbage collector need not look at it again.
            gc.collect()
            gc.freeze()
            report(ClientsReady())
            await self._await_command(commands, GO)
            reporting = asyncio.create_task(self._report_progress())
            try:
                await self._all(role.run() for role in self.roles)
            finally:
                reporting.cancel()
            for role in self.roles:
                role.writer.flush()
            written, statuses = Counter[str](), Counter[str]()
            for role in self.roles:
                written += role.writer.written
                statuses += role.writer.statuses
            report(ClientsFinished(self._done, dict(written), dict(sorted(statuses.items()))))
            await self._await_command(commands, LEAVE)

    async def _connect(self, stack: AsyncExitStack, scenario: ScenarioInstance, role: str) -> Role:
        workload = workloads.load(self.spec.workload)
        name = scenario.names[role]
        writer = RecordWriter(
            self.spec.run_id,
            name,
            Path(self.spec.directory) / f"{name}.jsonl",
            clock(self.spec.epoch_ns),
        )
        stack.callback(writer.close)

        def failed(error: Exception) -> None:
            # Of an engine that waits, an operation that comes too late may be refused; workloads
            # record what that leads to.
            expected = scenario.waits and isinstance(error, OverlayError)
            if not expected and not self._failure.done():
                self._failure.set_exception(error)

        client = await stack.enter_async_context(
            padres_tx.connect(self.spec.addresses[name], name=name, on_error=failed)
        )
        options = workload.Options.model_validate(scenario.options)
        return workload.roles[role](role, client, scenario, writer, options)

    async def _all(self, tasks: Iterable[Awaitable[None]]) -> None:
        """Await all; the first failure, also one outside of them, cancels the others."""
        together = asyncio.gather(*tasks)
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
    async def _await_command(commands: asyncio.StreamReader, expected: bytes) -> None:
        line = await commands.readline()
        if line != expected + b"\n":
            assert not line, f"expected the command {expected!r}, got {line!r}"
            os._exit(EXIT_ABANDONED)

    @property
    def _done(self) -> int:
        return sum(role.done for role in self.roles)

    async def _report_progress(self) -> None:
        flush_in_s = FLUSH_S
        while True:
            await asyncio.sleep(REPORT_S)
            records = sum(role.writer.written.total() for role in self.roles)
            report(ClientsProgress(self._done, records))
            flush_in_s -= REPORT_S
            if flush_in_s <= 0:
                flush_in_s = FLUSH_S
                for role in self.roles:
                    role.writer.flush()


def report(what: ProcessReport) -> None:
    """Send a report to `single_run`, which reads all the time."""
    try:
        os.write(sys.stdout.fileno(), msgspec.json.encode(what) + b"\n")
    except BrokenPipeError:
        os._exit(EXIT_ABANDONED)


async def run(spec: ProcessSpec) -> int:
    """Run the clients of a spec; returns the exit code."""
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    closed = asyncio.Event()

    class StandardInput(asyncio.StreamReaderProtocol):
        def connection_lost(self, error: Exception | None) -> None:
            closed.set()

        def eof_received(self) -> bool:
            closed.set()
            return super().eof_received() or False

    await loop.connect_read_pipe(lambda: StandardInput(commands), sys.stdin)
    running = asyncio.create_task(Clients(spec).run(commands))
    abandoned = asyncio.create_task(closed.wait())
    await asyncio.wait((running, abandoned), return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        # Brokers see the connections break; leaving in order would have no time limit.
        os._exit(EXIT_ABANDONED)
    abandoned.cancel()
    try:
        running.result()
    except Exception as error:  # Any error of a user's role; `single_run` shows it.
        traceback.print_exc()
        report(ClientsFailed(f"{type(error).__name__}: {error}"))
        return EXIT_FAILED
    return 0


def main() -> None:
    """Run the spec in the file that the argument names."""
    spec = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ProcessSpec)
    sys.exit(asyncio.run(run(spec)))


if __name__ == "__main__":
    main()
