"""Start the brokers of a topology as processes on this machine, and stop them.

    with padres_tx.launcher.overlay("three") as running:
        async with padres_tx.connect(running.address("B1")) as client: ...

An overlay is up when every broker replies and reports that all its links are up. `Running` is its
handle: the brokers' addresses, processes and crashes, and `kill`, `restart` and `stop`. Brokers
listen on free ports of the loopback interface, so several overlays can run side by side.

No broker is left running. The process that started a broker stops it with SIGINT, and with SIGKILL
if it does not end in time. If the starting process is killed first, its brokers notice through the
pipe that is their standard input (`broker_child`). Brokers run in sessions of their own, so that
Ctrl-C in a terminal reaches only the starting process, which then stops the brokers.

This module uses no signal handlers, threads or event loops of its own: it works in notebooks and on
any thread. It must not know state files or the command line.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from padres_tx.launcher import processes
from padres_tx.launcher.broker_status import REPLY_S, BrokerStatus, query_all
from padres_tx.launcher.processes import ProcessIdentity
from padres_tx.launcher.state_directories import STATE
from padres_tx.registry import service_factories
from topologies import BrokerSpec, Durability, Topology, load

#: Nine brokers on two cores take about 10 s on a busy machine; an overlay that takes longer than
#: this hangs.
UP_S = 30.0

#: Interval at which processes are checked, which costs microseconds: the delay until a crash is
#: reported.
LOOK_S = 0.1

#: A broker shuts down within 2 s (`broker_process`); the rest is a margin for a busy machine.
STOP_S = 5.0

#: The time that SIGKILL may take: milliseconds, unless a disk hangs.
KILL_S = 5.0

#: Another process may take a free port before the broker listens there, but not so often in a row.
PORT_ATTEMPTS = 5

#: How much of the log of a crashed broker is shown with the report.
LOG_LINES = 5
LOG_TAIL_BYTES = 64 * 1024
LOG_LINE_WIDTH = 240

LOOPBACK = "127.0.0.1"


class LaunchError(Exception):
    """An overlay does not come up; all its processes have been stopped."""


class PortBusy(LaunchError):
    """A broker cannot listen at its address in the topology."""

    def __init__(self, broker: str, reason: str) -> None:
        self.broker = broker
        super().__init__(f"broker {broker} {reason}")


class BrokerRefused(LaunchError):
    """A broker refuses to start: with this state directory, for instance."""


class Cancelled(LaunchError):
    """Starting the overlay was cancelled by its caller."""


class Crash(NamedTuple):
    """A broker that ended without being asked to."""

    broker: str
    pid: int
    #: Negative for a signal, as in `subprocess`.
    exit_code: int
    log: Path

    def __str__(self) -> str:
        return (
            f"broker {self.broker} (process {self.pid}) crashed, {ending(self.exit_code)}"
            f"{last_lines(self.log)}"
        )


@contextmanager
def overlay(
    topology: str | Path | Topology = "three",
    *,
    directory: Path | None = None,
    keep_ports: bool = False,
    trace: bool = False,
    run: str = "",
    timeout_s: float = UP_S,
    durability: Durability | None = None,
) -> Iterator[Running]:
    """Run an overlay for tests, notebooks and scripts, and stop it at the end of the block.

    Brokers listen on free ports, or with `keep_ports` on those of the topology. Logs, and with
    `trace` each broker's trace records, are written to `directory`, by default a temporary one that
    is deleted at the end. `run` is the name of this run in the records. The brokers' state is below
    the same directory. `durability` overrides what the topology says.

    Raises TopologyError, UnknownService, and LaunchError if the overlay does not come up.
    """
    given = topology if isinstance(topology, Topology) else load(topology)
    if durability is not None:
        given = given.model_copy(update={"durability": durability})
    with ExitStack() as stack:
        if directory is None:
            directory = Path(
                stack.enter_context(
                    tempfile.TemporaryDirectory(prefix="padres-tx-", ignore_cleanup_errors=True)
                )
            )
        running = launch(
            given if keep_ports else with_free_ports(given),
            directory,
            trace=trace,
            run=run,
            timeout_s=timeout_s,
        )
        try:
            yield running
        finally:
            running.stop()


def launch(
    topology: Topology,
    directory: Path,
    *,
    trace: bool = False,
    run: str = "",
    timeout_s: float = UP_S,
    state: Path | None = None,
    started: Callable[[Running], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Running:
    """Start all brokers and wait until the overlay is up; the caller has to `stop` it.

    Port 0 means a free port. `state` is the directory of the brokers' state, by default one below
    `directory`; brokers in disk mode go on with what it holds. `started` is called as soon as the
    processes exist. `cancelled` is called repeatedly; when it returns True, the start is given up.

    Raises LaunchError, BrokerRefused, PortBusy, Cancelled, and UnknownService or InvalidService for
    the services of the topology; then no process is left running.
    """
    service_factories(topology.services)  # Fails here once instead of in the log of every broker.
    for attempts_left in reversed(range(PORT_ATTEMPTS)):
        running = Running(_claim_ports(topology), directory, trace=trace, run=run, state=state)
        try:
            running.start()
            started(running)
            running.wait_up(timeout_s, cancelled)
        except PortBusy as error:
            running.stop()
            if topology.broker(error.broker).port or not attempts_left:
                raise
        except BaseException:
            running.stop()
            raise
        else:
            return running
    raise AssertionError("the last attempt returns or raises")


class Running:
    """The broker processes of one overlay."""

    def __init__(
        self,
        topology: Topology,
        directory: Path,
        *,
        trace: bool = False,
        run: str = "",
        state: Path | None = None,
    ) -> None:
        self.topology = topology
        self.directory = directory
        self._state = directory / STATE if state is None else state
        self._trace = trace
        self._run = run
        self._children: dict[str, _BrokerChild] = {}
        #: The brokers' end of a pipe, and ours; closing ours ends the brokers (`broker_child`).
        self._parent_pipe: tuple[int, int] | None = None

    # --- addresses, processes, files ---

    def address(self, broker: str | None = None) -> str:
        """Return "host:port" of a broker; without a name, of the first.

        Raises TopologyError if there is no such broker.
        """
        return (self.topology.broker(broker) if broker else self.topology.brokers[0]).address

    def process(self, broker: str) -> ProcessIdentity:
        """The broker's current or last process."""
        return self._child(broker).process

    def exit_code(self, broker: str) -> int | None:
        """The exit code of the broker's process, negative for a signal; None while it runs."""
        return self._child(broker).popen.poll()

    def log(self, broker: str) -> Path:
        """The broker's log: JSON lines, and a traceback if it has crashed."""
        return self.directory / f"{self.topology.broker(broker).name}.log"

    def trace(self, broker: str) -> Path:
        """The broker's trace file, if tracing is on: JSON lines."""
        return self.directory / f"{self.topology.broker(broker).name}.trace.jsonl"

    def state(self, broker: str) -> Path:
        """The broker's state directory."""
        return self._state / self.topology.broker(broker).name

    def crashes(self) -> list[Crash]:
        """Return the brokers that have crashed since the last call."""
        found = []
        for name, child in self._children.items():
            code = child.popen.poll()
            if code is not None and not child.reported:
                child.reported = True
                found.append(Crash(name, child.popen.pid, code, self.log(name)))
        return found

    def _child(self, broker: str) -> _BrokerChild:
        return self._children[self.topology.broker(broker).name]

    # --- starting ---

    def start(self) -> None:
        """Start all processes; then call `wait_up`.

        Raises LaunchError; call `stop` for the processes that have been started by then.
        """
        try:
            for directory in (self.directory, self._state):
                directory.mkdir(parents=True, exist_ok=True)
            self._topology_file.write_text(self.topology.to_json(), encoding="utf-8")
        except OSError as error:
            raise LaunchError(f"cannot write into {self.directory}: {error.strerror}") from None
        self._parent_pipe = os.pipe()
        for broker in self.topology.brokers:
            self._spawn(broker)

    @property
    def _topology_file(self) -> Path:
        return self.directory / "topology.json"

    def _spawn(self, broker: BrokerSpec) -> None:
        assert self._parent_pipe is not None, "the overlay has been stopped"
        # -P: a directory named "overlay" in the user's current directory must not shadow ours.
        command = [sys.executable, "-P", "-m", "padres_tx.cli.broker_child"]
        command += [str(self._topology_file.absolute()), broker.name]
        # The broker limits the size of its log. The interpreter's own output goes there as well.
        command += ["--log-file", str(self.log(broker.name).absolute())]
        command += ["--state", str(self.state(broker.name).absolute())]
        if self._trace:
            command += ["--trace", str(self.trace(broker.name).absolute()), "--run", self._run]
        try:
            with self.log(broker.name).open("ab") as log:
                child = subprocess.Popen(
                    command,
                    stdin=self._parent_pipe[0],
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise LaunchError(f"broker {broker.name} cannot be started: {error}") from None
        self._children[broker.name] = _BrokerChild(child)

    def wait_up(
        self, timeout_s: float = UP_S, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until every broker replies and has all its links.

        Raises LaunchError, PortBusy, Cancelled.
        """
        deadline = time.monotonic() + timeout_s
        waiting = {broker.name: broker.address for broker in self.topology.brokers}
        while True:
            for crash in self.crashes():
                raise start_failure(crash)
            if cancelled():
                raise Cancelled("stopped before the overlay was up")
            statuses = query_all(waiting, min(REPLY_S, timeout_s))
            problems = {
                name: problem
                for name, status in statuses.items()
                if (problem := not_ready(status, self.process(name).pid)) is not None
            }
            if not problems:
                return
            if time.monotonic() >= deadline:
                name, problem = next(iter(problems.items()))
                raise LaunchError(
                    f"the overlay is not up after {timeout_s:g} s: broker {name}: {problem}"
                    f"{last_lines(self.log(name))}"
                )
            waiting = {name: waiting[name] for name in problems}
            time.sleep(LOOK_S)

    def stop_for_restart(self, broker: str) -> None:
        """Ask a broker to hand its state on and end; its clients will come back to the next."""
        child = self._child(broker)
        child.reported = True
        child.popen.terminate()

    def restart(self, broker: str) -> None:
        """Start a broker again that has ended; `wait_up` waits until its links are back.

        Raises LaunchError.
        """
        assert self.exit_code(broker) is not None, f"{broker} is running"
        self._spawn(self.topology.broker(broker))

    # --- stopping ---

    def kill(self, *brokers: str) -> None:
        """Kill brokers at the same moment as a crash would, and wait until they have ended."""
        children = [self._child(broker) for broker in brokers]
        for child in children:
            child.reported = True
            child.popen.kill()
        for child in children:
            child.popen.wait(KILL_S)

    def stop(self, *, hurry: Callable[[], bool] = lambda: False) -> None:
        """Stop all brokers and wait until they have ended; may be called again.

        `hurry` is called repeatedly; when it returns True, brokers still running are killed.
        """
        children = list(self._children.values())
        for child in children:
            child.reported = True
            if child.popen.poll() is None:
                # For good: clients are told, where SIGTERM would let them wait for a restart.
                child.popen.send_signal(signal.SIGINT)
        deadline = time.monotonic() + STOP_S
        while any(child.popen.poll() is None for child in children):
            if hurry() or time.monotonic() >= deadline:
                for child in children:
                    child.popen.kill()
                break
            time.sleep(processes.LOOK_S)
        for child in children:
            child.popen.wait(KILL_S)
        if self._parent_pipe is not None:
            for end in self._parent_pipe:
                os.close(end)
            self._parent_pipe = None


class _BrokerChild:
    """One process of a broker."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen = popen
        #: It exists at least as a zombie, since its parent, this process, has not waited for it.
        self.process = processes.identify(popen.pid) or ProcessIdentity(popen.pid, "")
        #: Its end has been reported, or was requested.
        self.reported = False


def with_free_ports(topology: Topology) -> Topology:
    """Return the same brokers on free ports of the loopback interface."""
    return _listening(topology, dict.fromkeys((b.name for b in topology.brokers), (LOOPBACK, 0)))


def on_loopback(topology: Topology) -> Topology:
    """Return the same brokers, those of other machines moved to the loopback interface.

    A port that another broker already has there is replaced by a free one.
    """
    taken = {(b.host, b.port) for b in topology.brokers if _is_loopback(b.host)}
    addresses = {}
    for broker in topology.brokers:
        address = broker.host, broker.port
        if not _is_loopback(broker.host):
            address = LOOPBACK, broker.port
            if address in taken:
                address = LOOPBACK, 0
            taken.add(address)
        addresses[broker.name] = address
    return _listening(topology, addresses)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _listening(topology: Topology, addresses: dict[str, tuple[str, int]]) -> Topology:
    brokers = [
        {"name": name, "host": host, "port": port} for name, (host, port) in addresses.items()
    ]
    return Topology.model_validate({**topology.model_dump(), "brokers": brokers})


def _claim_ports(topology: Topology) -> Topology:
    """Return the topology with a free port for each 0. Raises PortBusy, which names the broker."""
    addresses = {}
    with ExitStack() as sockets:
        # All are held at once, or the same port could be chosen twice.
        for broker in topology.brokers:
            try:
                found = socket.getaddrinfo(
                    broker.host, broker.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )[0]
                listener = sockets.enter_context(socket.socket(*found[:3]))
                # As the broker does: ports of the last overlay may still be in TIME_WAIT.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(found[4])
                listener.listen()
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise PortBusy(
                    broker.name, f"cannot listen at {broker.address}: {reason}"
                ) from None
            addresses[broker.name] = broker.host, int(listener.getsockname()[1])
    return _listening(topology, addresses)


def not_ready(status: BrokerStatus | str, pid: int, dead: Collection[str] = ()) -> str | None:
    """Return why a broker is not ready, but for links to the `dead`; None if it is."""
    if isinstance(status, str):
        return status
    if status.pid != pid:
        return f"another process ({status.pid}) replies at its address"
    if missing := [link for link in status.links if not link.up and link.neighbour not in dead]:
        why = "".join(f"; {warning}" for link in missing for warning in link.warnings)
        return f"no link to {', '.join(link.neighbour for link in missing)}{why}"
    return None


def start_failure(crash: Crash) -> LaunchError:
    """Return the error for a broker that has ended before it was up."""
    # Exit code 2 means wrong input; since we wrote the topology, it is the port or the state.
    if crash.exit_code == 2:
        reason = "".join(_tail(crash.log)[-1:]).removeprefix("Error: ")
        reason = reason.removeprefix(f"{crash.broker}: ")
        if "cannot listen" in reason:
            return PortBusy(crash.broker, f"cannot start: {reason}")
        return BrokerRefused(f"broker {crash.broker} cannot start: {reason}")
    return LaunchError(str(crash))


# --- texts about processes that have ended ---


def ending(exit_code: int) -> str:
    """Describe an exit code."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-exit_code).name}"
    return f"killed by signal {-exit_code}"


def last_lines(log: Path) -> str:
    """Return the path of the log and its last lines, to be appended to a message."""
    lines = "".join(f"\n    {line}" for line in _tail(log))
    return f"; log: {log}{lines}"


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = [line for entry in text.splitlines() for line in _readable(entry)]
    return [line[:LOG_LINE_WIDTH] for line in lines[-LOG_LINES:]]


def _readable(entry: str) -> list[str]:
    """Return a log line as text: level, event, fields, and a traceback in lines of its own."""
    try:
        data = json.loads(entry)
    except ValueError:
        return [entry] if entry.strip() else []
    if not isinstance(data, dict):
        return [entry]
    parts = [str(data.pop("level", "")), str(data.pop("event", ""))]
    traceback = str(data.pop("traceback", "")).splitlines()
    parts += [f"{key}={value}" for key, value in data.items() if key not in ("time", "broker")]
    return [" ".join(parts).strip(), *traceback]
