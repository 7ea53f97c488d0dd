"""Services from another package: listed by a topology, found by their entry points, and else not
loaded."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import padres_tx
from padres_tx import launcher, registry
from padres_tx.errors import InvalidService, UnknownService
from padres_tx.testing.inprocess import InProcessOverlay
from tests.services.toys import COUNTER, PRESENCE, install
from topologies import Topology, TopologyError, load


def hosting(*services: str) -> Topology:
    return load("three").model_copy(update={"services": services})


@pytest.fixture
def presence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    install(tmp_path, monkeypatch, registry.SERVICES, "presence", PRESENCE)
    return "presence"


def test_a_topology_lists_services_and_none_by_default(presence: str) -> None:
    assert load("three").services == ()
    with InProcessOverlay(load("three")) as overlay:
        assert all(not broker.services for broker in overlay.core.brokers.values())
    with InProcessOverlay(hosting("presence")) as overlay:
        overlay.connect("C", at="B1").subscribe("[class,eq,'x']")
        far = overlay.core.brokers["B2"].services["presence"]
        assert far.inspect("", 0.0)[0] == {"known": ["C"]}


def test_broker_processes_host_what_the_topology_lists(presence: str) -> None:
    async def run(running: launcher.Running) -> None:
        async with (
            padres_tx.connect(running.address("B1"), name="C") as client,
            padres_tx.operator(running.address("B2")) as operator,
        ):
            for name in "xy":  # When B2 has the second, it has what came behind the first.
                await client.advertise(f"[class,eq,'{name}']")
            assert await operator.inspect("presence") == {"known": ["C"]}

    with launcher.overlay(hosting("presence")) as running:
        asyncio.run(run(running))


def test_an_unknown_service_is_an_error_before_any_broker_starts() -> None:
    with pytest.raises(UnknownService, match="no service 'watcher'; installed services: "):
        InProcessOverlay(hosting("watcher"))
    with (
        pytest.raises(UnknownService, match="no service 'watcher'"),
        launcher.overlay(hosting("watcher")),
    ):
        pass


def test_a_broker_that_is_started_by_hand_says_so_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(hosting("watcher").to_yaml())
    command = [sys.executable, "-m", "padres_tx.cli.main", "broker", str(file), "B1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.strip().endswith("B1: no service 'watcher'; installed services: none")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", "toy_mine has no `service`, a subclass of overlay.broker.service.Service"),
        (PRESENCE, "Presence.name is 'presence', expected 'mine'"),
        (PRESENCE.replace("def inspect", "def look"), "lacks the required hook inspect"),
        (COUNTER.replace("def restore", "def load"), "Counter lacks the required hook restore"),
        (
            PRESENCE.replace('"presence"', '"mine"\n    durable = True'),
            "is not a DurableService",
        ),
    ],
)
def test_a_service_that_cannot_be_used_is_refused_with_the_reason(
    source: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "toy_mine", raising=False)
    install(tmp_path, monkeypatch, registry.SERVICES, "mine", source)
    with pytest.raises(InvalidService, match=f"service 'mine' cannot be used: .*{reason}"):
        InProcessOverlay(hosting("mine"))


def test_a_service_cannot_have_the_name_of_an_engine() -> None:
    with pytest.raises(InvalidService, match="an engine has that name"):
        registry.load_service("d-tx")


@pytest.mark.parametrize(
    ("services", "reason"),
    [(["watch", "watch"], "services: watch is listed twice"), (["Watch"], "lower-case letter")],
)
def test_a_topology_whose_services_cannot_be_is_an_error(services: list[str], reason: str) -> None:
    brokers = [{"name": "B1", "port": 0}]
    with pytest.raises(TopologyError, match=reason):
        Topology.model_validate({"name": "t", "brokers": brokers, "services": services})


def test_services_are_written_into_files_and_read_again(tmp_path: Path) -> None:
    for suffix, text in (("yaml", hosting("a", "b").to_yaml()), ("json", hosting("a").to_json())):
        (tmp_path / f"t.{suffix}").write_text(text)
    assert load(tmp_path / "t.yaml").services == ("a", "b")
    assert load(tmp_path / "t.json").services == ("a",)
