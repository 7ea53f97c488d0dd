"""Files that are not as they were written: told with file and offset, and nothing is changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.errors import LogDamaged, LogError, WrongLog
from overlay.log import file_format as form
from overlay.log.file_format import SegmentHeader
from overlay.log.simulated_disk import SimulatedDisk
from overlay.log.survey import survey
from tests.overlay.log.logs import (
    BIRTH,
    DIRECTORY,
    append_behind,
    fill,
    opened,
    segments,
    snapshot,
    snapshots,
)

BATCHES = [b"first", b"second batch", b"\0\0\0", b"\xb7tx\n" * 3, b"last"]


def small_log() -> tuple[SimulatedDisk, Path, bytes]:
    """A log of one segment, and the bytes of that."""
    disk = SimulatedDisk()
    log = opened(disk)
    fill(log, *BATCHES)
    log.close()
    (path,) = segments(disk)
    return disk, path, disk.contents()[path]


def ends(data: bytes) -> list[int]:
    """The offset behind the header and behind each batch."""
    header, begin = form.open_segment(data, "log")
    return [begin, *(batch.end for batch in form.batches_in(data, begin, header))]


def refused(disk: SimulatedDisk, error: type[LogError] = LogDamaged) -> str:
    """Why a log cannot be opened; no file has changed."""
    before = disk.contents()
    with pytest.raises(error) as caught:
        opened(disk)
    assert disk.contents() == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("rest", [b"", bytes(50), b"\xff" * 50, form.MARK * 9])
def test_a_log_that_was_torn_at_any_byte_keeps_its_whole_batches(rest: bytes) -> None:
    disk, path, data = small_log()
    begin, *behind = ends(data)
    for cut in range(begin, len(data) + 1):
        torn = data[:cut] + rest
        whole = sum(torn.startswith(data[:end]) for end in behind)
        disk.overwrite(path, torn)
        log = opened(disk)
        assert list(log.read(0)) == list(enumerate(BATCHES[:whole], 1))
        assert len(log.notes) == (len(torn) > [begin, *behind][whole])
        fill(log, b"more")
        assert list(log.read(whole)) == [(whole + 1, b"more")]
        log.close()


def test_a_header_that_is_cut_off_is_damage() -> None:
    disk, path, data = small_log()
    for cut in range(ends(data)[0]):
        disk.overwrite(path, data[:cut])
        assert "offset" in refused(disk)


def flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The data with each of its bits flipped, and where."""
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            yield at, bytes(flipped)


def test_every_flipped_bit_of_a_segment_is_noticed() -> None:
    disk, path, data = small_log()
    behind = ends(data)
    for at, flipped in flips(data):
        disk.overwrite(path, flipped)
        if at < behind[-2]:
            reason = refused(disk)
            intact = sum(end <= at for end in behind)
            assert str(path) in reason
            assert f"offset {behind[intact - 1] if intact else 0}" in reason or not intact
        else:
            # The last batch looks like one that was not written as a whole.
            found = survey(disk, DIRECTORY)
            assert found.problems == []
            assert (found.last, found.torn_bytes) == (len(BATCHES) - 1, len(data) - behind[-2])


def test_every_flipped_bit_of_an_older_segment_is_noticed() -> None:
    disk = SimulatedDisk()
    log = opened(disk, segment_bytes=1)
    fill(log, b"first", b"second")
    log.close()
    path, _ = segments(disk)
    for _, flipped in flips(disk.contents()[path]):
        disk.overwrite(path, flipped)
        assert str(path) in refused(disk)


def test_damage_is_found_in_a_log_with_snapshots_and_told_with_its_place() -> None:
    disk, path, data = small_log()
    disk.overwrite(path, data.replace(b"second", b"secund"))
    first_end = ends(data)[1]
    second_end = ends(data)[2]
    assert refused(disk) == (
        f"{path}: damaged at offset {first_end}, behind batch 1: "
        f"an intact batch follows at offset {second_end}"
    )


def test_a_batch_of_another_log_is_no_successor() -> None:
    """The content of a message cannot pass for a batch, nor can an older file of that place."""
    disk, path, data = small_log()
    chain = form.tail_of(data, ends(data)[0], header_of(data)).chain
    theirs, _ = form.seal_batch(6, chain, form.seed_of("f" * 32), b"of another log")
    disk.overwrite(path, data + b"torn" + theirs)
    log = opened(disk)
    assert log.last == 5
    log.close()
    ours, _ = form.seal_batch(7, 0, form.seed_of(BIRTH), b"of this log")
    disk.overwrite(path, data + b"torn" + ours)
    assert f"offset {len(data) + 4}" in refused(disk)


def test_a_batch_that_does_not_continue_the_one_before_is_damage() -> None:
    disk, path, data = small_log()
    stranger, _ = form.seal_batch(6, 12345, form.seed_of(BIRTH), b"with another chain")
    disk.overwrite(path, data + stranger)
    assert f"damaged at offset {len(data)}, behind batch 5" in refused(disk)
    _, first, second, *_ = ends(data)
    disk.overwrite(path, data[:second] + data[first:])
    assert f"damaged at offset {second}, behind batch 2" in refused(disk)
    # What is older than the end cannot have been committed behind it.
    disk.overwrite(path, data + data[first:second])
    assert opened(disk).last == 5


