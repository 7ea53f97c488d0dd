"""One run of an experiment: broker processes, client processes, and the loop that watches them.

The brokers are started by `padres_tx.launcher`, the clients run in processes of `client_process`.
One loop watches everything: the reports of the client processes, whether a process has died,
whether there is any progress, and whether the run is to be interrupted. However a run ends, none
of its processes is left; if this process is killed, they notice that standard input is closed.

`run` returns `RunDone`, or raises `RunFailed` with a reason of one line. Where the run stands in a
sweep, and what its records mean, must not be known here.
"""

from __future__ import annotations

import contextlib
import selectors
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench.children import Child, cpu_s
from bench.experiments.client_process import (
    GO,
    LEAVE,
    ClientsFailed,
    ClientsFinished,
    ClientsProgress,
    ClientsReady,
    ProcessSpec,
    RoleGroup,
    report_decoder,
)
from bench.experiments.roles import ScenarioInstance, Workload
from bench.records import BROKERS, CLIENTS, RunDone, epoch_ns
from padres_tx import launcher
from padres_tx.client.transactions import DEADLINE_S
from padres_tx.launcher.overlay_processes import LOOK_S, Cancelled, LaunchError, Running
from topologies import Topology

#: How long a run may make no progress. An engine ends a transaction that hangs after its deadline,
#: and that is a result; a run without progress for twice that time hangs for good.
STALL_S: Final = 2 * DEADLINE_S

#: Client processes for several instances of a scenario: as many as the cores of a small machine.
PROCESSES: Final = 2

#: The least time that clients have to start, connect and prepare.
PREPARE_S: Final = 60.0

#: The time that clients have to leave, and then to end.
LEAVE_S: Final = 20.0
END_S: Final = 5.0


class RunFailed(Exception):
    """A run could not be completed; the message is a line, perhaps with the end of a log."""


class Interrupted(Exception):
    """The user has asked to stop."""


class RunPlan(NamedTuple):
    """What a run consists of, and where its records go."""

    run_id: str
    topology: Topology
    workload: str
    workload_class: type[Workload]
    scenarios: Sequence[ScenarioInstance]
    #: Client -> broker.
    placement: dict[str, str]
    trace: bool
    directory: Path


class RunControl(NamedTuple):
    """How the caller follows a run and ends it."""

    #: Called with the number of completed steps.
    progressed: Callable[[int], None] = lambda done: None
    stopping: Callable[[], bool] = lambda: False
    hurry: Callable[[], bool] = lambda: False
    stall_s: float = STALL_S


def run(plan: RunPlan, control: RunControl) -> RunDone:
    """Make a run, and leave its records in its directory.

    Raises RunFailed, Interrupted.
    """
    (plan.directory / CLIENTS).mkdir(parents=True)
    try:
        running = launcher.launch(
            launcher.with_free_ports(plan.topology),
            plan.directory / BROKERS,
            trace=plan.trace,
            run=plan.run_id,
            cancelled=control.stopping,
        )
    except Cancelled:
        raise Interrupted from None
    except LaunchError as error:
        raise RunFailed(str(error)) from None
    try:
        with ExitStack() as stack:
            done = ClientProcesses(plan, running, control, stack).run()
    finally:
        running.stop(hurry=control.hurry)
    traces = [running.trace(broker.name) for broker in plan.topology.brokers] if plan.trace else []
    return msgspec.structs.replace(done, broker_records=sum(map(_lines, traces)))


