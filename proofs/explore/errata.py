"""The traces in `errata.md`: written by the explorer, and compared with what it finds now.

Below each heading `### SCENARIO, rules: NAME` of the document is, indented, the shortest run that
the explorer finds for it, and nothing else. People write the headings and choose the runs;
`padres-tx explore --errata --write` writes the text below a heading. A run that has not changed is
written in the same way, so the document is compared as text, line by line.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from proofs.explore.explorer import explore
from proofs.explore.render import describe_run
from proofs.explore.scenarios import SCENARIOS

DOCUMENT = Path(__file__).parents[1] / "errata.md"

#: A heading, and the empty and indented lines below it.
SECTION = re.compile(r"^### ([\w-]+), rules: ([\w-]+)\n((?:\n| {4}.*\n)*)", re.MULTILINE)

INDENT = " " * 4


class ErrataSection(NamedTuple):
    """A heading of the document, and the lines below it."""

    scenario: str
    rules: str
    lines: tuple[str, ...]

    @property
    def heading(self) -> str:
        return f"{self.scenario}, rules: {self.rules}"


def sections(text: str) -> list[ErrataSection]:
    """The traces of the document, in its order."""
    return [
        ErrataSection(
            scenario, rules, tuple(line.removeprefix(INDENT) for line in body.split("\n") if line)
        )
        for scenario, rules, body in SECTION.findall(text)
    ]


def found(scenario: str, rules: str) -> tuple[str, ...]:
    """The run that the explorer finds now. Raises KeyError for an unknown scenario or rules."""
    return tuple(describe_run(explore(SCENARIOS[scenario], rules)))


def difference(section: ErrataSection, now: tuple[str, ...]) -> list[str]:
    """The differences between a section and what is found now, as a unified diff."""
    names = f"errata.md, {section.heading}", "the explorer"
    return list(difflib.unified_diff(section.lines, now, *names, lineterm=""))


def rewritten(text: str, find: Callable[[str, str], tuple[str, ...]] = found) -> Iterator[str]:
    """The document with the runs that are found now, in pieces to be joined."""
    end = 0
    for match in SECTION.finditer(text):
        scenario, rules, _ = match.groups()
        lines = "".join(f"{INDENT}{line}\n" for line in find(scenario, rules))
        last = match.end() == len(text)
        yield text[end : match.start(3)] + "\n" + lines + ("" if last else "\n")
        end = match.end()
    yield text[end:]