def header_of(data: bytes) -> SegmentHeader:
    return form.open_segment(data, "log")[0]


# Files that are missing, or of others.


def log_of_segments(count: int) -> SimulatedDisk:
    disk = SimulatedDisk()
    log = opened(disk, segment_bytes=1)
    fill(log, *[b"%d" % n for n in range(1, count + 1)])
    log.close()
    return disk


def test_a_missing_segment_is_told() -> None:
    disk = log_of_segments(4)
    paths = segments(disk)
    disk.remove(paths[1])
    assert refused(disk) == f"{paths[2]}: begins at batch 3, but {paths[0].name} ends at 1"


def test_a_missing_first_segment_is_told() -> None:
    disk = log_of_segments(4)
    disk.remove(segments(disk)[0])
    expected = f"{DIRECTORY}: the log begins at batch 2, and no intact snapshot reaches it"
    assert refused(disk) == expected


def test_a_missing_last_segment_is_told_if_a_snapshot_shows_it() -> None:
    disk = SimulatedDisk()
    log = opened(disk, segment_bytes=1)
    fill(log, b"1", b"2", b"3")
    snapshot(log, 3, b"three")
    log.close()
    disk.remove(segments(disk)[-1])
    assert "the log ends at batch 2" in refused(disk)
    for path in segments(disk):
        disk.remove(path)
    assert "it has snapshots, but no segment" in refused(disk)


def test_a_segment_of_another_place_is_told() -> None:
    disk = log_of_segments(3)
    paths = segments(disk)
    disk.overwrite(paths[2], disk.contents()[paths[1]])
    assert refused(disk) == f"{paths[2]}: its header says that it begins at 2"
    stranger = SegmentHeader("B1", "f" * 32, "v1", 3, form.seed_of("f" * 32))
    disk.overwrite(paths[2], form.seal_segment(stranger))
    assert refused(disk) == f"{paths[2]}: does not continue {paths[1].name}"


def test_the_log_of_another_broker_is_refused() -> None:
    disk = log_of_segments(1)
    before = disk.contents()
    with pytest.raises(WrongLog, match="is the log of broker B1, not of B2"):
        opened(disk, broker="B2")
    assert disk.contents() == before
    # It is not locked either.
    assert append_behind(opened(disk), 0, b"x") is not None


@pytest.mark.parametrize("name", ["notes.txt", "log-1", "snap-x", "trace.jsonl.tmp"])
def test_a_directory_with_other_files_is_not_a_log(name: str) -> None:
    disk = SimulatedDisk()
    disk.make_directory(DIRECTORY)
    disk.create(DIRECTORY / name)
    assert refused(disk, WrongLog) == f"{DIRECTORY} is not a log: it contains {name!r}"
    assert [path.name for path in disk.contents()] == [name]


def test_other_files_beside_a_log_are_left_alone() -> None:
    disk = log_of_segments(2)
    disk.create(DIRECTORY / "notes.txt")
    opened(disk).close()
    assert DIRECTORY / "notes.txt" in disk.contents()


def test_a_file_system_of_its_own_is_an_empty_directory() -> None:
    disk = SimulatedDisk()
    disk.make_directory(DIRECTORY)
    disk.create(DIRECTORY / "lost+found")
    assert opened(disk).last == 0


def test_a_newer_format_is_told() -> None:
    disk, path, data = small_log()
    newer = bytearray(data)
    newer[8] = form.FORMAT + 1
    end = ends(data)[0]
    checksum = crc32(newer[:16] + newer[20:end])
    newer[16:20] = checksum.to_bytes(4, "little")
    disk.overwrite(path, bytes(newer))
    expected = f"{path}: format {form.FORMAT + 1}; this version reads format {form.FORMAT}"
    assert refused(disk, WrongLog) == expected


def test_a_file_that_only_has_the_name_of_a_segment_is_not_of_a_log() -> None:
    disk, path, _ = small_log()
    disk.overwrite(path, b"Dear diary, today I began a new log.")
    assert refused(disk, WrongLog) == f"{path}: not a file of a log"


def test_files_that_were_not_complete_are_removed() -> None:
    disk = log_of_segments(2)
    for name in (form.snapshot_name(2), form.segment_name(3)):
        disk.create(DIRECTORY / (name + form.UNFINISHED))
    before = segments(disk)[:2]
    log = opened(disk)
    assert (segments(disk), snapshots(disk), log.last) == (before, [], 2)


# Snapshots.


def log_with_snapshots(*, compact: bool) -> SimulatedDisk:
    disk = SimulatedDisk()
    log = opened(disk, segment_bytes=1)
    fill(log, *[b"%d" % n for n in range(1, 7)])
    for position in (2, 3, 5):
        snapshot(log, position, b"at %d" % position)
    if compact:
        log.compact(6)
    log.close()
    return disk


