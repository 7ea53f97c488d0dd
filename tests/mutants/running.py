"""Runs the tests that cover a mutant, in a copy of the tree, and remembers what came of it.

Each of several threads has its own copy, in which it changes one module at a time. A test process
and all that it has started end with their mutant, or at its time limit. Results are appended to a
file at once, so that an interrupted run can be resumed: that a mutant is caught counts as long as
its module is unchanged; that it survived, as long as the tests that cover it are unchanged as well.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple, cast

from tests.mutants.covering import covering
from tests.mutants.mutations import Mutant

#: What a copy of the tree does without.
LEFT_OUT = (
    ".git",
    ".venv",
    "build",
    ".*_cache",
    ".hypothesis",
    "__pycache__",
    "*.egg-info",
    "*.pyc",
)

#: Random runs of whole overlays for a mutant: enough for most, in some seconds an engine.
SEEDS = 400

#: A mutant may take so many times as long as the tests without it, and some time on top, since
#: machines are busy; so may each test. One that takes longer hangs.
PATIENCE = 4.0
PATIENCE_S = 60.0
TEST_PATIENCE_S = 15.0


PLUGIN = "tests.mutants.quickest"

#: Where the plugin is, for trees that are none of ours.
ROOT = Path(__file__).parents[2]


class TestsFail(Exception):
    """The tests cannot be run, whether there is a mutant or not."""


class Outcome(NamedTuple):
    """What came of a mutant."""

    #: "caught", "timeout" (which is caught, too) or "survived".
    status: str
    #: The first test that failed, if one did.
    by: str
    seconds: float

    @property
    def is_caught(self) -> bool:
        return self.status != "survived"


class Cache:
    """Results of earlier runs, in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, dict[str, object]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                with suppress(json.JSONDecodeError):  # Cut off when it was interrupted.
                    record = json.loads(line)
                    self._known[record["id"]] = record

    def get(self, id: str, tests: str) -> Outcome | None:
        """What is known of a mutant, if it still counts with these tests."""
        record = self._known.get(id)
        if record is None or (record["status"] == "survived" and record["tests"] != tests):
            return None
        return Outcome(str(record["status"]), str(record["by"]), float(str(record["seconds"])))

    def keep(self, id: str, tests: str, outcome: Outcome) -> None:
        self._append({"id": id, "tests": tests, **outcome._asdict()})

    def durations(self, tree: str) -> dict[str, float] | None:
        """How long each test takes in a tree without a mutant, if that was measured."""
        record = self._known.get(f"durations of {tree}")
        return None if record is None else cast("dict[str, float]", record["durations"])

    def keep_durations(self, tree: str, durations: dict[str, float]) -> None:
        self._append({"id": f"durations of {tree}", "durations": durations})

    def _append(self, record: dict[str, object]) -> None:
        with self._lock:
            self._known[str(record["id"])] = record
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")


def digest(root: Path, paths: Sequence[str]) -> str:
    """A digest of all Python files at or under these paths."""
    whole = hashlib.sha256()
    for path in paths:
        at = root / path
        for file in sorted(at.rglob("*.py")) if at.is_dir() else [at]:
            whole.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    return whole.hexdigest()[:16]


