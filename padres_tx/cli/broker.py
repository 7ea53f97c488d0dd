"""`padres-tx broker`: run one broker of a topology in this process.

Only arguments, secrets and exit codes are dealt with here; the rest is `padres_tx.broker_process`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from padres_tx.environment import SECRET_ENV


class InputError(click.ClickException):
    """What the user gave is wrong: one line on stderr, exit code 2, no usage text around it."""

    exit_code = 2


@click.command(
    epilog="""
\b
Examples:
  padres-tx broker three B1
  padres-tx broker mine.yaml B2 --host 0.0.0.0 --log-file b2.log
  PADRES_TX_SECRET=s3cret padres-tx broker mine.yaml B2 --trace b2.jsonl
"""
)
@click.argument("topology", metavar="TOPOLOGY")
@click.argument("name", metavar="NAME")
@click.option("--host", help="Listen at this address instead of the topology's.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Listen at this port instead of the topology's; 0 takes any that is free.",
)
@click.option(
    "--secret-env",
    metavar="VARIABLE",
    help=f"Take the overlay's secret from this environment variable. [default: {SECRET_ENV}]",
)
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Take the overlay's secret from the first line of FILE.",
)
@click.option(
    "--trace",
    "trace_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Append a record of every step to FILE, as JSON lines.",
)
@click.option("--run", default="", metavar="ID", help="What the trace calls this run.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warn", "error"]),
    default="info",
    show_default=True,
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
    help="Write the port to file descriptor N when the broker listens.",
)
def broker(
    topology: str,
    name: str,
    *,
    host: str | None,
    port: int | None,
    secret_env: str | None,
    secret_file: Path | None,
    trace_file: Path | None,
    run: str,
    log_level: str,
    log_file: Path | None,
    ready_fd: int | None,
) -> None:
    """Run the broker NAME of TOPOLOGY until SIGTERM or Ctrl-C.

    TOPOLOGY is one, three, five, nine, or a .yaml, .yml or .json file. Neighbours may start in any
    order. The log is one JSON object a line; a log file is renamed to FILE.1 at 16 MiB, and three
    older ones are kept. SIGHUP opens log and trace anew. If one of them cannot be written, the
    broker goes on, and 'padres-tx status' says so.
    """
    # Imported here: Twisted takes 0.3 s, which no other command should pay.
    from overlay.hosts.settings import Settings
    from padres_tx.broker_process import StartError, run_broker
    from topologies import TopologyError, load

    secret = _secret(secret_env, secret_file)
    try:
        code = run_broker(
            load(topology),
            name,
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
        raise InputError(str(error)) from None
    sys.exit(code)


def _secret(variable: str | None, file: Path | None) -> str:
    if variable is not None and file is not None:
        raise InputError("give --secret-env or --secret-file, not both")
    if file is not None:
        try:
            return file.read_text(encoding="utf-8").partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the secret from {file}: {error}") from None
    if variable is not None and variable not in os.environ:
        raise InputError(f"the environment has no {variable}")
    return os.environ.get(variable or SECRET_ENV, "")
