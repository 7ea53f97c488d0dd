"""What an experiment's directory says of itself: manifest.json.

It names what was run (the specs with their seeds), by what (versions), where (the machine) and how
(each command that has worked on it, since a sweep may be interrupted and resumed). Runs of another
spec do not belong into a directory where an experiment of that name is already: comparing them
would compare different things under one name.

This module must not know how anything is run.
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
    """The directory is not fit for this sweep; the message is a line for the person who asked."""


class Command(msgspec.Struct, kw_only=True):
    """One command that has worked on a directory."""

    arguments: list[str]
    began_at: str
    versions: dict[str, str]
    machine: dict[str, Any]


class Manifest(msgspec.Struct, kw_only=True):
    """What stands in manifest.json."""

    layout: int
    quick: bool
    #: By name, as they are run.
    experiments: dict[str, dict[str, Any]]
    #: Of all runs, in the order of the sweep.
    runs: list[str]
    commands: list[Command]


def record(directory: Path, specs: Sequence[Spec], runs: Sequence[str], *, quick: bool) -> Manifest:
    """Write down what this command is going to run in the directory.

    Raises ManifestError if something else is there.
    """
    path = directory / MANIFEST
    if path.exists():
        found = read(directory)
    elif directory.exists() and any(directory.iterdir()):
        raise ManifestError(f"{directory} is neither empty nor an experiment's directory")
    else:
        found = Manifest(layout=LAYOUT, quick=quick, experiments={}, runs=[], commands=[])
    if found.quick != quick:
        version = "short" if found.quick else "full"
        raise ManifestError(f"{directory} holds the {version} version; take another directory")
    for spec in specs:
        data = spec.as_data()
        there = found.experiments.get(spec.name)
        if there is not None and there != data:
            fields = [name for name in data if there.get(name) != data[name]] or ["fields"]
            raise ManifestError(
                f"{directory} holds {spec.name} with other {', '.join(fields)}; "
                "take another directory"
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
        raise ManifestError(f"{path} has layout {found.layout}, and {LAYOUT} is expected")
    return found


def replace(path: Path, what: Any) -> None:
    """Write a JSON file so that it is there as a whole or not at all."""
    beside = path.with_name(path.name + ".new")
    text = msgspec.json.format(msgspec.json.encode(what), indent=2)
    with beside.open("wb") as file:
        file.write(text + b"\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def versions() -> dict[str, str]:
    """Of Python, of ours and of what a run's speed depends on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def machine() -> dict[str, Any]:
    """What can be said of a machine without naming it."""
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
