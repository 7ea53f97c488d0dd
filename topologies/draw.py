"""Draw a topology as a tree: in the terminal, or as a PNG or SVG file.

The root is the first broker, and children are in the order of the edges, so the same file always
gives the same drawing. Pictures need matplotlib, which only the extra `draw` installs; it is
imported when needed.

This module must not know where a topology comes from or whether it runs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import networkx as nx
from rich.console import Console
from rich.measure import Measurement
from rich.segment import Segments
from rich.text import Text
from rich.tree import Tree

from topologies.errors import TopologyError
from topologies.model import BrokerSpec, Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE_SUFFIXES = (".png", ".svg")

#: Limits of a PNG: the side that matplotlib allows, and the area, which takes 4 bytes a pixel.
MAX_PNG_SIDE_PX = 60_000
MAX_PNG_AREA_PX = 40_000_000

#: Longer lines in a box are shortened: names may have 64 characters and hosts 253.
MAX_LABEL_CHARS = 30

#: A tree wider than this is drawn from left to right instead of top down: boxes are wider than
#: high, so leaves take less room above each other.
MAX_TOP_DOWN_IN = 14.0

# Inches. DejaVu Sans is about 0.62 em wide on average: 9 points make 0.08 inches a character.
_CHAR_IN = 0.08
_LINE_IN = 0.21
_PADDING_IN = 0.12
_GAP_ACROSS_IN = 0.25
_GAP_LEVELS_IN = 0.6
_MARGIN_IN = 0.25
_TITLE_IN = 0.45
_DPI = 150


def show(topology: Topology, console: Console) -> None:
    """Print the tree: one line per broker with its address, link delay and clients."""
    tree = terminal_tree(topology)
    # rich cuts lines that are wider than the console, and a deep chain would be incomplete. So the
    # tree is rendered at its own width, and the terminal wraps long lines.
    unbounded = console.options.update(max_width=sys.maxsize)
    needed = Measurement.get(console, unbounded, tree).maximum
    rendered = console.render(tree, console.options.update(width=needed))
    console.print(Segments(rendered), end="", soft_wrap=True)


def terminal_tree(topology: Topology) -> Tree:
    """Return the tree for rich to print; `show` handles the width."""
    graph, root = topology.graph(), topology.brokers[0].name
    placed = _clients_by_broker(topology)
    brokers = {broker.name: broker for broker in topology.brokers}

    def line(name: str, delay_ms: float) -> Text:
        broker = brokers[name]
        text = Text(no_wrap=True)
        text.append(name, "bold")
        text.append(f"  {_address(broker)}", "cyan")
        if delay_ms:
            text.append(f"  {delay_ms:g} ms", "yellow")
        if placed[name]:
            text.append(f"  clients: {', '.join(placed[name])}", "green")
        return text

    branches = {root: Tree(line(root, 0.0), highlight=False)}
    for parent, child in nx.bfs_edges(graph, root):
        delay_ms = graph.edges[parent, child]["delay_ms"]
        branches[child] = branches[parent].add(line(child, delay_ms))
    return branches[root]


def save(topology: Topology, path: Path) -> None:
    """Draw the tree into a .png or .svg file, which is overwritten if it exists.

    A PNG of a very large tree has a lower resolution, to stay within MAX_PNG_AREA_PX. Raises
    TopologyError for another suffix, without matplotlib, or if the file cannot be written.
    """
    form = path.suffix.lower()
    if form not in PICTURE_SUFFIXES:
        raise TopologyError(
            f"invalid file name {str(path)!r}: expected {' or '.join(PICTURE_SUFFIXES)}"
        )
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise TopologyError(
            "matplotlib is not installed; it comes with the extra 'draw': "
            "pip install 'padres-tx[draw]'"
        ) from None

    picture = _Picture(topology)
    width_in, height_in = picture.size_in
    # The figure measures in inches from the lower left, so the layout needs no other unit.
    figure = Figure(figsize=(width_in, height_in))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0.0, width_in), ylim=(0.0, height_in))
    axes.set_axis_off()
    picture.draw(axes)
    dpi = min(
        _DPI,
        MAX_PNG_SIDE_PX / max(width_in, height_in),
        math.sqrt(MAX_PNG_AREA_PX / (width_in * height_in)),
    )
    try:
        # A fixed salt and no date: the same topology gives the same SVG, byte for byte.
        with matplotlib.rc_context({"svg.hashsalt": "padres-tx"}):
            metadata = {"Date": None} if form == ".svg" else None
            figure.savefig(path, format=form[1:], dpi=dpi, metadata=metadata)
    except OSError as error:
        raise TopologyError(f"cannot write {str(path)!r}: {error.strerror}") from None


def slots(topology: Topology) -> dict[str, tuple[float, int]]:
    """Return (slot, level) of each broker: leaves in slots 0, 1, ... and parents between them.

    No two brokers of a level share a slot, and no two edges cross.
    """
    graph, root = topology.graph(), topology.brokers[0].name
    level = nx.single_source_shortest_path_length(graph, root)
    children: dict[str, list[str]] = {name: [] for name in graph}
    for parent, child in nx.bfs_edges(graph, root):
        children[parent].append(child)
    preorder = list(nx.dfs_preorder_nodes(graph, root))
    slot: dict[str, float] = {}
    for leaf in (name for name in preorder if not children[name]):
        slot[leaf] = float(len(slot))
    for name in reversed(preorder):  # children before their parents
        if children[name]:
            slot[name] = (slot[children[name][0]] + slot[children[name][-1]]) / 2
    return {name: (slot[name], level[name]) for name in preorder}


class _Picture:
    """A tidy tree of equal boxes, laid out in inches."""

    def __init__(self, topology: Topology) -> None:
        placed = _clients_by_broker(topology)
        self._topology = topology
        self._labels = {
            broker.name: _label(broker, placed[broker.name]) for broker in topology.brokers
        }
        lines = max(len(label) for label in self._labels.values())
        # The name is bold and larger, hence 1.3.
        chars = max(
            max(1.3 * len(label[0]), *(len(line) for line in label[1:]))
            for label in self._labels.values()
        )
        self._box_in = (chars * _CHAR_IN + 2 * _PADDING_IN, lines * _LINE_IN + 2 * _PADDING_IN)

        places = slots(topology)
        slot_count = 1 + max(slot for slot, _ in places.values())
        level_count = 1 + max(level for _, level in places.values())
        box_width, box_height = self._box_in
        self._top_down = slot_count * (box_width + _GAP_ACROSS_IN) <= MAX_TOP_DOWN_IN
        if self._top_down:
            pitch = (box_width + _GAP_ACROSS_IN, box_height + _GAP_LEVELS_IN)
            columns, rows = slot_count, float(level_count)
            grid = {name: (slot, float(level)) for name, (slot, level) in places.items()}
        else:
            pitch = (box_width + 1.5 * _GAP_LEVELS_IN, box_height + _GAP_ACROSS_IN)
            columns, rows = float(level_count), slot_count
            grid = {name: (float(level), slot) for name, (slot, level) in places.items()}

        tree_width = (columns - 1) * pitch[0] + box_width
        tree_height = (rows - 1) * pitch[1] + box_height
        title_width = _CHAR_IN * 1.3 * max(len(line) for line in self._title())
        width = max(tree_width, title_width) + 2 * _MARGIN_IN
        height = tree_height + _TITLE_IN + 2 * _MARGIN_IN
        self.size_in = (width, height)
        left = (width - tree_width) / 2 + box_width / 2
        top = height - _MARGIN_IN - _TITLE_IN - box_height / 2
        self._centre = {
            name: (left + column * pitch[0], top - row * pitch[1])
            for name, (column, row) in grid.items()
        }

    def draw(self, axes: Axes) -> None:
        width, height = self.size_in
        name, detail = self._title()
        axes.text(width / 2, height - _MARGIN_IN, name, ha="center", va="top", size=12, weight=700)
        axes.text(
            width / 2,
            height - _MARGIN_IN - _LINE_IN,
            detail,
            ha="center",
            va="top",
            size=8,
            color="#555555",
        )
        graph = self._topology.graph()
        for parent, child in nx.bfs_edges(graph, self._topology.brokers[0].name):
            self._draw_edge(axes, parent, child, graph.edges[parent, child]["delay_ms"])
        for broker in self._topology.brokers:
            self._draw_box(axes, broker.name)

    def _title(self) -> tuple[str, str]:
        count = len(self._topology.brokers)
        detail = f"{count} broker{'s' if count > 1 else ''}"
        if self._topology.client_delay_ms:
            detail += f", client links {self._topology.client_delay_ms:g} ms"
        return _cut(self._topology.name), detail

    def _draw_edge(self, axes: Axes, parent: str, child: str, delay_ms: float) -> None:
        (x0, y0), (x1, y1) = self._centre[parent], self._centre[child]
        box_width, box_height = self._box_in
        if self._top_down:
            y0, y1 = y0 - box_height / 2, y1 + box_height / 2
        else:
            x0, x1 = x0 + box_width / 2, x1 - box_width / 2
        axes.plot((x0, x1), (y0, y1), color="#7a8794", linewidth=1.2, zorder=1)
        if delay_ms:
            axes.text(
                x0 + 0.6 * (x1 - x0),  # nearer to the child: there the edges of a fan are apart
                y0 + 0.6 * (y1 - y0),
                f"{delay_ms:g} ms",
                ha="center",
                va="center",
                size=8,
                color="#8a5a00",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
                zorder=2,
            )

    def _draw_box(self, axes: Axes, name: str) -> None:
        from matplotlib.patches import FancyBboxPatch

        (x, y), (box_width, box_height) = self._centre[name], self._box_in
        axes.add_patch(
            FancyBboxPatch(
                (x - box_width / 2, y - box_height / 2),
                box_width,
                box_height,
                boxstyle="round,pad=0,rounding_size=0.08",
                facecolor="#eaf2fb",
                edgecolor="#2f6db0",
                linewidth=1.2,
                zorder=3,
            )
        )
        label = self._labels[name]
        for i, line in enumerate(label):
            axes.text(
                x,
                y + ((len(label) - 1) / 2 - i) * _LINE_IN,
                line,
                ha="center",
                va="center",
                size=11 if i == 0 else 8.5,
                weight=700 if i == 0 else 400,
                color=("#12304f", "#444444", "#1b6e3c")[i],
                zorder=4,
            )


def _clients_by_broker(topology: Topology) -> dict[str, list[str]]:
    placed: dict[str, list[str]] = {broker.name: [] for broker in topology.brokers}
    for client, broker in topology.clients.items():
        placed[broker].append(client)
    return placed


def _address(broker: BrokerSpec) -> str:
    return broker.address if broker.port else f"{broker.host}, any port"


def _label(broker: BrokerSpec, clients: Sequence[str]) -> tuple[str, ...]:
    """The lines in a broker's box: name, address and, if there are any, clients."""
    head = (_cut(broker.name), _cut(_address(broker)))
    return (*head, _listed(clients)) if clients else head


def _listed(clients: Sequence[str]) -> str:
    """Return as many names as fit on a line, and the number of the others."""
    for shown in range(len(clients), 0, -1):
        rest = len(clients) - shown
        line = ", ".join(clients[:shown]) + (f", +{rest}" if rest else "")
        if len(line) <= MAX_LABEL_CHARS:
            return line
    return f"{len(clients)} clients" if len(clients) > 1 else _cut(clients[0])


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LABEL_CHARS else text[: MAX_LABEL_CHARS - 1] + "…"
