"""`padres-tx bench start`: the time from starting an overlay until all its links are up.

Beside it, in turn: as many bare interpreters at once, which import what every broker needs,
Twisted's reactor and msgspec. The processes share the cores, so their CPU time decides, and nearly
all of that is importing; the ratio is of CPU times. The best round of each counts.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Final

import click
from rich.console import Console

from bench.children import cpu_s, require_cpu_clock
from padres_tx import launcher
from topologies import load

ROUNDS: Final = 3

#: For nine brokers on two quiet cores.
MAX_START_S: Final = 5.0

_BARE: Final = "import msgspec, twisted.internet.reactor"


@dataclass(frozen=True)
class StartRow:
    """The output of `--json`; CPU time is of all processes together."""

    topology: str
    brokers: int
    start_s: float
    bare_s: float
    cpu_s: float
    bare_cpu_s: float
    #: Of CPU times.
    ratio: float


def measure(topology: str, rounds: int = ROUNDS) -> StartRow:
    """Start the overlay and the bare interpreters in turn.

    Raises TopologyError, and LaunchError if the overlay does not come up; CannotMeasure where CPU
    times cannot be read.
    """
    require_cpu_clock()
    spec = load(topology)
    brokers = len(spec.brokers)
    started_s, bare_s, started_cpu_s, bare_cpu_s = [], [], [], []
    for _ in range(rounds):
        began = time.monotonic()
        with launcher.overlay(spec) as running:
            started_s.append(time.monotonic() - began)
            pids = [running.process(broker.name).pid for broker in spec.brokers]
            started_cpu_s.append(sum(map(cpu_s, pids)))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        children = [subprocess.Popen([sys.executable, "-P", "-c", _BARE]) for _ in range(brokers)]
        for child in children:
            child.wait()
        bare_s.append(time.monotonic() - began)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        bare_cpu_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return StartRow(
        topology=spec.name,
        brokers=brokers,
        start_s=round(min(started_s), 2),
        bare_s=round(min(bare_s), 2),
        cpu_s=round(min(started_cpu_s), 2),
        bare_cpu_s=round(min(bare_cpu_s), 2),
        ratio=round(min(started_cpu_s) / min(bare_cpu_s), 2),
    )


@click.command(
    epilog="""
\b
Examples:
  padres-tx bench start
  padres-tx bench start --topology five --json
"""
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object and nothing else.")
@click.option("--topology", default="nine", show_default=True, help="A name or a file.")
def start(*, as_json: bool, topology: str) -> None:
    """Seconds until all links of an overlay are up, beside bare interpreters."""
    row = measure(topology)
    if as_json:
        click.echo(json.dumps(asdict(row), indent=2))
        return
    console = Console(highlight=False)
    console.print(
        f"{row.brokers} brokers of {row.topology} up after {row.start_s:.2f} s, with "
        f"{row.cpu_s:.2f} s of CPU: {row.ratio:.2f} of as many bare interpreters with Twisted"
    )
    holds = row.start_s <= MAX_START_S
    console.print("The goal holds." if holds else f"The goal, {MAX_START_S:g} s, does not hold.")
