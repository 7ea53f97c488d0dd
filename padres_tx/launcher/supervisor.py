"""What `padres-tx up` does: start an overlay, write down that it runs, follow it, and end it.

One loop looks at the broker processes and at two flags that signal handlers set; nothing else
happens in a handler, so there is no moment at which a signal could come amiss. The first SIGINT,
SIGTERM or SIGHUP ends the overlay properly, a second one at once. A broker that dies is told of
and marked in the state file; the rest goes on, because the rest of a tree still routes. If asked
to, the broker is restarted, unless it dies again and again.

This module must not know how things are printed.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import msgspec

from padres_tx import launcher
from padres_tx.launcher import processes
from padres_tx.launcher.overlay_files import BrokerRecord, OverlayRecord, Phase, Registry
from padres_tx.launcher.overlay_processes import LOOK_S, Crash, Running
from topologies import Topology

#: A broker that dies so often in a row will die again: something is wrong that a person must see.
RESTARTS = 5

#: One that has run for so long counts as healthy, and its next death as the first.
HEALTHY_S = 60.0

#: Before each restart, so that a broker that dies at once does not take a whole core.
RESTART_PAUSE_S = 1.0

#: Where `up --detach` sends what `up` would print; no broker's name begins like this.
LAUNCHER_LOG = "_launcher.log"


class Signals:
    """Whether somebody wants the overlay to end, and how much."""

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
        """Note signals instead of dying of them."""
        wanted = [signal.SIGINT, signal.SIGTERM]
        # Under nohup a terminal may close, and the overlay is to stay.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            wanted.append(signal.SIGHUP)
        before = {signum: signal.signal(signum, self._note) for signum in wanted}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)


class Supervisor:
    """One overlay, from `up` to its end; `say` is told what a person should know."""

    def __init__(
        self,
        name: str,
        topology: Topology,
        registry: Registry,
        say: Callable[[str], None],
        *,
        restart: bool = False,
        trace: bool = False,
    ) -> None:
        self._name = name
        self._topology = topology
        self._registry = registry
        self._say = say
        self._restart = restart
        self._trace = trace
        self._signals = Signals()
        self._deaths: dict[str, Deaths] = {}
        #: When a broker that has died is to be started again, on the monotonic clock.
        self._due: dict[str, float] = {}

    def run(self, timeout_s: float, up: Callable[[OverlayRecord], None]) -> None:
        """Bring the overlay up, call `up`, follow the overlay until a signal, and end it.

        Raises StateError if the name is taken, LaunchError if the overlay does not come up
        (Cancelled if a signal came first). No process and no state file is left, however this ends.
        """
        with self._signals.caught():
            record = OverlayRecord(
                name=self._name,
                topology=self._topology.name,
                launcher=processes.this_process(),
                phase="starting",
                directory=str(self._registry.directory_of(self._name)),
            )
            self._registry.claim(record)
            try:
                self._live(record, timeout_s, up)
            finally:
                self._registry.release(record)

    def _live(
        self, record: OverlayRecord, timeout_s: float, up: Callable[[OverlayRecord], None]
    ) -> None:
        directory = Path(record.directory)
        _clear(directory)

        def starting(running: Running) -> None:
            self._write(record, running, "starting")

        running = launcher.launch(
            self._topology,
            directory,
            trace=self._trace,
            timeout_s=timeout_s,
            started=starting,
            cancelled=self._signals.stopping,
        )
        try:
            up(self._write(record, running, "up"))
            while not self._signals.stopping():
                self._look(record, running)
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
        self._registry.write(current)
        return current

    # --- following ---

    def _look(self, record: OverlayRecord, running: Running) -> None:
        crashes = running.crashes()
        for crash in crashes:
            self._say(f"{crash}\n{self._verdict(crash)}")
        now = time.monotonic()
        due = [name for name, at in self._due.items() if at <= now]
        for name in due:
            del self._due[name]
            running.restart(name)
            self._say(f"broker {name} restarted as process {running.process(name).pid}")
        if crashes or due:
            self._write(record, running, "up")

    def _verdict(self, crash: Crash) -> str:
        """Decide what becomes of a broker that has died, and say so."""
        if not self._restart:
            return f"broker {crash.broker} is down; the others go on (--restart would restart it)"
        deaths = self._deaths.setdefault(crash.broker, Deaths())
        if deaths.count(time.monotonic()) > RESTARTS:
            return f"broker {crash.broker} is down: it has died {deaths.in_a_row} times in a row"
        self._due[crash.broker] = time.monotonic() + RESTART_PAUSE_S
        return f"broker {crash.broker} will be restarted in {RESTART_PAUSE_S:g} s"


class Deaths:
    """How often a broker has died without being healthy in between."""

    def __init__(self) -> None:
        self.in_a_row = 0
        self._last_at = float("-inf")

    def count(self, now: float) -> int:
        """Count one more, now; answers how many in a row that makes."""
        if now - self._last_at > HEALTHY_S:
            self.in_a_row = 0
        self._last_at = now
        self.in_a_row += 1
        return self.in_a_row


def _clear(directory: Path) -> None:
    """Remove what the last overlay of this name has left."""
    for pattern in ("*.trace.jsonl", "*.log", "*.log.*"):
        for file in directory.glob(pattern):
            # The launcher's own log may be where this very process writes to.
            if file.name != LAUNCHER_LOG:
                file.unlink(missing_ok=True)
