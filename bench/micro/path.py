"""`padres-tx bench path`: the number of sequential message delays of a transaction.

The dispatching transaction (Figure 1b) runs in the simulator, on links that all take one unit of
time, those of clients included; so the time from `beginTX` to the coordinator's result is exactly
the number of sequential delays. E, D and A1 are as far apart as the topology allows.

The lower bound (`least_delays`): the coordinator may learn of a commit only after every participant
whose consent it needs has been asked and has answered.

- Static: the plan has to reach the edge broker of the furthest participant, and an answer has to
  come back: 2 for E's own link, and twice the distance.
- Dynamic: only D and A1 know their own operations. E's tcm has to reach D, D's has to reach A1, and
  A1's operations have to become known at E: the links of the three clients are crossed six times,
  and the paths between their brokers once each, in a circle.

Brokers on disk send nothing before what it follows from is synced. `syncs` counts the syncs on the
critical path: the same transaction runs on links that take no time, and each broker takes one unit
for an append. What comes while an append is under way goes into the next one, as in
`overlay.node.journal`; clients sync nothing. So the time of the result is the number of sequential
syncs, those included that wait for the one before.

BL-WAIT is not in the table: it has no protocol to count, and waits as long as `calibrate` finds.

With `--measure` the same transaction runs over real broker processes whose links, those of clients
included, have an emulated delay; `measured_ratio` is the median latency, divided by the number of
delays times that delay. The excess over 1 is processing time.

It runs as well over links without delay, in memory and on disk, and in turn with appends to a log
on the same disk (`sync_ms`). `disk_ratio` is the median latency on disk, divided by the number of
syncs times that of one append. The excess over 1 is processing time (`memory_ms`), and that brokers
share the disk.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import click
import networkx as nx
from rich.console import Console
from rich.table import Table

import padres_tx
from bench.micro.disk import Syncs, file_system, state_directory, state_option
from overlay.broker.core import Broker
from overlay.filters import Filter
from overlay.hosts.simulator import DELAY_STEP_S, SAME_MOMENT_S, Arrival, Simulator
from overlay.messages import (
    AnyMessage,
    Done,
    EngineMessage,
    Hop,
    Join,
    Kind,
    Operation,
    Pub,
    is_client,
)
from padres_tx import launcher, registry
from padres_tx.client_messages import (
    Begin,
    Commit,
    Ended,
    Finish,
    Operate,
    Step,
    Submit,
    Tcm,
    engine_message,
    from_client,
    to_client,
)
from padres_tx.examples import dispatching
from padres_tx.scenarios.placement import spread
from topologies import Topology, TopologyError, load

#: The goal for the delays of D-TX, relative to those of S-TX.
MAX_OVER_STATIC: Final = 3.0

DELAY_MS: Final = 5.0
TRANSACTIONS: Final = 20

#: How often transactions in memory, on disk, and appends alone take turns.
DISK_ROUNDS: Final = 3

ALL = Filter({"class": "p1"})
X1 = Filter({"class": "p1", "x": "x1"})
FIRST: dict[str, Any] = {"class": "p1", "x": "x1", "n": 0}
ASSIGN: dict[str, Any] = {"class": "assign", "to": "A1", "x": "x1"}
EVENT: dict[str, Any] = {"class": "p1", "x": "x1", "n": 1}


@dataclass
class PathRow:
    """The output of `--json`."""

    engine: str
    topology: str
    delays: int
    least_delays: int
    messages: int
    #: To the last delivery of the transaction's publication.
    delivery_delays: int
    #: Syncs one after the other, if brokers keep their state on disk.
    syncs: int = 0
    measured_ratio: float | None = None
    memory_ms: float | None = None
    disk_ms: float | None = None
    sync_ms: float | None = None
    disk_ratio: float | None = None


class SyncedArrivals:
    """When brokers on disk have what was sent to them, if nothing but syncs takes time."""

    def __init__(self) -> None:
        #: When the last append of each broker began, or will begin.
        self._appends: dict[Hop, float] = {}

    def __call__(self, dest: Hop, now: float) -> float:
        if is_client(dest):
            return now
        last = self._appends.get(dest)
        if last is None or last + DELAY_STEP_S <= now + SAME_MOMENT_S:
            begins = now
        elif now <= last:
            begins = last  # It goes along.
        else:
            begins = last + DELAY_STEP_S
        self._appends[dest] = begins
        return begins + DELAY_STEP_S


class Dispatch:
    """One dispatching transaction in the simulator, on links of unit delay."""

    def __init__(
        self,
        topology: Topology,
        engine: str,
        places: Sequence[str] | None = None,
        arrival: Arrival | None = None,
        core: type[Broker] = Broker,
    ) -> None:
        self.engine = engine
        self.numbers = count(1)
        #: The life of each client, as its broker has issued it.
        self.lives: dict[str, int] = {}
        self.ended_at = self.delivered_at = 0.0
        self.sim = Simulator(
            {broker.name: topology.neighbours(broker.name) for broker in topology.brokers},
            lambda n: 0,
            broker=lambda name, others: core(name, others, engines=registry.broker_factories()),
            arrival=arrival,
        )
        for client, at in zip(("E", "D", "A1"), places or spread(topology, 3), strict=True):
            self.sim.connect(client, at, self._receiver(client))
            self.sim.send(client, Join(next(self.numbers), client, ""))
            self.sim.run()
        held: tuple[tuple[str, Kind, Filter], ...] = (
            ("E", "adv", ALL),
            ("D", "adv", Filter({"class": "assign"})),
            ("D", "sub", ALL),
            ("A1", "sub", Filter({"class": "assign", "to": "A1"})),
        )
        for client, kind, filter in held:
            number = next(self.numbers)
            self.sim.send(client, Operation(number, kind, client, number, filter))
            self.sim.run()

    def run(self) -> tuple[int, int, int]:
        """Delays to the result, delays to the last delivery, and messages until then."""
        began, sent = self.sim.now, self.sim.steps
        tx = ("E", self.lives["E"], next(self.numbers))
        first, event = self._pub("tcm", "E", FIRST), self._pub("pub", "E", EVENT)
        if registry.load(self.engine).is_static:
            self._send("E", Submit(tx, 60.0, self._plan(first, event)))
        else:
            self._send("E", Begin(tx, 60.0))
            self._send("E", Operate(tx, 0, 0, first))
            self._send("E", Operate(tx, 0, 1, event))
            self._send("E", Commit(tx))
        self.sim.run(until=began + 1.0)
        assert self.ended_at and self.delivered_at, "the transaction was not committed"
        delays = round((self.ended_at - began) / DELAY_STEP_S)
        delivery = round((self.delivered_at - began) / DELAY_STEP_S)
        return delays, delivery, self.sim.steps - sent

    def _plan(self, first: Step, event: Step) -> tuple[Step, ...]:
        """The five operations of Figure 1b in their order."""
        assign = self._pub("tcm", "D", ASSIGN)
        return (
            Step("E", "tcm", None, first.point, b"", first.seq, receivers=("D",)),
            Step("D", "tcm", None, assign.point, b"", assign.seq, after=(0,), receivers=("A1",)),
            Step("A1", "sub", X1, after=(1,)),
            Step("D", "usub", X1, after=(2,)),
            Step("E", "pub", None, event.point, b"", event.seq, after=(3,)),
        )

    def _pub(self, kind: Any, client: str, point: dict[str, Any]) -> Step:
        return Step(client, kind, point=point, seq=next(self.numbers))

    def _send(self, client: str, message: Any) -> None:
        self.sim.send(client, engine_message(self.engine, from_client.encode(message)))

    def _receiver(self, client: str) -> Any:
        def receive(message: AnyMessage, now: float) -> list[AnyMessage]:
            if isinstance(message, Pub):
                self.delivered_at = now
            elif isinstance(message, Done):
                self.lives.setdefault(client, message.number)
            elif isinstance(message, EngineMessage):
                body = to_client.decode(message.body)
                if isinstance(body, Ended) and client == "E" and body.committed:
                    self.ended_at = now
                elif isinstance(body, Tcm):
                    return self._react(client, body)
            return []

        return receive

    def _react(self, client: str, tcm: Tcm) -> list[AnyMessage]:
        steps = [self._pub("tcm", "D", ASSIGN), Step("D", "usub", X1)]
        if client == "A1":
            steps = [Step("A1", "sub", X1)]
        sent: list[Any] = [Operate(tcm.tx, tcm.frame, n, step) for n, step in enumerate(steps)]
        sent.append(Finish(tcm.tx, tcm.frame))
        return [engine_message(self.engine, from_client.encode(message)) for message in sent]


def engines() -> list[str]:
    """The package's engines that have a protocol to count, those that promise least first."""
    found = [name for name in registry.by_promises(own=True) if registry.load(name).broker]
    return found[::-1]


