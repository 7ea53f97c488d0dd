"""The version of the code that decides what a broker does, as a log names it.

Two processes with the same version do the same with the same inputs. So it covers the code of the
overlay and of all engines and services, wherever they come from, and the library that decodes.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import msgspec

import overlay
import padres_tx

#: What of this package runs in a broker's node.
ROOMS = ("protocol", "engines", "services", "client")


def code_version(parts: Iterable[object]) -> str:
    """The version of this code with these engines and services."""
    digest = hashlib.sha256(f"{msgspec.__version__} {sys.version_info[:2]}".encode())
    tree, own = Path(overlay.__file__).parent, Path(padres_tx.__file__).parent
    files = [*tree.rglob("*.py"), *own.glob("*.py")]
    for room in ROOMS:
        files += (own / room).rglob("*.py")
    for part in parts:
        module = inspect.getmodule(part)
        if module is not None and module.__file__ is not None:
            files.append(Path(module.__file__))
    roots = {str(tree): "overlay", str(own): "padres_tx"}
    named = {}
    for file in files:
        root = next((root for root in roots if str(file).startswith(root + "/")), None)
        name = file.name if root is None else roots[root] + str(file)[len(root) :]
        named[name] = file
    for name, file in sorted(named.items()):
        digest.update(name.encode() + b"\0" + file.read_bytes() + b"\0")
    return f"{version('padres-tx')}+{digest.hexdigest()[:12]}"
