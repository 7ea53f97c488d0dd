"""`load` gives a Topology or a TopologyError that names the file, whatever the file holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topologies import NAMES, BrokerSpec, Edge, Topology, TopologyError, load
from topologies.generators import chain, random_tree
from topologies.text import MAX_FILE_BYTES

# The same directory may serve all examples: each overwrites the file.
IN_ONE_DIRECTORY = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

GOOD = """\
name: t
brokers:
- {name: B1, host: 127.0.0.1, port: 7001}
- {name: B2, host: node2.example, port: 7001}
edges:
- {a: B1, b: B2, delay_ms: 2.5}
clients: {E: B1}
client_delay_ms: 0.5
"""


def written(directory: Path, content: str | bytes, suffix: str = ".yaml") -> Path:
    file = directory / f"t{suffix}"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def refusal(name_or_path: str | Path) -> str:
    with pytest.raises(TopologyError) as caught:
        load(name_or_path)
    message = str(caught.value)
    assert "\n" not in message
    return message


names = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", fullmatch=True)
delays = st.floats(min_value=0, max_value=60_000)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    called = draw(st.lists(names, min_size=1, max_size=8, unique=True))
    ports = draw(st.lists(st.integers(0, 65535), min_size=8, max_size=8, unique=True))
    hosts = st.sampled_from(["127.0.0.1", "::1", "node.example"])
    return Topology(
        name=draw(names),
        brokers=tuple(
            BrokerSpec(name=name, host=draw(hosts), port=port)
            for name, port in zip(called, ports, strict=False)
        ),
        edges=tuple(
            Edge(a=name, b=draw(st.sampled_from(called[:i])), delay_ms=draw(delays))
            for i, name in enumerate(called)
            if i
        ),
        clients=draw(st.dictionaries(names, st.sampled_from(called), max_size=5)),
        client_delay_ms=draw(delays),
        durability=draw(st.sampled_from(["memory", "disk"])),
    )


@IN_ONE_DIRECTORY
@given(topology=topologies())
def test_yaml_and_json_load_as_they_were_written(tmp_path: Path, topology: Topology) -> None:
    assert load(written(tmp_path, topology.to_yaml())) == topology
    assert load(written(tmp_path, topology.to_json(), ".json")) == topology
    # JSON is YAML, nearly; ours is.
    assert load(written(tmp_path, topology.to_json(), ".yml")) == topology


@IN_ONE_DIRECTORY
@given(data=st.data())
def test_a_mutated_file_loads_or_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    suffix = data.draw(st.sampled_from([".yaml", ".json"]))
    good = load(written(tmp_path, GOOD))
    content = good.to_json() if suffix == ".json" else GOOD
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(start, min(len(content), start + 12)))
        snippet = data.draw(
            st.text(max_size=4)
            | st.sampled_from(["B2", "null", "~", "&a", "*a", "!!int", "<<: ", "- ", "\n", "1e999"])
        )
        content = content[:start] + snippet + content[end:]
    file = written(tmp_path, content, suffix)
    try:
        topology = load(file)
    except TopologyError as error:
        assert str(file) in str(error)
        assert "\n" not in str(error)
    else:
        assert load(written(tmp_path, topology.to_yaml())) == topology


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["B1", "\ud800", "\n"])
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "port", "a", "b", "\ud800"]) | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@IN_ONE_DIRECTORY
@given(field=st.sampled_from(list(Topology.model_fields)), value=json_values)
def test_any_value_in_any_field_loads_or_is_refused(
    tmp_path: Path, field: str, value: object
) -> None:
    content = json.dumps({**json.loads(chain(2).to_json()), field: value})
    file = written(tmp_path, content, ".json")
    try:
        load(file)
    except TopologyError as error:
        assert str(file) in str(error)
        str(error).encode()  # can be printed


@IN_ONE_DIRECTORY
@given(raw=st.binary(max_size=60), suffix=st.sampled_from([".yaml", ".json"]))
def test_any_bytes_are_refused(tmp_path: Path, raw: bytes, suffix: str) -> None:
    refusal(written(tmp_path, raw, suffix))


def test_yaml_words_are_names_not_values(tmp_path: Path) -> None:
    """YAML's guessing would make these a boolean, a float and a date."""
    content = "name: on\nbrokers: [{name: no, port: 1}, {name: e1, host: 10.0, port: 2}]\n"
    topology = load(written(tmp_path, content + "edges: [[no, e1]]\nclients: {y: no}\n"))
    assert topology.name == "on"
    assert topology.broker("e1").host == "10.0"
    assert topology.clients == {"y": "no"}


