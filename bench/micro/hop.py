"""`padres-tx bench hop`: what a publication costs one broker, beside a bare relay.

Three processes do the same work at the same time of day, in turn, round after round:

- a broker between two neighbours, which forwards what comes from one to the other: it decodes,
  matches, numbers, keeps until it is acknowledged, acknowledges, and sends. This is the hop that a
  publication meets most often, and the `ratio` is its;
- a broker between two clients (`edge`), which in addition checks that the publisher may publish
  what it sends, and that it is well-formed;
- a bare Twisted relay (`relay`), which cuts the same bytes into frames and gives them on.

The brokers are processes as `padres-tx up` starts them; the neighbours and clients are lean
(`ends`). All three are saturated: there is always more to read. CPU time is what the process has
used, user and system, in the kernel's own account; that of the best round is told. A ratio is the
median over rounds of what two of them needed one after the other, since the speed of a shared
machine changes. Tracing is off.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
from rich import box
from rich.console import Console
from rich.table import Table

from bench.children import Child, cpu_s, require_cpu_clock
from bench.micro.progress import steps_shown
from bench.micro.traffic import WANTED, Stage, Traffic, not_matching
from topologies import BrokerSpec, Edge, Topology

#: How often each of the three runs; the best round counts.
ROUNDS: Final = 25

#: Of the bare relay; and for a publisher's edge broker, which has more to check.
MAX_RATIO: Final = 2.5
MAX_EDGE_RATIO: Final = 3.0

#: Publications before the first round: caches fill, and the adaptive interpreter settles.
WARM_UP: Final = 2000

#: Neighbours' names sort before the broker's, so that it waits for them and dials nobody.
SOURCE, TARGET, OTHER, BROKER = "A", "B", "C", "H"


@dataclass(frozen=True)
class Row:
    """What `--json` prints; times in microseconds per publication."""

    broker_us: float
    relay_us: float
    ratio: float
    edge_us: float
    edge_ratio: float
    publications: int
    subscriptions: int


@dataclass(frozen=True)
class Way:
    """A process to measure, and what goes through it."""

    process: Child
    traffic: Traffic

    def us_per_publication(self, publications: int) -> float:
        before_s = cpu_s(self.process.pid)
        self.traffic.run(publications)
        return (cpu_s(self.process.pid) - before_s) * 1e6 / publications


def measure(
    *,
    publications: int,
    subscriptions: int = 0,
    rounds: int = ROUNDS,
    progress: Callable[[str], None] = lambda _: None,
) -> Row:
    """Run all three; each round is so many publications, and `progress` is told what is next.

    Raises ChildFailed if a process fails, or a publication is lost, doubled or reordered;
    CannotMeasure where CPU times cannot be read.
    """
    require_cpu_clock()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="padres-tx-"))
        progress("starting processes")
        ways = _start(Stage(stack, Path(directory)), Path(directory), subscriptions)
        us: dict[str, list[float]] = {name: [] for name in ways}
        for way in ways.values():
            way.traffic.run(WARM_UP)
        for number in range(1, rounds + 1):
            for name, way in ways.items():
                progress(f"{name}, round {number} of {rounds}")
                us[name].append(way.us_per_publication(publications))
    return Row(
        broker_us=round(min(us["broker"]), 3),
        relay_us=round(min(us["relay"]), 3),
        ratio=median_ratio(us["broker"], us["relay"], 2),
        edge_us=round(min(us["edge"]), 3),
        edge_ratio=median_ratio(us["edge"], us["relay"], 2),
        publications=publications,
        subscriptions=subscriptions,
    )


def median_ratio(over: list[float], under: list[float], digits: int) -> float:
    """Of two series of rounds that were run in turn."""
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    return round(statistics.median(ratios), digits)


def _start(stage: Stage, directory: Path, subscriptions: int) -> dict[str, Way]:
    """The three processes with their ends connected."""
    others = not_matching(subscriptions)
    neighbours = [SOURCE, TARGET, OTHER] if others else [SOURCE, TARGET]
    forwarding = lone_broker(stage, directory, "forwarding", neighbours)
    edge = lone_broker(stage, directory, "edge", [])
    [(relay, relay_port)] = stage.relays(1)
    port, edge_port = int(forwarding.ready()), int(edge.ready())
    ends = [
        stage.subscriber("broker", TARGET, port, [WANTED]),
        stage.publisher("broker", SOURCE, port),
        stage.subscriber("client", TARGET, edge_port, [WANTED]),
        stage.publisher("client", SOURCE, edge_port),
        stage.subscriber("frames", TARGET, relay_port, []),
        stage.publisher("frames", SOURCE, relay_port),
    ]
    if others:
        # Somebody else's, so that the search for the subscriber cannot spare them.
        ends.append(stage.subscriber("broker", OTHER, port, others))
        ends.append(stage.subscriber("client", OTHER, edge_port, others))
    for end in ends:
        end.ready()
    return {
        "broker": Way(forwarding, Traffic(ends[1], ends[0])),
        "edge": Way(edge, Traffic(ends[3], ends[2])),
        "relay": Way(relay, Traffic(ends[5], ends[4])),
    }


def lone_broker(stage: Stage, directory: Path, name: str, neighbours: list[str]) -> Child:
    """A broker process whose neighbours are the benchmark's own; it says its port when it is up."""
    # The broker never dials them, but a topology wants a port for everyone.
    brokers = [BrokerSpec(name=other, port=number) for number, other in enumerate(neighbours, 1)]
    topology = Topology(
        name=name,
        brokers=(*brokers, BrokerSpec(name=BROKER, port=0)),
        edges=tuple(Edge(a=other, b=BROKER) for other in neighbours),
    )
    file = directory / f"{name}.json"
    file.write_text(topology.to_json(), encoding="utf-8")
    return stage.start(name, "padres_tx.cli.broker_child", str(file), BROKER, "--ready-fd", "1")


