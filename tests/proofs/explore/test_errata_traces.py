"""The traces in errata.md are what the explorer finds, line by line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from proofs.explore import errata
from proofs.explore.cli import explore as command
from proofs.explore.scenarios import SCENARIOS

TEXT = errata.DOCUMENT.read_text(encoding="utf-8")
SECTIONS = errata.sections(TEXT)

#: A scenario that takes no time.
QUICK = "s-tx-handover"


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.heading)
def test_a_trace_is_what_the_explorer_finds(section: errata.ErrataSection) -> None:
    assert list(section.lines) == list(errata.found(section.scenario, section.rules))


def test_every_command_of_the_table_has_its_trace() -> None:
    table = re.findall(r"^\| .*`padres-tx explore ([\w-]+) --rules ([\w-]+)` \|$", TEXT, re.M)
    assert table == [(each.scenario, each.rules) for each in SECTIONS]
    headings = re.findall(r"^### (.*)$", TEXT, re.M)
    assert headings == [each.heading for each in SECTIONS]
    for scenario, _ in table:
        assert SCENARIOS[scenario].rules["ours"].expected == ()


def test_writing_unchanged_traces_changes_nothing() -> None:
    traces = {(each.scenario, each.rules): each.lines for each in SECTIONS}
    assert "".join(errata.rewritten(TEXT, lambda *which: traces[which])) == TEXT


def test_a_trace_that_was_changed_by_hand_is_reported_and_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = TEXT.index(f"### {QUICK}")
    end = TEXT.index("### ", start + 1)
    right = "# Some of it\n\n" + TEXT[start:end]
    document = tmp_path / "errata.md"
    document.write_text(right.replace("   2. ", "   2. once "), encoding="utf-8")
    monkeypatch.setattr(errata, "DOCUMENT", document)
    compared = CliRunner().invoke(command, ["--errata"])
    assert compared.exit_code == 1
    assert "-   2. once " in compared.stdout
    written = CliRunner().invoke(command, ["--errata", "--write"])
    assert written.exit_code == 0
    assert document.read_text(encoding="utf-8").rstrip() == right.rstrip()
    assert CliRunner().invoke(command, ["--errata"]).exit_code == 0


@pytest.mark.parametrize("options", [["--write"], ["--errata", "--all"]])
def test_wrong_usage(options: list[str]) -> None:
    assert CliRunner().invoke(command, options).exit_code == 2


def test_a_trace_does_not_depend_on_the_order_of_sets() -> None:
    script = "from proofs.explore.errata import found; print(found('nested-acks', 'paper'))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1
