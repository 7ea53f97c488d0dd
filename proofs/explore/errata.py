"""The traces in `errata.md`: what the explorer finds, written down, and compared with it again.

Under a heading `### SCENARIO, rules: NAME` of the document stands, indented, the shortest run that
the explorer finds for it, and nothing else. Headings are written by people, and which runs are
worth telling is for them to say; what is under a heading is written by `padres-tx explore --errata
--write`. A run that has not changed is not written differently, so the document is compared as
text, line by line.
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

#: A heading, and what belongs to it: empty and indented lines.
SECTION = re.compile(r"^### ([\w-]+), rules: ([\w-]+)\n((?:\n| {4}.*\n)*)", re.MULTILINE)

INDENT = " " * 4


class ErrataSection(NamedTuple):
    """A heading of the document, and the lines below it."""

    scenario: str
    rules: str
    told: tuple[str, ...]

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
    """What the explorer finds now. Raises KeyError if there is no such scenario or rules."""
    return tuple(describe_run(explore(SCENARIOS[scenario], rules)))


def difference(section: ErrataSection, now: tuple[str, ...]) -> list[str]:
    """How a section differs from what is found now; nothing if it does not."""
    names = f"errata.md, {section.heading}", "the explorer"
    return list(difflib.unified_diff(section.told, now, *names, lineterm=""))


def rewritten(text: str, find: Callable[[str, str], tuple[str, ...]] = found) -> Iterator[str]:
    """The document with what is found now, piece by piece; put them together."""
    end = 0
    for match in SECTION.finditer(text):
        scenario, rules, _ = match.groups()
        lines = "".join(f"{INDENT}{line}\n" for line in find(scenario, rules))
        last = match.end() == len(text)
        yield text[end : match.start(3)] + "\n" + lines + ("" if last else "\n")
        end = match.end()
    yield text[end:]
