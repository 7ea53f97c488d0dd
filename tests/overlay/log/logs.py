"""What the tests of logs share: a caller of a log, and logs on a simulated disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from overlay.log.file_log import FileLog
from overlay.log.log import Appended, AppendOutcome, Log, SnapshotOutcome
from overlay.log.simulated_disk import SimulatedDisk

T = TypeVar("T")

BIRTH = "0123456789abcdef0123456789abcdef"
DIRECTORY = Path("/state/shop/B1")

#: Drives a log's loop until a condition holds.
Until = Callable[[Callable[[], bool]], None]


def at_once(ready: Callable[[], bool]) -> None:
    """The `Until` of a log that calls `done` inside its calls."""
    assert ready(), "the log has not called done"


def append(log: Log, batch: bytes, *, until: Until = at_once) -> AppendOutcome:
    return append_behind(log, log.last, batch, until=until)


def append_behind(
    log: Log, expected_last: int, batch: bytes, *, until: Until = at_once
) -> AppendOutcome:
    outcomes: list[AppendOutcome] = []
    log.append(expected_last, batch, outcomes.append)
    until(lambda: bool(outcomes))
    (outcome,) = outcomes
    return outcome


def snapshot(log: Log, position: int, state: bytes, *, until: Until = at_once) -> SnapshotOutcome:
    outcomes: list[SnapshotOutcome] = []
    log.snapshot(position, state, outcomes.append)
    until(lambda: bool(outcomes))
    (outcome,) = outcomes
    return outcome


def fill(log: Log, *batches: bytes) -> None:
    for batch in batches:
        position = log.last + 1
        assert append(log, batch) == Appended(position)


def opened(disk: SimulatedDisk, directory: Path = DIRECTORY, **settings: Any) -> FileLog:
    """The log of broker B1 on a simulated disk."""
    given = {"broker": "B1", "version": "v1", "birth": BIRTH, **settings}
    return FileLog(directory, disk=disk, **given)


def segments(disk: SimulatedDisk) -> list[Path]:
    return [path for path in disk.contents() if path.name.startswith("log-")]


def snapshots(disk: SimulatedDisk) -> list[Path]:
    return [path for path in disk.contents() if path.name.startswith("snap-")]
