"""`padres-tx broker restart`: restart brokers of an overlay that `up` has started.

This module handles arguments and output; `launcher.restart_requests` does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from padres_tx.cli.common import WrongInput, note, overlay_option
from padres_tx.launcher.overlay_files import OverlayFiles, OverlayRecord
from padres_tx.launcher.restart_requests import RESTART_S, restart


@click.command(
    epilog="""
\b
Examples:
  padres-tx broker restart B2
  padres-tx broker restart --all --overlay second
"""
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "everyone", is_flag=True, help="Restart all brokers of the overlay.")
@overlay_option
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, min_open=True),
    default=RESTART_S,
    show_default=True,
    metavar="SECONDS",
    help="Give up if a broker and its links are not up after this time.",
)
def restart_command(
    names: Sequence[str], *, everyone: bool, overlay: str | None, timeout_s: float
) -> None:
    """Restart the brokers NAME of an overlay that 'padres-tx up' has started.

    Each broker ends, is started again as it was started first, and is waited for until its links
    are up; then the next one. Nothing is lost: clients and neighbours keep what they have to send,
    and go on when the broker is back. Brokers that have died are started first, all at once.
    """
    if bool(names) == everyone:
        raise WrongInput("expected the names of brokers, or --all")
    files = OverlayFiles(notice=note)
    record = files.find(overlay)
    chosen = [broker.name for broker in record.brokers] if everyone else list(dict.fromkeys(names))
    restart_brokers(files, record, chosen, timeout_s)


def restart_brokers(
    files: OverlayFiles, record: OverlayRecord, names: Sequence[str], timeout_s: float = RESTART_S
) -> None:
    """Restart brokers and print each; raises as `launcher.restart_requests.restart`."""
    for found in restart(files, record, names, timeout_s):
        click.echo(f"broker {found.name} restarted as process {found.process.pid}")