def test_a_field_left_empty_is_a_field_not_given(tmp_path: Path) -> None:
    content = "name: t\nbrokers: [{name: B1, host: , port: 1}]\nedges:\nclients:\n  # E: B1\n"
    topology = load(written(tmp_path, content))
    assert topology.edges == () and topology.clients == {}
    assert topology.broker("B1").host == "127.0.0.1"


def test_anchors_may_share_a_host(tmp_path: Path) -> None:
    content = "name: t\nbrokers: [{name: B1, host: &h n1, port: 1}, {name: B2, host: *h, port: 2}]"
    assert load(written(tmp_path, content + "\nedges: [[B1, B2]]")).broker("B2").host == "n1"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "empty"),
        ("# nothing\n", "empty"),
        ("name: [", "not YAML (line 1, column 8)"),
        ("name: t\nname: u\n", "line 2, column 1): duplicate key 'name'"),
        ("clients: {E: B1, D: B1, E: B2}", "duplicate key 'E'"),
        ("? [a]\n: b\n", "expected a text key"),
        ("--- {}\n--- {}\n", "another document"),
        ("- B1\n", "should be a mapping of fields"),
        ("a: &a [*a]", "recursive"),
        ("[" * 1000, "nested too deeply"),
        ("name: \x01", "not YAML (character 6)"),
        (b"name: \xff", "not UTF-8 text (byte 6)"),
        (b"#" * (MAX_FILE_BYTES + 1), f"larger than {MAX_FILE_BYTES} bytes"),
        (GOOD.replace("port: 7001", "prot: 7001"), "broker B1: field 'port' is missing"),
        (GOOD + "durability: disc\n", "durability: should be 'memory' or 'disk', not 'disc'"),
        (GOOD.replace("clients", "client"), "unknown field 'client' (did you mean clients?)"),
    ],
)
def test_a_bad_yaml_file_is_named_with_what_is_wrong(
    tmp_path: Path, content: str | bytes, reason: str
) -> None:
    file = written(tmp_path, content)
    message = refusal(file)
    assert message.startswith(f"{str(file)!r}: ")
    assert reason in message


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "not JSON (line 1, column 1)"),
        ('{"name": }', "not JSON (line 1, column 10)"),
        ('{"name": "t", "name": "u"}', "duplicate key 'name'"),
        ("9" * 5000, "not JSON: "),
        ("[" * 200_000, "nested too deeply"),
        ("null", "empty"),
        (chain(2).to_json().replace("0.0", "NaN"), "delay_ms"),
    ],
)
def test_a_bad_json_file_is_named_with_what_is_wrong(
    tmp_path: Path, content: str, reason: str
) -> None:
    file = written(tmp_path, content, ".json")
    message = refusal(file)
    assert message.startswith(f"{str(file)!r}: ")
    assert reason in message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.yaml") == f"{str(tmp_path / 'none.yaml')!r}: no such file"
    (tmp_path / "dir.yaml").mkdir()
    assert "cannot be read: Is a directory" in refusal(tmp_path / "dir.yaml")
    assert "expected one of .yaml, .yml, .json" in refusal(written(tmp_path, GOOD, ".txt"))
    assert "cannot be read" in refusal("a\0b.yaml")
    (tmp_path / "endless.yaml").symlink_to("/dev/zero")
    assert f"larger than {MAX_FILE_BYTES} bytes" in refusal(tmp_path / "endless.yaml")


def test_an_unknown_name_lists_the_known_ones_and_the_closest() -> None:
    message = refusal("fvie")
    assert "'fvie' (did you mean five?)" in message
    assert ", ".join(NAMES) in message
    assert "did you mean" not in refusal("zzz")


def test_a_name_wins_over_a_file_and_a_path_object_is_always_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one").write_text("nonsense")
    assert load("one").name == "one"
    assert "expected one of" in refusal(Path("one"))


def test_a_large_topology_survives_its_file(tmp_path: Path) -> None:
    topology = random_tree(300, 1, delay_ms=2.5)
    assert load(written(tmp_path, topology.to_yaml())) == topology
