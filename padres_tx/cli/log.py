"""`padres-tx log`: what is in the log of a broker, and whether it is intact.

It reads files and changes none, whether the broker runs or not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console

from overlay.log.os_disk import OsDisk
from overlay.log.survey import FoundSnapshot, Survey, is_log, survey
from padres_tx.cli import layout
from padres_tx.cli.common import CheckFailed, WrongInput, note
from padres_tx.cli.layout import Column, TableCell

#: Below a state directory are directories of overlays, then those of brokers, then checkpoints.
LEVELS = 3


class LogFiles(NamedTuple):
    """The log in one directory, and why it cannot be opened, or not as a whole."""

    directory: Path
    found: Survey
    problems: list[str]
    #: Seconds since each snapshot was stored, in the order of the snapshots.
    ages_s: list[float]

    @property
    def broker(self) -> str:
        return self.found.segments[-1].header.broker if self.found.segments else ""

    @property
    def version(self) -> str:
        """The code that has written last."""
        return self.found.segments[-1].header.version if self.found.segments else ""

    @property
    def first(self) -> int:
        return self.found.segments[0].header.first if self.found.segments else 0

    @property
    def size(self) -> int:
        return sum(each.size for each in self.found.segments)


@click.group(
    epilog="""
\b
Examples:
  padres-tx log stat ~/.local/state/padres-tx/five/state
  padres-tx log verify ~/.local/state/padres-tx/five/state/B3
"""
)
def log() -> None:
    """Show and check the logs of brokers on disk."""


def _directory(command: Callable[..., None]) -> Callable[..., None]:
    for decorate in (
        click.option("--json", "as_json", is_flag=True, help="Print the logs as a JSON list."),
        click.argument("directory", metavar="DIR", type=click.Path(path_type=Path)),
    ):
        command = decorate(command)
    return command


@log.command(
    epilog="""
\b
Examples:
  padres-tx log stat ~/.local/state/padres-tx/five/state
  padres-tx log stat ~/.local/state/padres-tx/five/state/B3 --json
"""
)
@_directory
def stat(directory: Path, *, as_json: bool) -> None:
    """Show what is in the logs below DIR: positions, files, sizes and snapshots.

    DIR is the directory of one broker, or one with the directories of several.

    Exit code 1 if a log is damaged.
    """
    logs = _logs_in(directory)
    if as_json:
        click.echo(json.dumps([_fields(each) for each in logs], indent=2))
    else:
        rows = [[TableCell(text) for text in _row(each)] for each in logs]
        layout.show(Console(), _COLUMNS, rows)
    _check(logs)


@log.command(
    epilog="""
\b
Examples:
  padres-tx log verify ~/.local/state/padres-tx/five/state
  padres-tx log verify ~/.local/state/padres-tx/five/state/B3 --json
