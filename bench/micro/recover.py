"""`padres-tx bench recover`: how long a broker takes to be back, and what snapshots stop meanwhile.

*Replay.* A broker's inputs are recorded in the simulator, for each kind of load: publications,
plain operations, and the dispatching transaction with each engine. They are put into a log, and a
fresh node replays it, in this process. `growth` compares the last fifth of a log with the second
one, so that a replay whose cost grows with its length is noticed; after each transaction the tables
are as before.

*Recovery.* A broker process on disk has many subscriptions. Publications come at a moderate rate
until it has taken some snapshots; a broker in memory with the same tables has the same traffic in
turn. The longest latency is the longest pause. Then the broker is killed, and started with its
state: it thaws its snapshot and replays what came after that (`recovery_s`). It is stopped and
started once more, with nothing to replay (`thaw_s`).
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from bench.children import Child, require_cpu_clock
from bench.micro.chain import percentile
from bench.micro.disk import state_directory, state_option
from bench.micro.hop import lone_broker
from bench.micro.idle_clients import IdleClients
from bench.micro.path import X1, Dispatch, engines
from bench.micro.progress import steps_shown
from bench.micro.traffic import WANTED, Traffic, TrafficProcesses
from overlay.broker.core import Broker, Taken
from overlay.effects import Effect, Forward, Send
from overlay.log.memory_log import MemoryLog
from overlay.messages import AnyMessage, Hop, Kind, Operation, Pub, is_client
from overlay.node.inputs import Batch, Input, Opened, Took, Trimmed, Woke, encode_batch
from overlay.node.node import Node, plain_end
from overlay.node.recovery import recover
from overlay.wire.frames import pack
from padres_tx import registry
from topologies import load

#: Messages to the broker in each log, about.
MESSAGES: Final = 10_000

#: Thawing comes on top.
MAX_REPLAY_S: Final = 2.0
MAX_GROWTH: Final = 1.5

#: Publications that come together, as much as with a small read.
RUN: Final = 100

#: How often clients acknowledge what they have.
HINT_EVERY: Final = 100

#: For the pauses: a rate at which the broker is idle most of the time, and a round of it.
RATE_PER_S: Final = 4000.0
PACED: Final = 8000

#: Rounds until a broker must have taken enough snapshots.
ROUNDS: Final = 30
SNAPSHOTS: Final = 2

#: Publications before a broker is killed: more work than between two snapshots.
LAST: Final = 100_000

#: So many that each has subscribed before the others are taken for dead.
IDLE_CLIENTS: Final = 40


@dataclass(frozen=True)
class ReplayRow:
    """One kind of load; CPU microseconds per message, over the whole log."""

    kind: str
    messages: int
    us: float
    #: The last fifth relative to the second.
    growth: float


@dataclass(frozen=True)
class RecoveryRow:
    """A broker with many subscriptions."""

    subscriptions: int
    snapshots: int
    pause_ms: float
    memory_pause_ms: float
    latency_ms_p99: float
    memory_latency_ms_p99: float
    recovery_s: float
    replayed: int
    thaw_s: float


# --- replay ---------------------------------------------------------------------------------


class RecordedCore(Broker):
    """A core that writes down its inputs, with their times, and how much it sends to whom."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.inputs: list[tuple[float, Input]] = []
        self.messages = 0
        self._sent: Counter[Hop] = Counter()
        self._opened: set[Hop] = set()

    def take(
        self, source: Hop, messages: Sequence[AnyMessage], now: float, start: int = 0
    ) -> Taken:
        if source not in self._opened:
            self._opened.add(source)
            self.inputs.append((now, Opened(source, "here", "there", False)))
        taken = super().take(source, messages, now, start)
        frames = [pack(message) for message in messages[start : start + taken.consumed]]
        self.inputs.append((now, Took(source, "here", b"".join(frames))))
        before, self.messages = self.messages, self.messages + len(frames)
        self._note(taken.effects)
        if before // HINT_EVERY != self.messages // HINT_EVERY:
            hints = [
                (str(hop), "here", "there", sent)
                for hop, sent in sorted(self._sent.items())
                if hop in self._opened
            ]
            self.inputs.append((now, Trimmed(hints)))
        return taken

    def wake(self, key: str, now: float) -> list[Effect]:
        self.inputs.append((now, Woke(key, now)))
        effects = super().wake(key, now)
        self._note(effects)
        return effects

    def _note(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Forward | Send):
                number = effect.count if isinstance(effect, Forward) else 1
                for hop in filter(is_client, effect.hops):
                    self._sent[hop] += number


def recorded(kind: str, messages: int) -> RecordedCore:
    """The core of a lone broker with so many messages of one kind of load, about."""
    dispatch = Dispatch(load("one"), kind if kind in engines() else "s-tx", core=RecordedCore)
    [core] = dispatch.sim.brokers.values()
    assert isinstance(core, RecordedCore)
    steps = {"publications": _publish, "operations": _operate}.get(kind, _transact)(dispatch)
    while core.messages < messages:
        next(steps)
        dispatch.sim.run(until=dispatch.sim.now + 1.0)
    return core


