"""Experiment specs: the paper's are there, lists are swept, and a bad one names the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.experiments import spec
from bench.experiments.spec import NAMES, SpecError

PLAIN: dict[str, Any] = {
    "name": "mine",
    "topology": "three",
    "engines": ["d-tx", "s-tx"],
    "transactions": 10,
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quick", [False, True])
def test_the_papers_experiments_are_there(name: str, quick: bool) -> None:
    found = spec.load(name, quick=quick)
    assert found.name == name and found.figure == 5 + NAMES.index(name)
    runs = [combination.run_id for combination in found.combinations()]
    assert len(set(runs)) == len(runs) > 1
    assert found.delay_ms.edges == found.delay_ms.clients == 5


def test_the_papers_sizes() -> None:
    base, size, concurrency, clients, traffic = map(spec.load, NAMES)
    for each in (base, size, concurrency, clients):
        assert each.transactions == each.bl_wait_trials == 1000
        assert set(each.engines) == {"bl-wait", "s-tx", "d-tx-ni", "d-tx"}
        assert set(each.bl_wait_ms) == {"paper", "smallest"}
    assert size.topologies == ("one", "three", "five", "nine")
    assert concurrency.concurrency == (1, 2, 5, 10)
    assert clients.instances == (1, 2, 5, 10)
    for combination in traffic.combinations():
        assert combination.options.events_between == 20_000
        assert combination.options.new_instances == 4 and combination.options.share == 0.7


def test_lists_are_swept() -> None:
    found = spec.parse(
        PLAIN
        | {
            "topologies": ["one", "three"],
            "topology": None,
            "concurrency": [1, 5],
            "instances": "2",
            "engines": ["d-tx", "bl-wait"],
            "bl_wait_ms": ["smallest", 20],
            "repetitions": 2,
        }
    )
    runs = list(found.combinations())
    assert len(runs) == 2 * 2 * 1 * 3 * 2
    assert {run.series for run in runs} == {"d-tx", "bl-wait-smallest", "bl-wait-20ms"}
    assert runs[0].run_id == "mine-one-d-tx-c1-i2-r1"


def test_engines_meet_the_same_places_and_repetitions_others() -> None:
    runs = list(spec.parse(PLAIN | {"repetitions": 20}).combinations())
    seeds: dict[int, set[int]] = {}
    for run in runs:
        seeds.setdefault(run.repetition, set()).add(run.seed)
    assert all(len(of) == 1 for of in seeds.values())
    assert len(set.union(*seeds.values())) == 20
    (other, *_) = spec.parse(PLAIN | {"seed": 2}).combinations()
    assert other.seed not in set.union(*seeds.values())


def test_the_short_version_changes_field_by_field() -> None:
    data = PLAIN | {
        "workload": "stream",
        "options": {"events_between": 100, "new_instances": 2},
        "quick": {"options": {"events_between": 5}, "transactions": 4},
    }
    assert spec.parse(data).transactions == 10
    short = spec.parse(data, quick=True)
    (run, *_) = short.combinations()
    assert short.transactions == 4
    assert (run.options.events_between, run.options.new_instances) == (5, 2)
    assert spec.parse(data, quick=True, transactions=6).transactions == 6


def test_delays_are_put_on_the_links() -> None:
    (run, *_) = spec.parse(PLAIN | {"delay_ms": {"edges": 7, "clients": 2}}).combinations()
    assert {edge.delay_ms for edge in run.topology.edges} == {7.0}
    assert run.topology.client_delay_ms == 2.0
    (run, *_) = spec.parse(PLAIN | {"delay_ms": 3}).combinations()
    assert run.topology.client_delay_ms == run.topology.edges[0].delay_ms == 3.0


def test_a_topology_file_is_looked_for_beside_the_spec(tmp_path: Path) -> None:
    (tmp_path / "pair.yaml").write_text(
        "name: pair\nbrokers: [{name: B1, port: 0}, {name: B2, port: 0}]\nedges: [[B1, B2]]\n"
    )
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\ntopology: pair.yaml\nengines: d-tx\ntransactions: 1\n")
    (run,) = spec.load(file).combinations()
    assert run.topology.name == "pair"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"transactions": 0}, ["transactions", "greater than or equal to 1", "not 0"]),
        ({"transactions": "many"}, ["transactions", "whole number", "'many'"]),
        ({"transactons": 5}, ["transactons", "did you mean transactions"]),
        ({"name": None}, ["'name' is missing"]),
        ({"name": "a b"}, ["name", "'a b'"]),
        ({"engines": []}, ["engines", "at least one"]),
        ({"engines": ["d-tx", "d-tx"]}, ["engines", "duplicate entry 'd-tx'"]),
        ({"engines": ["e-tx"]}, ["engines", "'e-tx'", "d-tx"]),
        ({"topology": "threee"}, ["topologies", "threee"]),
        ({"topologies": ["one"]}, ["topology", "cannot be combined"]),
        ({"workload": "nothing"}, ["workload", "'nothing'", "dispatching"]),
        ({"workload": "no.such:Class"}, ["workload", "no.such:Class", "PYTHONPATH"]),
        (
            {"workload": "bench.experiments.roles:Role"},
            ["workload", "not a subclass of bench.experiments.roles.Workload"],
        ),
        ({"options": {"rate": 1}}, ["options.rate"]),
        ({"workload": "stream", "options": {"share": 2}}, ["options.share", "less than"]),
        ({"workload": "stream"}, ["transactions", "multiple of new_instances (4)", "not 10"]),
        ({"variants": {"a": {"x": 1}}}, ["variants.a.x"]),
        ({"concurrency": [1, 0]}, ["concurrency.1", "greater than or equal to 1"]),
        ({"instances": 1000}, ["instances", "less than or equal to 250"]),
        ({"delay_ms": {"edges": -1}}, ["delay_ms.edges", "greater than or equal to 0"]),
        ({"placement": "near"}, ["placement", "'random' or 'spread'"]),
        ({"bl_wait_ms": "long"}, ["bl_wait_ms", "'long'", "smallest"]),
        ({"trace": "perhaps"}, ["trace", "true or false"]),
        ({"quick": {"transactions": 0}}, ["quick: transactions"]),
        ({"quick": {"name": "other"}}, ["quick: name"]),
        ({"quick": 5}, ["quick", "mapping"]),
        ({"repetitions": 1000, "concurrency": list(range(1, 20))}, ["too many runs: 38000"]),
    ],
)
def test_a_bad_spec_is_one_line_that_names_the_field(
    change: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(SpecError) as caught:
        spec.parse(PLAIN | change)
    told = str(caught.value)
    assert "\n" not in told
    for word in words:
        assert word in told


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.yaml", "name: [", ["a.yaml", "line"]),
        ("a.yaml", "- 1\n", ["a.yaml", "mapping of fields"]),
        ("a.yaml", "name: a\nname: b\n", ["a.yaml", "name"]),
        ("a.json", "{", ["a.json"]),
        ("a.txt", "", ["a.txt", ".yaml"]),
        ("a.yaml", "name: a\ntransactions: 0\n", ["a.yaml", "transactions"]),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, name: str, text: str, words: list[str]) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SpecError) as caught:
        spec.load(tmp_path / name)
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value)


def test_a_name_that_is_none_gets_a_hint() -> None:
    with pytest.raises(SpecError, match="did you mean base"):
        spec.load("bass")
    with pytest.raises(SpecError, match="no such file"):
        spec.load("missing.yaml")
