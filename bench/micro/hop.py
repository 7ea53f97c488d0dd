"""`padres-tx bench hop`: the cost of a publication at one broker, beside a bare relay.

Three processes do the same work in turn, round after round:

- a broker between two neighbours, which forwards publications from one to the other: it decodes,
  matches, numbers, keeps until acknowledged, acknowledges, and sends. This is the most frequent
  kind of hop, and `ratio` refers to it;
- a broker between two clients (`edge`), which also checks that publications are well-formed and
  that the publisher has advertised them;
- a bare Twisted relay (`relay`), which splits the same bytes into frames and forwards them.

The brokers are processes as `padres-tx up` starts them; the neighbours and clients are lean
(`endpoints`). All three are saturated: there is always more to read. CPU time is user and system
time of the process, as the kernel counts it; the best round is reported. A ratio is the median over
rounds of the CPU times of two processes one after the other, since the speed of a shared machine
changes. Tracing is off.
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
from bench.micro.traffic import WANTED, Traffic, TrafficProcesses, not_matching
from topologies import BrokerSpec, Edge, Topology

#: Rounds of each of the three; the best one counts.
ROUNDS: Final = 25

#: Goals relative to the bare relay; a publisher's edge broker has more to check.
MAX_RATIO: Final = 2.5
MAX_EDGE_RATIO: Final = 3.0

#: Publications before the first round, to fill caches and warm up the adaptive interpreter.
WARM_UP: Final = 2000

#: Neighbours' names sort before the broker's, so that it waits for their connections.
SOURCE, TARGET, OTHER, BROKER = "A", "B", "C", "H"


@dataclass(frozen=True)
class HopRow:
    """The output of `--json`; times in microseconds per publication."""

    broker_us: float
    relay_us: float
    ratio: float
    edge_us: float
    edge_ratio: float
    publications: int
    subscriptions: int


@dataclass(frozen=True)
class Route:
    """A process to measure, and the traffic through it."""

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
) -> HopRow:
    """Measure all three; each round sends `publications`, and `progress` is called with each step.

    Raises ChildFailed if a process fails, or a publication is lost, doubled or reordered;
    CannotMeasure where CPU times cannot be read.
    """
    require_cpu_clock()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="padres-tx-"))
        progress("starting processes")
        routes = _start(TrafficProcesses(stack, Path(directory)), Path(directory), subscriptions)
        us: dict[str, list[float]] = {name: [] for name in routes}
        for route in routes.values():
            route.traffic.run(WARM_UP)
        for number in range(1, rounds + 1):
            for name, route in routes.items():
                progress(f"{name}, round {number} of {rounds}")
                us[name].append(route.us_per_publication(publications))
    return HopRow(
        broker_us=round(min(us["broker"]), 3),
        relay_us=round(min(us["relay"]), 3),
        ratio=median_ratio(us["broker"], us["relay"], 2),
        edge_us=round(min(us["edge"]), 3),
        edge_ratio=median_ratio(us["edge"], us["relay"], 2),
        publications=publications,
        subscriptions=subscriptions,
    )


def median_ratio(over: list[float], under: list[float], digits: int) -> float:
    """The median ratio of two series of rounds that were run in turn."""
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    return round(statistics.median(ratios), digits)


def _start(processes: TrafficProcesses, directory: Path, subscriptions: int) -> dict[str, Route]:
    """The three processes with their endpoints connected."""
    others = not_matching(subscriptions)
    neighbours = [SOURCE, TARGET, OTHER] if others else [SOURCE, TARGET]
    forwarding = lone_broker(processes, directory, "forwarding", neighbours)
    edge = lone_broker(processes, directory, "edge", [])
    [(relay, relay_port)] = processes.relays(1)
    port, edge_port = int(forwarding.ready()), int(edge.ready())
    ends = [
        processes.subscriber("broker", TARGET, port, [WANTED]),
        processes.publisher("broker", SOURCE, port),
        processes.subscriber("client", TARGET, edge_port, [WANTED]),
        processes.publisher("client", SOURCE, edge_port),
        processes.subscriber("frames", TARGET, relay_port, []),
        processes.publisher("frames", SOURCE, relay_port),
    ]
    if others:
        # Of another subscriber, so that the search for the first one cannot skip them.
        ends.append(processes.subscriber("broker", OTHER, port, others))
        ends.append(processes.subscriber("client", OTHER, edge_port, others))
    for end in ends:
        end.ready()
    return {
        "broker": Route(forwarding, Traffic(ends[1], ends[0])),
        "edge": Route(edge, Traffic(ends[3], ends[2])),
        "relay": Route(relay, Traffic(ends[5], ends[4])),
    }


def lone_broker(
    processes: TrafficProcesses, directory: Path, name: str, neighbours: list[str]
) -> Child:
    """A broker process whose neighbours are endpoints; its first line is its port."""
    # The broker never dials them, but a topology requires a port for each broker.
    brokers = [BrokerSpec(name=other, port=number) for number, other in enumerate(neighbours, 1)]
    topology = Topology(
        name=name,
        brokers=(*brokers, BrokerSpec(name=BROKER, port=0)),
        edges=tuple(Edge(a=other, b=BROKER) for other in neighbours),
    )
    file = directory / f"{name}.json"
    file.write_text(topology.to_json(), encoding="utf-8")
    return processes.start(name, "padres_tx.cli.broker_child", str(file), BROKER, "--ready-fd", "1")


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
    help="Publications through each process in each round.",
)
@click.option(
    "--subscriptions",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Additional subscriptions in the brokers' tables, none of which matches.",
)
def hop(*, as_json: bool, publications: int, subscriptions: int) -> None:
    """CPU microseconds per publication in one broker, beside a bare Twisted relay.

    The same frames go through a broker between two neighbours, a broker between two clients, and
    the relay. Exits with code 1 if a publication is lost, duplicated or reordered; the goals are
    only reported, since times depend on the machine.
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


def table(row: HopRow) -> Table:
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
