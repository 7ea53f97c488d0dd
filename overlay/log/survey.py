"""What is in the directory of a log: reads everything and changes nothing.

Opening a log and `padres-tx log` both begin here. It works on a log that is in use: the newest
batch may then look torn, because it is being written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from overlay.errors import LogDamaged, LogError, LogUnusable, WrongLog
from overlay.log import file_format as form
from overlay.log.disk import Disk
from overlay.log.file_format import SegmentHeader, SnapshotHeader, Tail

#: The name of the file that is locked.
LOCK = "LOCK"

#: How often a log in use is read again, because files were removed meanwhile.
TRIES = 5


class FoundSegment(NamedTuple):
    """An intact segment."""

    name: str
    header: SegmentHeader
    #: The offset of the first batch.
    begin: int
    #: Bytes of the whole file.
    size: int
    tail: Tail

    @property
    def batches(self) -> int:
        return self.tail.last - self.header.first + 1


class FoundSnapshot(NamedTuple):
    """A snapshot, and what is wrong with it: "" if it is intact."""

    name: str
    position: int
    header: SnapshotHeader | None
    size: int
    problem: str


class Survey(NamedTuple):
    """What was found. Segments and snapshots are in the order of their positions."""

    segments: list[FoundSegment]
    snapshots: list[FoundSnapshot]
    #: Why the log cannot be opened, the first reason first.
    problems: list[LogError]
    #: Files that were being made when a process ended.
    unfinished: list[str]

    @property
    def last(self) -> int:
        return self.segments[-1].tail.last if self.segments else 0

    @property
    def torn_bytes(self) -> int:
        """Bytes behind the last intact batch."""
        return self.segments[-1].tail.beyond if self.segments else 0

    @property
    def usable_snapshot(self) -> FoundSnapshot | None:
        """The newest that is intact."""
        intact = [each for each in self.snapshots if not each.problem]
        return intact[-1] if intact else None


def problem_of(error: OSError) -> str:
    """The text of an error of the operating system."""
    return error.strerror or str(error) or type(error).__name__


def is_log(names: list[str]) -> bool:
    """Whether a directory with these names holds a log."""
    return any(form.SEGMENT_NAME.fullmatch(n) or form.SNAPSHOT_NAME.fullmatch(n) for n in names)


def foreign_names(names: list[str]) -> list[str]:
    """The names that a directory of a log has nothing to do with."""
    patterns = (form.SEGMENT_NAME, form.SNAPSHOT_NAME)
    ours = [name.removesuffix(form.UNFINISHED) for name in names]
    return [
        name
        for name, stem in zip(names, ours, strict=True)
        if stem != LOCK
        and not any(pattern.fullmatch(stem) for pattern in patterns)
        # The root of a file system, and hidden files.
        and name != "lost+found"
        and not name.startswith(".")
    ]


def survey(disk: Disk, directory: Path) -> Survey:
    """Read everything in the directory of a log.

    Raises LogUnusable, WrongLog if it holds no log.
    """
    for attempt in range(TRIES):
        try:
            return _survey(disk, directory)
        except FileNotFoundError as error:
            if attempt == TRIES - 1 or not _exists(disk, directory):
                raise LogUnusable(f"cannot read {directory}: {problem_of(error)}") from None
        except OSError as error:
            at = error.filename or directory
            raise LogUnusable(f"cannot read {at}: {problem_of(error)}") from None
    raise AssertionError("the last attempt returns or raises")


def _exists(disk: Disk, directory: Path) -> bool:
    try:
        disk.names(directory)
    except OSError:
        return False
    return True


def _survey(disk: Disk, directory: Path) -> Survey:
    names = disk.names(directory)
    if not is_log(names) and (foreign := foreign_names(names)):
        raise WrongLog(f"{directory} is not a log: it contains {foreign[0]!r}")
    # Snapshots first: in a log that is in use, no segment that is read later ends before them.
    snapshots = [
        _snapshot(disk, directory, name) for name in names if form.SNAPSHOT_NAME.fullmatch(name)
    ]
    segments: list[FoundSegment] = []
    problems: list[LogError] = []
    of_segments = [name for name in names if form.SEGMENT_NAME.fullmatch(name)]
    before: FoundSegment | None = None
    for name in of_segments:
        try:
            found = _segment(disk, directory, name, final=name == of_segments[-1])
            segments.append(found)
            if before is not None:
                _check_successor(directory, before, found)
            before = found
        except LogError as error:
            problems.append(error)
            before = None
    if not problems:
        problems.extend(_gaps(directory, segments, snapshots))
    unfinished = [name for name in names if name.endswith(form.UNFINISHED)]
    return Survey(segments, snapshots, problems, [n for n in unfinished if not foreign_names([n])])


def _segment(disk: Disk, directory: Path, name: str, *, final: bool) -> FoundSegment:
    """Read a segment. Raises LogDamaged, WrongLog."""
    data = disk.read(directory / name)
    path = str(directory / name)
    header, begin = form.open_segment(data, path)
    if form.segment_name(header.first) != name:
        raise LogDamaged(f"{path}: its header says that it begins at {header.first}")
    tail = form.tail_of(data, begin, header)
    if tail.intact_behind:
        raise LogDamaged(
            f"{path}: damaged at offset {tail.end}, behind batch {tail.last}: "
            f"an intact batch follows at offset {tail.intact_behind}"
        )
    if tail.beyond and not final:
        raise LogDamaged(
            f"{path}: damaged at offset {tail.end}, behind batch {tail.last}: "
            "another segment follows"
        )
    return FoundSegment(name, header, begin, len(data), tail)


def _check_successor(directory: Path, before: FoundSegment, after: FoundSegment) -> None:
    """Raises LogDamaged if batches between two segments are missing."""
    path = directory / after.name
    if after.header.first != before.tail.last + 1:
        raise LogDamaged(
            f"{path}: begins at batch {after.header.first}, but {before.name} "
            f"ends at {before.tail.last}"
        )
    if after.header.chain != before.tail.chain or after.header.birth != before.header.birth:
        raise LogDamaged(f"{path}: does not continue {before.name}")


def _snapshot(disk: Disk, directory: Path, name: str) -> FoundSnapshot:
    data = disk.read(directory / name)
    position = int(name.rpartition("-")[2])
    path = str(directory / name)
    header: SnapshotHeader | None = None
    problem = ""
    try:
        header, _ = form.open_snapshot(data, path)
        form.state_in(data, path)
        if header.position != position:
            problem = f"{path}: its header says position {header.position}"
    except LogError as error:
        problem = str(error)
    return FoundSnapshot(name, position, header, len(data), problem)


def _gaps(
    directory: Path, segments: list[FoundSegment], snapshots: list[FoundSnapshot]
) -> Iterator[LogError]:
    """What is missing between and around intact files."""
    if not segments:
        if snapshots:
            yield LogDamaged(f"{directory}: it has snapshots, but no segment")
        return
    own = segments[0].header
    first, last = own.first, segments[-1].tail.last
    for each in snapshots:
        header = each.header
        if header is not None and (header.broker, header.birth) != (own.broker, own.birth):
            yield WrongLog(f"{directory / each.name}: of another log, of broker {header.broker}")
    # Only what was committed is in a snapshot.
    if snapshots and snapshots[-1].position > last:
        yield LogDamaged(
            f"{directory}: the log ends at batch {last}, but {snapshots[-1].name} is there: "
            "committed batches are missing"
        )
    intact = [each for each in snapshots if not each.problem]
    reached = intact[-1].position if intact else 0
    if first > reached + 1:
        damaged = next((each.problem for each in reversed(snapshots) if each.problem), "")
        why = f" ({damaged})" if damaged else ""
        yield LogDamaged(
            f"{directory}: the log begins at batch {first}, and no intact snapshot reaches it{why}"
        )