def least_delays(topology: Topology, engine: str) -> int:
    """The fewest delays of any protocol; the module's docstring has the argument."""
    hops = dict(nx.all_pairs_shortest_path_length(topology.graph()))
    e, d, a1 = spread(topology, 3)
    if registry.load(engine).is_static:
        return 2 + 2 * int(max(hops[e][d], hops[e][a1]))
    return 6 + int(hops[e][d] + hops[d][a1] + hops[a1][e])


def counted(topology: Topology, engine: str) -> PathRow:
    """The row that the simulator counts."""
    delays, delivery, messages = Dispatch(topology, engine).run()
    least = least_delays(topology, engine)
    syncs, _, _ = Dispatch(topology, engine, arrival=SyncedArrivals()).run()
    return PathRow(engine, topology.name, delays, least, messages, delivery, syncs)


def measured(topology: Topology, rows: list[PathRow], transactions: int, delay_ms: float) -> None:
    """Fill in the ratios measured with real processes."""
    edges = [edge.model_copy(update={"delay_ms": delay_ms}) for edge in topology.edges]
    slow = topology.model_copy(update={"edges": tuple(edges), "client_delay_ms": delay_ms})
    with launcher.overlay(slow) as running:
        for row in rows:
            latencies = asyncio.run(_latencies_ms(running, topology, row.engine, transactions))
            row.measured_ratio = round(statistics.median(latencies) / (row.delays * delay_ms), 3)


