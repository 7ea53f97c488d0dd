"""`padres-tx bench recover`: logs that are replayed, and a broker that is killed."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from bench.micro import disk, recover
from bench.micro.cli import bench
from overlay.broker.core import Broker
from overlay.node.inputs import Trimmed
from overlay.node.node import Node, plain_end
from padres_tx import registry
from tests.platform_needs import needs_proc


@pytest.mark.parametrize("kind", recover.kinds())
def test_a_recorded_log_leads_to_the_same_tables(kind: str) -> None:
    core = recover.recorded(kind, 300)
    assert core.messages >= 300
    assert any(isinstance(input, Trimmed) for _, input in core.inputs)
    node = Node(Broker(core.name, [], engines=registry.broker_factories()), [], plain_end)
    recover.recover(node, recover.log_of(core))
    assert sum(end.link.handed_over for end in node.ends.values()) == core.messages
    for before, after in ((core.routing.prt, node.core.routing.prt),):
        for client in ("E", "D", "A1"):
            assert before.count_of(client) == after.count_of(client)


def test_replay_is_measured_for_each_kind() -> None:
    result = CliRunner().invoke(
        bench, ["recover", "--json", "--messages", "500", "--subscriptions", "0"]
    )
    assert result.exit_code == 0, result.output
    whole = json.loads(result.stdout)
    assert [row["kind"] for row in whole["replay"]] == recover.kinds()
    assert all(row["us"] > 0 and row["growth"] > 0 for row in whole["replay"])
    assert whole["recovery"] is None


@pytest.mark.slow
@needs_proc
def test_a_killed_broker_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "IN_MEMORY", ())
    monkeypatch.setattr(recover, "ROUNDS", 1)
    monkeypatch.setattr(recover, "PACED", 50)
    monkeypatch.setattr(recover, "LAST", 100)
    row = recover.measure(subscriptions=50)
    assert row.replayed > 0
    assert row.recovery_s > 0
    assert row.pause_ms > 0


def test_people_get_two_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    row = recover.RecoveryRow(100, 2, 30.0, 20.0, 2.0, 1.0, 3.0, 4000, 1.0)
    monkeypatch.setattr(recover, "measure", lambda **_: row)
    result = CliRunner().invoke(bench, ["recover", "--messages", "500"])
    assert result.exit_code == 0, result.output
    assert "Replay, CPU per message" in result.stdout
    assert "longest latency, 2 snapshots" in result.stdout
