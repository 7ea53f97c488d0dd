"""Logs on real file systems: locks, rights, full disks, threads, and processes that are killed."""

from __future__ import annotations

import contextlib
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overlay.errors import LogError, LogLocked, LogUnusable, WrongLog
from overlay.log.file_log import FileLog
from overlay.log.log import Appended, AppendOutcome, Full
from overlay.log.os_disk import OsDisk, OsFile
from overlay.log.survey import LOCK, survey
from tests.overlay.log.logs import BIRTH, append, fill

#: Longer than any disk takes; the test fails then.
PATIENCE_S = 60


def opened(directory: Path, **settings: Any) -> FileLog:
    given = {"broker": "B1", "version": "v1", "birth": BIRTH, **settings}
    return FileLog(directory, **given)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def refused(directory: Path, error: type[LogError] = LogUnusable) -> str:
    with pytest.raises(error) as caught:
        opened(directory)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Locks.


def test_a_log_in_use_is_refused_with_its_process(tmp_path: Path) -> None:
    log = opened(tmp_path)
    fill(log, b"first")
    before = contents(tmp_path)
    program = (
        "import sys; from pathlib import Path; from overlay.log.file_log import FileLog\n"
        "FileLog(Path(sys.argv[1]), broker='B1', version='v1', birth='')"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True)
    assert done.returncode == 1
    expected = f"overlay.errors.LogLocked: {tmp_path} is in use by process {os.getpid()}"
    assert done.stderr.decode().splitlines()[-1] == expected
    assert refused(tmp_path, LogLocked) == f"{tmp_path} is in use by process {os.getpid()}"
    assert contents(tmp_path) == before
    log.close()
    opened(tmp_path).close()


