"""Where benchmarks keep brokers' state: on a disk, or not at all."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.errors import CannotMeasure
from bench.micro import disk

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /dev/shm rw,nosuid - tmpfs tmpfs rw
31 22 0:27 / /dev/shm/my\\040disk rw master:3 - xfs /dev/vdb rw
"""


def test_the_file_system_is_that_of_the_longest_mount_point(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert disk.file_system(Path("/var/tmp"), mounts) == "ext4"
    assert disk.file_system(Path("/dev/shm/a/b"), mounts) == "tmpfs"
    assert disk.file_system(Path("/dev/shm/my disk/a"), mounts) == "xfs"
    assert disk.file_system(Path("/dev/shmem"), mounts) == "ext4"
    assert disk.file_system(Path("/x"), tmp_path / "none") == ""


def test_state_is_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "file_system", lambda path: "tmpfs")
    with ExitStack() as stack, pytest.raises(CannotMeasure, match=r"in memory.*--state"):
        disk.state_directory(stack, tmp_path)
    (tmp_path / "file").touch()
    with ExitStack() as stack, pytest.raises(CannotMeasure, match="cannot keep state below"):
        disk.state_directory(stack, tmp_path / "file")


def test_state_goes_with_the_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "file_system", lambda path: "ext4")
    with ExitStack() as stack:
        directory = disk.state_directory(stack, tmp_path / "new")
        syncs = disk.Syncs(directory)
        syncs.append(3)
        syncs.close()
        assert len(syncs.ms) == 3
        assert directory.parent == tmp_path / "new"
    assert not list((tmp_path / "new").iterdir())
