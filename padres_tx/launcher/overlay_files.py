"""State files: one JSON file for each overlay that runs on this machine, so that commands find it.

The launcher of an overlay writes its file and removes it at the end. If the launcher was killed,
the file stays behind; the next command that reads it sees that the launcher is not running, removes
the file and reports that. Files are replaced as a whole and synced to the disk, so a reader never
sees half of one. Each file has a copy. If the file is damaged or deleted while its overlay runs,
readers use the copy and report that, and the launcher writes both again within a second.

The directory is $PADRES_TX_STATE, or padres-tx in $XDG_RUNTIME_DIR, or in ~/.local/state. Beside
NAME.json, a directory NAME holds the copy and the brokers' logs, which stay until the next overlay
of that name starts.

This module must not know how brokers are started or queried.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from padres_tx.launcher import processes
from padres_tx.launcher.processes import ProcessIdentity
from topologies import Durability

#: Environment variable that names the directory; it takes precedence, so that each test has its
#: own.
DIRECTORY_ENV = "PADRES_TX_STATE"

#: Version of the format: increased when an older command would misread a newer file.
FORMAT = 1

#: A name is also used as a file name and appears in messages.
NAME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")

#: Brokers end by themselves at once when their launcher is killed; after this time they are killed.
ORPHAN_S = 2.0

#: A command holds the lock for milliseconds, or for ORPHAN_S for each of a few dead overlays.
LOCK_S = 15.0
LOCK_LOOK_S = 0.02

#: The copy of the state file, beside the logs; no broker name starts with an underscore.
COPY = "_state.json"

Phase: TypeAlias = Literal["starting", "up", "stopping"]


class StateError(Exception):
    """An overlay or its file cannot be found or used; the message is one line for the user."""


class BrokerRecord(msgspec.Struct, frozen=True):
    """One broker of a running overlay, as its launcher last saw it."""

    name: str
    address: str
    neighbours: tuple[str, ...]
    log: str
    process: ProcessIdentity
    #: The exit code of its process if that has ended; negative for a signal.
    exit_code: int | None = None


class OverlayRecord(msgspec.Struct, frozen=True):
    """One running overlay; `brokers` are in the order of the topology."""

    name: str
    topology: str
    launcher: ProcessIdentity
    phase: Phase
    #: The directory of the logs.
    directory: str
    brokers: tuple[BrokerRecord, ...] = ()
    format: int = FORMAT
    durability: Durability = "memory"
    #: The directory of the brokers' state, in disk mode.
    state: str = ""

    def broker(self, name: str) -> BrokerRecord:
        """Return the broker of that name.

        Raises StateError, which lists the brokers of the overlay.
        """
        for broker in self.brokers:
            if broker.name == name:
                return broker
        names = ", ".join(broker.name for broker in self.brokers) or "none yet"
        raise StateError(f"overlay {self.name} has no broker {name!r}; it has {names}")


def default_directory() -> Path:
    """Return the directory of this user's state files."""
    if chosen := os.environ.get(DIRECTORY_ENV):
        return Path(chosen).absolute()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "padres-tx"
    return Path.home() / ".local" / "state" / "padres-tx"


