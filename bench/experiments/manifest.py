"""The manifest of an experiment's directory: manifest.json.

It names the specs with their seeds, the versions, the machine, and each command that has worked on
the directory, since a sweep may be interrupted and resumed. Runs of another spec are refused in a
directory that has an experiment of the same name: comparing them would compare different things
under one name.

How anything is run must not be known here.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.experiments.spec import Spec
from bench.records import LAYOUT, MANIFEST

PACKAGES: Final = ("padres-tx", "twisted", "msgspec", "pydantic", "networkx", "sortedcontainers")


class ManifestError(Exception):
    """The directory cannot be used for this sweep; the message is one line."""


class Command(msgspec.Struct, kw_only=True):
    """One command that has worked on a directory."""

    arguments: list[str]
    began_at: str
    versions: dict[str, str]
    machine: dict[str, Any]


class Manifest(msgspec.Struct, kw_only=True):
    """The contents of manifest.json."""

    layout: int
    quick: bool
    #: By name, as they are run.
    experiments: dict[str, dict[str, Any]]
    #: The ids of all runs, in the order of the sweep.
    runs: list[str]
    commands: list[Command]


def record(directory: Path, specs: Sequence[Spec], runs: Sequence[str], *, quick: bool) -> Manifest:
    """Record what this command is going to run in the directory.

    Raises ManifestError if the directory has other contents.
    """
    path = directory / MANIFEST
    if path.exists():
        found = read(directory)
    elif directory.exists() and any(directory.iterdir()):
        raise ManifestError(f"{directory} is neither empty nor the directory of an experiment")
    else:
        found = Manifest(layout=LAYOUT, quick=quick, experiments={}, runs=[], commands=[])
    if found.quick != quick:
        version = "short" if found.quick else "full"
        raise ManifestError(f"{directory} has the {version} version; use another directory")
    for spec in specs:
        data = spec.as_data()
        there = found.experiments.get(spec.name)
        if there is not None and there != data:
            fields = [name for name in data if there.get(name) != data[name]] or ["fields"]
            raise ManifestError(
                f"{directory} has {spec.name} with different {', '.join(fields)}; "
                "use another directory"
            )
        found.experiments[spec.name] = data
    found.runs += [run for run in runs if run not in set(found.runs)]
    found.commands.append(
        Command(
            arguments=list(sys.argv),
            began_at=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=versions(),
            machine=machine(),
        )
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        replace(path, found)
    except OSError as error:
        raise ManifestError(f"cannot write {path}: {error.strerror}") from None
    return found


def read(directory: Path) -> Manifest:
    """The manifest of a directory. Raises ManifestError."""
    path = directory / MANIFEST
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise ManifestError(f"cannot read {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ManifestError(f"{path} is damaged: {error}") from None
    if found.layout != LAYOUT:
        raise ManifestError(f"{path} has layout {found.layout}, expected {LAYOUT}")
    return found


def replace(path: Path, what: Any) -> None:
    """Write a JSON file atomically."""
    beside = path.with_name(path.name + ".new")
    text = msgspec.json.format(msgspec.json.encode(what), indent=2)
    with beside.open("wb") as file:
        file.write(text + b"\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def versions() -> dict[str, str]:
    """The versions of Python, of this package, and of those that a run's speed depends on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def machine() -> dict[str, Any]:
    """A description of the machine that does not identify it."""
    return {
        "system": platform.system(),
        "release": platform.release(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
