"""`padres-tx bench path`: delays that are counted, not timed."""

from __future__ import annotations

import json

from click.testing import CliRunner

from bench.micro.cli import bench
from bench.micro.path import counted, least_delays
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


def test_json_is_a_list_of_rows() -> None:
    result = CliRunner().invoke(bench, ["path", "--no-measure", "--json", "--topology", "five"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.output)
    assert [row["engine"] for row in rows] == ["s-tx", "d-tx-ni", "d-tx"]
    for key in ("topology", "delays", "least_delays", "messages", "measured_ratio"):
        assert all(key in row for row in rows)


def test_an_unknown_topology_is_an_error() -> None:
    result = CliRunner().invoke(bench, ["path", "--topology", "no-such"])
    assert result.exit_code == 2
    assert "no-such" in result.output