class OverlayFiles:
    """The state files of one directory; `notice` is called with a line for each repair."""

    def __init__(
        self, directory: Path | None = None, *, notice: Callable[[str], None] = lambda _: None
    ) -> None:
        self.directory = default_directory() if directory is None else directory
        self._notice = notice
        #: The files that this object has written, as they were then.
        self._written: dict[Path, FileVersion | None] = {}

    # --- for the launcher ---

    def claim(self, record: OverlayRecord) -> None:
        """Write the first record of an overlay.

        Raises StateError if an overlay of that name is running.
        """
        with self._locked():
            self._check_free(record.name)
            self.write(record)

    def check_free(self, name: str) -> None:
        """Raise StateError if an overlay cannot have this name now."""
        with self._locked():
            self._check_free(name)

    def _check_free(self, name: str) -> None:
        present = self._current(check_name(name))
        if present is not None:
            raise StateError(
                f"an overlay named {name} is already running (launcher process "
                f"{present.launcher.pid}); stop it with 'padres-tx down', or choose another --name"
            )

    def write(self, record: OverlayRecord) -> None:
        """Replace an overlay's record; only its launcher may do this.

        Raises StateError if a file cannot be written.
        """
        text = msgspec.json.format(msgspec.json.encode(record), indent=2)
        self.directory_of(record.name)
        # The file first: a copy without its file means that the file is missing.
        for file in (self._file(record.name), self._copy(record.name)):
            try:
                replace_file(file, text + b"\n")
                self._written[file] = FileVersion.of(file)
            except OSError as error:
                raise StateError(f"cannot write {file}: {error.strerror}") from None

    def mend(self, record: OverlayRecord) -> bool:
        """Write an overlay's record again if its file or copy was changed or deleted.

        Returns whether it was. Only the overlay's launcher may call this; it costs two system calls
        as long as nothing has changed.

        Raises StateError if a file cannot be written.
        """
        if all(FileVersion.of(file) == version for file, version in self._written.items()):
            return False
        with self._locked():
            if self._belongs_to_another(record):
                return False
            self.write(record)
        return True

    def release(self, record: OverlayRecord) -> None:
        """Remove the record of an overlay that has ended, unless another launcher owns it now."""
        with self._locked():
            if not self._belongs_to_another(record):
                self._unlink(record.name)

    def _belongs_to_another(self, record: OverlayRecord) -> bool:
        """Whether the file holds the record of another launcher that runs."""
        try:
            present = _decode(self._file(record.name))
        except (OSError, msgspec.DecodeError):
            return False
        return present.launcher != record.launcher and processes.alive(present.launcher)

    def directory_of(self, name: str) -> Path:
        """Return the directory for an overlay's logs, after creating it if necessary."""
        directory = self.directory / check_name(name)
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StateError(f"cannot create the directory {directory}: {error.strerror}") from None
        return directory

    # --- for other commands ---

    def running(self) -> list[OverlayRecord]:
        """Return the overlays that are running, by name."""
        if not self.directory.is_dir():
            return []
        found = []
        with self._locked():
            names = {file.stem for file in self.directory.glob("*.json")}
            names |= {copy.parent.name for copy in self.directory.glob(f"*/{COPY}")}
            for name in sorted(names):
                try:
                    record = self._current(name)
                except StateError as error:
                    self._notice(str(error))
                    continue
                if record is not None:
                    found.append(record)
        return found

    def find(self, name: str | None = None) -> OverlayRecord:
        """Return the overlay of that name; without a name, the only one.

        Raises StateError, which lists the running overlays.
        """
        if name is not None:
            check_name(name)
        running = self.running()
        names = ", ".join(record.name for record in running)
        if name is None and len(running) == 1:
            return running[0]
        for record in running:
            if record.name == name:
                return record
        if not running:
            which = "no overlay" if name is None else f"no overlay named {name}"
            raise StateError(
                f"{which} is running (looked in {self.directory}); "
                "start one with 'padres-tx up three'"
            )
        if name is None:
            raise StateError(f"several overlays are running ({names}): choose one with --overlay")
        raise StateError(f"no overlay named {name} is running; running: {names}")

    def if_running(self, name: str) -> OverlayRecord | None:
        """Return the overlay of that name if it is running. Raises StateError for a bad name."""
        check_name(name)
        return next((record for record in self.running() if record.name == name), None)

    def get(self, name: str) -> OverlayRecord | None:
        """Return the record as it is written, whether or not its launcher is running."""
        return self._read(check_name(name))

    def remove(self, record: OverlayRecord) -> None:
        """Kill the brokers of an overlay whose launcher has ended, and remove its files."""
        with self._locked():
            self._clean(record)

    # --- files ---

    def _file(self, name: str) -> Path:
        return self.directory / f"{name}.json"

    def _copy(self, name: str) -> Path:
        return self.directory / name / COPY

    def _unlink(self, name: str) -> None:
        # The copy first, for the same reason.
        self._copy(name).unlink(missing_ok=True)
        self._file(name).unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the directory, so that reading and then writing is one step."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = (self.directory / ".lock").open("a")
        except OSError as error:
            raise StateError(
                f"cannot use the directory {self.directory}: {error.strerror}"
            ) from None
        with lock:
            deadline = time.monotonic() + LOCK_S
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise StateError(
                            f"{self.directory} has been locked by another command for {LOCK_S:g} s"
                        ) from None
                    time.sleep(LOCK_LOOK_S)
            yield

    def _read(self, name: str) -> OverlayRecord | None:
        """Return the record of that name, or its copy if the file is damaged or missing and the
        overlay is running.

        Raises StateError.
        """
        file = self._file(name)
        try:
            record = _decode(file)
        except FileNotFoundError:
            record, why = None, "is missing"
        except (OSError, msgspec.DecodeError) as error:
            record, why = None, f"is not a state file ({error})"
        if record is not None:
            if record.format != FORMAT or record.name != name:
                raise StateError(f"{file} is not a state file of this version; delete it")
            return record
        copy = self._running_copy(name)
        if copy is not None:
            self._notice(f"{file} {why}; overlay {name} is running; using {self._copy(name)}")
            return copy
        if why == "is missing":
            return None
        raise StateError(f"{file} {why}; delete it")

    def _running_copy(self, name: str) -> OverlayRecord | None:
        """Return the copy of a state file, if it is intact and its launcher is running."""
        try:
            record = _decode(self._copy(name))
        except (OSError, msgspec.DecodeError):
            return None
        intact = record.format == FORMAT and record.name == name
        return record if intact and processes.alive(record.launcher) else None

    def _current(self, name: str) -> OverlayRecord | None:
        """Return the record of an overlay that is running; remove a stale one."""
        record = self._read(name)
        if record is None or processes.alive(record.launcher):
            return record
        self._clean(record)
        self._notice(
            f"removed the state file of overlay {name}: its launcher (process "
            f"{record.launcher.pid}) is no longer running"
        )
        return None

    def _clean(self, record: OverlayRecord) -> None:
        brokers = [broker.process for broker in record.brokers]
        for process in processes.wait_gone(brokers, ORPHAN_S):
            processes.send(process, signal.SIGKILL)
        self._unlink(record.name)


class FileVersion(NamedTuple):
    """What tells whether a file is still the one that was written."""

    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, file: Path) -> FileVersion | None:
        """The version of a file; None if the file cannot be found."""
        try:
            found = file.stat()
        except OSError:
            return None
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


def _decode(file: Path) -> OverlayRecord:
    return msgspec.json.decode(file.read_bytes(), type=OverlayRecord)


def replace_file(file: Path, content: bytes) -> None:
    """Replace a file as a whole; it is on the disk when this returns. Raises OSError."""
    # Only one launcher writes at a time, so the name need not be unique.
    temporary = file.with_name(f".{file.name}.new")
    with temporary.open("wb") as new:
        new.write(content)
        new.flush()
        os.fsync(new.fileno())
    temporary.replace(file)
    directory = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def check_name(name: str) -> str:
    """Return the name if it is valid for an overlay. Raises StateError."""
    if not NAME_PATTERN.fullmatch(name):
        raise StateError(
            f"invalid overlay name {name[:80]!r}: expected a letter, then at most 63 letters, "
            "digits, '_', '.' or '-'"
        )
    return name
