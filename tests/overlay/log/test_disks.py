"""The simulated disk behaves as the real one, but for the end of the world, which it adds."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from overlay.log.disk import Disk
from overlay.log.os_disk import OsDisk
from overlay.log.simulated_disk import PowerFailure, SimulatedDisk

DISKS: dict[str, Callable[[], Disk]] = {"real": OsDisk, "simulated": SimulatedDisk}


@pytest.fixture(params=DISKS)
def disk(request: pytest.FixtureRequest) -> Disk:
    return DISKS[request.param]()


# Every disk.


def test_directories_are_created_with_their_parents(disk: Disk, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.names(tmp_path / "a" / "b")
    disk.make_directory(tmp_path / "a" / "b")
    disk.make_directory(tmp_path / "a" / "b")
    assert disk.names(tmp_path / "a" / "b") == []
    disk.sync_directory(tmp_path / "a" / "b")


def test_files_are_appended_to_and_cut(disk: Disk, tmp_path: Path) -> None:
    disk.make_directory(tmp_path)
    path = tmp_path / "file"
    file = disk.create(path)
    assert (file.write(b"one"), file.write(b""), file.write(b" two")) == (3, 0, 4)
    file.sync()
    file.truncate(4)
    assert file.write(b"three") == 5
    file.close()
    file.close()
    file = disk.open(path)
    file.write(b"!")
    file.close()
    assert (disk.read(path), disk.size(path)) == (b"one three!", 10)
    disk.create(path).close()
    assert disk.read(path) == b""


def test_names_are_sorted_renamed_and_removed(disk: Disk, tmp_path: Path) -> None:
    disk.make_directory(tmp_path)
    for name in ("c", "a", "b"):
        file = disk.create(tmp_path / name)
        file.write(name.encode())
        file.close()
    assert disk.names(tmp_path) == ["a", "b", "c"]
    disk.rename(tmp_path / "a", tmp_path / "c")
    disk.remove(tmp_path / "b")
    assert disk.names(tmp_path) == ["c"]
    assert disk.read(tmp_path / "c") == b"a"


def test_what_is_missing_is_an_error(disk: Disk, tmp_path: Path) -> None:
    disk.make_directory(tmp_path)
    path = tmp_path / "missing"
    calls: list[Callable[[Path], object]] = [disk.read, disk.size, disk.open, disk.remove]
    for call in calls:
        with pytest.raises(FileNotFoundError, match="No such file or directory"):
            call(path)
    with pytest.raises(FileNotFoundError):
        disk.rename(path, tmp_path / "other")


def test_a_lock_is_held_until_it_is_closed(disk: Disk, tmp_path: Path) -> None:
    disk.make_directory(tmp_path)
    lock = disk.lock(tmp_path / "LOCK")
    assert disk.names(tmp_path) == ["LOCK"]
    with pytest.raises(BlockingIOError):
        disk.lock(tmp_path / "LOCK")
    lock.close()
    disk.lock(tmp_path / "LOCK").close()


# The simulated one.

HERE = Path("/disk")


def made(*names: str) -> SimulatedDisk:
    """A disk with files that hold their names, all synced."""
    disk = SimulatedDisk()
    disk.make_directory(HERE)
    for name in names:
        file = disk.create(HERE / name)
        file.write(name.encode())
        file.sync()
    disk.sync_directory(HERE)
    return disk


def operations(disk: SimulatedDisk) -> dict[str, Callable[[], object]]:
    file = disk.open(HERE / "a")
    return {
        "make_directory": lambda: disk.make_directory(HERE),
        "names": lambda: disk.names(HERE),
        "size": lambda: disk.size(HERE / "a"),
        "read": lambda: disk.read(HERE / "a"),
        "create": lambda: disk.create(HERE / "new"),
        "open": lambda: disk.open(HERE / "a"),
        "rename": lambda: disk.rename(HERE / "a", HERE / "b"),
        "remove": lambda: disk.remove(HERE / "b"),
        "sync_directory": lambda: disk.sync_directory(HERE),
        "lock": lambda: disk.lock(HERE / "LOCK"),
        "write": lambda: file.write(b"x"),
        "sync": file.sync,
        "truncate": lambda: file.truncate(0),
    }


def test_every_operation_is_counted_can_fail_and_can_be_the_last() -> None:
    for name in operations(made("a")):
        disk = made("a", "b")
        call = operations(disk)[name]
        before, count = disk.contents(), disk.operations
        error = OSError(errno.EIO, "Input/output error")
        disk.fault = lambda each, path, name=name, error=error: error if each == name else None
        with pytest.raises(OSError, match="Input/output error"):
            call()
        disk.fault = lambda each, path: None
        assert (disk.contents(), disk.operations) == (before, count + 1)
        disk.stop_before(disk.operations)
        for _ in range(2):
            with pytest.raises(PowerFailure, match=f"before {name} /disk"):
                call()
        assert (disk.contents(), disk.operations) == (before, count + 1)
        disk.restart()
        operations(disk)[name]()


def test_files_of_an_earlier_run_do_nothing() -> None:
    disk = made("a")
    file, lock = disk.open(HERE / "a"), disk.lock(HERE / "LOCK")
    disk.restart()
    for call in (lambda: file.write(b"x"), file.sync, lambda: file.truncate(0)):
        with pytest.raises(PowerFailure, match="opened before the restart"):
            call()
    held = disk.lock(HERE / "LOCK")
    lock.close()
    with pytest.raises(BlockingIOError):
        disk.lock(HERE / "LOCK")
    held.close()


def test_choose_decides_what_of_a_file_survives() -> None:
    seen = set()
    for length in range(4):
        for zeros in (0, 1):
            disk = made("a")
            disk.open(HERE / "a").write(b"xyz")
            choices = iter([length, zeros])
            disk.restart(lambda n, choices=choices: next(choices))
            seen.add(disk.read(HERE / "a"))
    assert seen == {b"a", b"ax", b"axy", b"axyz", b"a\0\0\0", b"ax\0\0", b"axy\0"}


def test_a_cut_survives_or_not() -> None:
    seen = set()
    for cut in (0, 1):
        disk = made("abc")
        disk.open(HERE / "abc").truncate(1)
        choices = iter([cut, 0])
        disk.restart(lambda n, choices=choices: next(choices))
        seen.add(disk.read(HERE / "abc"))
    assert seen == {b"abc", b"a"}


def test_choose_decides_how_many_changes_of_names_survive() -> None:
    seen = []
    for changes in range(4):
        disk = made("a", "b", "c")
        disk.rename(HERE / "a", HERE / "b")
        disk.remove(HERE / "c")
        file = disk.create(HERE / "d")
        file.write(b"d")
        file.sync()
        disk.restart(lambda n, changes=changes: changes)
        seen.append({path.name: data for path, data in disk.contents().items()})
    assert seen == [
        {"a": b"a", "b": b"b", "c": b"c"},
        {"b": b"a", "c": b"c"},
        {"b": b"a"},
        {"b": b"a", "d": b"d"},
    ]


def test_what_was_synced_needs_no_luck() -> None:
    disk = made("a")
    disk.rename(HERE / "a", HERE / "b")
    file = disk.open(HERE / "b")
    file.write(b"!")
    file.sync()
    disk.sync_directory(HERE)
    before = disk.contents()
    # Nothing is asked.
    disk.restart(lambda n: pytest.fail("there is nothing to choose"))
    assert disk.contents() == before == {HERE / "b": b"a!"}


def test_a_sync_of_one_directory_leaves_the_others() -> None:
    disk = made("a")
    other = Path("/other")
    disk.make_directory(other)
    disk.create(other / "b")
    disk.sync_directory(HERE)
    disk.restart(lambda n: 0)
    assert disk.names(other) == []


def test_room_runs_out_and_comes_back() -> None:
    disk = made("a")
    disk.room = 5
    file = disk.open(HERE / "a")
    assert (file.write(b"123"), file.write(b"456"), disk.room) == (3, 2, 0)
    with pytest.raises(OSError, match="No space left on device"):
        file.write(b"6")
    assert disk.read(HERE / "a") == b"a12345"
    file.truncate(2)
    assert disk.room == 4
