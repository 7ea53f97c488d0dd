"""Start, watch and stop an overlay, and keep its state file: the work of `padres-tx up`.

One loop checks the broker processes and a counter that signal handlers increase. The handlers do
nothing else, so a signal is safe at any moment. The first SIGINT, SIGTERM or SIGHUP stops the
overlay cleanly, a second one at once. A broker that crashes is reported and marked in the state
file; the others keep running, because the rest of the tree still routes. With `restart`, the broker
is restarted unless it crashes too often in a row. Other commands may ask for a broker's restart
(`restart_requests`). A state file that is damaged or deleted is written again.

This module must not know how things are printed.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import msgspec

from padres_tx import launcher
from padres_tx.launcher import processes, restart_requests, state_directories
from padres_tx.launcher.overlay_files import BrokerRecord, OverlayFiles, OverlayRecord, Phase
from padres_tx.launcher.overlay_processes import LOOK_S, Crash, Running, ending, last_lines
from padres_tx.launcher.state_directories import HANDED_ON
from topologies import Topology

#: A broker that crashes more often than this in a row will crash again: it needs a person's
#: attention.
RESTARTS = 5

#: A broker that has run for so long counts as healthy, and its next crash as the first.
HEALTHY_S = 60.0

#: Pause before each restart, so that a broker that crashes at once does not use a whole core.
RESTART_PAUSE_S = 1.0

#: The output of `up --detach`; no broker name starts with an underscore.
LAUNCHER_LOG = "_launcher.log"


class StopSignals:
    """Counts the signals that ask the overlay to stop."""

    def __init__(self) -> None:
        self._seen = 0

    def stopping(self) -> bool:
        return self._seen > 0

    def hurry(self) -> bool:
        return self._seen > 1

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._seen += 1

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Count the signals of this block instead of ending the process."""
        wanted = [signal.SIGINT, signal.SIGTERM]
        # Under nohup the overlay keeps running when the terminal is closed.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            wanted.append(signal.SIGHUP)
        before = {signum: signal.signal(signum, self._note) for signum in wanted}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)