def test_two_snapshots_are_kept() -> None:
    disk = log_with_snapshots(compact=True)
    assert [path.name[-1] for path in snapshots(disk)] == ["3", "5"]
    assert [path.name[-1] for path in segments(disk)] == ["4", "5", "6"]


@pytest.mark.parametrize("compact", [False, True])
def test_every_flipped_bit_of_the_newest_snapshot_leaves_the_older_one(compact: bool) -> None:
    disk = log_with_snapshots(compact=compact)
    older, newest = snapshots(disk)
    data = disk.contents()[newest]
    for _, flipped in flips(data):
        disk.overwrite(newest, flipped)
        log = opened(disk)
        assert log.latest_snapshot() == (3, b"at 3")
        assert [batch for _, batch in log.read(3)] == [b"4", b"5", b"6"]
        (note,) = log.notes
        assert str(newest) in note and note.endswith(f"; {older.name} is used")
        log.close()
    # The next snapshot takes its place beside the older one.
    log = opened(disk)
    snapshot(log, 6, b"at 6")
    log.close()
    assert [path.name[-1] for path in snapshots(disk)] == ["3", "6"]


def test_without_an_intact_snapshot_all_batches_are_read_or_the_log_is_refused() -> None:
    for compact in (False, True):
        disk = log_with_snapshots(compact=compact)
        for path in snapshots(disk):
            disk.overwrite(path, disk.contents()[path][:-1])
        if compact:
            reason = refused(disk)
            assert "begins at batch 4, and no intact snapshot reaches it" in reason
            assert re.search(r"snap-\d*5: expected 4 bytes of state, found 3", reason)
        else:
            log = opened(disk)
            assert log.latest_snapshot() is None
            assert len(log.notes) == 2
            assert len(list(log.read(0))) == 6


def test_a_damaged_older_snapshot_is_told_and_not_needed() -> None:
    disk = log_with_snapshots(compact=True)
    older, newest = snapshots(disk)
    disk.overwrite(older, b"")
    log = opened(disk)
    assert log.latest_snapshot() == (5, b"at 5")
    assert log.notes == [f"{older}: the header is cut off, at offset 0; {newest.name} is used"]


def test_a_snapshot_of_another_log_is_told() -> None:
    disk = log_with_snapshots(compact=False)
    other = SimulatedDisk()
    log = opened(other, birth="f" * 32)
    fill(log, b"1", b"2", b"3", b"4", b"5")
    snapshot(log, 5, b"at 5")
    path = snapshots(other)[0]
    disk.overwrite(path, other.contents()[path])
    assert refused(disk, WrongLog) == f"{path}: of another log, of broker B1"


def test_other_code_begins_a_segment_of_its_own() -> None:
    disk = SimulatedDisk()
    for version, count in (("v1", 2), ("v2", 0), ("v3", 1), ("v3", 1), ("v1", 1)):
        log = opened(disk, version=version)
        fill(log, *[b"x"] * count)
        log.close()
    log = opened(disk)
    assert [log.written_by(n) for n in range(1, 6)] == ["v1", "v1", "v3", "v3", "v1"]
    assert len(segments(disk)) == 3


def test_code_that_appended_nothing_leaves_no_segment() -> None:
    disk = SimulatedDisk()
    opened(disk, version="v1").close()
    log = opened(disk, version="v2")
    fill(log, b"first")
    assert log.written_by(1) == "v2"
    assert len(segments(disk)) == 1
    log.close()
    assert list(opened(disk).read(0)) == [(1, b"first")]


# Anything at all.


@settings(max_examples=300)
@given(data=st.data())
def test_a_damaged_log_returns_nothing_that_was_not_appended(data: st.DataObject) -> None:
    disk = SimulatedDisk()
    log = opened(disk, segment_bytes=300)
    batches = [b"%d " % n * (n % 5 + 1) * 5 for n in range(20)]
    fill(log, *batches)
    states = {0: b"", 4: b"four", 12: b"twelve"}
    for position in (4, 12):
        snapshot(log, position, states[position])
    if data.draw(st.booleans(), label="compacted"):
        log.compact(12)
    log.close()
    for _ in range(data.draw(st.integers(1, 3), label="damages")):
        path = data.draw(st.sampled_from(segments(disk) + snapshots(disk)), label="file")
        content = disk.contents()[path]
        begin = data.draw(st.integers(0, len(content)), label="from")
        end = data.draw(st.integers(begin, len(content)), label="to")
        change = data.draw(st.sampled_from(["missing", "zeros", "twice", "other"]), label="is")
        part = {
            "missing": b"",
            "zeros": bytes(end - begin),
            "twice": content[begin:end] * 2,
            "other": data.draw(st.binary(max_size=30), label="bytes"),
        }[change]
        disk.overwrite(path, content[:begin] + part + content[end:])
    before = disk.contents()
    try:
        log = opened(disk)
    except LogError:
        assert disk.contents() == before
        return
    position, state = log.latest_snapshot() or (0, b"")
    assert state == states[position]
    # What is missing was at the end, behind all snapshots.
    assert log.last >= 12
    expected = list(enumerate(batches, 1))[position : log.last]
    assert list(log.read(position)) == expected
