"""`padres-tx bench clients`: what many clients cost a broker, in memory and in speed.

Three broker processes run side by side, each with one publisher and one subscriber between which
the same traffic goes, in turn, round after round. One has a crowd of other clients besides
(`crowd`), all connected, with subscriptions in the advertised space that match no event; one has
those subscriptions too, but all from one client; one has nobody else. So what the crowd costs is
told in two parts: what its connections cost, and what its subscriptions do, which have to be
searched. Throughput and CPU time per publication are of each broker's best round. A share is the
median over rounds of what one broker needs in a round, of what the other needs right after, since
the speed of a shared machine changes; memory is read when the traffic is over. Tracing is off.
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
from bench.micro.idle_clients import Crowd, allow_connections
from bench.micro.progress import steps_shown
from bench.micro.traffic import WANTED, Stage, Traffic

ROUNDS: Final = 15

#: In each round; so many that signs of life from thousands of clients, which come in gusts, weigh
#: as much as they do in the long run.
PUBLICATIONS: Final = 60_000

#: Resident memory with the crowd.
MAX_RSS_MB: Final = 300.0
#: What may be left of the speed: beside a broker with nobody else, and beside one with the same
#: subscriptions.
MIN_SHARE: Final = 0.8
MIN_SAME_TABLE_SHARE: Final = 0.9

PUBLISHER, SUBSCRIBER = "publisher", "subscriber"


@dataclass(frozen=True)
class Row:
    """What `--json` prints. `same_table_` is the broker where one client has all subscriptions of
    the crowd, `few_` the one with nobody but publisher and subscriber."""

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
    #: Of CPU time: what one publication costs there, of what it costs with the crowd.
    same_table_share: float
    share: float


class Way:
    """A broker with its traffic, and how it did in each round."""

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
) -> Row:
    """Run the brokers; each round is so many publications, and `progress` is told what is next.

    Raises CannotMeasure if a process may not have so many connections, or CPU times cannot be read;
    ChildFailed if a process fails, or a publication is lost, doubled or reordered.
    """
    require_cpu_clock()
    allow_connections(clients)  # For the children too: they inherit the limit.
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="padres-tx-")))
        stage = Stage(stack, directory)
        progress("starting processes")
        ways = {}
        for name, others in (("many", clients), ("same-table", 1), ("few", 0)):
            broker = lone_broker(stage, directory, name, [])
            port = int(broker.ready())
            publisher = stage.publisher("client", PUBLISHER, port)
            publisher.ready()
            subscriber = stage.subscriber("client", SUBSCRIBER, port, [WANTED])
            subscriber.ready()
            ways[name] = Way(broker, Traffic(publisher, subscriber))
            if others:
                progress(f"connecting {others:,} clients")
                crowd = stage.start(f"crowd-{others}", "bench.micro.idle_clients")
                crowd.tell(msgspec.json.encode(Crowd(port, others, subscriptions)))
                crowd.ready()
        for way in ways.values():
            way.traffic.run(WARM_UP)
        for number in range(1, rounds + 1):
            for name, way in ways.items():
                progress(f"{name}, round {number} of {rounds}")
                way.run(publications)
        many, same, few = ways["many"], ways["same-table"], ways["few"]
        return Row(
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
    help="How many are connected besides publisher and subscriber.",
)
@click.option(
    "--subscriptions",
    type=click.IntRange(min=0),
    default=10_000,
    show_default=True,
    help="How many they hold in all.",
)
@click.option(
    "--publications",
    type=click.IntRange(min=1),
    default=PUBLICATIONS,
    show_default=True,
    help="How many go through each broker in each round.",
)
def clients(*, as_json: bool, clients: int, subscriptions: int, publications: int) -> None:
    """A broker with thousands of clients beside others: memory, and what it still can do.

    The others have the same subscriptions from one client, and nobody but publisher and subscriber.

    Ends with exit code 1 if a publication is lost, doubled or reordered; whether the goals hold is
    only said, for times depend on the machine.
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
        f"the same subscriptions of one client (it is {row.same_table_share:.2f}), and "
        f"{MIN_SHARE:g} of that with nobody else (it is {row.share:.2f})",
        highlight=False,
    )
    console.print("The goals hold." if holds else "Not all goals hold.")


def table(row: Row) -> Table:
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
