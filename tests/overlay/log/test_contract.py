"""What every log does, whatever is below it.

An adapter is tried by adding its harness to `HARNESSES`.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from overlay.errors import LogError
from overlay.log.file_log import FileLog
from overlay.log.log import (
    Appended,
    AppendOutcome,
    Log,
    Refused,
    SnapshotOutcome,
    SnapshotStored,
)
from overlay.log.memory_log import MemoryLog
from overlay.log.simulated_disk import SimulatedDisk
from tests.overlay.log import logs
from tests.overlay.log.logs import BIRTH, DIRECTORY

#: Longer than any disk takes; the test fails then.
PATIENCE_S = 60


class Harness(Protocol):
    """A place where one log is."""

    #: Whether the log is there when it is opened again.
    durable: bool

    def open(self, birth: str = BIRTH) -> Log: ...

    def until(self, ready: Callable[[], bool]) -> None:
        """Run the loop in which `done` is called, until this is true."""

    def end(self) -> None: ...


class InMemory:
    durable = False

    def open(self, birth: str = BIRTH) -> Log:
        return MemoryLog(birth, keep=True)

    def until(self, ready: Callable[[], bool]) -> None:
        logs.at_once(ready)

    def end(self) -> None:
        pass


class OnSimulatedDisk(InMemory):
    durable = True

    def __init__(self, directory: Path) -> None:
        self.disk = SimulatedDisk()

    def open(self, birth: str = BIRTH) -> Log:
        return logs.opened(self.disk, DIRECTORY, birth=birth, segment_bytes=200)


class OnDisk(InMemory):
    durable = True

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "B1"

    def open(self, birth: str = BIRTH) -> Log:
        return FileLog(self.directory, broker="B1", version="v1", birth=birth, segment_bytes=200)


class OnDiskInThreads(OnDisk):
    """The loop is a queue of calls."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.calls: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()

    def open(self, birth: str = BIRTH) -> Log:
        return FileLog(
            self.directory,
            broker="B1",
            version="v1",
            birth=birth,
            segment_bytes=200,
            call_in_loop=lambda *call: self.calls.put(call),
        )

    def until(self, ready: Callable[[], bool]) -> None:
        while not ready():
            function, *arguments = self.calls.get(timeout=PATIENCE_S)
            function(*arguments)


HARNESSES: dict[str, Callable[[Path], Harness]] = {
    "memory": lambda directory: InMemory(),
    "simulated disk": OnSimulatedDisk,
    "disk": OnDisk,
    "disk in threads": OnDiskInThreads,
}


@pytest.fixture(params=HARNESSES)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    made = HARNESSES[request.param](tmp_path)
    yield made
    made.end()


@pytest.fixture
def durable(harness: Harness) -> Harness:
    if not harness.durable:
        pytest.skip("a log that ends with its process")
    return harness


def append(harness: Harness, log: Log, *batches: bytes) -> list[AppendOutcome]:
    return [logs.append(log, batch, until=harness.until) for batch in batches]


def snapshot(harness: Harness, log: Log, position: int, state: bytes) -> SnapshotOutcome:
    return logs.snapshot(log, position, state, until=harness.until)


def test_a_new_log_is_empty(harness: Harness) -> None:
    log = harness.open()
    assert (log.last, log.birth, log.latest_snapshot()) == (0, BIRTH, None)
    assert list(log.read(0)) == []
    log.close()


def test_batches_are_numbered_from_one_and_read_in_order(harness: Harness) -> None:
    log = harness.open()
    assert append(harness, log, b"a", b"b" * 500, b"\0") == [Appended(n) for n in (1, 2, 3)]
    assert log.last == 3
    assert list(log.read(0)) == [(1, b"a"), (2, b"b" * 500), (3, b"\0")]
    assert list(log.read(2)) == [(3, b"\0")]
    assert list(log.read(3)) == []
    log.close()