def _publish(dispatch: Dispatch) -> Iterator[None]:
    life = dispatch.lives["E"]
    while True:
        for number in (next(dispatch.numbers) for _ in range(RUN)):
            point: dict[str, Any] = {"class": "p1", "x": "x1", "n": number}
            dispatch.sim.send("E", Pub("E", number, point, bytes(64), life=life))
        yield


def _operate(dispatch: Dispatch) -> Iterator[None]:
    while True:
        _swap(dispatch)
        _swap(dispatch, back=True)
        yield


def _transact(dispatch: Dispatch) -> Iterator[None]:
    while True:
        dispatch.run()
        _swap(dispatch, back=True)
        yield


def _swap(dispatch: Dispatch, *, back: bool = False) -> None:
    """Let A1 have X1 instead of D, by plain operations, or the other way round."""
    changes: tuple[tuple[str, Kind], ...]
    changes = (("A1", "usub"), ("D", "sub")) if back else (("A1", "sub"), ("D", "usub"))
    for client, kind in changes:
        number = next(dispatch.numbers)
        operation = Operation(number, kind, client, number, X1)
        dispatch.sim.send(client, operation)


def log_of(core: RecordedCore) -> MemoryLog:
    """A log with a core's inputs, one in each batch, as if none came while another was synced."""
    log = MemoryLog("birth", keep=True)
    for now, input in core.inputs:
        log.append(log.last, encode_batch(Batch(now, [input])), lambda outcome: None)
    return log


def replayed(kind: str, messages: int = MESSAGES) -> ReplayRow:
    """Replay a log of one kind of load."""
    core = recorded(kind, messages)
    log = log_of(core)
    fresh = Broker(core.name, [], engines=registry.broker_factories())
    times = [time.process_time()]
    fifth = log.last // 5

    def passed(position: int) -> None:
        if position % fifth == 0:
            times.append(time.process_time())

    node = Node(fresh, [], plain_end)
    recover(node, log, progress=passed)
    kept = {hop: end.link.handed_over for hop, end in node.ends.items()}
    assert sum(kept.values()) == core.messages, "not all was replayed"
    spans = [after - before for before, after in pairwise(times)]
    us = (time.process_time() - times[0]) * 1e6 / core.messages
    return ReplayRow(kind, core.messages, round(us, 1), round(spans[4] / spans[1], 2))


def kinds() -> list[str]:
    """The kinds of load."""
    return ["publications", "operations", *engines()]


# --- recovery -------------------------------------------------------------------------------


class LoadedBroker:
    """A broker process with many subscriptions, and traffic through it."""

    def __init__(
        self,
        processes: TrafficProcesses,
        directory: Path,
        name: str,
        subscriptions: int,
        state: Path | None,
    ) -> None:
        self.process = lone_broker(processes, directory, name, [], state)
        self._log = directory / f"{name}.log"
        port = int(self.process.ready())
        publisher = processes.publisher("client", "publisher", port)
        publisher.ready()
        subscriber = processes.subscriber("client", "subscriber", port, [WANTED])
        subscriber.ready()
        self.traffic = Traffic(publisher, subscriber)
        idle = processes.start(f"idle-{name}", "bench.micro.idle_clients")
        idle.tell(msgspec.json.encode(IdleClients(port, IDLE_CLIENTS, subscriptions)))
        self._idle = idle
        self.latencies_us: list[float] = []

    def wait(self) -> None:
        """Wait until all are subscribed, however long that takes."""
        self._idle.answer()

    def pace(self) -> None:
        self.latencies_us += self.traffic.run(PACED, RATE_PER_S).latencies_us

    def events(self, name: str) -> list[dict[str, Any]]:
        """What the broker has logged under this name."""
        return events_in(self._log, name)

    @property
    def pause_ms(self) -> float:
        return round(max(self.latencies_us) / 1000, 1)

    @property
    def latency_ms_p99(self) -> float:
        return round(percentile(self.latencies_us, 99) / 1000, 2)


def events_in(log: Path, name: str) -> list[dict[str, Any]]:
    """The lines of a broker's log about one kind of event."""
    lines = (line for line in log.read_text().splitlines() if line.startswith("{"))
    return [event for event in map(json.loads, lines) if event["event"] == name]