class Supervisor:
    """One overlay, from `up` to its end; `report` is called with lines for the user."""

    def __init__(
        self,
        name: str,
        topology: Topology,
        files: OverlayFiles,
        report: Callable[[str], None],
        *,
        restart: bool = False,
        trace: bool = False,
        state: Path | None = None,
    ) -> None:
        """`state` is the directory of the brokers' state, and only in disk mode it may be given."""
        self._name = name
        self._topology = topology
        self._files = files
        self._report = report
        self._restart = restart
        self._trace = trace
        self._state = state
        self._signals = StopSignals()
        self._crashes: dict[str, CrashCount] = {}
        #: When a crashed broker is to be started again, on the monotonic clock.
        self._due: dict[str, float] = {}
        #: Brokers that were asked to end and are started again when they have.
        self._ending: list[str] = []

    def run(self, timeout_s: float, up: Callable[[OverlayRecord], None]) -> None:
        """Start the overlay, call `up`, watch the overlay until a signal, and stop it.

        Raises StateError if the name is taken, LaunchError if the overlay does not come up
        (Cancelled if a signal came first). In every case no process and no state file is left.
        """
        with self._signals.caught():
            record = OverlayRecord(
                name=self._name,
                topology=self._topology.name,
                launcher=processes.this_process(),
                phase="starting",
                directory=str(self._files.directory_of(self._name)),
                durability=self._topology.durability,
                state="" if self._state is None else str(self._state),
            )
            self._files.claim(record)
            try:
                self._launch_and_watch(record, timeout_s, up)
            finally:
                self._files.release(record)

    def _launch_and_watch(
        self, record: OverlayRecord, timeout_s: float, up: Callable[[OverlayRecord], None]
    ) -> None:
        directory = Path(record.directory)
        _clear(directory)
        handed_on = directory / HANDED_ON
        if self._state is not None:
            state_directories.claim(self._state, self._topology)
        else:
            shutil.rmtree(handed_on, ignore_errors=True)

        def starting(running: Running) -> None:
            self._write(record, running, "starting")

        running = launcher.launch(
            self._topology,
            directory,
            trace=self._trace,
            timeout_s=timeout_s,
            state=handed_on if self._state is None else self._state,
            started=starting,
            cancelled=self._signals.stopping,
        )
        try:
            record = self._write(record, running, "up")
            up(record)
            while not self._signals.stopping():
                record = self._look(record, running)
                time.sleep(LOOK_S)
            self._write(record, running, "stopping")
        finally:
            running.stop(hurry=self._signals.hurry)

    def _write(self, record: OverlayRecord, running: Running, phase: Phase) -> OverlayRecord:
        brokers = tuple(
            BrokerRecord(
                name=broker.name,
                address=broker.address,
                neighbours=running.topology.neighbours(broker.name),
                log=str(running.log(broker.name)),
                process=running.process(broker.name),
                exit_code=running.exit_code(broker.name),
            )
            for broker in running.topology.brokers
        )
        current = msgspec.structs.replace(record, phase=phase, brokers=brokers)
        self._files.write(current)
        return current

    # --- watching ---

    def _look(self, record: OverlayRecord, running: Running) -> OverlayRecord:
        """Handle what has happened since the last look; returns the overlay's current record."""
        crashes = running.crashes()
        for crash in crashes:
            self._report(f"{crash}\n{self._decision(crash)}")
        self._take_requests(Path(record.directory), running)
        now = time.monotonic()
        due = [name for name, at in self._due.items() if at <= now]
        due += [name for name in self._ending if running.exit_code(name) is not None]
        for name in due:
            if name in self._ending:
                self._ending.remove(name)
                if code := running.exit_code(name):
                    log = running.log(name)
                    self._report(
                        f"broker {name} did not end cleanly: {ending(code)}{last_lines(log)}"
                    )
            self._due.pop(name, None)
            running.restart(name)
            self._report(f"broker {name} restarted as process {running.process(name).pid}")
        if crashes or due:
            return self._write(record, running, "up")
        if self._files.mend(record):
            self._report(f"the state file of overlay {record.name} was damaged; written again")
        return record

    def _take_requests(self, directory: Path, running: Running) -> None:
        """Begin to restart the brokers that were asked for."""
        for name in restart_requests.take(directory):
            if name in self._ending or name not in {b.name for b in running.topology.brokers}:
                continue
            if running.exit_code(name) is not None:
                self._due[name] = 0.0  # It has died, and is started now.
                continue
            self._ending.append(name)
            self._report(f"broker {name} is being restarted")
            running.stop_for_restart(name)

    def _decision(self, crash: Crash) -> str:
        """Decide whether to restart a crashed broker; returns a line that says so."""
        if not self._restart:
            return (
                f"broker {crash.broker} is down; the other brokers keep running "
                f"(restart it with 'padres-tx broker restart {crash.broker}')"
            )
        count = self._crashes.setdefault(crash.broker, CrashCount())
        if count.add(time.monotonic()) > RESTARTS:
            return f"broker {crash.broker} is down: it has crashed {count.in_a_row} times in a row"
        self._due[crash.broker] = time.monotonic() + RESTART_PAUSE_S
        return f"broker {crash.broker} will be restarted in {RESTART_PAUSE_S:g} s"


class CrashCount:
    """How often a broker has crashed without being healthy in between."""

    def __init__(self) -> None:
        self.in_a_row = 0
        self._last_at = float("-inf")

    def add(self, now: float) -> int:
        """Count a crash at this time; returns the number of crashes in a row."""
        if now - self._last_at > HEALTHY_S:
            self.in_a_row = 0
        self._last_at = now
        self.in_a_row += 1
        return self.in_a_row


def _clear(directory: Path) -> None:
    """Delete the logs, traces and requests of the last overlay of this name."""
    for pattern in ("*.trace.jsonl", "*.log", "*.log.*", f"{restart_requests.PREFIX}*"):
        for file in directory.glob(pattern):
            # This process may be writing to the launcher's log.
            if file.name != LAUNCHER_LOG:
                file.unlink(missing_ok=True)
