"""`padres-tx bench chain`: publications per second and latency through a chain of brokers.

A publisher is a client of the first broker, a subscriber one of the last; in between are broker
processes as `padres-tx up` starts them. Beside it, in the same run and with the same `endpoints`,
runs a chain of as many bare relays (`relay`), and one of as many brokers with their state on disk.
Rounds alternate, so that a slow moment of the machine affects all of them. `disk_share` is the
median over rounds of the ratio of the two throughputs, on disk and in memory.

- Throughput is measured with a saturated chain: the publisher sends as fast as it is
  acknowledged, from the first publication sent to the last received. The best round counts, since
  other programs share the machine.
- Latency is measured separately, at a moderate rate (`RATE_PER_S`), evenly spaced: from just before
  the publisher writes until just after the subscriber has read. All rounds count.
- `--subscriptions` adds subscriptions to the table of every broker. They belong to another client
  of the last broker and match no event, though they are in the advertised space; with `--matching`
  they match every event and belong to the subscriber. A second overlay without them runs in turn,
  so that their cost is measured within one run: `share` is the median over rounds of the ratio of
  the two throughputs.

Tracing is off.
"""

from __future__ import annotations

import json
import sys
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

from bench.children import cpu_s
from bench.micro.disk import file_system, state_directory, state_option
from bench.micro.hop import median_ratio
from bench.micro.progress import steps_shown
from bench.micro.traffic import WANTED, Traffic, TrafficProcesses, all_matching, not_matching
from padres_tx import launcher
from padres_tx.client.asyncio.channel import parse_address
from topologies import generators
from topologies.model import MAX_BROKERS

#: Rounds of throughput, and of latency.
ROUNDS: Final = 15
LATENCY_ROUNDS: Final = 5

#: The rate at which latency is measured: well below the goal, so that every process is idle most of
#: the time and no queues are measured.
RATE_PER_S: Final = 1000.0

#: The most publications in a round of latency: two seconds.
PACED: Final = 2000

#: Publications before the first round, to fill caches and warm up the adaptive interpreter.
WARM_UP: Final = 2000

#: Publications per second on two quiet cores: twice the tuned Java original.
MIN_PER_S: Final = 14_000
#: The least share of the throughput that is left with a full table.
MIN_SHARE: Final = 0.8
#: The least share of the throughput in memory that brokers on disk have.
MIN_DISK_SHARE: Final = 0.7

PUBLISHER, SUBSCRIBER, OTHER = "publisher", "subscriber", "other"


@dataclass(frozen=True)
class ChainRow:
    """The output of `--json`."""

    brokers: int
    subscriptions: int
    matching: bool
    publications: int
    publications_per_s: int
    relay_publications_per_s: int
    disk_publications_per_s: int
    disk_share: float
    #: Of an overlay without the additional subscriptions, in the same run; None if there are none.
    bare_publications_per_s: int | None
    share: float | None
    latency_us_p50: float
    latency_us_p99: float
    relay_latency_us_p50: float
    relay_latency_us_p99: float
    disk_latency_us_p50: float
    disk_latency_us_p99: float
    latency_rate_per_s: float
    #: The file system of the brokers on disk.
    file_system: str
    #: CPU time per publication of each broker, first to last, when saturated; empty on systems
    #: where it cannot be read.
    cpu_us: list[float]


class MeasuredChain:
    """A chain of processes, with its throughputs and latencies."""

    def __init__(self, traffic: Traffic, pids: list[int]) -> None:
        self._traffic = traffic
        self._pids = pids if sys.platform == "linux" else []
        self.per_s: list[float] = []
        self.latencies_us: list[float] = []
        self.cpu_us: list[float] = []

    @property
    def best_per_s(self) -> float:
        return max(self.per_s)

    def warm_up(self) -> None:
        self._traffic.run(WARM_UP)

    def saturate(self, publications: int) -> None:
        before = [cpu_s(pid) for pid in self._pids]
        per_s = self._traffic.run(publications).publications_per_s
        self.per_s.append(per_s)
        if per_s == self.best_per_s:
            self.cpu_us = [
                (cpu_s(pid) - cpu_before_s) * 1e6 / publications
                for pid, cpu_before_s in zip(self._pids, before, strict=True)
            ]

    def pace(self, publications: int) -> None:
        self.latencies_us += self._traffic.run(publications, RATE_PER_S).latencies_us


