"""Start the brokers of a topology as processes of this machine, and end them again.

    with padres_tx.launcher.overlay("three") as running:
        async with padres_tx.connect(running.address("B1")) as client: ...

An overlay is up when every broker answers and says that each of its links is. Then `Running` is the
handle: where the brokers are, what has become of them, `kill`, `restart`, `stop`. Brokers get free
ports of the loopback interface, so several overlays run side by side.

No broker is left behind. Whoever starts one stops it: SIGTERM, and SIGKILL for those that do not
end in time. If this process is killed before it can, the brokers see it by the pipe that is their
standard input (`broker_child`). They are in sessions of their own, so that Ctrl-C in a terminal
reaches this process alone, and the brokers in the order that it chooses.

There are no signal handlers, threads or event loops here: it works in notebooks and on any thread.
This module must not know state files or the command line.
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from padres_tx.launcher import processes
from padres_tx.launcher.broker_status import ANSWER_S, Status, survey
from padres_tx.launcher.processes import Process
from padres_tx.registry import service_factories
from topologies import BrokerSpec, Topology, load

#: A process starts within a second, also when two cores start nine of them at once: 10 s or so;
#: an overlay that needs longer than this hangs.
UP_S = 30.0

#: Between two looks at processes that are starting or running. A crash is told within that time,
#: and looking costs microseconds.
LOOK_S = 0.1

#: A broker says its goodbyes within 2 s (`broker_process`); more is only for a busy machine.
STOP_S = 5.0

#: What SIGKILL may take: the kernel's business, unless a disk hangs.
KILL_S = 5.0

#: Another process may take a free port before the broker has it; hardly so often in a row.
PORT_ATTEMPTS = 5

#: Of the log of a broker that has died, shown with the news.
LOG_LINES = 5
LOG_TAIL_BYTES = 64 * 1024
LOG_LINE_WIDTH = 240

LOOPBACK = "127.0.0.1"


class LaunchError(Exception):
    """An overlay does not come up; whatever had been started has been stopped."""


class PortBusy(LaunchError):
    """A broker cannot listen where the topology says."""

    def __init__(self, broker: str, reason: str) -> None:
        self.broker = broker
        super().__init__(f"broker {broker} {reason}")


class Cancelled(LaunchError):
    """Whoever started the overlay does not want it any more."""


class Crash(NamedTuple):
    """A broker has ended and was not told to."""

    broker: str
    pid: int
    #: Negative for a signal, as `subprocess` has it.
    exit_code: int
    log: Path

    def __str__(self) -> str:
        return (
            f"broker {self.broker} (process {self.pid}) has died, {ending(self.exit_code)}"
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
) -> Iterator[Running]:
    """A running overlay, for tests, notebooks and scripts.

    Ports are free ones, unless `keep_ports` takes the topology's. Logs, and with `trace` each
    broker's trace records, go to `directory`, or to a temporary one that goes at the end. `run` is
    what the records call this run.

    Raises TopologyError, UnknownService, and LaunchError if the overlay does not come up.
    """
    given = topology if isinstance(topology, Topology) else load(topology)
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
    started: Callable[[Running], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Running:
    """Start all brokers and wait until the overlay is up; `stop` it afterwards.

    Port 0 means a free one. `started` is told as soon as there are processes. `cancelled` is asked
    again and again whether to give up.

    Raises LaunchError, PortBusy, Cancelled, and UnknownService or InvalidService for what the
    topology lists; no process is left then.
    """
    service_factories(topology.services)  # Better once here than in the log of every broker.
    for attempts_left in reversed(range(PORT_ATTEMPTS)):
        running = Running(_claim_ports(topology), directory, trace=trace, run=run)
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
        self, topology: Topology, directory: Path, *, trace: bool = False, run: str = ""
    ) -> None:
        self.topology = topology
        self.directory = directory
        self._trace = trace
        self._run = run
        self._children: dict[str, _Child] = {}
        #: A pipe: the brokers' end, and ours, which ends them when it is closed (`broker_child`).
        self._leash: tuple[int, int] | None = None

    # --- where and what the brokers are ---

    def address(self, broker: str | None = None) -> str:
        """ "host:port" of a broker; without a name, of the first.

        Raises TopologyError if there is no such broker.
        """
        return (self.topology.broker(broker) if broker else self.topology.brokers[0]).address

    def process(self, broker: str) -> Process:
        """The process that runs the broker, or that ran it last."""
        return self._child(broker).process

    def exit_code(self, broker: str) -> int | None:
        """How the broker's process ended, negative for a signal; None while it runs."""
        return self._child(broker).popen.poll()

    def log(self, broker: str) -> Path:
        """The broker's log: JSON lines, and the traceback if it has crashed."""
        return self.directory / f"{self.topology.broker(broker).name}.log"

    def trace(self, broker: str) -> Path:
        """The broker's trace records, if there are any: JSON lines."""
        return self.directory / f"{self.topology.broker(broker).name}.trace.jsonl"

    def crashes(self) -> list[Crash]:
        """What has died since the last call, and was not told to."""
        found = []
        for name, child in self._children.items():
            code = child.popen.poll()
            if code is not None and not child.reported:
                child.reported = True
                found.append(Crash(name, child.popen.pid, code, self.log(name)))
        return found

    def _child(self, broker: str) -> _Child:
        return self._children[self.topology.broker(broker).name]

    # --- starting ---

    def start(self) -> None:
        """Start all processes; `wait_up` says when they are an overlay.

        Raises LaunchError; `stop` those that have been started by then.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._topology_file.write_text(self.topology.to_json(), encoding="utf-8")
        except OSError as error:
            raise LaunchError(f"cannot write into {self.directory}: {error.strerror}") from None
        self._leash = os.pipe()
        for broker in self.topology.brokers:
            self._spawn(broker)

    @property
    def _topology_file(self) -> Path:
        return self.directory / "topology.json"

    def _spawn(self, broker: BrokerSpec) -> None:
        assert self._leash is not None, "an overlay that has been stopped is over"
        # -P: a directory called "overlay" where the user happens to be must not be taken for ours.
        command = [sys.executable, "-P", "-m", "padres_tx.cli.broker_child"]
        command += [str(self._topology_file.absolute()), broker.name]
        # The broker limits the size of its log; what the interpreter itself says goes there, too.
        command += ["--log-file", str(self.log(broker.name).absolute())]
        if self._trace:
            command += ["--trace", str(self.trace(broker.name).absolute()), "--run", self._run]
        try:
            with self.log(broker.name).open("ab") as log:
                child = subprocess.Popen(
                    command,
                    stdin=self._leash[0],
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise LaunchError(f"broker {broker.name} cannot be started: {error}") from None
        self._children[broker.name] = _Child(child)

    def wait_up(
        self, timeout_s: float = UP_S, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until every broker answers and has all its links.

        Raises LaunchError, PortBusy, Cancelled.
        """
        deadline = time.monotonic() + timeout_s
        waiting = {broker.name: broker.address for broker in self.topology.brokers}
        while True:
            for crash in self.crashes():
                raise _start_failure(crash)
            if cancelled():
                raise Cancelled("stopped before the overlay was up")
            answers = survey(waiting, min(ANSWER_S, timeout_s))
            problems = {
                name: problem
                for name, answer in answers.items()
                if (problem := _problem(answer, self.process(name).pid)) is not None
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

    def restart(self, broker: str) -> None:
        """Start a broker anew that has ended; `wait_up` says when its links are back.

        Raises LaunchError.
        """
        assert self.exit_code(broker) is not None, f"{broker} runs"
        self._spawn(self.topology.broker(broker))

    # --- ending ---

    def kill(self, broker: str) -> None:
        """Kill a broker as a crash would, and wait until it is dead."""
        child = self._child(broker)
        child.reported = True
        child.popen.kill()
        child.popen.wait(KILL_S)

    def stop(self, *, hurry: Callable[[], bool] = lambda: False) -> None:
        """End all brokers, and wait until they have; twice is fine.

        `hurry` is asked again and again whether to kill those that still take their time.
        """
        children = list(self._children.values())
        for child in children:
            child.reported = True
            if child.popen.poll() is None:
                child.popen.terminate()
        deadline = time.monotonic() + STOP_S
        while any(child.popen.poll() is None for child in children):
            if hurry() or time.monotonic() >= deadline:
                for child in children:
                    child.popen.kill()
                break
            time.sleep(processes.LOOK_S)
        for child in children:
            child.popen.wait(KILL_S)
        if self._leash is not None:
            for end in self._leash:
                os.close(end)
            self._leash = None


class _Child:
    """One life of a broker."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen = popen
        #: It cannot have been buried yet: we are its parent and have not looked.
        self.process = processes.identify(popen.pid) or Process(popen.pid, "")
        #: Its end has been told, or was wanted.
        self.reported = False


def with_free_ports(topology: Topology) -> Topology:
    """The same brokers with their ports left open."""
    return _listening(topology, dict.fromkeys((b.name for b in topology.brokers), (LOOPBACK, 0)))


def on_loopback(topology: Topology) -> Topology:
    """The same brokers, those of other machines at this one's loopback interface.

    A port that another broker has there already is left open.
    """
    taken = {(b.host, b.port) for b in topology.brokers if _is_loopback(b.host)}
    places = {}
    for broker in topology.brokers:
        place = broker.host, broker.port
        if not _is_loopback(broker.host):
            place = LOOPBACK, broker.port
            if place in taken:
                place = LOOPBACK, 0
            taken.add(place)
        places[broker.name] = place
    return _listening(topology, places)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _listening(topology: Topology, places: dict[str, tuple[str, int]]) -> Topology:
    brokers = [{"name": name, "host": host, "port": port} for name, (host, port) in places.items()]
    return Topology.model_validate({**topology.model_dump(), "brokers": brokers})


def _claim_ports(topology: Topology) -> Topology:
    """The topology with a free port for each 0. Raises PortBusy, which names the broker."""
    places = {}
    with ExitStack() as sockets:
        # All at once, or the same port could come out twice.
        for broker in topology.brokers:
            try:
                found = socket.getaddrinfo(
                    broker.host, broker.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )[0]
                listener = sockets.enter_context(socket.socket(*found[:3]))
                # As the broker does: what the last overlay left in TIME_WAIT is no obstacle.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(found[4])
                listener.listen()
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise PortBusy(
                    broker.name, f"cannot listen at {broker.address}: {reason}"
                ) from None
            places[broker.name] = broker.host, int(listener.getsockname()[1])
    return _listening(topology, places)


def _problem(answer: Status | str, pid: int) -> str | None:
    """Why a broker is not ready, if it is not."""
    if isinstance(answer, str):
        return answer
    if answer.pid != pid:
        return f"another process ({answer.pid}) answers in its place"
    if answer.missing:
        return f"no link to {', '.join(answer.missing)}"
    return None


def _start_failure(crash: Crash) -> LaunchError:
    """Why the overlay does not come up, now that a broker has ended before it was."""
    # Exit code 2 is what a broker cannot do because of what it was given; on our own files that
    # can only be the port.
    if crash.exit_code == 2:
        reason = "".join(_tail(crash.log)[-1:]).removeprefix("Error: ")
        return PortBusy(crash.broker, f"does not start: {reason}")
    return LaunchError(str(crash))


# --- how processes end, for people ---


def ending(exit_code: int) -> str:
    """An exit code in words."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-exit_code).name}"
    return f"killed by signal {-exit_code}"


def last_lines(log: Path) -> str:
    """Where the log is and how it ends, to be put behind a message."""
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
    """A log line for people: level, event, fields, and a traceback in lines of its own."""
    try:
        data = json.loads(entry)
    except ValueError:
        return [entry] if entry.strip() else []
    if not isinstance(data, dict):
        return [entry]
    told = [str(data.pop("level", "")), str(data.pop("event", ""))]
    traceback = str(data.pop("traceback", "")).splitlines()
    told += [f"{key}={value}" for key, value in data.items() if key not in ("time", "broker")]
    return [" ".join(told).strip(), *traceback]
