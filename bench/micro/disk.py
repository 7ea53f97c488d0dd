"""The disk under the brokers that a benchmark measures: where it is, and what a sync takes.

In a file system that is in memory a sync costs nothing, so state is never kept in one. The default
is a temporary directory below /var/tmp, which is on a disk where /tmp may not be.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import click

from bench.errors import CannotMeasure
from overlay.log.file_log import FileLog

#: Where state is kept without `--state`.
BELOW: Final = Path("/var/tmp")

#: The mounted file systems of this process, on Linux.
MOUNTS: Final = Path("/proc/self/mountinfo")

IN_MEMORY: Final = ("tmpfs", "ramfs")

#: As much as a broker appends for one message of a transaction, about.
BATCH: Final = bytes(300)

state_option: Final[Callable[[Any], Any]] = click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help=f"Keep the state of brokers on disk below this directory. [default: {BELOW}]",
)


def state_directory(stack: ExitStack, below: Path | None) -> Path:
    """A directory for the brokers' state, which goes with the stack.

    Raises CannotMeasure if it would be in memory, or cannot be made.
    """
    parent = BELOW if below is None else below
    try:
        parent.mkdir(parents=True, exist_ok=True)
        # A broker that is killed may leave a child behind that still writes.
        made = tempfile.TemporaryDirectory(
            prefix="padres-tx-", dir=parent, ignore_cleanup_errors=True
        )
    except OSError as error:
        raise CannotMeasure(f"cannot keep state below {parent}: {error.strerror}") from None
    directory = Path(stack.enter_context(made))
    if file_system(directory) in IN_MEMORY:
        raise CannotMeasure(f"{parent} is in memory: choose a directory on a disk with --state")
    return directory


def file_system(path: Path, mounts: Path = MOUNTS) -> str:
    """The type of the file system that has a path; "" where the system does not say."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    found, kind = Path("/"), ""
    for line in lines:
        # proc(5): the fifth field is the mount point; the type is the first behind the dash.
        fields, _, more = line.partition(" - ")
        point = Path(fields.split()[4].replace("\\040", " "))
        if path.resolve().is_relative_to(point) and point.is_relative_to(found):
            found, kind = point, more.split()[0]
    return kind


class Syncs:
    """A log of its own beside those of the brokers, for the time that one append takes."""

    def __init__(self, directory: Path) -> None:
        self._log = FileLog(
            directory / "syncs", broker="bench", version="bench", birth=secrets.token_hex(16)
        )
        self.ms: list[float] = []

    def append(self, count: int) -> None:
        """Append batches one after the other: each is one write and one sync."""
        for _ in range(count):
            began = time.perf_counter()
            self._log.append(self._log.last, BATCH, lambda outcome: None)
            self.ms.append((time.perf_counter() - began) * 1000)

    def close(self) -> None:
        self._log.close()
