"""`padres-tx bench`: the group of benchmarks; each is a command in a module of its own."""

from __future__ import annotations

import click

from bench.micro.chain import chain
from bench.micro.clients import clients
from bench.micro.hop import hop
from bench.micro.match import match
from bench.micro.path import path
from bench.micro.regression import all_benchmarks
from bench.micro.start import start


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
