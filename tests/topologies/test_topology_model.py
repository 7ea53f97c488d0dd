"""A Topology is a tree of known, distinct brokers, or an error that names the culprit."""

from __future__ import annotations

import math
from importlib import resources
from typing import Any

import pytest
from pydantic import ValidationError

from topologies import (
    BASE_PORT,
    MAX_BROKERS,
    NAMES,
    BrokerSpec,
    Edge,
    Topology,
    TopologyError,
    load,
)


def brokers(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "port": 0} for name in names]


def build(**fields: Any) -> Topology:
    return Topology.model_validate({"name": "t", "brokers": brokers("B1", "B2", "B3")} | fields)


THREE = [["B1", "B2"], ["B2", "B3"]]

NAMED_EDGES = {
    "one": [],
    "three": ["B1-B2", "B2-B3"],
    "five": ["B1-B2", "B1-B3", "B2-B4", "B2-B5"],
    "nine": ["B1-B2", "B1-B3", "B2-B4", "B2-B5", "B2-B6", "B3-B7", "B3-B8", "B3-B9"],
}


@pytest.mark.parametrize("name", NAMES)
def test_named_topologies_are_those_of_the_design(name: str) -> None:
    topology = load(name)
    assert topology.name == name
    assert [str(edge) for edge in topology.edges] == NAMED_EDGES[name]
    assert [broker.name for broker in topology.brokers] == [
        f"B{i}" for i in range(1, len(NAMED_EDGES[name]) + 2)
    ]
    assert [broker.address for broker in topology.brokers] == [
        f"127.0.0.1:{BASE_PORT + i}" for i in range(len(topology.brokers))
    ]


def test_every_data_file_has_its_name_in_the_list() -> None:
    files = [entry.name for entry in resources.files("topologies.data").iterdir()]
    assert sorted(f for f in files if f.endswith(".yaml")) == sorted(f"{n}.yaml" for n in NAMES)


def test_questions_to_a_tree() -> None:
    nine = load("nine")
    assert nine.neighbours("B2") == ("B1", "B4", "B5", "B6")
    assert nine.path("B4", "B9") == ("B4", "B2", "B1", "B3", "B9")
    assert nine.path("B4", "B4") == ("B4",)
    assert nine.broker("B7").port == 7007
    graph = nine.graph()
    assert list(graph) == [broker.name for broker in nine.brokers]
    assert graph.nodes["B7"] == {"host": "127.0.0.1", "port": 7007}
    graph.remove_node("B1")
    assert len(nine.graph()) == 9


def test_neighbours_come_in_the_order_of_brokers_not_of_edges() -> None:
    topology = build(edges=[["B3", "B2"], ["B2", "B1"]])
    assert topology.neighbours("B2") == ("B1", "B3")


def test_delays_and_clients() -> None:
    topology = build(
        edges=[{"a": "B1", "b": "B2", "delay_ms": 2.5}, ["B2", "B3"]],
        clients={"E": "B3", "D": "B1", "A1": "B3"},
        client_delay_ms=1,
    )
    assert topology.edge("B2", "B1").delay_ms == 2.5
    assert topology.graph().edges["B2", "B1"]["delay_ms"] == 2.5
    assert topology.edge("B2", "B3").delay_ms == 0
    assert topology.clients_at("B3") == ("E", "A1")
    assert topology.client_delay_ms == 1


@pytest.mark.parametrize(
    ("host", "address"), [("node7.example", "node7.example:9"), ("::1", "[::1]:9")]
)
def test_addresses(host: str, address: str) -> None:
    assert BrokerSpec(name="B1", host=host, port=9).address == address


def test_two_brokers_may_both_leave_their_port_open() -> None:
    build(brokers=[{"name": "B1", "port": 0}, {"name": "B2", "port": 0}], edges=[["B1", "B2"]])


def test_two_hosts_may_use_the_same_port() -> None:
    hosts = [{"name": n, "host": h, "port": 7001} for n, h in (("B1", "h1"), ("B2", "h2"))]
    build(brokers=hosts, edges=[["B1", "B2"]])


