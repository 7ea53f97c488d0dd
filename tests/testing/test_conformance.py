"""The suite for authors of engines and services: our own pass it, and each fault is found."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from padres_tx import registry
from padres_tx.testing.conformance import NotConforming, Run, check_engine, check_service, main
from tests.services.toys import COUNTER, PRESENCE, install

#: Enough for each planted fault; the suite itself takes more.
RUNS = 6


@pytest.mark.parametrize("engine", registry.own_names())
def test_our_own_engines_conform(engine: str) -> None:
    check_engine(engine)


@pytest.mark.parametrize("engine", ["d-tx", "d-tx-ni", "s-tx"])
def test_its_runs_commit_and_abort(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "engine", engine, "12"]) == 0
    decided = [line for line in capsys.readouterr().out.splitlines() if "kind='decide'" in line]
    for outcome in ("committed", "aborted"):
        assert sum(f"outcome='{outcome}'" in line for line in decided) > 10


def drive(run: Run) -> None:
    """What clients send to the toy services."""
    for _ in range(8):
        client, word = f"C{1 + run.choose(4)}", f"w{run.choose(3)}"
        run.at(
            run.choose(100),
            lambda c=client, w=word: run.send(c, "counter", msgspec.msgpack.encode(w)),
        )


DRIVE = "tests.testing.test_conformance:drive"


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Installs the source of a service under its name."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))

    def install_service(name: str, source: str, group: str = registry.SERVICES) -> None:
        monkeypatch.delitem(sys.modules, f"toy_{name.replace('-', '_')}", raising=False)
        install(tmp_path, monkeypatch, group, name, source)

    return install_service


def test_a_soft_service_conforms(toys) -> None:
    toys("presence", PRESENCE)
    check_service("presence", runs=RUNS)


def test_a_durable_service_conforms(toys) -> None:
    toys("counter", COUNTER)
    check_service("counter", script=DRIVE, runs=RUNS)


def test_an_order_that_follows_the_hash_seed_is_found(toys) -> None:
    clients = "map(str, self.broker.routing.crt)"
    toys("presence", PRESENCE.replace(f"sorted({clients})", f"list(set({clients}))"))
    with pytest.raises(NotConforming, match="presence depends on PYTHONHASHSEED: effect"):
        check_service("presence", runs=RUNS)


@pytest.mark.parametrize(
    ("right", "wrong", "reason"),
    [
        ("encode((self.counts, self.due))", "encode(({}, self.due))", "differently after"),
        ("encode((self.counts, self.due))", "encode((self.counts, {}))", "differently after"),
        ("for key, due in self.due.items()]", "for key, due in ()]", "differently after"),
        ("self.counts, self.due = ms", "self.counts, _ = ms", "another snapshot after restoring"),
    ],
)
def test_a_state_that_is_not_restored_is_found(toys, right: str, wrong: str, reason: str) -> None:
    assert right in COUNTER
    toys("counter", COUNTER.replace(right, wrong))
    with pytest.raises(NotConforming, match=reason):
        check_service("counter", script=DRIVE, runs=RUNS)


#: The soft service, with its state declared: `said` is what snapshots keep of it, or do not.
DECLARED = PRESENCE.replace(
    "class Presence(Service):",
    '@stored("presence", fields=("said",))\nclass Presence(Service):',
).replace("import msgspec\n", "import msgspec\n\nfrom overlay.stored import stored\n")


def test_a_service_that_declares_its_state_conforms(toys) -> None:
    assert DECLARED.count("stored") == 3
    toys("presence", DECLARED)
    check_service("presence", runs=RUNS)


def test_a_state_that_is_kept_from_snapshots_is_found(toys) -> None:
    toys("presence", DECLARED.replace('fields=("said",)', 'fields=(), derived=("said",)'))
    with pytest.raises(NotConforming, match="presence behaves differently after its broker was"):
        check_service("presence", script="tests.testing.test_conformance:ask", runs=RUNS)


def ask(run: Run) -> None:
    """Clients ask the toy service for what it knows."""
    question = msgspec.msgpack.encode(list[str]())
    for at_ms in range(1, 100, 5):
        client = f"C{1 + run.choose(4)}"
        run.at(at_ms, lambda c=client: run.send(c, "presence", question))


def test_a_hook_with_other_arguments_is_found(toys) -> None:
    toys("presence", PRESENCE.replace("client_left(self, client, now)", "client_left(self, c)"))
    with pytest.raises(NotConforming, match=r"Presence.client_left has to take \(self, client, "):
        check_service("presence", runs=RUNS)


ENGINE = """
from padres_tx.engine_declaration import EngineDeclaration
from padres_tx.engines.d_tx_ni.broker import DTxNI


class Toy(DTxNI):
    name = "toy"


engine = EngineDeclaration(broker=Toy, client="dynamic")
"""


def test_an_engine_from_outside_conforms(toys) -> None:
    toys("toy", ENGINE, registry.GROUP)
    check_engine("toy", runs=RUNS)


def test_an_engine_that_keeps_transactions_for_ever_is_found(toys) -> None:
    kept = "\n    def forgotten(self, tx, now):\n        return []\n\n\nengine ="
    toys("toy", ENGINE.replace("\n\nengine =", kept), registry.GROUP)
    with pytest.raises(NotConforming, match="still has transactions"):
        check_engine("toy", runs=RUNS)


def test_what_is_not_installed_does_not_conform() -> None:
    with pytest.raises(NotConforming, match="no transaction engine 'e-tx'"):
        check_engine("e-tx")
    with pytest.raises(NotConforming, match="no service 'watcher'"):
        check_service("watcher")


def test_the_command_says_whether_it_conforms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "bl-wait"]) == 0
    assert capsys.readouterr().out == "bl-wait conforms\n"
    assert main(["motor", "bl-wait"]) == 2
