"""`padres-tx bench start`: how long an overlay takes from nothing to all links up.

Beside it, in turn: as many bare interpreters at once that import what no broker can do without,
Twisted's reactor and msgspec. Nine processes share the cores, so what counts is the CPU time that
one of them takes before it listens; nearly all of that is importing. The best round of each counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

import click
from rich.console import Console

from padres_tx import launcher
from topologies import load

ROUNDS: Final = 3

#: From nothing to all links up, nine brokers on two quiet cores.
MAX_START_S: Final = 5.0

_BARE: Final = "import msgspec, twisted.internet.reactor"


@dataclass(frozen=True)
class Row:
    """What `--json` prints."""

    topology: str
    brokers: int
    start_s: float
    bare_s: float
    ratio: float


def measure(topology: str, rounds: int = ROUNDS) -> Row:
    """Start the overlay and the bare interpreters in turn.

    Raises TopologyError, and LaunchError if the overlay does not come up.
    """
    spec = load(topology)
    brokers = len(spec.brokers)

    def overlay() -> float:
        started = time.monotonic()
        with launcher.overlay(spec):
            return time.monotonic() - started

    def bare() -> float:
        started = time.monotonic()
        children = [subprocess.Popen([sys.executable, "-P", "-c", _BARE]) for _ in range(brokers)]
        for child in children:
            child.wait()
        return time.monotonic() - started

    best: dict[Callable[[], float], float] = {}
    for _ in range(rounds):
        for way in (overlay, bare):
            best[way] = min(way(), best.get(way, float("inf")))
    start_s, bare_s = best[overlay], best[bare]
    return Row(spec.name, brokers, round(start_s, 2), round(bare_s, 2), round(start_s / bare_s, 2))


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
    """Seconds from nothing to an overlay whose links are all up, beside bare interpreters."""
    row = measure(topology)
    if as_json:
        click.echo(json.dumps(asdict(row), indent=2))
        return
    console = Console(highlight=False)
    console.print(
        f"{row.brokers} brokers of {row.topology} up after {row.start_s:.2f} s, "
        f"{row.ratio:.2f} of as many bare interpreters with Twisted ({row.bare_s:.2f} s)"
    )
    holds = row.start_s <= MAX_START_S
    console.print("The goal holds." if holds else f"The goal, {MAX_START_S:g} s, does not hold.")
