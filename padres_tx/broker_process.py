"""One broker of a topology as an operating system process.

It connects core, host, TCP, logs and trace, and runs Twisted's reactor until a signal or a crash.
Wrong input is detected before the reactor runs, and raises a `StartError` of one line.

SIGTERM and SIGINT stop the broker: clients are told that it closes, and the exit code is 0. With a
state directory SIGTERM is a planned restart: clients and neighbours are not told, the state is
kept, and a process that is started with it goes on with every link, as if nothing had been. SIGHUP
reopens its log and trace. A log or trace that cannot be written does not stop it. An error in the
core ends it at once with exit code 1: a broker whose tables may be wrong must not route. Its
neighbours keep the messages for it, and its clients lose their connections.

This module must not know how other brokers are started; the topology has their addresses.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from twisted.internet.error import CannotListenError
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from overlay.broker.core import Broker
from overlay.errors import LogError, OverlayError
from overlay.files import logs
from overlay.files.line_file import LineFile
from overlay.files.trace_file import TraceFile
from overlay.hosts import submillisecond_reactor
from overlay.hosts.broker_time import use_monotonic
from overlay.hosts.garbage import ShortCollections
from overlay.hosts.host import Host
from overlay.hosts.settings import SECRET_LIMIT_BYTES, Settings, within_files
from overlay.hosts.state_keeping import StateKeeping, Stopping
from overlay.hosts.tcp import Tcp
from overlay.identity import SALT_BITS
from overlay.messages import BrokerName
from overlay.node.recovery import InputFails
from padres_tx.code_version import code_version
from padres_tx.registry import broker_factories, service_factories
from topologies import Topology

#: A process that is killed loses at most this much of its trace.
TRACE_FLUSH_S = 1.0

STDERR = 2

CRASHED = 1


class StartError(Exception):
    """The broker cannot be started; the message says why, in one line."""


def run_broker(
    topology: Topology,
    name: str,
    *,
    host: str | None = None,
    port: int | None = None,
    settings: Settings | None = None,
    trace_file: Path | None = None,
    run: str = "",
    log_file: Path | None = None,
    log_level: str = "info",
    ready_fd: int | None = None,
    make_core: Callable[..., Broker] = Broker,
    durability: str = "memory",
    state: Path | None = None,
    checkpoint: bool = False,
) -> int:
    """Run the broker until it is stopped; returns the exit code.

    `host` and `port` override the address in the topology. When the broker is listening, it writes
    its port to `ready_fd`, as a line. `run` is the name of the run in trace records.

    `state` is a directory of the broker's own. With durability "disk" all that it is told is kept
    there, and a crash is a pause. Otherwise a planned restart is one. With `checkpoint` the broker
    only brings the directory to a state that later versions can read.

    Raises StartError, and TopologyError if the topology has no such broker.
    """
    if topology.client_delay_ms or any(edge.delay_ms for edge in topology.edges):
        submillisecond_reactor.install()
    # Imported here: the import installs the reactor of the process.
    from twisted.internet import reactor

    use_monotonic(reactor)
    spec = topology.broker(name)
    neighbours = {BrokerName(other): topology.broker(other) for other in topology.neighbours(name)}
    for other in neighbours.values():
        if not other.port:
            raise StartError(f"{name}: the topology has no port for its neighbour {other.name}")
    if durability not in ("memory", "disk"):
        raise StartError(f"{name}: unknown durability {durability!r}: expected memory or disk")
    if durability == "disk" and state is None:
        raise StartError(f"{name}: durability on disk needs a state directory")
    if checkpoint and durability != "disk":
        raise StartError(f"{name}: only a broker on disk has something to checkpoint")
    try:
        engines, services = broker_factories(), service_factories(topology.services)
    except OverlayError as error:
        raise StartError(f"{name}: {error}") from None
    settings = replace(settings or Settings(), client_delay_s=topology.client_delay_ms / 1000)

    if len(settings.secret.encode()) > SECRET_LIMIT_BYTES:
        raise StartError(f"{name}: the secret is longer than {SECRET_LIMIT_BYTES} bytes")

    settings = within_files(settings, _allow_connections())
    with ExitStack() as files:
        trace = _trace(files, trace_file, name, run)
        record = None if trace is None else trace.write
        log_lines = _log_file(files, log_file)
        written = logs.begin(name, log_lines, log_level)
        log = Logger(namespace="padres_tx.broker_process")

        def reopen() -> None:
            for what, file in (("log", log_lines), ("trace", trace)):
                try:
                    if file is not None:
                        file.reopen()
                except OSError as error:
                    log.error("cannot reopen", what=what, reason=error.strerror)
            log.info("log and trace reopened")

        def crash() -> None:
            log.failure("the broker has crashed")
            files.close()
            os._exit(CRASHED)

        def guarded(step: Callable[..., None], *args: Any) -> None:
            try:
                step(*args)
            except Exception:
                crash()

        def call_in_loop(step: Callable[..., None], *args: Any) -> None:
            _any(reactor).callFromThread(guarded, step, *args)

        delays_s = {other: topology.edge(name, other).delay_ms / 1000 for other in neighbours}

        def make_host(birth: str) -> Host:
            """A host with a broker that knows nothing, in the life of that name."""
            broker = make_core(
                BrokerName(name),
                list(neighbours),
                engines=engines,
                services=services,
                trace=record is not None,
                salt=int(birth, 16) % (1 << SALT_BITS),
            )
            return Host(
                broker,
                delays_s,
                _any(reactor),
                crash,
                settings=settings,
                record=record,
                birth=birth,
            )

        keeping = StateKeeping(
            state,
            broker=name,
            durability=durability,
            version=code_version([*engines.values(), *services.values()]) if state else "",
            call_in_loop=None if checkpoint else call_in_loop,
            trace=trace,
        )
        try:
            the_host = keeping.open(make_host)
        except (LogError, InputFails) as error:
            raise StartError(f"{name}: {error}") from error
        if checkpoint:
            keeping.keep(the_host)
            return 0
        the_host.reports["log"] = written.report
        if trace is not None:
            the_host.reports["trace"] = trace.report
        tcp = Tcp(the_host, reactor)
        where = host or spec.host, spec.port if port is None else port
        try:
            listening = tcp.listen(*where)
        except (OSError, CannotListenError) as error:
            keeping.close()
            reason = getattr(error, "socketError", error)
            raise StartError(f"{name}: cannot listen at {where[0]}:{where[1]}: {reason}") from None
        log.info("listening", host=where[0], port=listening, pid=os.getpid())
        stopping = Stopping(the_host, tcp, keeping, _any(reactor))
        for signum, step in (
            (signal.SIGHUP, reopen),
            (signal.SIGTERM, stopping.restart if state is not None else stopping.end),
            (signal.SIGINT, stopping.end),
        ):
            _on_signal(signum, _any(reactor), step)
        # From here on every end of the process keeps the state again, but for a crash.
        try:
            keeping.begin()
        except LogError as error:
            raise StartError(f"{name}: {error}") from None
        the_host.start()
        tcp.dial({other: (there.host, there.port) for other, there in neighbours.items()})
        if ready_fd is not None:
            _write_ready(ready_fd, listening)
        ShortCollections(lambda: the_host.node.core.routing.entries).start()
        _any(reactor).run(installSignalHandlers=False)
        log.info("stopped")
    return stopping.exit_code


def _on_signal(signum: int, reactor: Any, step: Callable[[], None]) -> None:
    """Have the reactor take a step when a signal comes."""

    def came(signum: int, frame: FrameType | None) -> None:
        reactor.callFromThread(step)

    signal.signal(signum, came)


def _allow_connections() -> int:
    """Raise the limit of open files as far as allowed, and return it: every client needs a file.

    Shells set 1024 by default, for programs that use select(2).
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(
        ValueError, OSError
    ):  # Some systems accept less than their hard limit.
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _any(value: Any) -> Any:
    """Hide the type: mypy takes the reactor for a module."""
    return value


def _trace(files: ExitStack, path: Path | None, name: str, run: str) -> TraceFile | None:
    if path is None:
        return None
    try:
        file = TraceFile(path, name, run or secrets.token_hex(4))
    except OSError as error:
        raise StartError(f"cannot write the trace to {path}: {error.strerror}") from None
    files.callback(file.close)
    LoopingCall(file.flush).start(TRACE_FLUSH_S, now=False)
    return file


def _log_file(files: ExitStack, path: Path | None) -> LineFile:
    if path is None:
        return LineFile(None, descriptor=STDERR)
    try:
        file = LineFile(path, limit_bytes=logs.LOG_LIMIT_BYTES, keep=logs.LOGS_KEPT)
    except OSError as error:
        raise StartError(f"cannot write the log to {path}: {error.strerror}") from None
    files.callback(file.close)
    return file


def _write_ready(fd: int, port: int) -> None:
    try:
        with os.fdopen(fd, "w") as notice:
            notice.write(f"{port}\n")
    except OSError as error:
        raise StartError(f"cannot write to file descriptor {fd}: {error.strerror}") from None