class _Pytest:
    """One run of pytest in a copy of the tree."""

    def __init__(self, tree: Path, *arguments: str) -> None:
        common = [
            *("-p", PLUGIN, "-p", "no:cacheprovider", "-q"),
            "--seeds",
            str(SEEDS),
            "--no-header",
            "--tb=line",
        ]
        self._output = tree / "output.txt"
        with self._output.open("wb") as output:
            self._popen = self._start(tree, [*common, *arguments], output)

    @staticmethod
    def _start(tree: Path, arguments: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=tree,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join((str(tree), str(ROOT))),
                "CI": "1",  # What Hypothesis draws is the same for all mutants.
                "HYPOTHESIS_STORAGE_DIRECTORY": str(tree / ".hypothesis"),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait(self, limit_s: float | None) -> int | None:
        """The exit code; None if it takes longer."""
        try:
            return self._popen.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def end(self) -> None:
        """End it, with all processes that it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()


class Workshop:
    """Copies of the tree, one for each mutant at a time."""

    def __init__(self, root: Path, directory: Path, processes: int) -> None:
        self._root = root
        self._running: set[_Pytest] = set()
        self._stopped = False
        self._trees: queue.Queue[Path] = queue.Queue()
        self.processes = processes
        for number in range(processes):
            tree = directory / f"tree-{number}"
            shutil.copytree(root, tree, ignore=shutil.ignore_patterns(*LEFT_OUT))
            self._trees.put(tree)

    def durations(self, tests: Sequence[str]) -> dict[str, float]:
        """How long each test takes without a mutant; for ever if it fails without one.

        Raises TestsFail if they cannot even be run.
        """
        tree = self._trees.get()
        measured = tree / "measured.json"
        spread = (
            ["-n", str(self.processes), "--dist", "loadfile"] if self.processes > 1 else ["-n0"]
        )
        with self._pytest(tree, *spread, f"--measure={measured}", *tests) as run:
            if run.wait(None) not in (0, 1):
                raise TestsFail(run.output())
        self._trees.put(tree)
        return cast("dict[str, float]", json.loads(measured.read_text()))

    def attempt(self, mutant: Mutant, tests: Sequence[str], durations: dict[str, float]) -> Outcome:
        """See whether the tests notice a mutant; `durations` are those without it."""
        usual = [
            took_s
            for test, took_s in durations.items()
            if any(test.startswith((f"{path}::", f"{path}/")) for path in tests)
            and took_s != math.inf
        ]
        test_limit_s = PATIENCE * max(usual, default=0.0) + TEST_PATIENCE_S
        limit_s = PATIENCE * sum(usual) + PATIENCE_S
        tree = self._trees.get()
        module = tree / mutant.module
        original = module.read_bytes()
        began = time.monotonic()
        try:
            _write(module, mutant.source.encode())
            measured = tree / "measured.json"
            measured.write_text(json.dumps(durations))
            limits = [f"--measured={measured}", f"--timeout={test_limit_s:.0f}"]
            with self._pytest(tree, "-x", "-n0", *limits, *tests) as run:
                code = run.wait(limit_s)
                seconds = round(time.monotonic() - began, 1)
                if code is None:
                    return Outcome("timeout", "", seconds)
                if code == 0:
                    return Outcome("survived", "", seconds)
                if code == 5:
                    raise TestsFail(f"no tests are collected from {', '.join(tests)}")
                return Outcome("caught", _first_failure(run.output()), seconds)
        finally:
            _write(module, original)
            self._trees.put(tree)

    @contextmanager
    def _pytest(self, tree: Path, *arguments: str) -> Iterator[_Pytest]:
        run = _Pytest(tree, *arguments)
        self._running.add(run)
        if self._stopped:
            run.end()
        try:
            yield run
        finally:
            self._running.discard(run)
            run.end()

    def stop(self) -> None:
        """End what is running; what has begun fails."""
        self._stopped = True
        for run in list(self._running):
            run.end()


@contextmanager
def workshop(root: Path, processes: int) -> Iterator[Workshop]:
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as directory:
        yield Workshop(root, Path(directory), processes)


def run_all(
    shop: Workshop,
    drawn: Sequence[Mutant],
    durations: dict[str, float],
    report: Callable[[Mutant, Outcome], None],
) -> None:
    """Try all mutants, several at a time, and report on each as soon as it is known."""
    with ThreadPoolExecutor(shop.processes) as threads:
        futures = {
            threads.submit(shop.attempt, mutant, covering(mutant.module), durations): mutant
            for mutant in drawn
        }
        try:
            for future in as_completed(futures):
                report(futures[future], future.result())
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            shop.stop()
            raise


def _write(module: Path, source: bytes) -> None:
    """Change a module; Python takes what it has compiled for current by size and whole seconds."""
    module.write_bytes(source)
    for compiled in (module.parent / "__pycache__").glob(f"{module.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)


def _first_failure(output: str) -> str:
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return found.group(1) if found else "a test that could not be collected"
