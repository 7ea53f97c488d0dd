"""Ask the launcher of a running overlay to restart a broker, and wait until that broker is up.

The launcher is the parent of the brokers and knows how each was started, so it restarts them. A
request is an empty file beside the logs; the launcher looks for such files as often as it looks for
crashes. What became of a request is seen in the overlay's record and in the broker's status.

A broker that runs is asked to hand its state on and end (SIGTERM); one that has died is started
again at once. Links to neighbours that have died are not waited for.

This module must not know the command line.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from padres_tx.launcher import processes
from padres_tx.launcher.broker_status import REPLY_S, query_all
from padres_tx.launcher.overlay_files import BrokerRecord, OverlayFiles, OverlayRecord, StateError
from padres_tx.launcher.overlay_processes import (
    Crash,
    LaunchError,
    last_lines,
    not_ready,
    start_failure,
)

#: A broker that is restarted has to write its state and read it again; one with 100,000
#: subscriptions takes some ten seconds for that.
RESTART_S = 60.0

#: Interval at which the broker is queried: each query is a connection, and a line in its log.
QUERY_S = 0.25

#: Begins the name of a request's file; no broker's name starts with an underscore.
PREFIX = "_restart."


def take(directory: Path) -> list[str]:
    """The brokers that were asked for since the last call, for the launcher."""
    found = sorted(directory.glob(f"{PREFIX}*"))
    for file in found:
        file.unlink(missing_ok=True)
    return [file.name.removeprefix(PREFIX) for file in found]


def restart(
    files: OverlayFiles, record: OverlayRecord, brokers: Sequence[str], timeout_s: float
) -> Iterator[BrokerRecord]:
    """Restart brokers of a running overlay; yields the record of each when its links are up.

    Those that have died are started at once, all together; then the others, one after the other.
    Each may take `timeout_s`.

    Raises StateError if there is no such broker or the overlay is not up, BrokerRefused or PortBusy
    if a broker cannot start, and LaunchError if one has crashed or is not up in time. In the last
    case the launcher goes on: it starts the broker when it has ended.
    """
    if record.phase != "up":
        raise StateError(f"overlay {record.name} is {record.phase}; restart brokers when it is up")
    dead = [name for name in brokers if record.broker(name).exit_code is not None]
    for name in dead:
        _ask(record, name)
    for name in dead:
        yield _wait_up(files, record, name, timeout_s)
    for name in brokers:
        if name not in dead:
            _ask(record, name)
            yield _wait_up(files, record, name, timeout_s)


def _ask(record: OverlayRecord, broker: str) -> None:
    try:
        (Path(record.directory) / f"{PREFIX}{broker}").touch()
    except OSError as error:
        raise StateError(f"cannot write into {record.directory}: {error.strerror}") from None


def _wait_up(
    files: OverlayFiles, record: OverlayRecord, broker: str, timeout_s: float
) -> BrokerRecord:
    """Wait until a broker has another process than in `record`, and its links."""
    before = record.broker(broker)
    deadline = time.monotonic() + timeout_s
    while True:
        current = files.get(record.name)
        if current is None or current.phase != "up" or not processes.alive(current.launcher):
            raise LaunchError(f"overlay {record.name} was stopped before broker {broker} was up")
        found = current.broker(broker)
        problem: str | None = f"process {before.process.pid} has not ended yet"
        if found.process != before.process:
            if found.exit_code is not None:
                pid, log = found.process.pid, Path(found.log)
                raise start_failure(Crash(broker, pid, found.exit_code, log))
            status = query_all({broker: found.address}, min(REPLY_S, timeout_s))[broker]
            dead = [each.name for each in current.brokers if each.exit_code is not None]
            problem = not_ready(status, found.process.pid, dead)
        if problem is None:
            return found
        if time.monotonic() >= deadline:
            raise LaunchError(
                f"broker {broker} is not up {timeout_s:g} s after it was asked to restart: "
                f"{problem}{last_lines(Path(found.log))}"
            )
        time.sleep(QUERY_S)
