"""docs/decisions.md names scenarios, rules, files, specifications and controls that exist."""

from __future__ import annotations

import re
from pathlib import Path

from proofs.explore.scenarios import SCENARIOS
from proofs.faults.injected_bugs import BUGS
from proofs.solvers.models import MODELS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")


def test_every_scenario_and_its_rules_exist() -> None:
    commands = re.findall(r"`padres-tx explore ([a-z][\w-]*)(?: --rules ([\w-]+))?`", TEXT)
    assert len(commands) > 25
    for scenario, rules in commands:
        expected = SCENARIOS[scenario].rules[rules or "ours"].expected
        assert bool(expected) == bool(rules), (scenario, rules)


def test_every_number_of_a_scenario_is_a_section() -> None:
    sections = re.findall(r"^## (\d+)\. ", TEXT, re.MULTILINE)
    assert [int(number) for number in sections] == list(range(1, len(sections) + 1))
    for scenario in SCENARIOS.values():
        (number,) = re.findall(r"^\((\d+)\) ", scenario.about)
        assert number in sections, scenario.name


def test_every_file_exists() -> None:
    for name in re.findall(r"`((?:overlay|padres_tx|proofs|tests)/[\w/.]+)`", TEXT):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"`(\w+\.tla)`", TEXT):
        assert (ROOT / "proofs" / "tla" / name).exists(), name


def test_every_control_and_every_injected_bug_exists() -> None:
    controls = {model.without for model in MODELS}
    for listed in re.findall(r"controls? ((?:\"[\w\s]+\"(?:, | and )?)+)", TEXT):
        for name in re.findall(r'"([\w\s]+)"', listed):
            assert " ".join(name.split()) in controls, name
    for listed in re.findall(r"Injected bugs ((?:`[\w*-]+`(?: and )?)+)", TEXT):
        for name in re.findall(r"`([\w*-]+)`", listed):
            assert any(bug == name or bug.startswith(name.rstrip("*")) for bug in BUGS), name
