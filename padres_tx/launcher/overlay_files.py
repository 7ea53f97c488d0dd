"""Which overlays run on this machine: one JSON file each, so that other commands find them.

A file is written by the launcher of the overlay and goes with it. One that stays behind, because
its launcher was killed, is recognised (its launcher no longer runs) and removed by whoever comes
across it, with a notice. Files are replaced as a whole and synced to the disk, so a reader never
sees half of one. There is a copy of each, in case somebody or something damages the file while its
overlay runs: then the copy counts, and whoever looks is told.

The directory is $PADRES_TX_STATE, or padres-tx in $XDG_RUNTIME_DIR, or in ~/.local/state. Beside
NAME.json there is a directory NAME with the brokers' logs, which stay until the next overlay of
that name, and the copy.

This module must not know how brokers are started or asked.
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
from typing import Literal, TypeAlias

import msgspec

from padres_tx.launcher import processes
from padres_tx.launcher.processes import Process

#: Names the directory, before anything else is looked at; tests have one each.
DIRECTORY_ENV = "PADRES_TX_STATE"

#: Changes when a launcher writes what an older command would misread.
FORMAT = 1

#: A name is a file's name, too, and stands in messages.
NAME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")

#: Brokers that outlive a killed launcher notice by themselves, at once; then they are made to.
ORPHAN_S = 2.0

#: Whoever holds the lock needs milliseconds, or waits for the orphans of a few overlays.
LOCK_S = 15.0
LOCK_LOOK_S = 0.02

#: The copy of the state file, beside the logs; no broker's name begins like this.
COPY = "_state.json"

Phase: TypeAlias = Literal["starting", "up", "stopping"]


class StateError(Exception):
    """No such overlay, or one too many; the message is a line for the person who asked."""


class BrokerRecord(msgspec.Struct, frozen=True):
    """One broker of a running overlay, as its launcher last knew it."""

    name: str
    address: str
    neighbours: tuple[str, ...]
    log: str
    process: Process
    #: How its process ended, if the launcher has seen it end: negative for a signal.
    exit_code: int | None = None


class OverlayRecord(msgspec.Struct, frozen=True):
    """One running overlay; `brokers` are in the order of the topology."""

    name: str
    topology: str
    launcher: Process
    phase: Phase
    #: Where the logs are.
    directory: str
    brokers: tuple[BrokerRecord, ...] = ()
    format: int = FORMAT

    def broker(self, name: str) -> BrokerRecord:
        """The broker of that name.

        Raises StateError, which lists those there are.
        """
        for broker in self.brokers:
            if broker.name == name:
                return broker
        there = ", ".join(broker.name for broker in self.brokers) or "none yet"
        raise StateError(f"overlay {self.name} has no broker {name!r}; it has {there}")


def default_directory() -> Path:
    """Where the state files of this user are."""
    if chosen := os.environ.get(DIRECTORY_ENV):
        return Path(chosen).absolute()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "padres-tx"
    return Path.home() / ".local" / "state" / "padres-tx"


class Registry:
    """The overlays of one directory; `notice` is told what was cleaned up on the way."""

    def __init__(
        self, directory: Path | None = None, *, notice: Callable[[str], None] = lambda _: None
    ) -> None:
        self.directory = default_directory() if directory is None else directory
        self._notice = notice

    # --- for the launcher ---

    def claim(self, record: OverlayRecord) -> None:
        """Write the first record of an overlay.

        Raises StateError if an overlay of that name runs.
        """
        with self._locked():
            self._check_free(record.name)
            self.write(record)

    def check_free(self, name: str) -> None:
        """Raises StateError for a name that cannot be had now."""
        with self._locked():
            self._check_free(name)

    def _check_free(self, name: str) -> None:
        present = self._current(check_name(name))
        if present is not None:
            raise StateError(
                f"an overlay called {name} runs already (launcher process {present.launcher.pid}); "
                "stop it with 'padres-tx down', or choose another --name"
            )

    def write(self, record: OverlayRecord) -> None:
        """Replace an overlay's record; only its launcher may.

        Raises StateError if the file cannot be written.
        """
        text = msgspec.json.format(msgspec.json.encode(record), indent=2)
        self.directory_of(record.name)
        # The file first: a copy without its file means that the file is missing.
        for file in (self._file(record.name), self._copy(record.name)):
            try:
                _replace(file, text + b"\n")
            except OSError as error:
                raise StateError(f"cannot write {file}: {error.strerror}") from None

    def release(self, record: OverlayRecord) -> None:
        """The overlay has ended: remove its record, unless somebody else's is there by now."""
        with self._locked():
            try:
                present = self._read(record.name)
            except StateError:
                present = record  # Damaged; while we run it is nobody else's.
            if present is not None and present.launcher == record.launcher:
                self._unlink(record.name)

    def directory_of(self, name: str) -> Path:
        """The directory for an overlay's logs; it is there after this."""
        directory = self.directory / check_name(name)
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StateError(f"cannot make the directory {directory}: {error.strerror}") from None
        return directory

    # --- for everybody else ---

    def running(self) -> list[OverlayRecord]:
        """The overlays that run, by name."""
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

    def find(self, name: str | None = None, *, option: str = "--overlay") -> OverlayRecord:
        """The overlay of that name; without a name, the only one.

        `option` is what the person who asks can name it with.

        Raises StateError, which says what there is.
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
            which = "no overlay runs" if name is None else f"no overlay called {name} runs"
            raise StateError(
                f"{which} (looked in {self.directory}); start one with 'padres-tx up three'"
            )
        if name is None:
            raise StateError(f"several overlays run, {names}: say which, by {option}")
        raise StateError(f"no overlay called {name} runs; there is {names}")

    def get(self, name: str) -> OverlayRecord | None:
        """The record as it stands, whether or not its launcher lives."""
        return self._read(check_name(name))

    def remove(self, record: OverlayRecord) -> None:
        """End what is left of an overlay whose launcher has gone, and forget it."""
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
        """Looking and then writing is one step: two commands may come at once."""
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
        """The record of that name; if its file is damaged or missing, the copy, if that runs.

        Raises StateError.
        """
        file = self._file(name)
        try:
            record = _decode(file)
        except FileNotFoundError:
            record, why = None, "is missing"
        except (OSError, msgspec.DecodeError) as error:
            record, why = None, f"is no state file ({error})"
        if record is not None:
            if record.format != FORMAT or record.name != name:
                raise StateError(f"{file} is no state file of this version; remove it")
            return record
        copy = self._running_copy(name)
        if copy is not None:
            self._notice(f"{file} {why}; overlay {name} runs, and {self._copy(name)} says where")
            return copy
        if why == "is missing":
            return None
        raise StateError(f"{file} {why}; remove it")

    def _running_copy(self, name: str) -> OverlayRecord | None:
        """The copy of a state file, if it is sound and its launcher runs."""
        try:
            record = _decode(self._copy(name))
        except (OSError, msgspec.DecodeError):
            return None
        sound = record.format == FORMAT and record.name == name
        return record if sound and processes.alive(record.launcher) else None

    def _current(self, name: str) -> OverlayRecord | None:
        """The record of an overlay that runs; a stale one is cleaned up."""
        record = self._read(name)
        if record is None or processes.alive(record.launcher):
            return record
        self._clean(record)
        self._notice(
            f"overlay {name} had ended without its launcher (process {record.launcher.pid}) "
            "being able to say so; its state file has been removed"
        )
        return None

    def _clean(self, record: OverlayRecord) -> None:
        brokers = [broker.process for broker in record.brokers]
        for process in processes.wait_gone(brokers, ORPHAN_S):
            processes.send(process, signal.SIGKILL)
        self._unlink(record.name)


def _decode(file: Path) -> OverlayRecord:
    return msgspec.json.decode(file.read_bytes(), type=OverlayRecord)


def _replace(file: Path, content: bytes) -> None:
    """Replace a file as a whole, so that it is on the disk when this returns. Raises OSError."""
    # One launcher writes at a time, so the name need not be unique.
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
    """The name, if an overlay may have it. Raises StateError."""
    if not NAME_PATTERN.fullmatch(name):
        raise StateError(
            f"{name[:80]!r} is no name for an overlay: a letter, then at most 63 letters, "
            "digits, '_', '.' or '-'"
        )
    return name