def percentile(values: list[float], percent: int) -> float:
    """The value of the nearest rank."""
    return sorted(values)[(len(values) * percent + 99) // 100 - 1]


def measure(
    *,
    brokers: int,
    publications: int,
    subscriptions: int = 0,
    matching: bool = False,
    rounds: int = ROUNDS,
    latency_rounds: int = LATENCY_ROUNDS,
    state: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> ChainRow:
    """Measure the chains; each round sends `publications`, and `progress` is called with each step.

    The state of brokers on disk is kept below `state` meanwhile.

    Raises LaunchError if the overlay does not come up; ChildFailed if a process fails, or a
    publication is lost, duplicated or reordered; CannotMeasure if there is no disk for the state.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="padres-tx-")))
        processes = TrafficProcesses(stack, directory)
        progress("starting processes")
        disk = state_directory(stack, state)
        kind = file_system(disk)
        chains = {
            "brokers": _overlay(processes, stack, brokers, subscriptions, matching=matching),
            "brokers on disk": _overlay(
                processes, stack, brokers, subscriptions, matching=matching, disk=disk
            ),
        }
        if subscriptions:
            chains["brokers, bare"] = _overlay(processes, stack, brokers, 0, matching=False)
        chains["relays"] = _relays(processes, brokers)
        for chain in chains.values():
            chain.warm_up()
        for number in range(1, rounds + 1):
            for name, chain in chains.items():
                progress(f"throughput of {name}, round {number} of {rounds}")
                chain.saturate(publications)
        for number in range(1, latency_rounds + 1):
            for name in ("brokers", "brokers on disk", "relays"):
                progress(f"latency of {name}, round {number} of {latency_rounds}")
                chains[name].pace(min(publications, PACED))
    measured, relays, bare = chains["brokers"], chains["relays"], chains.get("brokers, bare")
    on_disk = chains["brokers on disk"]
    return ChainRow(
        brokers=brokers,
        subscriptions=subscriptions,
        matching=matching,
        publications=publications,
        publications_per_s=round(measured.best_per_s),
        relay_publications_per_s=round(relays.best_per_s),
        disk_publications_per_s=round(on_disk.best_per_s),
        disk_share=median_ratio(on_disk.per_s, measured.per_s, 2),
        bare_publications_per_s=None if bare is None else round(bare.best_per_s),
        share=None if bare is None else median_ratio(measured.per_s, bare.per_s, 2),
        latency_us_p50=round(percentile(measured.latencies_us, 50), 1),
        latency_us_p99=round(percentile(measured.latencies_us, 99), 1),
        relay_latency_us_p50=round(percentile(relays.latencies_us, 50), 1),
        relay_latency_us_p99=round(percentile(relays.latencies_us, 99), 1),
        disk_latency_us_p50=round(percentile(on_disk.latencies_us, 50), 1),
        disk_latency_us_p99=round(percentile(on_disk.latencies_us, 99), 1),
        latency_rate_per_s=RATE_PER_S,
        file_system=kind,
        cpu_us=[round(us, 2) for us in measured.cpu_us],
    )


def _overlay(
    processes: TrafficProcesses,
    stack: ExitStack,
    brokers: int,
    subscriptions: int,
    *,
    matching: bool,
    disk: Path | None = None,
) -> MeasuredChain:
    """A chain of brokers with a client at each end, and additional subscriptions.

    With `disk` the brokers keep their state there.
    """
    running = stack.enter_context(
        launcher.overlay(
            generators.chain(brokers, base_port=0),
            directory=disk,
            durability="memory" if disk is None else "disk",
        )
    )
    names = [broker.name for broker in running.topology.brokers]
    first, last = (parse_address(running.address(name)).port for name in (names[0], names[-1]))
    own = [WANTED, *all_matching(subscriptions)] if matching else [WANTED]
    ends = [
        processes.publisher("client", PUBLISHER, first),
        processes.subscriber("client", SUBSCRIBER, last, own),
    ]
    if subscriptions and not matching:
        ends.append(processes.subscriber("client", OTHER, last, not_matching(subscriptions)))
    for end in ends:
        end.ready()
    return MeasuredChain(Traffic(ends[0], ends[1]), [running.process(name).pid for name in names])


def _relays(processes: TrafficProcesses, count: int) -> MeasuredChain:
    relays = processes.relays(count)
    (_, first), (_, last) = relays[0], relays[-1]
    publisher = processes.publisher("frames", PUBLISHER, first)
    subscriber = processes.subscriber("frames", SUBSCRIBER, last, [])
    for end in (publisher, subscriber):
        end.ready()
    return MeasuredChain(Traffic(publisher, subscriber), [relay.pid for relay, _ in relays])


# --- the command ----------------------------------------------------------------------------


@click.command(
    epilog="""
\b
Examples:
  padres-tx bench chain --brokers 3
  padres-tx bench chain --brokers 3 --subscriptions 1000
  padres-tx bench chain --brokers 3 --subscriptions 1000 --matching --json
"""
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object and nothing else.")
@click.option("--brokers", type=click.IntRange(1, MAX_BROKERS), default=3, show_default=True)
@click.option(
    "--publications",
    type=click.IntRange(min=1),
    default=30_000,
    show_default=True,
    help="Publications in each round.",
)
@click.option(
    "--subscriptions",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Additional subscriptions in the brokers' tables.",
)
@click.option(
    "--matching",
    is_flag=True,
    help="Make all of them match and belong to the one subscriber; otherwise none matches.",
)
@state_option
def chain(
    *,
    as_json: bool,
    brokers: int,
    publications: int,
    subscriptions: int,
    matching: bool,
    state: Path | None,
) -> None:
    """Publications per second and latency end to end, beside a chain of bare relays.

    A second chain of brokers keeps its state on disk. Brokers, publisher and subscriber are
    processes. Exits with code 1 if a publication is lost, duplicated or reordered; the goals are
    only reported, since times depend on the machine.
    """
    if matching and not subscriptions:
        raise click.UsageError("--matching requires --subscriptions.")
    chains = 4 if subscriptions else 3
    with steps_shown(1 + ROUNDS * chains + LATENCY_ROUNDS * 3) as progress:
        row = measure(
            brokers=brokers,
            publications=publications,
            subscriptions=subscriptions,
            matching=matching,
            state=state,
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps(asdict(row), indent=2))
        return
    console = Console()
    console.print(table(row))
    judged = goals(row)
    for name, value, least in judged:
        console.print(f"{name}: {value:,.2f}, goal at least {least:,g}", highlight=False)
    holds = all(value >= least for _, value, least in judged)
    console.print("All goals hold." if holds else "Not all goals hold.")


def goals(row: ChainRow) -> list[tuple[str, float, float]]:
    """The goals: name, measured value, and the least value wanted."""
    found: list[tuple[str, float, float]] = [
        ("publications per second", row.publications_per_s, MIN_PER_S),
        ("share on disk of those in memory", row.disk_share, MIN_DISK_SHARE),
    ]
    if row.share is not None:
        found.append((f"share with {row.subscriptions:,} subscriptions", row.share, MIN_SHARE))
    return found


def table(row: ChainRow) -> Table:
    if row.subscriptions:
        which = "all matching" if row.matching else "none matching"
        tables = f"{row.subscriptions:,} other subscriptions, {which}"
    else:
        tables = "no other subscriptions"
    shown = Table(title=f"{row.brokers} in a row, {tables}", box=box.SIMPLE_HEAD)
    shown.add_column("through")
    for heading in ("publications/s", "latency µs, median", "99 %"):
        shown.add_column(heading, justify="right")
    shown.add_row(
        "brokers",
        f"{row.publications_per_s:,}",
        f"{row.latency_us_p50:,.0f}",
        f"{row.latency_us_p99:,.0f}",
    )
    shown.add_row(
        f"brokers on disk ({row.file_system})",
        f"{row.disk_publications_per_s:,}",
        f"{row.disk_latency_us_p50:,.0f}",
        f"{row.disk_latency_us_p99:,.0f}",
    )
    if row.bare_publications_per_s is not None:
        shown.add_row("brokers without these", f"{row.bare_publications_per_s:,}", "", "")
    shown.add_row(
        "bare relays",
        f"{row.relay_publications_per_s:,}",
        f"{row.relay_latency_us_p50:,.0f}",
        f"{row.relay_latency_us_p99:,.0f}",
    )
    if row.cpu_us:
        each = ", ".join(f"{us:.1f}" for us in row.cpu_us)
        shown.caption = f"CPU of each broker: {each} µs per publication"
    return shown
