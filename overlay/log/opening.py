"""Opening the directory of a log: what is refused, what is begun, and what is repaired.

A refusal changes no file. Repaired is only what a crash leaves behind: a torn tail is cut off, and
files that were not complete are removed.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from overlay.errors import LogLocked, LogUnusable, WrongLog
from overlay.log import file_format as form
from overlay.log.disk import Disk, Held
from overlay.log.file_format import SegmentHeader
from overlay.log.segment_writer import make_segment
from overlay.log.survey import LOCK, Survey, foreign_names, is_log, problem_of, survey


class OpenedDirectory(NamedTuple):
    """A log that is locked, intact and ready to be continued."""

    lock: Held
    survey: Survey
    #: What was repaired, or passed over, for the owner's log.
    notes: list[str]


def open_directory(
    disk: Disk, directory: Path, *, broker: str, version: str, birth: str
) -> OpenedDirectory:
    """Lock and check the log of a broker, or begin it, and repair what a crash has left.

    Raises LogError.
    """
    try:
        lock = _lock(disk, directory)
        try:
            found = _check(disk, directory, broker)
            if not found.segments:
                header = SegmentHeader(broker, birth, version, 1, form.seed_of(birth))
                make_segment(disk, directory, header)
                found = survey(disk, directory)
            notes = _repair(disk, directory, found)
        except BaseException:
            lock.close()
            raise
    except OSError as error:
        at = error.filename or directory
        raise LogUnusable(f"cannot use {at} for the log: {problem_of(error)}") from None
    return OpenedDirectory(lock, found, notes)


def _lock(disk: Disk, directory: Path) -> Held:
    """Lock the directory, which is created if it is missing. Raises LogError, OSError."""
    disk.make_directory(directory)
    names = disk.names(directory)
    if not is_log(names) and (foreign := foreign_names(names)):
        raise WrongLog(f"{directory} is not a log: it contains {foreign[0]!r}")
    try:
        return disk.lock(directory / LOCK)
    except BlockingIOError as error:
        holder = f"process {error.strerror}" if error.strerror else "another process"
        raise LogLocked(f"{directory} is in use by {holder}") from None


def _check(disk: Disk, directory: Path, broker: str) -> Survey:
    """Return what is there. Raises LogError if that is not the intact log of this broker."""
    found = survey(disk, directory)
    if found.problems:
        raise found.problems[0]
    if found.segments and (owner := found.segments[-1].header.broker) != broker:
        raise WrongLog(f"{directory} is the log of broker {owner}, not of {broker}")
    return found


def _repair(disk: Disk, directory: Path, found: Survey) -> list[str]:
    """Remove what was not complete, and return what was done. Raises OSError."""
    notes = []
    newest = found.segments[-1]
    path = directory / newest.name
    file = disk.open(path)
    try:
        if found.torn_bytes:
            file.truncate(newest.tail.end)
        # A process that died may have written what is read now, and not synced it. The owner acts
        # on what it reads, so it must be there for good.
        file.sync()
    finally:
        file.close()
    disk.sync_directory(directory)
    for name in found.unfinished:
        disk.remove(directory / name)
    if found.torn_bytes:
        notes.append(
            f"{path}: cut off {found.torn_bytes} bytes at offset {newest.tail.end}, behind batch "
            f"{found.last}: the last append was not complete"
        )
    usable = found.usable_snapshot
    use = f"{usable.name} is used" if usable else "all batches are read"
    notes.extend(f"{each.problem}; {use}" for each in found.snapshots if each.problem)
    return notes
