"""`padres-tx bench`: the group of benchmarks; each is a command in a module of its own."""

from __future__ import annotations

from typing import Any

import click

from bench.errors import BenchError, ChildFailed
from bench.micro.chain import chain
from bench.micro.clients import clients
from bench.micro.hop import hop
from bench.micro.match import match
from bench.micro.path import path
from bench.micro.recover import recover_command
from bench.micro.regression import all_benchmarks
from bench.micro.start import start
from padres_tx.cli.common import CheckFailed, WrongInput


class BenchmarkGroup(click.Group):
    """A group whose commands end with a line and an exit code on any of our errors."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ChildFailed as error:
            raise CheckFailed(str(error)) from None
        except BenchError as error:
            raise WrongInput(str(error)) from None


@click.group(cls=BenchmarkGroup)
def bench() -> None:
    """Measure, always with a yardstick in the same run."""


bench.add_command(match)
bench.add_command(hop)
bench.add_command(chain)
bench.add_command(path)
bench.add_command(clients)
bench.add_command(start)
bench.add_command(recover_command)
bench.add_command(all_benchmarks)
