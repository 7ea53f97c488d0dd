"""`padres-tx bench path`: delays that are counted, not timed."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from bench.micro.cli import bench
from bench.micro.path import SyncedArrivals, counted, least_delays
from overlay.hosts.simulator import DELAY_STEP_S
from overlay.messages import Hop, client_hop
from topologies import load
from topologies.generators import chain


def test_no_engine_takes_fewer_delays_than_any_protocol_must() -> None:
    for tree in (load("one"), load("three"), load("five"), chain(4)):
        for engine in ("s-tx", "d-tx-ni", "d-tx"):
            row = counted(tree, engine)
            assert row.delays >= row.least_delays == least_delays(tree, engine)
            assert row.messages > row.delays / 2


def test_the_static_engine_needs_just_what_any_protocol_must() -> None:
    for name in ("one", "three", "five", "nine"):
        row = counted(load(name), "s-tx")
        assert row.delays == row.least_delays, name


def test_each_message_to_a_broker_on_the_critical_path_is_a_sync() -> None:
    """The results come to clients, which sync nothing: one in S-TX, and two tcms in the others."""
    for name in ("one", "three", "five", "nine"):
        for engine, to_clients in (("s-tx", 1), ("d-tx-ni", 3), ("d-tx", 3)):
            row = counted(load(name), engine)
            assert row.syncs == row.delays - to_clients, (name, engine)


def test_what_comes_during_an_append_goes_into_the_next_one() -> None:
    arrival, unit = SyncedArrivals(), DELAY_STEP_S
    one, other = Hop("B1"), Hop("B2")
    times = [(one, 0.0), (one, 0.0), (one, 0.5), (other, 0.5), (one, 0.9), (one, 1.5), (one, 4.0)]
    arrived = [arrival(hop, at * unit) / unit for hop, at in times]
    assert arrived == pytest.approx([1, 1, 2, 1.5, 2, 3, 5])
    assert arrival(client_hop("c"), unit) == unit


def test_json_is_a_list_of_rows() -> None:
    result = CliRunner().invoke(bench, ["path", "--no-measure", "--json", "--topology", "five"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.output)
    assert [row["engine"] for row in rows] == ["s-tx", "d-tx-ni", "d-tx"]
    for key in ("topology", "delays", "least_delays", "messages", "syncs", "measured_ratio"):
        assert all(key in row for row in rows)


def test_an_unknown_topology_is_an_error() -> None:
    result = CliRunner().invoke(bench, ["path", "--topology", "no-such"])
    assert result.exit_code == 2
    assert "no-such" in result.output