"""
)
@_directory
def verify(directory: Path, *, as_json: bool) -> None:
    """Check every byte of the logs below DIR, and print where one is damaged.

    DIR is the directory of one broker, or one with the directories of several. The log of a running
    broker can be checked, too.

    Exit code 1 if a log or a snapshot is damaged.
    """
    logs = _logs_in(directory)
    if as_json:
        click.echo(json.dumps([_fields(each) for each in logs], indent=2))
    else:
        for each in logs:
            if not each.problems:
                click.echo(f"{each.directory}: intact, {_extent(each)}")
            if each.found.torn_bytes:
                newest = each.found.segments[-1]
                note(
                    f"{each.directory / newest.name}: {each.found.torn_bytes} bytes at offset "
                    f"{newest.tail.end} are not a whole batch: it is being written, or its broker "
                    "died and cuts it off when it starts again"
                )
    _check(logs)


def _check(logs: list[LogFiles]) -> None:
    """Raises CheckFailed if a log is damaged, after printing where."""
    damaged = [each for each in logs if each.problems]
    for each in damaged:
        for problem in each.problems:
            note(problem)
    if damaged:
        raise CheckFailed(f"{len(damaged)} of {len(logs)} logs are damaged")


# --- reading ---


def _logs_in(directory: Path) -> list[LogFiles]:
    """Read the logs in a directory or below it. Raises WrongInput if there is none."""
    try:
        directories = _directories(directory, LEVELS)
        if not directories:
            raise WrongInput(f"{str(directory)!r} contains no log")
        return [_read(each) for each in directories]
    except OSError as error:
        at = error.filename or str(directory)
        raise WrongInput(f"cannot read {str(at)!r}: {error.strerror}") from None


def _directories(directory: Path, levels: int) -> list[Path]:
    names = OsDisk().names(directory)
    if is_log(names):
        return [directory]
    below = [directory / name for name in names if (directory / name).is_dir() and levels]
    return [found for each in below for found in _directories(each, levels - 1)]


def _read(directory: Path) -> LogFiles:
    # A LogError here is for the user: the directory cannot be read.
    found = survey(OsDisk(), directory)
    problems = [str(each) for each in found.problems]
    problems += [each.problem for each in found.snapshots if each.problem]
    return LogFiles(directory, found, problems, [_age_s(directory, s) for s in found.snapshots])


def _age_s(directory: Path, snapshot: FoundSnapshot) -> float:
    try:
        return max(0.0, time.time() - (directory / snapshot.name).stat().st_mtime)
    except OSError:
        return 0.0  # Removed meanwhile by its broker, which has stored a newer one.


# --- printing ---

_COLUMNS = (
    Column("broker"),
    Column("positions"),
    Column("segments", "number"),
    Column("size", "number"),
    Column("snapshots", "text"),
    Column("code"),
    Column("state", "text"),
)


def _row(each: LogFiles) -> tuple[str, ...]:
    snapshots = [
        f"{snapshot.position} ({_duration(age_s)} ago)"
        for snapshot, age_s in zip(each.found.snapshots, each.ages_s, strict=True)
        if not snapshot.problem
    ]
    return (
        _printable(each.broker),
        _extent(each),
        str(len(each.found.segments)),
        _size(each.size),
        ", ".join(snapshots) or "none",
        _printable(each.version),
        "damaged" if each.problems else "torn tail" if each.found.torn_bytes else "intact",
    )


def _extent(each: LogFiles) -> str:
    last = each.found.last
    return f"{each.first} to {last}" if last >= each.first else f"none up to {last}"


def _fields(each: LogFiles) -> dict[str, Any]:
    """A log as JSON. The birth token stays inside: checksums depend on it."""
    return {
        "directory": str(each.directory),
        "broker": each.broker,
        "code": each.version,
        "first": each.first,
        "last": each.found.last,
        "bytes": each.size,
        "torn_bytes": each.found.torn_bytes,
        "segments": [
            {
                "file": segment.name,
                "code": segment.header.version,
                "first": segment.header.first,
                "batches": segment.batches,
                "bytes": segment.size,
            }
            for segment in each.found.segments
        ],
        "snapshots": [
            {
                "file": snapshot.name,
                "code": snapshot.header.version if snapshot.header else "",
                "position": snapshot.position,
                "bytes": snapshot.size,
                "age_s": round(age_s, 1),
                "intact": not snapshot.problem,
            }
            for snapshot, age_s in zip(each.found.snapshots, each.ages_s, strict=True)
        ],
        "problems": each.problems,
    }


def _printable(text: str) -> str:
    # Names come from a file and must not control the terminal.
    return "".join(character if character.isprintable() else "?" for character in text)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"


def _size(size: int) -> str:
    scaled = float(size)
    for unit in ("bytes", "KiB", "MiB"):
        if scaled < 1024:
            return f"{scaled:.0f} {unit}" if unit == "bytes" else f"{scaled:.1f} {unit}"
        scaled /= 1024
    return f"{scaled:.1f} GiB"
