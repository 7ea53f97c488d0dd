"""State directories: which topology they were made for, and that nothing else is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from padres_tx.launcher import state_directories
from padres_tx.launcher.overlay_files import StateError
from padres_tx.launcher.state_directories import ABOUT, claim, default_state, forget
from topologies import Topology, load
from topologies.generators import chain, star


def used(state: Path, topology: Topology) -> Path:
    """A state directory that brokers of this topology have written into."""
    claim(state, topology)
    for broker in topology.brokers:
        (state / broker.name).mkdir()
        (state / broker.name / "log-1").write_text(broker.name)
    return state


def test_a_new_directory_is_made_and_a_used_one_goes_on(tmp_path: Path) -> None:
    state = tmp_path / "not" / "there"
    assert not claim(state, load("three"))
    assert not claim(state, load("five")), "no broker has been there yet"
    used(state, load("five"))
    assert claim(state, load("five"))


def test_addresses_delays_clients_and_the_order_may_change(tmp_path: Path) -> None:
    state = used(tmp_path, chain(3))
    other = chain(3, base_port=9001, delay_ms=3)
    assert claim(state, other)
    turned = {**other.model_dump(), "brokers": other.brokers[::-1], "edges": other.edges[::-1]}
    assert claim(state, Topology.model_validate({**turned, "name": "turned", "clients": {}}))


@pytest.mark.parametrize(
    ("topology", "reason"),
    [
        (chain(4), "broker B4 is new;"),
        (chain(2), "broker B3 is missing;"),
        (star(3), "link B1-B3 is new, and 1 more;"),
        (Topology.model_validate({**chain(3).model_dump(), "services": ["x"]}), "service x is new"),
    ],
)
def test_a_state_of_another_topology_is_refused_and_kept(
    tmp_path: Path, topology: Topology, reason: str
) -> None:
    state = used(tmp_path, chain(3))
    before = {file: file.read_bytes() for file in sorted(state.rglob("*")) if file.is_file()}
    with pytest.raises(StateError, match="was made for another topology") as refused:
        claim(state, topology)
    assert reason in str(refused.value) and str(state) in str(refused.value)
    assert {file: file.read_bytes() for file in before} == before


def test_a_directory_of_something_else_is_refused_and_never_removed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("chapter 1")
    with pytest.raises(StateError, match=r"it contains thesis\.tex"):
        claim(tmp_path, chain(3))
    with pytest.raises(StateError, match="not removed"):
        forget(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "chapter 1"


def test_a_damaged_or_newer_file_about_the_state_is_refused(tmp_path: Path) -> None:
    state = used(tmp_path, chain(3))
    about = state / ABOUT
    good = about.read_bytes()
    about.write_bytes(good[:-9])
    with pytest.raises(StateError, match="is damaged"):
        claim(state, chain(3))
    about.write_bytes(good.replace(b'"format":1', b'"format":2'))
    with pytest.raises(StateError, match="has format 2; this version reads 1"):
        claim(state, chain(3))


def test_a_file_where_the_directory_should_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="cannot use the state directory"):
        claim(tmp_path / "file", chain(3))


def test_forgetting_removes_all_and_only_what_was_there(tmp_path: Path) -> None:
    state = used(tmp_path / "state", chain(3))
    (tmp_path / "B1.log").touch()
    assert forget(state)
    assert [path.name for path in tmp_path.iterdir()] == ["B1.log"]
    assert not forget(state)


def test_the_state_is_not_kept_where_a_logout_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(state_directories.DIRECTORY_ENV, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert default_state("five") == tmp_path / "state/padres-tx/five/state"
    monkeypatch.setenv(state_directories.DIRECTORY_ENV, str(tmp_path / "mine"))
    assert default_state("five") == tmp_path / "mine/five/state"
    with pytest.raises(StateError, match="invalid overlay name"):
        default_state("../five")
