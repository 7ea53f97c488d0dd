"""`padres-tx bench clients`: what many clients cost a broker, in memory and in speed.

Two broker processes run side by side, each with one publisher and one subscriber between which the
same traffic goes, in turn, round after round. One of them has a crowd of other clients besides
(`crowd`), all connected, with subscriptions in the advertised space that match no event. What the
crowd costs is told by the difference: resident memory when everybody has subscribed and the
traffic is over, throughput, and CPU time per publication. The best round of each counts, since
others share the machine. Tracing is off.
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
from bench.crowd import Crowd, TooFewDescriptors, allow_connections
from bench.hop import WARM_UP, lone_broker
from bench.progress import steps_shown
from bench.traffic import WANTED, Stage, Traffic
from padres_tx.cli.common import WrongInput

ROUNDS: Final = 7

#: Resident memory with the crowd.
MAX_RSS_MB: Final = 300.0
#: What a crowd may leave of the throughput without it.
MIN_SHARE: Final = 0.8

PUBLISHER, SUBSCRIBER = "publisher", "subscriber"


@dataclass(frozen=True)
class Row:
    """What `--json` prints; `few_` is the broker without the crowd."""

    clients: int
    subscriptions: int
    rss_mb: float
    few_rss_mb: float
    publications_per_s: int
    few_publications_per_s: int
    cpu_us: float
    few_cpu_us: float
    #: Of CPU time: what one publication costs without the crowd, of what it costs with it.
    share: float


class Way:
    """A broker with its traffic, and the best that it could do."""

    def __init__(self, broker: Child, traffic: Traffic) -> None:
        self.broker = broker
        self.traffic = traffic
        self.best_per_s = 0.0
        self.best_us = float("inf")

    def run(self, publications: int) -> None:
        before_s = cpu_s(self.broker.pid)
        per_s = self.traffic.run(publications).publications_per_s
        self.best_per_s = max(self.best_per_s, per_s)
        used_us = (cpu_s(self.broker.pid) - before_s) * 1e6 / publications
        self.best_us = min(self.best_us, used_us)


def measure(
    *,
    clients: int,
    subscriptions: int,
    publications: int,
    rounds: int = ROUNDS,
    progress: Callable[[str], None] = lambda _: None,
) -> Row:
    """Run both brokers; each round is so many publications, and `progress` is told what is next.

    Raises WrongInput where a process may not have so many connections, or CPU times cannot be read;
    CheckFailed if a process fails, or a publication is lost, doubled or reordered.
    """
    require_cpu_clock()
    try:
        allow_connections(clients)  # For the children too: they inherit the limit.
    except TooFewDescriptors as error:
        raise WrongInput(str(error)) from None
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="padres-tx-")))
        stage = Stage(stack, directory)
        progress("starting processes")
        ways = {}
        for name in ("many", "few"):
            broker = lone_broker(stage, directory, name, [])
            port = int(broker.ready())
            publisher = stage.publisher("client", PUBLISHER, port)
            publisher.ready()
            subscriber = stage.subscriber("client", SUBSCRIBER, port, [WANTED])
            subscriber.ready()
            ways[name] = Way(broker, Traffic(publisher, subscriber))
            if name == "many":
                progress(f"connecting {clients:,} clients")
                crowd = stage.start("crowd", "bench.crowd")
                crowd.tell(msgspec.json.encode(Crowd(port, clients, subscriptions)))
                crowd.ready()
        for way in ways.values():
            way.traffic.run(WARM_UP)
        for number in range(1, rounds + 1):
            for name, way in ways.items():
                progress(f"{name} clients, round {number} of {rounds}")
                way.run(publications)
        many, few = ways["many"], ways["few"]
        return Row(
            clients=clients,
            subscriptions=subscriptions,
            rss_mb=round(rss_mb(many.broker.pid), 1),
            few_rss_mb=round(rss_mb(few.broker.pid), 1),
            publications_per_s=round(many.best_per_s),
            few_publications_per_s=round(few.best_per_s),
            cpu_us=round(many.best_us, 3),
            few_cpu_us=round(few.best_us, 3),
            share=round(few.best_us / many.best_us, 3),
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
    default=20_000,
    show_default=True,
    help="How many go through each broker in each round.",
)
def clients(*, as_json: bool, clients: int, subscriptions: int, publications: int) -> None:
    """A broker with thousands of clients beside one with two: memory, and what it still can do.

    Ends with exit code 1 if a publication is lost, doubled or reordered; whether the goals hold is
    only said, for times depend on the machine.
    """
    with steps_shown(2 + 2 * ROUNDS) as progress:
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
    holds = row.rss_mb <= MAX_RSS_MB and row.share >= MIN_SHARE
    console.print(
        f"goals: at most {MAX_RSS_MB:g} MB, and at least {MIN_SHARE:g} of the speed "
        f"(it is {row.share:.2f})",
        highlight=False,
    )
    console.print("The goals hold." if holds else "Not all goals hold.")


def table(row: Row) -> Table:
    shown = Table(title="One broker, with many clients and with two", box=box.SIMPLE_HEAD)
    for heading in ("clients", "subscriptions", "MB", "publications/s", "CPU µs each"):
        shown.add_column(heading, justify="right")
    for number, held, size, per_s, us in (
        (row.clients + 2, row.subscriptions + 1, row.rss_mb, row.publications_per_s, row.cpu_us),
        (2, 1, row.few_rss_mb, row.few_publications_per_s, row.few_cpu_us),
    ):
        shown.add_row(f"{number:,}", f"{held:,}", f"{size:.0f}", f"{per_s:,}", f"{us:.2f}")
    return shown
