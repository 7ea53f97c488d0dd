"""`padres-tx bench hop`: the cost of a publication at one broker, beside a bare relay.

Five processes do the same work in turn, round after round:

- a broker between two neighbours, which forwards publications from one to the other: it decodes,
  matches, numbers, keeps until acknowledged, acknowledges, and sends. This is the most frequent
  kind of hop, and `ratio` refers to it;
- a broker between two clients (`edge`), which also checks that publications are well-formed and
  that the publisher has advertised them;
- both again with their state on disk (`disk`, `disk_edge`): nothing leaves them before what it
  follows from is synced;
- a bare Twisted relay (`relay`), which splits the same bytes into frames and forwards them.

The brokers are processes as `padres-tx up` starts them; the neighbours and clients are lean
(`endpoints`). All are saturated: there is always more to read. CPU time is user and system time of
the process with all its threads, as the kernel counts it; the best round is reported. A ratio is
the median over rounds of the CPU times of two processes one after the other, since the speed of a
shared machine changes. Tracing is off.
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
from bench.micro.disk import file_system, state_directory, state_option
from bench.micro.endpoints import EndpointProtocol
from bench.micro.progress import steps_shown
from bench.micro.traffic import WANTED, Traffic, TrafficProcesses, not_matching
from topologies import BrokerSpec, Edge, Topology

#: Rounds of each of the five; the best one counts.
ROUNDS: Final = 25

#: Goals relative to the bare relay, in memory and on disk; a publisher's edge broker has more to
#: check.
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
    disk_us: float
    disk_ratio: float
    disk_edge_us: float
    disk_edge_ratio: float
    #: The file system of the brokers on disk.
    file_system: str
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
    state: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> HopRow:
    """Measure all five; each round sends `publications`, and `progress` is called with each step.

    The state of brokers on disk is kept below `state` meanwhile.

    Raises ChildFailed if a process fails, or a publication is lost, doubled or reordered;
    CannotMeasure where CPU times cannot be read, or if there is no disk for the state.
    """
    require_cpu_clock()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="padres-tx-"))
        progress("starting processes")
        disk = state_directory(stack, state)
        kind = file_system(disk)
        processes = TrafficProcesses(stack, Path(directory))
        routes = _start(processes, Path(directory), subscriptions, disk)
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
        disk_us=round(min(us["disk"]), 3),
        disk_ratio=median_ratio(us["disk"], us["relay"], 2),
        disk_edge_us=round(min(us["disk_edge"]), 3),
        disk_edge_ratio=median_ratio(us["disk_edge"], us["relay"], 2),
        file_system=kind,
        publications=publications,
        subscriptions=subscriptions,
    )


def median_ratio(over: list[float], under: list[float], digits: int) -> float:
    """The median ratio of two series of rounds that were run in turn."""
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    return round(statistics.median(ratios), digits)


def _start(
    processes: TrafficProcesses, directory: Path, subscriptions: int, disk: Path
) -> dict[str, Route]:
    """The five processes with their endpoints connected."""
    others = not_matching(subscriptions)
    neighbours = [SOURCE, TARGET, OTHER] if others else [SOURCE, TARGET]
    brokers: dict[str, tuple[EndpointProtocol, Child]] = {}
    for name, state in (("", None), ("disk_", disk)):
        forwarding = lone_broker(processes, directory, f"{name}broker", neighbours, state)
        brokers["disk" if state else "broker"] = ("broker", forwarding)
        edge = lone_broker(processes, directory, f"{name}edge", [], state)
        brokers[f"{name}edge"] = ("client", edge)
    [(relay, relay_port)] = processes.relays(1)
    routes, ends = {}, []
    for name, (protocol, broker) in brokers.items():
        port = int(broker.ready())
        subscriber = processes.subscriber(protocol, TARGET, port, [WANTED])
        publisher = processes.publisher(protocol, SOURCE, port)
        ends += [subscriber, publisher]
        routes[name] = Route(broker, Traffic(publisher, subscriber))
        if others:
            # Of another subscriber, so that the search for the first one cannot skip them.
            ends.append(processes.subscriber(protocol, OTHER, port, others))
    subscriber = processes.subscriber("frames", TARGET, relay_port, [])
    publisher = processes.publisher("frames", SOURCE, relay_port)
    for end in (*ends, subscriber, publisher):
        end.ready()
    return {**routes, "relay": Route(relay, Traffic(publisher, subscriber))}


def lone_broker(
    processes: TrafficProcesses,
    directory: Path,
    name: str,
    neighbours: list[str],
    state: Path | None = None,
) -> Child:
    """A broker process whose neighbours are endpoints; its first line is its port.

    With `state` it keeps its state on disk, below that directory.
    """
    # The broker never dials them, but a topology requires a port for each broker.
    brokers = [BrokerSpec(name=other, port=number) for number, other in enumerate(neighbours, 1)]
    topology = Topology(
        name=name,
        brokers=(*brokers, BrokerSpec(name=BROKER, port=0)),
        edges=tuple(Edge(a=other, b=BROKER) for other in neighbours),
    )
    file = directory / f"{name}.json"
    file.write_text(topology.to_json(), encoding="utf-8")
    arguments = [str(file), BROKER, "--ready-fd", "1"]
    if state is not None:
        arguments += ["--durability", "disk", "--state", str(state / name)]
    return processes.start(name, "padres_tx.cli.broker_child", *arguments)


# --- the command ----------------------------------------------------------------------------


@click.command(
    epilog="""
\b
Examples:
  padres-tx bench hop
  padres-tx bench hop --subscriptions 1000 --json
  padres-tx bench hop --state /mnt/nvme
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
@state_option
def hop(*, as_json: bool, publications: int, subscriptions: int, state: Path | None) -> None:
    """CPU microseconds per publication in one broker, beside a bare Twisted relay.

    The same frames go through a broker between two neighbours, a broker between two clients, both
    in memory and on disk, and the relay. Exits with code 1 if a publication is lost, duplicated or
    reordered; the goals are only reported, since times depend on the machine.
    """
    with steps_shown(1 + 5 * ROUNDS) as progress:
        row = measure(
            publications=publications, subscriptions=subscriptions, state=state, progress=progress
        )
    if as_json:
        click.echo(json.dumps(asdict(row), indent=2))
        return
    console = Console()
    console.print(table(row))
    holds = (
        max(row.ratio, row.disk_ratio) <= MAX_RATIO
        and max(row.edge_ratio, row.disk_edge_ratio) <= MAX_EDGE_RATIO
    )
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
        ("on disk, forwarding", row.disk_us, row.disk_ratio, MAX_RATIO),
        ("on disk, publisher's edge", row.disk_edge_us, row.disk_edge_ratio, MAX_EDGE_RATIO),
    ):
        shown.add_row(name, f"{us:.2f}", f"{ratio:.2f}", f"at most {goal:g}")
    shown.add_row("bare relay", f"{row.relay_us:.2f}", "1", "")
    shown.caption = f"state on disk: {row.file_system}"
    return shown
