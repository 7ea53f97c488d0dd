"""What a broker process does with its state directory, from its start to its end.

Without a directory nothing is kept. In memory a planned restart leaves a checkpoint; on disk there
is a log (`overlay.hosts.durable`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.logger import Logger

from overlay.errors import LogError
from overlay.files.trace_file import TraceFile
from overlay.hosts.durable import BIRTH_BYTES, Checkpoint, DurableNode
from overlay.hosts.host import Host
from overlay.hosts.tcp import Tcp
from overlay.log.worker import CallInLoop

#: How long a process that is stopped waits for its peers to close their connections.
SHUTDOWN_S = 1.0

#: How long it waits until the log has all that was taken in. What it has not is not lost, since it
#: was not acknowledged.
SETTLING_S = 5.0
SETTLING_POLL_S = 0.01

CRASHED = 1


class StateKeeping:
    """Makes the host of a broker process, and keeps its node when the process ends."""

    def __init__(
        self,
        directory: Path | None,
        *,
        broker: str,
        durability: str,
        version: str,
        call_in_loop: CallInLoop | None,
        trace: TraceFile | None,
    ) -> None:
        self._directory = directory
        self._on_disk = durability == "disk"
        self._broker = broker
        self._version = version
        self._call_in_loop = call_in_loop
        self._trace = trace
        self._durable: DurableNode | None = None
        self._log = Logger(namespace="overlay.hosts.state_keeping")

    def open(self, make_host: Callable[[str], Host]) -> Host:
        """Make the host, with the node as it was, if it was kept.

        Raises LogError, InputFails.
        """
        birth = os.urandom(BIRTH_BYTES).hex()
        if self._directory is None:
            return make_host(birth)
        began = time.monotonic()
        if self._on_disk:
            trace = self._trace
            durable = self._durable = DurableNode.open(
                self._directory,
                make_host,
                broker=self._broker,
                version=self._version,
                birth=birth,
                call_in_loop=self._call_in_loop,
                record=None if trace is None else trace.write_missing,
            )
            if trace is not None:
                durable.before_snapshot = trace.flush
            recovered = durable.recovered
            if recovered.position:
                self._log.info(
                    "recovered",
                    position=recovered.position,
                    replayed=recovered.replayed,
                    seconds=round(time.monotonic() - began, 3),
                )
            return durable.host
        host = make_host(birth)
        host.reports["durability"] = lambda: {"mode": "memory", "directory": str(self._directory)}
        if self._checkpoint.take(host):
            self._log.info("went on from a checkpoint")
        return host

    @property
    def _checkpoint(self) -> Checkpoint:
        assert self._directory is not None
        return Checkpoint(self._directory, broker=self._broker, version=self._version)

    def begin(self) -> None:
        """The host is about to take something in: what was kept for it in memory mode is used up.

        Raises LogError.
        """
        if self._directory is not None and self._durable is None:
            self._checkpoint.discard()

    def keep(self, host: Host) -> None:
        """Keep the node of a host that has stopped, for the next process.

        Raises LogError.
        """
        if self._durable is not None:
            self._durable.stop()
        elif self._directory is not None:
            self._checkpoint.save(host)

    def close(self) -> None:
        """End without a next process in mind; on disk the node is kept all the same."""
        if self._durable is not None:
            self._durable.stop()


class Stopping:
    """How a broker process ends: for good, or to be started again."""

    def __init__(self, host: Host, tcp: Tcp, keeping: StateKeeping, reactor: Any) -> None:
        self._host = host
        self._tcp = tcp
        self._keeping = keeping
        self._reactor = reactor
        self._stopping = False
        self.exit_code = 0
        self._log = Logger(namespace="overlay.hosts.state_keeping")

    def restart(self) -> None:
        """End so that the next process goes on: the peers are not told, and will come back."""
        self._begin("stopping for a restart", self._leave_state)

    def end(self) -> None:
        """End for good: clients are told."""
        self._begin("stopping", self._say_goodbye)

    def _begin(self, what: str, then: Callable[[], None]) -> None:
        if not self._stopping:
            self._stopping = True
            self._log.info(what)
            self._host.pause()
            self._settle(then, self._reactor.seconds() + SETTLING_S)

    def _settle(self, then: Callable[[], None], deadline: float) -> None:
        if self._host.is_settled or self._reactor.seconds() > deadline:
            then()
        else:
            self._reactor.callLater(SETTLING_POLL_S, self._settle, then, deadline)

    def _leave_state(self) -> None:
        try:
            self._keeping.keep(self._host)
        except LogError as error:
            self._log.error("the state could not be kept", reason=str(error))
            self.exit_code = CRASHED
        self._tcp.drop()
        # One more turn, in which the connections end.
        self._reactor.callLater(0, self._reactor.stop)

    def _say_goodbye(self) -> None:
        self._tcp.stop(SHUTDOWN_S).addCallback(self._said)

    def _said(self, nothing: None) -> None:
        try:
            self._keeping.close()
        except LogError as error:
            self._log.error("the state could not be kept", reason=str(error))
            self.exit_code = CRASHED
        self._reactor.stop()
