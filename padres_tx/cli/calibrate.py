"""`padres-tx calibrate`: find the wait that BL-WAIT needs, with `padres_tx.scenarios.calibrate`."""

from __future__ import annotations

import asyncio
import json

import click
import msgspec
from rich.console import Console

from padres_tx import launcher
from padres_tx.cli.common import CheckFailed, WrongInput
from padres_tx.cli.handover import crashes_reported
from padres_tx.engines.bl_wait import WAIT_LIMIT_S
from padres_tx.scenarios import calibrate as search
from padres_tx.scenarios.calibrate import Calibration, CalibrationError

#: The range of steps: no timer is finer, and no wait is longer.
STEP_LIMITS_MS = (0.1, WAIT_LIMIT_S * 1000)


@click.command(
    epilog="""
\b
Examples:
  padres-tx calibrate
  padres-tx calibrate --topology five --transactions 1000 --step-ms 50
  padres-tx calibrate --topology mine.yaml --json
"""
)
@click.option(
    "--topology",
    default="three",
    show_default=True,
    metavar="NAME",
    help="The topology: one, three, five, nine, or a .yaml, .yml or .json file.",
)
@click.option(
    "--transactions",
    type=click.IntRange(1, 1_000_000),
    default=search.TRANSACTIONS,
    show_default=True,
    help="The number of transactions in a row that must succeed.",
)
@click.option(
    "--step-ms",
    default="auto",
    show_default=True,
    metavar="MS",
    help="The precision; auto is a tenth of the delay of the longest path, at least 1.",
)
@click.option(
    "--start-ms",
    type=click.FloatRange(0, WAIT_LIMIT_S * 1000, min_open=True),
    default=search.START_MS,
    show_default=True,
    metavar="MS",
    help="The wait to start with.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, with all trials.")
def calibrate(
    *,
    topology: str,
    transactions: int,
    step_ms: str,
    start_ms: float,
    as_json: bool,
) -> None:
    """Find the smallest wait with which BL-WAIT works on a topology.

    The command starts the brokers as processes and runs dispatching transactions between an
    environment, a dispatcher and two agents at distant brokers. A wait works if in every
    transaction the last publication reaches the assigned agent and no other client. The result is
    the smallest wait that works; one step less has failed. Exit code 1 if no wait works.

    The result holds for this machine and its current load only: BL-WAIT guarantees nothing.
    """
    step = _step(step_ms)
    terminal = Console(stderr=True)
    with (
        terminal.status("starting the brokers") as status,
        launcher.overlay(topology) as running,
        crashes_reported(running),
    ):
        try:
            found = asyncio.run(
                search.run(
                    running,
                    transactions=transactions,
                    step_ms=step,
                    start_ms=start_ms,
                    progress=lambda wait_ms, done: status.update(
                        f"trying {wait_ms:g} ms: {done} transactions succeeded"
                    ),
                )
            )
        except CalibrationError as error:
            raise CheckFailed(str(error)) from None
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        _print(found)


def _step(text: str) -> float | None:
    """Return milliseconds, or None for "auto". Raises WrongInput."""
    if text == "auto":
        return None
    try:
        step_ms = float(text)
    except ValueError:
        step_ms = 0.0
    if not STEP_LIMITS_MS[0] <= step_ms <= STEP_LIMITS_MS[1]:
        least, most = STEP_LIMITS_MS
        raise WrongInput(f"invalid --step-ms {text!r}: expected 'auto' or {least:g} to {most:g}")
    return step_ms


def _print(found: Calibration) -> None:
    click.echo(
        f"{found.topology}: BL-WAIT needs {found.wait_ms:g} ms; "
        f"{found.transactions} transactions in a row succeeded"
    )
    if found.failed is not None:
        failed = found.failed
        click.echo(
            f"{failed.wait_ms:g} ms failed in transaction {failed.transactions}: {failed.failure}"
        )
    click.echo(
        f"step {found.step_ms:g} ms; {len(found.trials)} trials took {found.took_s:.1f} s; "
        f"try 'padres-tx handover --engine bl-wait --wait-ms {max(found.wait_ms, 1):g}'"
    )
