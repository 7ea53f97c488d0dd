"""`padres-tx bench clients`: the cost of many clients to a broker, in memory and speed.

Three broker processes run side by side, each with one publisher and one subscriber and the same
traffic between them, in turn, round after round. One also has many idle clients (`idle_clients`),
all connected, with subscriptions in the advertised space that match no event; one has the same
subscriptions, all from one client; one has no other clients. So the cost of the idle clients is
measured in two parts: their connections, and their subscriptions, which have to be searched.
Throughput and CPU time per publication are of each broker's best round. A share is the median over
rounds of the ratio of the CPU times of two brokers in rounds right after each other, since the
speed of a shared machine changes. Memory is read after the traffic. Tracing is off.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from bench.children import Child, cpu_s, require_cpu_clock, rss_mb
from bench.micro.hop import WARM_UP, lone_broker, median_ratio
from bench.micro.idle_clients import IdleClients, allow_connections
from bench.micro.progress import steps_shown
from bench.micro.traffic import WANTED, Traffic, TrafficProcesses

ROUNDS: Final = 15

#: In each round; enough that the heartbeats of thousands of clients, which come in bursts, weigh as
#: much as they do in the long run.
PUBLICATIONS: Final = 60_000

#: Resident memory with the idle clients.
MAX_RSS_MB: Final = 300.0
#: The least share of the speed of a broker with no other clients, and of one with the same
#: subscriptions.
MIN_SHARE: Final = 0.8
MIN_SAME_TABLE_SHARE: Final = 0.9

PUBLISHER, SUBSCRIBER = "publisher", "subscriber"


@dataclass(frozen=True)
class ClientsRow:
    """The output of `--json`. `same_table_` is the broker where one client has the subscriptions of
    all idle clients, `few_` the one with only publisher and subscriber."""

    clients: int
    subscriptions: int
    rss_mb: float
    same_table_rss_mb: float
    few_rss_mb: float
    publications_per_s: int
    same_table_publications_per_s: int
    few_publications_per_s: int
    cpu_us: float
    same_table_cpu_us: float
    few_cpu_us: float
    #: CPU time of a publication at that broker, divided by its CPU time with the idle clients.
    same_table_share: float
    share: float


class MeasuredBroker:
    """A broker with its traffic, and the results of each round."""

    def __init__(self, broker: Child, traffic: Traffic) -> None:
        self.broker = broker
        self.traffic = traffic
        self.per_s: list[float] = []
        self.us: list[float] = []

    def run(self, publications: int) -> None:
        before_s = cpu_s(self.broker.pid)
        self.per_s.append(self.traffic.run(publications).publications_per_s)
        self.us.append((cpu_s(self.broker.pid) - before_s) * 1e6 / publications)


def measure(
    *,
    clients: int,
    subscriptions: int,
    publications: int,
    rounds: int = ROUNDS,
    progress: Callable[[str], None] = lambda _: None,
) -> ClientsRow:
    """Measure the brokers; each round sends `publications`, `progress` is called with each step.

    Raises CannotMeasure if a process may not have so many connections, or CPU times cannot be read;
    ChildFailed if a process fails, or a publication is lost, duplicated or reordered.
    """
    require_cpu_clock()
    allow_connections(clients)  # For the children too: they inherit the limit.
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="padres-tx-")))
        processes = TrafficProcesses(stack, directory)
        progress("starting processes")
        brokers = {}
        for name, others in (("many", clients), ("same-table", 1), ("few", 0)):
            broker = lone_broker(processes, directory, name, [])
            port = int(broker.ready())
            publisher = processes.publisher("client", PUBLISHER, port)
            publisher.ready()
            subscriber = processes.subscriber("client", SUBSCRIBER, port, [WANTED])
            subscriber.ready()
            brokers[name] = MeasuredBroker(broker, Traffic(publisher, subscriber))
            if others:
                progress(f"connecting {others:,} clients")
                idle = processes.start(f"idle-{others}", "bench.micro.idle_clients")
                idle.tell(msgspec.json.encode(IdleClients(port, others, subscriptions)))
                idle.ready()
        for each in brokers.values():
            each.traffic.run(WARM_UP)
        for number in range(1, rounds + 1):
            for name, each in brokers.items():
                progress(f"{name}, round {number} of {rounds}")
                each.run(publications)
        many, same, few = brokers["many"], brokers["same-table"], brokers["few"]
        return ClientsRow(
            clients=clients,
            subscriptions=subscriptions,
            rss_mb=round(rss_mb(many.broker.pid), 1),
            same_table_rss_mb=round(rss_mb(same.broker.pid), 1),
            few_rss_mb=round(rss_mb(few.broker.pid), 1),
            publications_per_s=round(max(many.per_s)),
            same_table_publications_per_s=round(max(same.per_s)),
            few_publications_per_s=round(max(few.per_s)),
            cpu_us=round(min(many.us), 3),
            same_table_cpu_us=round(min(same.us), 3),
            few_cpu_us=round(min(few.us), 3),
            same_table_share=median_ratio(same.us, many.us, 3),
            share=median_ratio(few.us, many.us, 3),
        )


# --- the command ----------------------------------------------------------------------------


@click.command(
    epilog="""