class ClientProcesses:
    """The client processes of a run."""

    def __init__(
        self, plan: RunPlan, running: Running, control: RunControl, stack: ExitStack
    ) -> None:
        self._plan = plan
        self._running = running
        self._control = control
        self._selector = stack.enter_context(selectors.DefaultSelector())
        self._processes: list[ClientProcess] = []
        self._progressed_at = time.monotonic()
        epoch = epoch_ns()
        addresses = {name: running.address(at) for name, at in plan.placement.items()}
        for number, groups in enumerate(_groups_by_process(plan), 1):
            spec = ProcessSpec(
                plan.run_id,
                epoch,
                plan.workload,
                groups,
                addresses,
                str((plan.directory / CLIENTS).absolute()),
            )
            process = ClientProcess(f"clients-{number}", spec, plan.directory)
            stack.callback(process.end)
            self._processes.append(process)
            self._selector.register(process.child.stdout, selectors.EVENT_READ, process)

    def run(self) -> RunDone:
        """From preparing to leaving. Raises RunFailed, Interrupted."""
        self._until(lambda each: each.ready, "prepare", max(PREPARE_S, self._control.stall_s))
        brokers = [broker.name for broker in self._plan.topology.brokers]
        pids = {name: self._running.process(name).pid for name in brokers}
        pids |= {each.child.name: each.child.pid for each in self._processes}
        before = _cpu(pids)
        for each in self._processes:
            each.child.tell(GO)
        began_at = time.monotonic()
        self._until(lambda each: each.finished is not None, "run")
        took_s = time.monotonic() - began_at
        used_s = {
            name: round(s - before[name], 3) for name, s in _cpu(pids).items() if name in before
        }
        for each in self._processes:
            each.child.tell(LEAVE)
        self._until(lambda each: each.child.closed, "leave", LEAVE_S)
        written, statuses = Counter[str](), Counter[str]()
        for each in self._processes:
            assert each.finished is not None
            written.update(each.finished.records)
            statuses.update(each.finished.statuses)
        return RunDone(
            run_id=self._plan.run_id,
            transactions=written["tx"],
            statuses=dict(sorted(statuses.items())),
            sent=written["sent"],
            events=written["event"],
            took_s=round(took_s, 6),
            cpu_s=used_s,
            client_records=written.total(),
            broker_records=0,
        )

    def _until(
        self, reached: Callable[[ClientProcess], bool], phase: str, stall_s: float | None = None
    ) -> None:
        """Read reports until all processes have reached something.

        Raises RunFailed, Interrupted.
        """
        stall_s = self._control.stall_s if stall_s is None else stall_s
        self._progressed_at = time.monotonic()
        while not all(map(reached, self._processes)):
            for key, _ in self._selector.select(LOOK_S):
                self._read(key.data)
            if self._control.stopping():
                raise Interrupted
            for crash in self._running.crashes():
                raise RunFailed(str(crash))
            for each in self._processes:
                if each.failure or (each.child.closed and not reached(each)):
                    raise RunFailed(each.reason())
            if time.monotonic() - self._progressed_at > stall_s:
                done = sum(each.progress.done for each in self._processes)
                raise RunFailed(
                    f"no progress for {stall_s:g} s while waiting for clients to {phase}, "
                    f"after {done} steps"
                )

    def _read(self, process: ClientProcess) -> None:
        if process.read():
            self._progressed_at = time.monotonic()
            self._control.progressed(sum(each.progress.done for each in self._processes))
        if process.child.closed:
            self._selector.unregister(process.child.stdout)


class ClientProcess:
    """One process with clients, and what it has reported."""

    def __init__(self, name: str, spec: ProcessSpec, directory: Path) -> None:
        self.ready = False
        self.progress = ClientsProgress(0, 0)
        self.finished: ClientsFinished | None = None
        self.failure = ""
        file = directory / f"{name}.json"
        file.write_bytes(msgspec.json.encode(spec))
        self.child = Child(name, ProcessSpec.__module__, str(file.absolute()), directory=directory)

    def read(self) -> bool:
        """Read its reports; returns whether they show progress, or its end."""
        progressed = False
        for line in self.child.received():
            match report_decoder.decode(line):
                case ClientsReady():
                    self.ready = progressed = True
                case ClientsProgress() as progress:
                    progressed = progressed or progress != self.progress
                    self.progress = progress
                case ClientsFinished() as finished:
                    self.finished, progressed = finished, True
                    self.progress = ClientsProgress(finished.done, sum(finished.records.values()))
                case ClientsFailed(reason):
                    self.failure, progressed = reason, True
        return progressed or self.child.closed

    def reason(self) -> str:
        """Why it has ended."""
        return f"{self.child.name}: {self.failure}" if self.failure else self.child.death()

    def end(self) -> None:
        """Make sure that it has ended; a process that has closed its output is about to."""
        self.child.stop(END_S if self.child.closed else 0)


def _groups_by_process(plan: RunPlan) -> list[tuple[RoleGroup, ...]]:
    """The roles of each process: whole instances in turn, or the roles that are to be apart."""
    apart = plan.workload_class.apart
    if apart:
        return [tuple(RoleGroup(each, roles) for each in plan.scenarios) for roles in apart]
    roles = tuple(plan.workload_class.roles)
    shares: list[list[RoleGroup]] = [[] for _ in range(min(PROCESSES, len(plan.scenarios)))]
    for number, scenario in enumerate(plan.scenarios):
        shares[number % len(shares)].append(RoleGroup(scenario, roles))
    return [tuple(share) for share in shares]


def _cpu(pids: dict[str, int]) -> dict[str, float]:
    """The CPU time of each process so far, where the system provides it."""
    if sys.platform != "linux":
        return {}
    used = {}
    for name, pid in pids.items():
        with contextlib.suppress(OSError):  # It has just died, which the loop reports.
            used[name] = cpu_s(pid)
    return used


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def clear(directory: Path) -> None:
    """Remove what an earlier attempt has left."""
    if directory.exists():
        shutil.rmtree(directory)
