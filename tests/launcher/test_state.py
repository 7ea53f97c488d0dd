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
from padres_tx.launcher.overlay_files import BrokerRecord, OverlayRecord, Registry, StateError
from padres_tx.launcher.processes import Process

#: A process that has this pid, but is another.
FORMER = Process(processes.this_process().pid, "another time")


def record(name: str = "three", launcher: Process | None = None) -> OverlayRecord:
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
def registry(tmp_path: Path, notices: list[str]) -> Registry:
    return Registry(tmp_path / "state", notice=notices.append)


def refused(registry: Registry, name: str | None = None) -> str:
    with pytest.raises(StateError) as caught:
        registry.find(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_one_overlay_is_found_without_a_name(registry: Registry) -> None:
    registry.claim(record())
    assert registry.find() == registry.find("three") == record()
    registry.release(record())
    assert "no overlay runs" in refused(registry)
    assert "no overlay called three runs" in refused(registry, "three")


def test_looking_leaves_no_directory_behind(registry: Registry) -> None:
    assert str(registry.directory) in refused(registry)
    assert not registry.directory.exists()


def test_of_several_one_has_to_be_named(registry: Registry) -> None:
    for name in ("zeta", "alpha"):
        registry.claim(record(name))
    assert "alpha, zeta: say which, by --overlay" in refused(registry)
    assert "there is alpha, zeta" in refused(registry, "beta")
    assert registry.find("zeta").name == "zeta"


def test_a_name_is_had_once(registry: Registry) -> None:
    registry.claim(record())
    with pytest.raises(StateError, match="three runs already"):
        registry.claim(record())


def test_of_many_claims_at_once_one_succeeds(registry: Registry) -> None:
    outcomes: list[str] = []

    def claim() -> None:
        try:
            registry.claim(record())
            outcomes.append("had")
        except StateError:
            outcomes.append("refused")

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["had"] + ["refused"] * 7


def test_a_stale_file_is_removed_with_a_notice(registry: Registry, notices: list[str]) -> None:
    registry.claim(record(launcher=FORMER))
    assert "no overlay runs" in refused(registry)
    (notice,) = notices
    assert "three" in notice and "removed" in notice
    assert list(registry.directory.glob("*.json")) == []


def test_a_stale_file_does_not_keep_the_name(registry: Registry, notices: list[str]) -> None:
    registry.claim(record(launcher=FORMER))
    registry.claim(record())
    assert registry.find() == record()
    assert len(notices) == 1


def test_brokers_that_outlive_their_launcher_are_ended(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlay_files, "ORPHAN_S", 0.0)
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as orphan:
        process = processes.identify(orphan.pid)
        assert process is not None
        broker = BrokerRecord("B1", "127.0.0.1:1", (), "B1.log", process)
        registry.claim(msgspec.structs.replace(record(launcher=FORMER), brokers=(broker,)))
        assert registry.running() == []
        assert orphan.wait() == -signal.SIGKILL


def test_whoever_ends_removes_only_its_own_file(registry: Registry) -> None:
    registry.claim(record())
    registry.release(record(launcher=FORMER))
    assert registry.find() == record()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": "three"}'])
def test_what_is_no_state_file_is_named_and_left(
    registry: Registry, notices: list[str], content: str
) -> None:
    registry.claim(record("other"))
    file = registry.directory / "three.json"
    file.write_text(content)
    assert registry.find().name == "other"
    assert len(notices) == 1 and str(file) in notices[0]
    with pytest.raises(StateError, match="is no state file"):
        registry.claim(record())
    assert file.read_text() == content


@pytest.mark.parametrize("content", ["", '{"name": "thr', None], ids=["empty", "half", "missing"])
def test_a_damaged_file_does_not_hide_an_overlay_that_runs(
    registry: Registry, notices: list[str], content: str | None
) -> None:
    registry.claim(record())
    registry.claim(record("other"))
    file = registry.directory / "three.json"
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    assert [found.name for found in registry.running()] == ["other", "three"]
    assert len(notices) == 1 and str(file) in notices[0]
    assert registry.find("three") == record() == registry.get("three")
    with pytest.raises(StateError, match="three runs already"):
        registry.claim(record())
    # Its launcher's next change mends the file.
    changed = msgspec.structs.replace(record(), phase="stopping")
    registry.write(changed)
    notices.clear()
    assert registry.find("three") == changed
    assert notices == []


def test_a_damaged_file_goes_with_its_overlay(registry: Registry) -> None:
    registry.claim(record())
    (registry.directory / "three.json").write_text("{")
    registry.release(record())
    assert registry.running() == []
    assert list(registry.directory.glob("**/*.json")) == []
    # Nor does it when there is no copy any more.
    registry.claim(record())
    (registry.directory / "three.json").write_text("{")
    (registry.directory / "three" / overlay_files.COPY).unlink()
    registry.release(record())
    assert list(registry.directory.glob("**/*.json")) == []


def test_whoever_looks_while_it_is_written_or_removed_is_told_nothing(
    registry: Registry, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`up --detach` looks again and again, without the lock."""
    replace, unlink = overlay_files._replace, Path.unlink

    def looking_replace(file: Path, content: bytes) -> None:
        replace(file, content)
        assert registry.get("three") == record()

    def looking_unlink(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok=missing_ok)
        registry.get("three")

    monkeypatch.setattr(overlay_files, "_replace", looking_replace)
    monkeypatch.setattr(Path, "unlink", looking_unlink)
    registry.claim(record())
    registry.release(record())
    assert registry.get("three") is None
    assert notices == []


def test_the_copy_of_an_overlay_that_has_ended_does_not_count(
    registry: Registry, notices: list[str]
) -> None:
    registry.claim(record(launcher=FORMER))
    (registry.directory / "three.json").write_text("{")
    assert registry.running() == []
    assert "is no state file" in notices[0]


def test_another_format_is_not_guessed_at(registry: Registry) -> None:
    registry.claim(record())
    registry.write(msgspec.structs.replace(record(), format=overlay_files.FORMAT + 1))
    with pytest.raises(StateError, match="of this version"):
        registry.get("three")


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "1st", "a" * 65, "é"])
def test_a_name_has_to_be_one(registry: Registry, name: str) -> None:
    assert "no name for an overlay" in refused(registry, name)
    with pytest.raises(StateError, match="no name for an overlay"):
        registry.directory_of(name)


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
        Registry(tmp_path / "file").claim(record())