NO_TREES: list[tuple[dict[str, Any], str]] = [
    ({"brokers": []}, "at least one"),
    (
        {"brokers": brokers(*(f"B{i}" for i in range(MAX_BROKERS + 1)))},
        f"expected at most {MAX_BROKERS}",
    ),
    ({"brokers": brokers("B1", "B2", "B1")}, "two brokers are named B1"),
    (
        {"brokers": [{"name": n, "host": "Node", "port": 5} for n in ("B1", "B2")]},
        "brokers B1 and B2 both listen at Node:5",
    ),
    ({"edges": [["B1", "B2"], ["B2", "B4"]]}, "edge B2-B4: unknown broker 'B4'"),
    ({"edges": [["B1", "B2"], ["B3", "B3"]]}, "edge B3-B3: a broker cannot be its own neighbour"),
    ({"edges": [*THREE, ["B2", "B1"]]}, "duplicate edge B2-B1"),
    ({"edges": [*THREE, ["B3", "B1"]]}, "cycle, B1-B2-B3-B1"),
    (
        {
            "brokers": brokers("B1", "B2", "B3", "B4"),
            "edges": [["B2", "B3"], ["B3", "B4"], ["B4", "B2"]],
        },
        "cycle, B2-B3-B4-B2",
    ),
    ({"edges": [["B1", "B2"]]}, "broker B3 cannot be reached from B1"),
    ({"edges": []}, "broker B2 cannot be reached from B1 (nor can 1 more)"),
    ({"edges": THREE, "clients": {"E": "B11"}}, "client E: unknown broker 'B11'"),
    ({"edges": THREE, "clients": {"E": "B11"}}, "did you mean B1?"),
    ({"edges": THREE, "clients": {"7E": "B1"}}, "clients.7E"),
    ({"edges": THREE, "client_delay_ms": -1}, "client_delay_ms: should be greater"),
    ({"edges": [["B1", "B2"], ["B2"]]}, "edge ['B2']: expected two brokers"),
    ({"edges": [["B1", "B2"], "B2-B3"]}, "edge 'B2-B3': should be a mapping"),
    ({"edges": [{"a": "B1", "b": "B2", "delay_ms": -1}]}, "edge B1-B2: delay_ms"),
    ({"edges": [{"a": "B1", "b": "B2", "delay_ms": 1e9}]}, "edge B1-B2: delay_ms"),
    ({"edges": [{"a": "B1", "b": "B2", "delay_ms": math.inf}]}, "edge B1-B2: delay_ms"),
    ({"edges": [{"a": "B1", "b": "B2", "delay_ms": math.nan}]}, "edge B1-B2: delay_ms"),
    ({"edges": [{"a": "B1", "b": "B2", "delay": 5}]}, "edge B1-B2: unknown field 'delay'"),
    ({"brokers": [{"name": "B1"}]}, "broker B1: field 'port' is missing"),
    ({"brokers": [{"port": 7009}]}, "broker {'port': 7009}: field 'name' is missing"),
    ({"brokers": [{"name": "B1", "port": 65536}]}, "broker B1: port: should be less"),
    ({"brokers": [{"name": "B1", "port": -1}]}, "broker B1: port: should be greater"),
    ({"brokers": [{"name": "B1", "port": "http"}]}, "port: should be a whole number, not 'http'"),
    ({"brokers": [{"name": "B1", "port": True}]}, "broker B1: port: should be a number"),
    ({"brokers": [{"name": "B1", "prot": 1}]}, "unknown field 'prot' (did you mean port?)"),
    ({"brokers": [{"name": "B1", "host": "a b", "port": 1}]}, "broker B1: host"),
    ({"brokers": ["B1"]}, "broker 'B1': should be a mapping"),
    ({"brokers": "B1"}, "brokers: should be a list, not 'B1'"),
    ({"name": "a/b"}, "name: should be a letter"),
    ({"color": "red"}, "unknown field 'color'"),
]


@pytest.mark.parametrize(("fields", "culprit"), NO_TREES, ids=[why for _, why in NO_TREES])
def test_what_is_no_tree_is_an_error_that_names_the_culprit(
    fields: dict[str, Any], culprit: str
) -> None:
    with pytest.raises(TopologyError) as caught:
        build(**fields)
    assert culprit in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["B", "B1", "a.b-c_d", "B" * 64, "no", "null"])
def test_good_names(name: str) -> None:
    assert BrokerSpec(name=name, port=0).name == name


@pytest.mark.parametrize("name", ["", "1B", "-", "B 1", "B\n", "B1\n", "Bé", "B" * 65, "B/1"])
def test_bad_names(name: str) -> None:
    with pytest.raises(TopologyError, match="name: should be a letter"):
        BrokerSpec(name=name, port=0)


def test_parts_built_alone_raise_the_same_error() -> None:
    with pytest.raises(TopologyError, match="edge B1-B2: delay_ms"):
        Edge(a="B1", b="B2", delay_ms=-3)
    with pytest.raises(TopologyError, match="broker B1: port"):
        BrokerSpec(name="B1", port=70_000)


def test_asking_for_what_is_not_there() -> None:
    five = load("five")
    with pytest.raises(TopologyError, match="topology five: unknown broker 'B55'"):
        five.broker("B55")
    with pytest.raises(TopologyError, match="unknown broker 'B6'"):
        five.neighbours("B6")
    with pytest.raises(TopologyError, match="unknown broker 'X'"):
        five.path("B1", "X")
    with pytest.raises(TopologyError, match="B3 and B4 are not neighbours"):
        five.edge("B3", "B4")


def test_only_the_first_errors_are_spelt_out() -> None:
    clients = {f"{i}": "B1" for i in range(50)}
    with pytest.raises(TopologyError, match=r"and 47 more$"):
        build(edges=THREE, clients=clients)


def test_a_topology_is_frozen() -> None:
    with pytest.raises(ValidationError):
        load("one").name = "two"  # type: ignore[misc]