def test_a_log_that_could_not_be_opened_is_not_locked(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(WrongLog):
        opened(tmp_path, broker="B2")
    opened(tmp_path).close()


FORKER = """
import os, sys
from pathlib import Path
from overlay.log.file_log import FileLog

log = FileLog(Path(sys.argv[1]), broker="B1", version="v1", birth="")
child = os.fork()
if not child:
    print(os.getpid(), flush=True)
sys.stdin.read()
os._exit(0)
"""


def test_a_forked_child_does_not_keep_the_lock_of_a_killed_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        child = int(process.stdout.readline())
        # The child has let go of the lock, and the parent has not.
        assert refused(tmp_path, LogLocked) == f"{tmp_path} is in use by process {process.pid}"
        process.kill()
        process.wait()
        opened(tmp_path).close()
        os.kill(child, 0)


APPENDER = """
import sys
from pathlib import Path
from overlay.log.file_log import FileLog

log = FileLog(Path(sys.argv[1]), broker="B1", version="v1", birth="", segment_bytes=2000)
def done(outcome):
    sys.stdout.write(f"{outcome.position}\\n")
    sys.stdout.flush()
while True:
    log.append(log.last, b"%d " % (log.last + 1) * 50, done)
    if log.last % 10 == 0:
        log.snapshot(log.last, b"%d" % log.last, lambda outcome: None)
        log.compact(log.last)
"""


def test_a_killed_process_leaves_all_that_it_acknowledged_and_no_lock(tmp_path: Path) -> None:
    acknowledged = 0
    for kill_at in (5, 37, 80):
        command = [sys.executable, "-c", APPENDER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                acknowledged = int(line)
                if acknowledged == kill_at:
                    process.send_signal(signal.SIGKILL)
        log = opened(tmp_path)
        # One more may have been written and not yet reported.
        assert log.last in (acknowledged, acknowledged + 1)
        position, state = log.latest_snapshot() or (0, b"0")
        assert state == b"%d" % position
        tail = list(log.read(position))
        assert tail == [(n, b"%d " % n * 50) for n in range(position + 1, log.last + 1)]
        log.close()
    assert acknowledged >= 80


# Directories that cannot be used.


def test_missing_directories_are_created(tmp_path: Path) -> None:
    log = opened(tmp_path / "shop" / "B1")
    fill(log, b"first")
    log.close()
    assert survey(OsDisk(), tmp_path / "shop" / "B1").last == 1


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"mine")
    assert refused(file) == f"cannot use {file} for the log: Not a directory"
    assert "Not a directory" in refused(file / "B1")
    assert file.read_bytes() == b"mine"


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """As a user who is not root, to whom all files belong."""
    user = os.geteuid()
    if not user:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_directory_without_rights_is_told(tmp_path: Path) -> None:
    opened(tmp_path / "B1").close()
    (tmp_path / "B1").chmod(0)
    with without_rights():
        reason = refused(tmp_path / "B1")
    (tmp_path / "B1").chmod(0o755)
    assert reason.startswith("cannot use ") and reason.endswith(": Permission denied")
    opened(tmp_path / "B1").close()


# Full disks.


@contextlib.contextmanager
def full_at(size: int) -> Iterator[None]:
    """No file of this process can grow beyond this; a write up to there is a short one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_batch_that_does_not_fit_is_taken_back(tmp_path: Path) -> None:
    log = opened(tmp_path)
    fill(log, b"first")
    before = contents(tmp_path)
    size = len(before["log-00000000000000000001"])
    with full_at(size + 50):
        assert append(log, b"x" * 100) == Full("cannot write the log: File too large")
        assert contents(tmp_path) == before
        outcomes: list[Any] = []
        log.snapshot(1, b"x" * 1000, outcomes.append)
        assert outcomes == [Full("cannot store a snapshot: File too large")]
        assert contents(tmp_path) == before
    fill(log, b"x" * 100)
    log.close()
    log = opened(tmp_path)
    assert [batch for _, batch in log.read(0)] == [b"first", b"x" * 100]
    log.close()


def test_a_disk_that_is_full_at_the_start_is_told(tmp_path: Path) -> None:
    with full_at(0):
        reason = refused(tmp_path)
    assert reason == f"cannot use {tmp_path} for the log: File too large"
    # It begins once there is room.
    opened(tmp_path).close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("needs the right to mount a file system")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_full_file_system_pushes_back_until_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / ".ballast"
    ballast.write_bytes(bytes(20_000))
    log = opened(small_disk, segment_bytes=8000)
    written = []
    while True:
        outcome = append(log, b"%d " % log.last * 700)
        if not isinstance(outcome, Appended):
            break
        written.append(b"%d " % (log.last - 1) * 700)
    assert outcome == Full("cannot write the log: No space left on device")
    assert len(written) > 10
    assert append(log, b"again " * 700) == outcome
    # The owner restarts while the disk is full, and is told by the first append.
    log.close()
    log = opened(small_disk, segment_bytes=8000)
    assert log.notes == []
    assert [batch for _, batch in log.read(0)] == written
    assert append(log, b"again " * 700) == outcome
    ballast.unlink()
    fill(log, b"again " * 700)
    log.close()
    log = opened(small_disk)
    assert [batch for _, batch in log.read(0)] == [*written, b"again " * 700]
    log.close()


# Threads.


class Loop:
    """Runs calls in the test's thread."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()

    def call(self, *call: Any) -> None:
        self.calls.put(call)

    def run_one(self) -> None:
        function, *arguments = self.calls.get(timeout=PATIENCE_S)
        function(*arguments)


def test_the_owner_goes_on_while_the_disk_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, may_sync = queue.SimpleQueue[int](), threading.Event()
    sync = OsFile.sync

    def slow_sync(file: OsFile) -> None:
        synced.put(threading.get_ident())
        assert may_sync.wait(PATIENCE_S)
        sync(file)

    loop = Loop()
    log = opened(tmp_path, call_in_loop=loop.call)
    monkeypatch.setattr(OsFile, "sync", slow_sync)
    outcomes: list[AppendOutcome] = []
    log.append(0, b"first", outcomes.append)
    assert synced.get(timeout=PATIENCE_S) != threading.get_ident()
    # It is written, and not committed: nothing may follow from it yet.
    assert (outcomes, log.last, loop.calls.empty()) == ([], 0, True)
    assert list(log.read(0)) == []
    with pytest.raises(AssertionError, match="the last append is not done"):
        log.append(0, b"second", outcomes.append)
    may_sync.set()
    loop.run_one()
    assert (outcomes, log.last) == ([Appended(1)], 1)
    log.close()


def test_one_append_and_one_snapshot_at_a_time(tmp_path: Path) -> None:
    loop = Loop()
    log = opened(tmp_path, call_in_loop=loop.call)
    outcomes: list[object] = []
    log.append(0, b"first", outcomes.append)
    with pytest.raises(AssertionError, match="the last append is not done"):
        log.append(0, b"second", outcomes.append)
    loop.run_one()
    log.snapshot(1, b"one", outcomes.append)
    with pytest.raises(AssertionError, match="the last snapshot is not done"):
        log.snapshot(1, b"two", outcomes.append)
    # Both at once are fine.
    log.append(1, b"second", outcomes.append)
    loop.run_one()
    loop.run_one()
    assert sorted(map(repr, outcomes)) == [
        "Appended(position=1)",
        "Appended(position=2)",
        "SnapshotStored(position=1)",
    ]
    log.snapshot(2, b"two", outcomes.append)
    log.append(2, b"third", outcomes.append)
    log.close()


def test_a_mistake_in_a_thread_is_raised_in_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(file: OsFile) -> None:
        raise AssertionError("ours")

    loop = Loop()
    log = opened(tmp_path, call_in_loop=loop.call)
    monkeypatch.setattr(OsFile, "sync", mistaken)
    log.append(0, b"first", lambda outcome: pytest.fail("it has no outcome"))
    with pytest.raises(AssertionError, match="ours"):
        loop.run_one()
    # The thread has not ended: the log can be closed.
    log.close()


def test_close_waits_for_the_append_under_way(tmp_path: Path) -> None:
    loop = Loop()
    log = opened(tmp_path, call_in_loop=loop.call)
    outcomes: list[object] = []
    log.append(0, b"first", outcomes.append)
    log.close()
    loop.run_one()
    assert outcomes == [Appended(1)]
    log = opened(tmp_path)
    log.snapshot(1, b"one", outcomes.append)
    log.close()
    assert survey(OsDisk(), tmp_path).usable_snapshot is not None


# What reaches the disk, and when.


@pytest.mark.skipif(sys.platform == "darwin", reason="syncs by fcntl there")
def test_a_batch_is_synced_before_it_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("write", "fdatasync", "fsync"):
        real = getattr(os, name)

        def record(*arguments: Any, name: str = name, real: Any = real) -> Any:
            calls.append(name)
            return real(*arguments)

        monkeypatch.setattr(os, name, record)
    log = opened(tmp_path, segment_bytes=1)
    calls.clear()
    log.append(0, b"first", lambda outcome: calls.append("done"))
    assert calls == ["write", "fdatasync", "done"]
    calls.clear()
    # A new file with its name, then the batch in it.
    log.append(1, b"second", lambda outcome: calls.append("done"))
    assert calls == ["write", "fdatasync", "fsync", "write", "fdatasync", "done"]
    calls.clear()
    log.snapshot(2, b"two", lambda outcome: calls.append("done"))
    assert calls == ["write", "write", "fdatasync", "fsync", "done"]
    log.close()


# While a log is in use.


def test_a_log_in_use_can_be_read(tmp_path: Path) -> None:
    """The reader may come at any moment: it finds an intact log each time."""
    command = [sys.executable, "-c", APPENDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            found = survey(OsDisk(), tmp_path)
            assert found.problems == [] and found.last >= int(line)
            if int(line) >= 60:
                process.kill()
    assert (tmp_path / LOCK).read_text().strip() == str(process.pid)


def test_report_is_what_status_shows(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=1)
    fill(log, b"first", b"second")
    log.snapshot(1, b"one", lambda outcome: None)
    size = sum(len(data) for name, data in contents(tmp_path).items() if name.startswith("log-"))
    assert log.report() == {
        "directory": str(tmp_path),
        "position": 2,
        "segments": 2,
        "bytes": size,
        "snapshot": 1,
    }
    log.close()