def measured_on_disk(
    topology: Topology, rows: list[PathRow], transactions: int, state: Path | None
) -> str:
    """Fill in the latencies without delays, in memory and on disk; returns the file system.

    Raises CannotMeasure if there is no disk for the state.
    """
    with ExitStack() as stack:
        disk = state_directory(stack, state)
        overlays = {
            "memory": stack.enter_context(launcher.overlay(topology, durability="memory")),
            "disk": stack.enter_context(
                launcher.overlay(topology, directory=disk, durability="disk")
            ),
        }
        syncs = stack.enter_context(closing(Syncs(disk)))
        for row in rows:
            ms: dict[str, list[float]] = {name: [] for name in overlays}
            syncs.ms.clear()
            for _ in range(DISK_ROUNDS):
                for name, running in overlays.items():
                    ms[name] += asyncio.run(
                        _latencies_ms(running, topology, row.engine, transactions)
                    )
                syncs.append(transactions)
            row.memory_ms = round(statistics.median(ms["memory"]), 2)
            row.disk_ms = round(statistics.median(ms["disk"]), 2)
            row.sync_ms = round(statistics.median(syncs.ms), 3)
            row.disk_ratio = round(row.disk_ms / (row.syncs * row.sync_ms), 2)
        return file_system(disk)


async def _latencies_ms(
    running: launcher.Running, topology: Topology, engine: str, transactions: int
) -> list[float]:
    async with AsyncExitStack() as stack:
        e, d, a1 = [
            await stack.enter_async_context(padres_tx.connect(running.address(broker), name=name))
            for name, broker in zip(("E", "D", "A1"), spread(topology, 3), strict=True)
        ]
        await e.advertise(ALL)
        await d.advertise({"class": "assign"})
        await d.subscribe(ALL)
        await a1.subscribe({"class": "assign", "to": "A1"})
        d.on_tcm(ALL, dispatching.dispatch)
        a1.on_tcm({"class": "assign"}, dispatching.take_over)
        latencies = []
        for number in range(transactions):
            began = time.perf_counter()
            async with e.transaction(engine) as tx:
                dispatching.start(tx, f"x{number}")
            latencies.append((time.perf_counter() - began) * 1000)
        return latencies


@click.command(
    epilog="\b\nExamples:\n  padres-tx bench path\n  padres-tx bench path --topology nine --measure"
)
@click.option("--topology", default="three", show_default=True, help="A name or a file.")
@click.option("--measure/--no-measure", default=True, help="Also measure with real processes.")
@click.option("--transactions", default=TRANSACTIONS, show_default=True, type=click.IntRange(1))
@click.option("--delay-ms", default=DELAY_MS, show_default=True, type=click.FloatRange(0.1, 1000))
@state_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list and nothing else.")
def path(
    topology: str,
    measure: bool,
    transactions: int,
    delay_ms: float,
    state: Path | None,
    as_json: bool,
) -> None:
    """Count the message delays and syncs of the dispatching transaction, engine by engine."""
    try:
        tree = load(topology)
    except TopologyError as error:
        raise click.UsageError(str(error)) from None
    rows = [counted(tree, engine) for engine in engines()]
    if measure:
        measured(tree, rows, transactions, delay_ms)
        kind = measured_on_disk(tree, rows, transactions, state)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    console = Console()
    table = Table(title=f"sequential message delays: {tree.name}")
    for column in (
        "engine",
        "delays",
        "least",
        "to the delivery",
        "messages",
        "measured / counted",
    ):
        table.add_column(column, justify="left" if column == "engine" else "right")
    for row in rows:
        ratio = "" if row.measured_ratio is None else f"{row.measured_ratio:.2f}"
        cells = [row.delays, row.least_delays, row.delivery_delays, row.messages, ratio]
        table.add_row(row.engine, *map(str, cells))
    console.print(table)
    disk = Table(title="syncs one after the other, with brokers on disk")
    for column in ("engine", "syncs", "memory ms", "disk ms", "one sync ms", "disk / its syncs"):
        disk.add_column(column, justify="left" if column == "engine" else "right")
    for row in rows:
        times = [row.memory_ms, row.disk_ms, row.sync_ms, row.disk_ratio]
        shown = ["" if value is None else f"{value:.2f}" for value in times]
        disk.add_row(row.engine, str(row.syncs), *shown)
    if measure:
        disk.caption = f"state on disk: {kind}"
    console.print(disk)
    by_engine = {row.engine: row.delays for row in rows}
    over = by_engine["d-tx"] / by_engine["s-tx"]
    console.print(f"D-TX / S-TX: {over:.1f}, goal at most {MAX_OVER_STATIC:g}", highlight=False)
