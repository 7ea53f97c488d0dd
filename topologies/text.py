"""Read a YAML or JSON file as plain data: mappings, lists, text, numbers, None.

YAML scalars stay text (the model converts them by field), because YAML would read a broker named
`no` as a boolean and `7001:30` as a number. Together with the limited size, this also means that a
file cannot construct objects or expand without end. A duplicate key is an error, because the
parsers would silently keep the last one.

This module must not know what a topology is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from topologies.errors import TopologyError

#: Ten times what the largest allowed topology takes; more is a wrong file, not a topology.
MAX_FILE_BYTES = 1 << 20

SUFFIXES = (".yaml", ".yml", ".json")


def read(path: Path) -> object:
    """Return the data in a file, whose suffix gives its format.

    Raises TopologyError, without the name of the file, if it is missing, unreadable, too large, not
    UTF-8, or not in the format of its suffix.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise TopologyError(f"invalid file name: expected one of {', '.join(SUFFIXES)}")
    try:
        with path.open("rb") as file:
            # Read instead of stat: a device or pipe has no size.
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise TopologyError("no such file") from None
    except OSError as error:
        raise TopologyError(f"cannot be read: {error.strerror}") from None
    except ValueError as error:  # a NUL in the path
        raise TopologyError(f"cannot be read: {error}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise TopologyError(f"larger than {MAX_FILE_BYTES} bytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TopologyError(f"not UTF-8 text (byte {error.start})") from None
    return from_json(text) if path.suffix.lower() == ".json" else from_yaml(text)


def from_yaml(text: str) -> object:
    """Return the data in one YAML document. Raises TopologyError with line and column."""
    try:
        return yaml.load(text, _PlainLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise TopologyError(f"not YAML{where}: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        raise TopologyError(f"not YAML (character {error.position}): {error.reason}") from None
    except RecursionError:
        raise TopologyError("not a topology: nested too deeply") from None


def from_json(text: str) -> object:
    """Return the data in one JSON document. Raises TopologyError with line and column."""
    try:
        return json.loads(text, object_pairs_hook=_json_object)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise TopologyError(f"not JSON ({where}): {error.msg}") from None
    except ValueError as error:  # an integer of thousands of digits
        raise TopologyError(f"not JSON: {error}") from None
    except RecursionError:
        raise TopologyError("not a topology: nested too deeply") from None


class _PlainLoader(yaml.BaseLoader):
    """BaseLoader that rejects duplicate keys and reads an empty value as None."""

    def construct_scalar(self, node: Any) -> Any:
        value = super().construct_scalar(node)
        return None if node.style is None and value in ("", "~", "null") else value

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            problem = _key_problem(key, seen)
            if problem:
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _json_object(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        problem = _key_problem(key, found)
        if problem:
            raise TopologyError(problem)
        found[key] = value
    return found


def _key_problem(key: object, seen: set[str] | dict[str, object]) -> str | None:
    if not isinstance(key, str):
        return "expected a text key"
    return f"duplicate key {key!r}" if key in seen else None
