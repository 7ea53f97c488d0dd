"""State files: found by name or alone, never half-written, and cleaned up when they are stale."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from padres_tx.launcher import overlay_files, processes
from padres_tx.launcher.overlay_files import BrokerRecord, OverlayFiles, OverlayRecord, StateError
from padres_tx.launcher.processes import ProcessIdentity

#: A process that has this pid, but is another.
FORMER = ProcessIdentity(processes.this_process().pid, "another time")


def record(name: str = "three", launcher: ProcessIdentity | None = None) -> OverlayRecord:
    broker = BrokerRecord("B1", "127.0.0.1:1", ("B2",), "B1.log", FORMER)
    return OverlayRecord(
        name=name,
        topology="three",
        launcher=launcher or processes.this_process(),
        phase="up",
        directory="/nowhere",
        brokers=(broker,),
    )


@pytest.fixture
def notices() -> list[str]:
    return []


@pytest.fixture
def files(tmp_path: Path, notices: list[str]) -> OverlayFiles:
    return OverlayFiles(tmp_path / "state", notice=notices.append)


def refused(files: OverlayFiles, name: str | None = None) -> str:
    with pytest.raises(StateError) as caught:
        files.find(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_one_overlay_is_found_without_a_name(files: OverlayFiles) -> None:
    files.claim(record())
    assert files.find() == files.find("three") == record()
    files.release(record())
    assert "no overlay is running" in refused(files)
    assert "no overlay named three is running" in refused(files, "three")


def test_looking_leaves_no_directory_behind(files: OverlayFiles) -> None:
    assert str(files.directory) in refused(files)
    assert not files.directory.exists()


def test_of_several_one_has_to_be_named(files: OverlayFiles) -> None:
    for name in ("zeta", "alpha"):
        files.claim(record(name))
    assert "(alpha, zeta): choose one with --overlay" in refused(files)
    assert "running: alpha, zeta" in refused(files, "beta")
    assert files.find("zeta").name == "zeta"


def test_a_name_is_had_once(files: OverlayFiles) -> None:
    files.claim(record())
    with pytest.raises(StateError, match="three is already running"):
        files.claim(record())


def test_of_many_claims_at_once_one_succeeds(files: OverlayFiles) -> None:
    outcomes: list[str] = []

    def claim() -> None:
        try:
            files.claim(record())
            outcomes.append("had")
        except StateError:
            outcomes.append("refused")

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["had"] + ["refused"] * 7


def test_a_stale_file_is_removed_with_a_notice(files: OverlayFiles, notices: list[str]) -> None:
    files.claim(record(launcher=FORMER))
    assert "no overlay is running" in refused(files)
    (notice,) = notices
    assert "three" in notice and "removed" in notice
    assert list(files.directory.glob("*.json")) == []


def test_a_stale_file_does_not_keep_the_name(files: OverlayFiles, notices: list[str]) -> None:
    files.claim(record(launcher=FORMER))
    files.claim(record())
    assert files.find() == record()
    assert len(notices) == 1


def test_brokers_that_outlive_their_launcher_are_ended(
    files: OverlayFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlay_files, "ORPHAN_S", 0.0)
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as orphan:
        process = processes.identify(orphan.pid)
        assert process is not None
        broker = BrokerRecord("B1", "127.0.0.1:1", (), "B1.log", process)
        files.claim(msgspec.structs.replace(record(launcher=FORMER), brokers=(broker,)))
        assert files.running() == []
        assert orphan.wait() == -signal.SIGKILL


def test_whoever_ends_removes_only_its_own_file(files: OverlayFiles) -> None:
    files.claim(record())
    files.release(record(launcher=FORMER))
    assert files.find() == record()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": "three"}'])
def test_what_is_no_state_file_is_named_and_left(
    files: OverlayFiles, notices: list[str], content: str
) -> None:
    files.claim(record("other"))
    file = files.directory / "three.json"
    file.write_text(content)
    assert files.find().name == "other"
    assert len(notices) == 1 and str(file) in notices[0]
    with pytest.raises(StateError, match="is not a state file"):
        files.claim(record())
    assert file.read_text() == content


@pytest.mark.parametrize("content", ["", '{"name": "thr', None], ids=["empty", "half", "missing"])
def test_a_damaged_file_does_not_hide_an_overlay_that_runs(
    files: OverlayFiles, notices: list[str], content: str | None
) -> None:
    files.claim(record())
    files.claim(record("other"))
    file = files.directory / "three.json"
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    assert [found.name for found in files.running()] == ["other", "three"]
    assert len(notices) == 1 and str(file) in notices[0]
    assert files.find("three") == record() == files.get("three")
    with pytest.raises(StateError, match="three is already running"):
        files.claim(record())
    # Its launcher's next change mends the file.
    changed = msgspec.structs.replace(record(), phase="stopping")
    files.write(changed)
    notices.clear()
    assert files.find("three") == changed
    assert notices == []


def test_a_damaged_file_goes_with_its_overlay(files: OverlayFiles) -> None:
    files.claim(record())
    (files.directory / "three.json").write_text("{")
    files.release(record())
    assert files.running() == []
    assert list(files.directory.glob("**/*.json")) == []
    # Nor does it when there is no copy any more.
    files.claim(record())
    (files.directory / "three.json").write_text("{")
    (files.directory / "three" / overlay_files.COPY).unlink()
    files.release(record())
    assert list(files.directory.glob("**/*.json")) == []


@pytest.mark.parametrize("content", ["", None], ids=["damaged", "deleted"])
def test_the_launcher_mends_its_file_and_its_copy(files: OverlayFiles, content: str | None) -> None:
    files.claim(record())
    assert not files.mend(record())
    for file in (files.directory / "three.json", files.directory / "three" / overlay_files.COPY):
        if content is None:
            file.unlink()
        else:
            file.write_text(content)
    assert files.mend(record())
    assert files.find("three") == record()
    assert not files.mend(record())


def test_the_launcher_leaves_the_file_of_another_that_runs(
    files: OverlayFiles, tmp_path: Path
) -> None:
    files.claim(record(launcher=FORMER))
    other = OverlayFiles(files.directory)
    other.claim(record())
    assert not files.mend(record(launcher=FORMER))
    assert other.find("three") == record()


def test_whoever_looks_while_it_is_written_or_removed_is_told_nothing(
    files: OverlayFiles, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`up --detach` looks again and again, without the lock."""
    replace, unlink = overlay_files.replace_file, Path.unlink

    def looking_replace(file: Path, content: bytes) -> None:
        replace(file, content)
        assert files.get("three") == record()

    def looking_unlink(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok=missing_ok)
        files.get("three")

    monkeypatch.setattr(overlay_files, "replace_file", looking_replace)
    monkeypatch.setattr(Path, "unlink", looking_unlink)
    files.claim(record())
    files.release(record())
    assert files.get("three") is None
    assert notices == []