def measure(
    *,
    subscriptions: int,
    state: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> RecoveryRow:
    """Measure pauses and recovery of a broker with so many subscriptions.

    Raises ChildFailed if a process fails, or a publication is lost; CannotMeasure where CPU times
    cannot be read, or if there is no disk for the state.
    """
    require_cpu_clock()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="padres-tx-")))
        disk = state_directory(stack, state)
        processes = TrafficProcesses(stack, directory)
        progress(f"{subscriptions:,} subscriptions at two brokers")
        on_disk = LoadedBroker(processes, directory, "disk", subscriptions, disk)
        in_memory = LoadedBroker(processes, directory, "memory", subscriptions, None)
        for broker in (on_disk, in_memory):
            broker.wait()
        before = len(on_disk.events("snapshot"))
        snapshots = 0
        for number in range(1, ROUNDS + 1):
            progress(f"pauses, round {number} of at most {ROUNDS}")
            for broker in (on_disk, in_memory):
                broker.pace()
            snapshots = len(on_disk.events("snapshot")) - before
            if snapshots >= SNAPSHOTS:
                break
        progress("recovery")
        on_disk.traffic.run(LAST)
        os.kill(on_disk.process.pid, signal.SIGKILL)
        on_disk.process.stop()
        recovered = [_started_again(processes, directory, disk) for _ in range(2)]
    return RecoveryRow(
        subscriptions=subscriptions,
        snapshots=snapshots,
        pause_ms=on_disk.pause_ms,
        memory_pause_ms=in_memory.pause_ms,
        latency_ms_p99=on_disk.latency_ms_p99,
        memory_latency_ms_p99=in_memory.latency_ms_p99,
        recovery_s=recovered[0]["seconds"],
        replayed=recovered[0]["replayed"],
        thaw_s=recovered[1]["seconds"],
    )


def _started_again(processes: TrafficProcesses, directory: Path, disk: Path) -> dict[str, Any]:
    """Start the broker on disk once more, and stop it cleanly; what it says of its recovery."""
    broker: Child = lone_broker(processes, directory, "disk", [], disk)
    broker.ready()
    broker.terminate()
    return events_in(directory / "disk.log", "recovered")[-1]


# --- the command ----------------------------------------------------------------------------


@click.command(
    "recover",
    epilog="""
\b
Examples:
  padres-tx bench recover
  padres-tx bench recover --subscriptions 0 --messages 50000
""",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object and nothing else.")
@click.option(
    "--messages",
    type=click.IntRange(min=500),
    default=MESSAGES,
    show_default=True,
    help="Messages in each log that is replayed.",
)
@click.option(
    "--subscriptions",
    type=click.IntRange(min=0),
    default=100_000,
    show_default=True,
    help="Subscriptions of the broker that is killed; with 0 none is.",
)
@state_option
def recover_command(
    *, as_json: bool, messages: int, subscriptions: int, state: Path | None
) -> None:
    """How long a broker on disk takes to be back, and how long a snapshot stops it.

    The goals are only reported, since times depend on the machine.
    """
    with steps_shown(len(kinds()) + (ROUNDS + 2 if subscriptions else 0)) as progress:
        rows = []
        for kind in kinds():
            progress(f"replay of {kind}")
            rows.append(replayed(kind, messages))
        killed = None
        if subscriptions:
            killed = measure(subscriptions=subscriptions, state=state, progress=progress)
    if as_json:
        whole = {
            "replay": [asdict(row) for row in rows],
            "recovery": None if killed is None else asdict(killed),
        }
        click.echo(json.dumps(whole, indent=2))
        return
    console = Console()
    console.print(replay_table(rows))
    if killed is not None:
        console.print(recovery_table(killed))


def replay_table(rows: list[ReplayRow]) -> Table:
    shown = Table(title="Replay, CPU per message", box=box.SIMPLE_HEAD)
    shown.add_column("kind")
    for heading in ("messages", "µs", "last fifth / second", "goal"):
        shown.add_column(heading, justify="right")
    for row in rows:
        cells = (f"{row.messages:,}", f"{row.us:.1f}", f"{row.growth:.2f}")
        shown.add_row(row.kind, *cells, f"at most {MAX_GROWTH:g}")
    return shown


def recovery_table(row: RecoveryRow) -> Table:
    shown = Table(title=f"A broker with {row.subscriptions:,} subscriptions", box=box.SIMPLE_HEAD)
    shown.add_column("")
    for heading in ("on disk", "in memory"):
        shown.add_column(heading, justify="right")
    pauses = (f"{row.pause_ms:.1f} ms", f"{row.memory_pause_ms:.1f} ms")
    shown.add_row(f"longest latency, {row.snapshots} snapshots", *pauses)
    p99 = (f"{row.latency_ms_p99:.2f} ms", f"{row.memory_latency_ms_p99:.2f} ms")
    shown.add_row("latency, 99 %", *p99)
    shown.add_row(f"kill -9: thaw, {row.replayed:,} inputs", f"{row.recovery_s:.2f} s", "")
    shown.add_row("clean stop: thaw", f"{row.thaw_s:.2f} s", "")
    shown.caption = f"goal: at most {MAX_REPLAY_S:g} s longer after kill -9"
    return shown