# --- the command ----------------------------------------------------------------------------


@click.command(
    epilog="""
\b
Examples:
  padres-tx bench hop
  padres-tx bench hop --subscriptions 1000 --json
"""
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object and nothing else.")
@click.option(
    "--publications",
    type=click.IntRange(min=1),
    default=20_000,
    show_default=True,
    help="How many go through each process in each round.",
)
@click.option(
    "--subscriptions",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How many others, that do not match, are in the brokers' tables.",
)
def hop(*, as_json: bool, publications: int, subscriptions: int) -> None:
    """CPU microseconds per publication in one broker, beside a bare Twisted relay.

    The same frames go through a broker between two neighbours, a broker between two clients, and
    the relay. Ends with exit code 1 if a publication is lost, doubled or reordered; whether the
    goals hold is only said, for times depend on the machine.
    """
    with steps_shown(1 + 3 * ROUNDS) as progress:
        row = measure(publications=publications, subscriptions=subscriptions, progress=progress)
    if as_json:
        click.echo(json.dumps(asdict(row), indent=2))
        return
    console = Console()
    console.print(table(row))
    holds = row.ratio <= MAX_RATIO and row.edge_ratio <= MAX_EDGE_RATIO
    console.print("The goals hold." if holds else "Not all goals hold.")


def table(row: Row) -> Table:
    shown = Table(
        title=f"CPU per publication, {row.subscriptions:,} other subscriptions",
        box=box.SIMPLE_HEAD,
    )
    shown.add_column("process")
    for heading in ("µs", "of the relay", "goal"):
        shown.add_column(heading, justify="right")
    for name, us, ratio, goal in (
        ("broker, forwarding", row.broker_us, row.ratio, MAX_RATIO),
        ("broker, publisher's edge", row.edge_us, row.edge_ratio, MAX_EDGE_RATIO),
    ):
        shown.add_row(name, f"{us:.2f}", f"{ratio:.2f}", f"at most {goal:g}")
    shown.add_row("bare relay", f"{row.relay_us:.2f}", "1", "")
    return shown
