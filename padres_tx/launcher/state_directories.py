"""Where the brokers of an overlay keep their state, and which overlay it belongs to.

An overlay's state is a directory with one directory for each broker, which belongs to that broker
alone, and a file that says which topology they were made for. What the brokers have stored fits
only brokers of the same names, neighbours and services; addresses and delays may change.

In disk mode the directory outlives the overlay, so it is not below $XDG_RUNTIME_DIR, which is kept
in memory and emptied when the user logs out.

This module must not know what a broker stores.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from padres_tx.launcher.overlay_files import DIRECTORY_ENV, StateError, check_name, replace_file
from topologies import Topology

#: Says which topology the directories were made for; no broker's name starts with an underscore.
ABOUT = "_overlay.json"

#: Version of that file: increased when older code would misread a newer file.
FORMAT = 1

#: Below an overlay's directory of logs: the state of brokers in disk mode, and in memory mode what
#: a broker that is restarted as planned leaves to the process that follows it.
STATE = "state"
HANDED_ON = "_handed_on"


class StateShape(msgspec.Struct, frozen=True):
    """What must not change between two starts with the same state."""

    brokers: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    services: tuple[str, ...]
    format: int = FORMAT

    @classmethod
    def of(cls, topology: Topology) -> StateShape:
        edges = sorted((min(edge.a, edge.b), max(edge.a, edge.b)) for edge in topology.edges)
        names = sorted(broker.name for broker in topology.brokers)
        return cls(tuple(names), tuple(edges), tuple(sorted(topology.services)))

    def difference(self, other: StateShape) -> str:
        """What `other` has changed, in words; "" if nothing."""
        links = [tuple("-".join(edge) for edge in each.edges) for each in (self, other)]
        for what, before, after in (
            ("broker", self.brokers, other.brokers),
            ("link", *links),
            ("service", self.services, other.services),
        ):
            changes = [f"{what} {name} is new" for name in after if name not in before]
            changes += [f"{what} {name} is missing" for name in before if name not in after]
            if changes:
                return changes[0] + (f", and {len(changes) - 1} more" if changes[1:] else "")
        return ""


def default_state(overlay: str) -> Path:
    """The directory for the state of this user's overlay of that name in disk mode.

    Raises StateError for an invalid name.
    """
    check_name(overlay)
    if chosen := os.environ.get(DIRECTORY_ENV):
        return Path(chosen).absolute() / overlay / STATE
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home).absolute() / "padres-tx" / overlay / STATE


def claim(state: Path, topology: Topology) -> bool:
    """Prepare the directory for the brokers of this topology; returns whether they have been there.

    Raises StateError if it was made for another topology, holds something else, or cannot be used.
    """
    shape = StateShape.of(topology)
    about = state / ABOUT
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = sorted(path.name for path in state.iterdir() if path != about)
        try:
            present = msgspec.json.decode(about.read_bytes(), type=StateShape)
        except FileNotFoundError:
            if found:
                raise StateError(
                    f"{state} is not the state of an overlay: it contains {found[0]} and has no "
                    f"{ABOUT}; choose another --state"
                ) from None
            present = shape
        except msgspec.DecodeError as error:
            raise StateError(f"{about} is damaged ({error}); nothing was changed") from None
        if present.format != FORMAT:
            raise StateError(f"{about} has format {present.format}; this version reads {FORMAT}")
        difference = present.difference(shape)
        if difference and found:
            raise StateError(
                f"the state in {state} was made for another topology: {difference}; start it with "
                "the topology that it was made for, choose another --state, or remove it with "
                "'padres-tx down --forget'"
            )
        replace_file(about, msgspec.json.encode(shape) + b"\n")
    except OSError as error:
        raise StateError(f"cannot use the state directory {state}: {error.strerror}") from None
    return bool(found)


def forget(state: Path) -> bool:
    """Remove the state of an overlay that is not running; returns whether there was one.

    Raises StateError if the directory is not an overlay's state, or cannot be removed.
    """
    if not state.exists():
        return False
    if not (state / ABOUT).is_file():
        raise StateError(f"{state} is not the state of an overlay: it has no {ABOUT}; not removed")
    try:
        shutil.rmtree(state)
    except OSError as error:
        raise StateError(f"cannot remove {error.filename or state}: {error.strerror}") from None
    return True