\b
Examples:
  padres-tx bench clients
  padres-tx bench clients --clients 500 --subscriptions 2000 --json
"""
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object and nothing else.")
@click.option(
    "--clients",
    type=click.IntRange(min=1),
    default=2000,
    show_default=True,
    help="Idle clients besides publisher and subscriber.",
)
@click.option(
    "--subscriptions",
    type=click.IntRange(min=0),
    default=10_000,
    show_default=True,
    help="Subscriptions of all idle clients together.",
)
@click.option(
    "--publications",
    type=click.IntRange(min=1),
    default=PUBLICATIONS,
    show_default=True,
    help="Publications through each broker in each round.",
)
def clients(*, as_json: bool, clients: int, subscriptions: int, publications: int) -> None:
    """Memory and speed of a broker with thousands of clients, beside two others.

    One has the same subscriptions from one client, the other only publisher and subscriber.

    Exits with code 1 if a publication is lost, duplicated or reordered; the goals are only
    reported, since times depend on the machine.
    """
    with steps_shown(3 + 3 * ROUNDS) as progress:
        row = measure(
            clients=clients,
            subscriptions=subscriptions,
            publications=publications,
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps(asdict(row), indent=2))
        return
    console = Console()
    console.print(table(row))
    holds = (
        row.rss_mb <= MAX_RSS_MB
        and row.same_table_share >= MIN_SAME_TABLE_SHARE
        and row.share >= MIN_SHARE
    )
    console.print(
        f"goals: at most {MAX_RSS_MB:g} MB; at least {MIN_SAME_TABLE_SHARE:g} of the speed with "
        f"the same subscriptions from one client (now {row.same_table_share:.2f}), and "
        f"{MIN_SHARE:g} of that without other clients (now {row.share:.2f})",
        highlight=False,
    )
    console.print("The goals hold." if holds else "Not all goals hold.")


def table(row: ClientsRow) -> Table:
    shown = Table(title="One broker, with many clients and with few", box=box.SIMPLE_HEAD)
    for heading in ("clients", "subscriptions", "MB", "publications/s", "CPU µs each"):
        shown.add_column(heading, justify="right")
    for number, held, size, per_s, us in (
        (row.clients + 2, row.subscriptions + 1, row.rss_mb, row.publications_per_s, row.cpu_us),
        (
            3,
            row.subscriptions + 1,
            row.same_table_rss_mb,
            row.same_table_publications_per_s,
            row.same_table_cpu_us,
        ),
        (2, 1, row.few_rss_mb, row.few_publications_per_s, row.few_cpu_us),
    ):
        shown.add_row(f"{number:,}", f"{held:,}", f"{size:.0f}", f"{per_s:,}", f"{us:.2f}")
    return shown
