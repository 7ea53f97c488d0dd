"""Drawings show every broker, address, delay and client, in a tidy tree."""

from __future__ import annotations

import io
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from topologies import Topology, TopologyError, draw, load
from topologies.generators import chain, random_tree, star

BUSY = Topology.model_validate(
    {
        "name": "busy",
        "brokers": [
            {"name": "B1", "port": 7001},
            {"name": "B2", "port": 7002},
            {"name": "B3", "host": "::1", "port": 7003},
            {"name": "B4", "port": 0},
        ],
        "edges": [{"a": "B1", "b": "B2", "delay_ms": 2.5}, ["B3", "B1"], ["B2", "B4"]],
        "clients": {"E": "B4", "D": "B1", "A1": "B4"},
        "client_delay_ms": 1,
    }
)


def printed(topology: Topology, width: int = 80) -> str:
    out = io.StringIO()
    draw.show(topology, Console(file=out, width=width))
    return out.getvalue()


def test_the_terminal_shows_names_addresses_delays_and_clients() -> None:
    assert printed(BUSY).splitlines() == [
        "B1  127.0.0.1:7001  clients: D",
        "├── B2  127.0.0.1:7002  2.5 ms",
        "│   └── B4  127.0.0.1, any port  clients: E, A1",
        "└── B3  [::1]:7003",
    ]


def test_one_broker_is_one_line() -> None:
    assert printed(load("one")) == "B1  127.0.0.1:7001\n"


def test_a_narrow_terminal_loses_nothing() -> None:
    """rich alone would leave out all that is deeper than the terminal is wide."""
    lines = printed(chain(60), width=20).splitlines()
    assert len(lines) == 60
    assert lines[-1] == " " * 4 * 58 + "└── B60  127.0.0.1:7060"
    assert printed(BUSY, width=10) == printed(BUSY)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 40), st.integers(0, 1000))
def test_slots_neither_overlap_nor_cross(n: int, seed: int) -> None:
    topology = random_tree(n, seed)
    places = draw.slots(topology)
    assert sorted(places) == sorted(broker.name for broker in topology.brokers)
    levels: dict[int, list[float]] = {}
    for name, (slot, level) in places.items():
        below = [places[b][0] for b in topology.neighbours(name) if places[b][1] > level]
        assert not below or min(below) <= slot <= max(below)
        levels.setdefault(level, []).append(slot)
    for slots in levels.values():
        # In preorder, left to right, each broker is at least one box further: nothing overlaps,
        # and as children follow their parents' order, nothing crosses.
        assert all(right - left >= 1 for left, right in pairwise(slots))


@pytest.mark.parametrize(
    "topology",
    [load("one"), BUSY, random_tree(30, 2, delay_ms=5)],
    ids=lambda topology: topology.name,
)
def test_pictures_are_what_their_suffix_says(tmp_path: Path, topology: Topology) -> None:
    draw.save(topology, tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG\r\n")
    draw.save(topology, tmp_path / "t.SVG")
    root = ElementTree.parse(tmp_path / "t.SVG").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"


def test_the_same_topology_gives_the_same_picture(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        draw.save(BUSY, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_long_name_is_cut_and_many_clients_are_counted(tmp_path: Path) -> None:
    """Neither makes the picture wider than a screen."""
    topology = Topology.model_validate(
        {
            "name": "t" * 64,
            "brokers": [{"name": "B" * 64, "host": "h" * 253, "port": 1}],
            "clients": {f"client-{i}": "B" * 64 for i in range(100)} | {"C" * 64: "B" * 64},
        }
    )
    draw.save(topology, tmp_path / "t.svg")
    width = ElementTree.parse(tmp_path / "t.svg").getroot().attrib["width"]
    assert float(width.removesuffix("pt")) < 72 * 6


def test_a_wide_tree_hangs_from_the_left(tmp_path: Path) -> None:
    draw.save(star(60), tmp_path / "t.svg")
    box = ElementTree.parse(tmp_path / "t.svg").getroot().attrib["viewBox"]
    _, _, width, height = map(float, box.split())
    assert width < height


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"t\.gif.*\.png or \.svg"):
        draw.save(BUSY, tmp_path / "t.gif")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"cannot write .*none/t\.png"):
        draw.save(BUSY, tmp_path / "none" / "t.png")


def test_without_matplotlib_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None in sys.modules is Python's own way of saying "not installed".
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(TopologyError) as caught:
        draw.save(BUSY, tmp_path / "t.png")
    assert "pip install 'padres-tx[draw]'" in str(caught.value)
    assert not (tmp_path / "t.png").exists()
