"""`padres-tx bench`: the group of benchmarks; each is a command in a module of its own."""

from __future__ import annotations

import click

from bench.chain import chain
from bench.clients import clients
from bench.guard import all_benchmarks
from bench.hop import hop
from bench.match import match
from bench.path import path
from bench.start import start


@click.group()
def bench() -> None:
    """Measure, each time beside a yardstick in the same run."""


bench.add_command(match)
bench.add_command(hop)
bench.add_command(chain)
bench.add_command(path)
bench.add_command(clients)
bench.add_command(start)
bench.add_command(all_benchmarks)