def test_an_append_behind_another_position_is_refused(harness: Harness) -> None:
    log = harness.open()
    append(harness, log, b"a", b"b")
    for expected in (0, 1, 3):
        assert logs.append_behind(log, expected, b"x", until=harness.until) == Refused(2)
    assert append(harness, log, b"c") == [Appended(3)]
    assert [batch for _, batch in log.read(0)] == [b"a", b"b", b"c"]
    log.close()


def test_done_may_append_the_next_batch(harness: Harness) -> None:
    log = harness.open()
    outcomes: list[AppendOutcome] = []

    def done(outcome: AppendOutcome) -> None:
        outcomes.append(outcome)
        assert log.last == len(outcomes)
        if len(outcomes) < 20:
            log.append(log.last, b"%d" % log.last, done)

    log.append(0, b"0", done)
    harness.until(lambda: len(outcomes) == 20)
    assert outcomes == [Appended(n) for n in range(1, 21)]
    assert [batch for _, batch in log.read(0)] == [b"%d" % n for n in range(20)]
    log.close()


def test_the_newest_snapshot_is_returned(harness: Harness) -> None:
    log = harness.open()
    append(harness, log, *[b"%d" % n for n in range(9)])
    for position in (2, 4, 4, 9):
        assert snapshot(harness, log, position, b"at %d" % position) == SnapshotStored(position)
        assert log.latest_snapshot() == (position, b"at %d" % position)
    log.close()


def test_a_mistake_of_the_owner_is_an_assertion(harness: Harness) -> None:
    log = harness.open()
    with pytest.raises(AssertionError):
        log.append(0, b"", print)
    for position in (0, 1):
        with pytest.raises(AssertionError):
            log.snapshot(position, b"of nothing", print)
    append(harness, log, b"a", b"b", b"c")
    for position in (0, 4):
        with pytest.raises(AssertionError):
            log.snapshot(position, b"too early or too late", print)
    assert snapshot(harness, log, 1, b"one") == SnapshotStored(1)
    assert snapshot(harness, log, 3, b"three") == SnapshotStored(3)
    with pytest.raises(AssertionError):
        log.snapshot(2, b"older than the newest", print)
    log.close()


def test_compaction_keeps_what_the_older_snapshot_needs(harness: Harness) -> None:
    log = harness.open()
    append(harness, log, *[bytes([n]) * 100 for n in range(1, 21)])
    log.compact(20)
    # Nothing but one snapshot: if it is lost, all batches are needed.
    snapshot(harness, log, 8, b"eight")
    log.compact(20)
    assert [position for position, _ in log.read(0)] == list(range(1, 21))
    snapshot(harness, log, 16, b"sixteen")
    log.compact(3)
    # Its end says that the compaction before it is done.
    snapshot(harness, log, 16, b"sixteen")
    assert [position for position, _ in log.read(3)] == list(range(4, 21))
    log.compact(20)
    snapshot(harness, log, 16, b"sixteen")
    assert [position for position, _ in log.read(8)] == list(range(9, 21))
    with pytest.raises(LogError, match="asked for 1"):
        log.read(0)
    log.close()


def test_a_log_is_found_again_as_it_was(durable: Harness) -> None:
    log = durable.open()
    append(durable, log, *[bytes([n]) * 100 for n in range(1, 10)])
    snapshot(durable, log, 4, b"four")
    snapshot(durable, log, 7, b"seven")
    log.compact(7)
    log.close()
    log = durable.open(birth="f" * 32)
    assert (log.last, log.birth, log.latest_snapshot()) == (9, BIRTH, (7, b"seven"))
    assert [batch[0] for _, batch in log.read(7)] == [8, 9]
    assert logs.append_behind(log, 0, b"x", until=durable.until) == Refused(9)
    assert append(durable, log, b"ten") == [Appended(10)]
    log.close()
    log = durable.open()
    assert list(log.read(9)) == [(10, b"ten")]
    log.close()


def test_a_log_without_batches_is_found_again(durable: Harness) -> None:
    durable.open().close()
    log = durable.open(birth="f" * 32)
    assert (log.last, log.birth, list(log.read(0))) == (0, BIRTH, [])
    log.close()
