"""`padres-tx broker`: run one broker of a topology in this process.

This module handles arguments, secrets and exit codes; the rest is `padres_tx.broker_process`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from padres_tx.cli.common import WrongInput, durability_option
from padres_tx.environment import SECRET_ENV
from topologies import Durability, TopologyError, load


@click.command(
    epilog="""
\b
Examples:
  padres-tx broker three B1
  padres-tx broker mine.yaml B2 --host 0.0.0.0 --log-file b2.log
  padres-tx broker mine.yaml B2 --durability disk --state /var/lib/b2
  padres-tx broker mine.yaml B2 --durability disk --state /var/lib/b2 --checkpoint
  PADRES_TX_SECRET=s3cret padres-tx broker mine.yaml B2 --trace b2.jsonl
"""
)
@click.argument("topology", metavar="TOPOLOGY")
@click.argument("name", metavar="NAME")
@click.option("--host", help="Listen on this address instead of the topology's.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Listen on this port instead of the topology's; 0 means a free port.",
)
@durability_option
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIRECTORY",
    help="The directory of this broker's state. Disk mode needs one; in memory mode a planned "
    "restart hands its state on there.",
)
@click.option(
    "--checkpoint",
    is_flag=True,
    help="Do not run: write the state into a snapshot that later versions can read.",
)
@click.option(
    "--secret-env",
    metavar="VARIABLE",
    help=f"Read the overlay's secret from this environment variable. [default: {SECRET_ENV}]",
)
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read the overlay's secret from the first line of FILE.",
)
@click.option(
    "--trace",
    "trace_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Append a record of every step to FILE, as JSON lines.",
)
@click.option(
    "--run",
    default="",
    metavar="ID",
    help="The name of this run in the trace. [default: a random one]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warn", "error"]),
    default="info",
    show_default=True,
    help="Log messages of this level and above.",
)
@click.option(
    "--log-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Append the log to FILE instead of writing it to stderr.",
)
@click.option(
    "--ready-fd",
    type=click.IntRange(0),
    metavar="N",
    help="Write the port to file descriptor N when the broker is listening.",
)
def broker(
    topology: str,
    name: str,
    *,
    host: str | None,
    port: int | None,
    durability: Durability | None,
    state: Path | None,
    checkpoint: bool,
    secret_env: str | None,
    secret_file: Path | None,
    trace_file: Path | None,
    run: str,
    log_level: str,
    log_file: Path | None,
    ready_fd: int | None,
) -> None:
    """Run the broker NAME of TOPOLOGY until SIGTERM or Ctrl-C.

    TOPOLOGY is one, three, five, nine, or a .yaml, .yml or .json file. Brokers may be started in
    any order. The log has one JSON object per line; a log file is renamed to FILE.1 at 16 MiB, and
    three older files are kept. SIGHUP reopens the log and the trace. If one of them cannot be
    written, the broker keeps running and 'padres-tx status' reports the problem.

    With a state directory SIGTERM is the first half of a planned restart: clients and neighbours
    wait, and go on with the next process that gets the same directory. Ctrl-C (SIGINT) ends the
    broker for good. Without a state directory both do.
    """
    # Imported here: importing Twisted takes 0.3 s, and the help does not need it.
    from overlay.hosts.settings import Settings
    from padres_tx.broker_process import StartError, run_broker

    secret = _secret(secret_env, secret_file)
    try:
        tree = load(topology)
        mode = durability or tree.durability
        if mode == "disk" and state is None:
            raise WrongInput(
                "disk mode needs a directory for the broker's state: --state DIRECTORY"
            )
        if checkpoint and mode != "disk":
            raise WrongInput("--checkpoint needs --durability disk: in memory nothing is stored")
        code = run_broker(
            tree,
            name,
            durability=mode,
            state=state,
            checkpoint=checkpoint,
            host=host,
            port=port,
            settings=Settings(secret=secret),
            trace_file=trace_file,
            run=run,
            log_file=log_file,
            log_level=log_level,
            ready_fd=ready_fd,
        )
    except (StartError, TopologyError) as error:
        raise WrongInput(str(error)) from None
    if checkpoint and not code:
        click.echo(f"broker {name}: all of its log is in a snapshot now, in {state}")
    sys.exit(code)


def _secret(variable: str | None, file: Path | None) -> str:
    if variable is not None and file is not None:
        raise WrongInput("--secret-env and --secret-file cannot be combined")
    if file is not None:
        try:
            return file.read_text(encoding="utf-8").partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise WrongInput(f"cannot read the secret from {file}: {error}") from None
    if variable is not None and variable not in os.environ:
        raise WrongInput(f"the environment variable {variable} is not set")
    return os.environ.get(variable or SECRET_ENV, "")
