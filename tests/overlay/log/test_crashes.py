"""Power and processes fail at any operation: what was reported as appended is there afterwards."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.errors import LogUnusable
from overlay.log.log import Appended, AppendOutcome, Failed, Full
from overlay.log.simulated_disk import PowerFailure, SimulatedDisk, SimulatedFile
from tests.overlay.log.logs import append, fill, opened

#: So small that there are many segments.
SEGMENT_BYTES = 400


class Owner:
    """Appends numbered batches, takes snapshots of how many there were, and checks what is back."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        #: What was reported as appended, and the batch of which that is not known.
        self.acknowledged: list[bytes] = []
        self.in_flight: bytes | None = None
        self.snapshots = [0]
        self._made = 0

    def start(self) -> None:
        """Open the log and check it."""
        self.log = opened(self.disk, segment_bytes=SEGMENT_BYTES)
        latest = self.log.latest_snapshot()
        position, state = latest or (0, b"0")
        assert position in self.snapshots and state == b"%d" % position
        tail = list(self.log.read(position))
        assert [each for each, _ in tail] == list(range(position + 1, self.log.last + 1))
        found = [*self.acknowledged[:position], *(batch for _, batch in tail)]
        if self.in_flight is not None and len(found) > len(self.acknowledged):
            self.acknowledged.append(self.in_flight)
        assert found == self.acknowledged
        self.in_flight = None

    def append(self, size: int) -> None:
        self._made += 1
        self.in_flight = (b"%d " % self._made).ljust(size, b"x")
        outcomes: list[AppendOutcome] = []
        self.log.append(self.log.last, self.in_flight, outcomes.append)
        (outcome,) = outcomes
        if outcome == Appended(len(self.acknowledged) + 1):
            self.acknowledged.append(self.in_flight)
        else:
            assert isinstance(outcome, Full)
        self.in_flight = None

    def snapshot(self, size: int) -> None:
        if self.log.last:
            # It may be there when the power fails before that is reported.
            self.snapshots.append(self.log.last)
            self.log.snapshot(self.log.last, b"%d" % self.log.last, lambda outcome: None)
            self.log.compact(self.log.last)

    def restart(self, size: int) -> None:
        self.log.close()
        self.start()


@settings(max_examples=100)
@given(data=st.data())
def test_what_was_appended_survives_and_nothing_else(data: st.DataObject) -> None:
    disk = SimulatedDisk()
    owner = Owner(disk)

    def choose(n: int) -> int:
        return data.draw(st.integers(0, n - 1), label="survives")

    crashes = data.draw(st.integers(1, 5), label="crashes")
    for crash in range(crashes + 1):
        if crash < crashes:
            steps = data.draw(st.integers(0, 40), label="operations")
            disk.stop_before(disk.operations + steps)
        if data.draw(st.integers(0, 3), label="disk") == 0:
            disk.room = data.draw(st.integers(0, 1000), label="room")
        else:
            disk.room = None
        if crash == crashes:
            disk.room = None
        try:
            owner.start()
            for _ in range(12):
                step = data.draw(
                    st.sampled_from([owner.append] * 6 + [owner.snapshot, owner.restart]),
                    label="step",
                )
                step(data.draw(st.integers(8, 200), label="size"))
        except PowerFailure:
            pass
        except LogUnusable as error:
            assert disk.room is not None and "No space left" in str(error)
        power = data.draw(st.booleans(), label="power fails, too")
        disk.restart(choose if power else None)
    owner.start()


def at_most(survived: int, n: int) -> int:
    return min(survived, n - 1)


def test_every_prefix_of_an_append_is_the_batch_or_nothing() -> None:
    """All crash points of one append, and all prefixes of what it writes."""
    seen = set()
    for stop in range(3):
        for survived in range(200):
            disk = SimulatedDisk()
            log = opened(disk)
            fill(log, b"first", b"second")
            disk.stop_before(disk.operations + stop)
            try:
                outcome = append(log, b"third" * 20)
            except PowerFailure:
                outcome = None
            disk.restart(functools.partial(at_most, survived))
            log = opened(disk)
            found = [batch for _, batch in log.read(0)]
            assert found[:2] == [b"first", b"second"]
            assert found[2:] in ([], [b"third" * 20])
            assert outcome is None or len(found) == 3
            # The log goes on behind it.
            fill(log, b"more")
            assert [batch for _, batch in log.read(0)] == [*found, b"more"]
            seen.add((stop, len(found)))
    # Before the write it is never there; before the sync it may be; after it, it is.
    assert seen == {(0, 2), (1, 2), (1, 3), (2, 3)}


def test_a_torn_tail_is_cut_off_and_reported() -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    fill(log, b"first")
    size = sum(map(len, disk.contents().values()))
    disk.stop_before(disk.operations + 1)
    with pytest.raises(PowerFailure):
        log.append(1, b"second", lambda outcome: None)
    disk.restart(lambda n: min(10, n - 1))
    log = opened(disk)
    (note,) = log.notes
    assert "cut off 30 bytes" in note and "behind batch 1" in note
    log.close()
    assert sum(map(len, disk.contents().values())) == size
    assert opened(disk).notes == []