def test_the_copy_of_an_overlay_that_has_ended_does_not_count(
    files: OverlayFiles, notices: list[str]
) -> None:
    files.claim(record(launcher=FORMER))
    (files.directory / "three.json").write_text("{")
    assert files.running() == []
    assert "is not a state file" in notices[0]


def test_another_format_is_not_guessed_at(files: OverlayFiles) -> None:
    files.claim(record())
    files.write(msgspec.structs.replace(record(), format=overlay_files.FORMAT + 1))
    with pytest.raises(StateError, match="of this version"):
        files.get("three")


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "1st", "a" * 65, "é"])
def test_a_name_has_to_be_one(files: OverlayFiles, name: str) -> None:
    assert "invalid overlay name" in refused(files, name)
    with pytest.raises(StateError, match="invalid overlay name"):
        files.directory_of(name)


def test_an_unknown_broker_is_an_error_that_lists_them() -> None:
    assert record().broker("B1").address == "127.0.0.1:1"
    with pytest.raises(StateError, match="no broker 'B9'; it has B1"):
        record().broker("B9")


def test_where_the_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    monkeypatch.delenv(overlay_files.DIRECTORY_ENV, raising=False)
    assert overlay_files.default_directory() == tmp_path / "home" / ".local" / "state" / "padres-tx"
    (tmp_path / "gone").mkdir()
    assert overlay_files.default_directory() == tmp_path / "gone" / "padres-tx"
    monkeypatch.setenv(overlay_files.DIRECTORY_ENV, str(tmp_path / "chosen"))
    assert overlay_files.default_directory() == tmp_path / "chosen"


def test_a_directory_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="cannot use the directory"):
        OverlayFiles(tmp_path / "file").claim(record())
