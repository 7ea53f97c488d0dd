"""Disks that are full and files that are moved away: a broker goes on, and says what it lost."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from twisted.logger import LogLevel

from overlay.files.line_file import LineFile
from overlay.files.logs import JsonLines
from overlay.files.trace_file import TraceFile
from overlay.filters import Filter
from overlay.trace import Record
from tests.overlay.broker_processes import (
    PATIENCE_S,
    Lines,
    Process,
    RawClient,
    inspect,
    one,
    running,
)

LINE = b"x" * 99 + b"\n"


@contextmanager
def full_at(size: int) -> Iterator[None]:
    """No file of this process can grow beyond this; a write up to there is a short one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# Files of whole lines.


def test_a_line_that_does_not_fit_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = LineFile(path)
    file.append(LINE)
    with full_at(150), pytest.raises(OSError):
        file.append(LINE)
    assert path.read_bytes() == LINE
    file.append(LINE)
    assert path.read_bytes() == 2 * LINE
    file.close()
    file.close()


def test_a_limited_file_is_renamed_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"of an earlier life\n")
    file = LineFile(path, limit_bytes=250, keep=2)
    for n in range(10):
        file.append(b"%d" % n + LINE[1:])
    sizes = {each.name: each.stat().st_size for each in tmp_path.iterdir()}
    assert sizes == {"file": 200, "file.1": 200, "file.2": 200}
    assert [line[:1] for line in (tmp_path / "file.1").read_bytes().splitlines()] == [b"6", b"7"]
    # What is larger than the limit is written all the same.
    file.append(bytes(1000) + b"\n")
    assert path.stat().st_size == 1001


def test_a_limited_file_that_cannot_be_renamed_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "file"
    (tmp_path / "file.1").mkdir()
    (tmp_path / "file.1" / "not-empty").touch()
    file = LineFile(path, limit_bytes=150, keep=1)
    for _ in range(3):
        file.append(LINE)
    assert path.read_bytes() == 3 * LINE


def test_a_file_that_was_moved_away_is_opened_anew(tmp_path: Path) -> None:
    path, moved = tmp_path / "file", tmp_path / "moved"
    file = LineFile(path)
    file.append(b"1\n")
    path.rename(moved)
    file.append(b"2\n")
    file.reopen()
    file.append(b"3\n")
    assert (moved.read_bytes(), path.read_bytes()) == (b"1\n2\n", b"3\n")
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError):
        file.reopen()
    file.append(b"nobody reads it, and nobody is harmed\n")


# Logs.


class Unwritable(Lines):
    full = True

    def append(self, lines: bytes) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().append(lines)


def test_log_lines_that_were_lost_are_counted_and_told() -> None:
    file = Unwritable()
    log = JsonLines("B1", file)
    event = {"log_level": LogLevel.info, "log_namespace": "overlay.x", "log_format": "event"}
    for _ in range(3):
        log(event)
    assert log.report() == {"lost": 3, "problem": "No space left on device"}
    file.full = False
    log(event)
    log(event)
    lines = [json.loads(line) for line in file.lines()]
    assert [line["event"] for line in lines] == ["log lines lost", "event", "event"]
    assert (lines[0]["count"], lines[0]["broker"]) == (3, "B1")
    assert log.report() == {"lost": 3, "problem": ""}


# Traces.


def record(seq: int) -> Record:
    return Record(seq, "B1", "publish", 0, filter="x" * 100)


def lines_of(path: Path) -> list[object]:
    """The numbers of the records; what is no record as a whole."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line.get("seq", line) for line in lines]


def test_a_full_disk_switches_the_trace_off_and_the_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    trace = TraceFile(path, "B1", "run")
    trace.write(record(1))
    trace.flush()
    size = path.stat().st_size
    with full_at(size + 20):
        for n in (2, 3):
            trace.write(record(n))
        trace.flush()
        assert trace.report()["problem"] == "File too large"
        trace.write(record(4))
        trace.flush()
    assert path.stat().st_size == size
    # There is room again: the mark can be written, but the records are gone.
    trace.flush()
    trace.write(record(5))
    trace.flush()
    assert trace.report()["missing"] == 4
    mark = {"node": "B1", "run": "run", "missing": 3, "reason": "File too large"}
    assert lines_of(path) == [1, mark]
    trace.reopen()
    assert trace.report()["problem"] == ""
    trace.write(record(6))
    trace.close()
    assert lines_of(path) == [1, mark, {**mark, "missing": 4}, 6]


# Broker processes.


def work(process: Process, name: str) -> None:
    """A client comes, publishes to itself, and goes."""
    client = RawClient(name).join(process.port)
    client.operate("adv", Filter(x=1))
    client.operate("sub", Filter(x=1))
    client.publish(1, x=1)
    assert client.numbers(1) == [1]
    client.cut()


def until(ready: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_broker_goes_on_without_a_trace(tmp_path: Path) -> None:
    with running(tmp_path, "B1", one(), trace_file="/dev/full") as broker:
        work(broker, "first")
        until(lambda: inspect(broker.port, "status")["trace"]["problem"])
        work(broker, "second")
        trace = inspect(broker.port, "status")["trace"]
        assert trace["file"] == "/dev/full" and trace["missing"] >= 10
        assert trace["problem"] == "No space left on device"
        (told,) = broker.events("trace switched off")
        assert told["reason"] == "No space left on device"
        assert broker.end() == 0


def test_a_broker_goes_on_without_a_log(tmp_path: Path) -> None:
    with running(tmp_path, "B1", one(), log_file="/dev/full") as broker:
        work(broker, "first")
        log = inspect(broker.port, "status")["log"]
        assert log["lost"] >= 2 and log["problem"] == "No space left on device"
        assert broker.end() == 0


def test_a_hangup_lets_it_open_log_and_trace_anew(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with running(tmp_path, "B1", one(), trace_file=str(trace)) as broker:
        work(broker, "first")
        old_log, old_trace = broker.log.with_suffix(".old"), trace.with_suffix(".old")
        broker.log.rename(old_log)
        trace.rename(old_trace)
        os.kill(broker.popen.pid, signal.SIGHUP)
        until(lambda: broker.log.exists() and broker.events("log and trace reopened"))
        work(broker, "second")
        assert broker.end() == 0
    assert "first" in old_log.read_text() and "second" in broker.log.read_text()
    before, after = lines_of(old_trace), lines_of(trace)
    assert before and after
    assert before + after == list(range(1, len(before + after) + 1))