def test_a_process_that_dies_leaves_what_it_has_written() -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    disk.stop_before(disk.operations + 1)
    with pytest.raises(PowerFailure):
        log.append(0, b"first", lambda outcome: None)
    disk.restart()
    assert [batch for _, batch in opened(disk).read(0)] == [b"first"]


# A full disk.


@pytest.mark.parametrize("room", range(0, 120, 7))
def test_a_full_disk_refuses_a_batch_until_there_is_room(room: int) -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    fill(log, b"first")
    before = disk.contents()
    disk.room = room
    outcome = append(log, b"x" * 100)
    assert outcome == Full("cannot write the log: No space left on device")
    assert disk.contents() == before and disk.room == room
    disk.room = 1000
    assert append(log, b"y" * 90) == Appended(2)
    disk.restart(lambda n: 0)
    assert [batch for _, batch in opened(disk).read(0)] == [b"first", b"y" * 90]


def test_a_full_disk_can_prevent_a_new_segment_and_a_snapshot() -> None:
    disk = SimulatedDisk()
    log = opened(disk, segment_bytes=100)
    fill(log, b"x" * 100)
    before = disk.contents()
    disk.room = 60
    assert isinstance(append(log, b"second"), Full)
    outcomes: list[object] = []
    log.snapshot(1, b"x" * 200, outcomes.append)
    assert outcomes == [Full("cannot store a snapshot: No space left on device")]
    assert disk.contents() == before and log.latest_snapshot() is None
    disk.room = None
    fill(log, b"second")
    assert log.report()["segments"] == 2
    log.close()
    assert [batch for _, batch in opened(disk).read(1)] == [b"second"]


# A disk that fails.


def failing(operation: str, name: str) -> Callable[[str, Path], OSError | None]:
    def fault(each: str, path: Path) -> OSError | None:
        if each == operation and path.name.startswith(name):
            return OSError(errno.EIO, "Input/output error")
        return None

    return fault


def test_a_log_that_cannot_be_opened_for_writing_is_not_locked() -> None:
    disk = SimulatedDisk()
    opened(disk).close()
    for failing_open in (1, 2):
        opens = 0

        def fault(operation: str, path: Path, failing_open: int = failing_open) -> OSError | None:
            nonlocal opens
            opens += operation == "open"
            return OSError(errno.EROFS, "Read-only file system") if opens == failing_open else None

        disk.fault = fault
        with pytest.raises(LogUnusable, match="Read-only file system"):
            opened(disk)
    disk.fault = lambda operation, path: None
    fill(opened(disk), b"first")


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_log_that_cannot_be_written_or_synced_accepts_nothing_more(operation: str) -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    fill(log, b"first")
    disk.fault = failing(operation, "log-")
    failed = append(log, b"second")
    assert isinstance(failed, Failed) and failed.reason.endswith("Input/output error")
    disk.fault = lambda operation, path: None
    operations = disk.operations
    assert append(log, b"third") == failed
    assert disk.operations == operations and log.last == 1
    log.close()
    # The batch of which nothing is known may be there, but only as a whole.
    disk.restart(lambda n: n - 1)
    assert [batch for _, batch in opened(disk).read(0)][:1] == [b"first"]


def test_a_batch_that_could_not_be_synced_is_not_seen_by_the_next_process() -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    fill(log, b"first")
    disk.fault = failing("sync", "log-")
    assert isinstance(append(log, b"second"), Failed)
    disk.fault = lambda operation, path: None
    disk.restart()
    log = opened(disk)
    fill(log, b"other")
    disk.restart(lambda n: 0)
    assert [batch for _, batch in opened(disk).read(0)] == [b"first", b"other"]


def test_a_sync_that_is_tried_again_would_lose_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated disk notices the mistake that the rule is about."""
    sync = SimulatedFile.sync

    def sync_twice(file: SimulatedFile) -> None:
        try:
            sync(file)
        except OSError:
            disk.fault = lambda operation, path: None
            sync(file)

    monkeypatch.setattr(SimulatedFile, "sync", sync_twice)
    disk = SimulatedDisk()
    log = opened(disk)
    disk.fault = failing("sync", "log-")
    fill(log, b"first")
    disk.restart(lambda n: 0)
    assert opened(disk).last == 0


def test_what_a_dead_process_has_not_synced_is_synced_before_it_is_read() -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    disk.stop_before(disk.operations + 1)
    with pytest.raises(PowerFailure):
        log.append(0, b"first", lambda outcome: None)
    disk.restart()
    assert opened(disk).last == 1
    disk.restart(lambda n: 0)
    assert opened(disk).last == 1


def test_a_snapshot_that_cannot_be_synced_changes_nothing() -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    fill(log, b"first", b"second")
    log.snapshot(1, b"one", lambda outcome: None)
    before = disk.contents()
    disk.fault = failing("sync", "snap-")
    outcomes: list[object] = []
    log.snapshot(2, b"two", outcomes.append)
    assert outcomes == [Failed("cannot store a snapshot: Input/output error")]
    assert disk.contents() == before and log.latest_snapshot() == (1, b"one")
    # The log itself goes on.
    fill(log, b"third")
