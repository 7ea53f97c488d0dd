"""The direction of imports: overlay and topologies know nobody, padres_tx knows both."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import sys
from pathlib import Path

import pytest

import padres_tx

ROOT = Path(__file__).parent.parent

#: Which of our packages each package may import.
ARROWS = {
    "overlay": set(),
    "topologies": set(),
    "padres_tx": {"overlay", "topologies"},
    "bench": {"overlay", "topologies", "padres_tx"},
    "proofs": {"overlay", "topologies", "padres_tx"},
}

#: The pure cores: what a module of these may not even import.
PURE = (
    "overlay/broker.py",
    "overlay/routing.py",
    "overlay/space.py",
    "overlay/versions.py",
    "overlay/tasks.py",
    "overlay/link.py",
    "overlay/lastword.py",
    "padres_tx/session.py",
    "padres_tx/holdings.py",
    "padres_tx/dynamic.py",
    "padres_tx/dynamic_tx.py",
    "padres_tx/static_tx.py",
    "padres_tx/tcm_routes.py",
    "padres_tx/inspection.py",
    "padres_tx/two_phase.py",
    "padres_tx/outcomes.py",
    "padres_tx/broker_wire.py",
    "padres_tx/questions.py",
    "padres_tx/conflicts.py",
    "padres_tx/compensation.py",
    "padres_tx/admission.py",
    "padres_tx/planning.py",
    "overlay/turns.py",
    "overlay/waiting.py",
    "padres_tx/engines/d_tx.py",
    "padres_tx/engines/d_tx_ni.py",
    "padres_tx/engines/s_tx.py",
)
IMPURE = {"twisted", "asyncio", "threading", "time", "random", "socket", "logging", "os", "secrets"}


def imported(path: Path) -> set[str]:
    """The top-level packages that a module imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("package", sorted(ARROWS))
def test_imports_follow_the_arrows(package: str) -> None:
    for path in sorted((ROOT / package).rglob("*.py")):
        ours = imported(path) & (ARROWS.keys() | {"tests"})
        assert ours <= ARROWS[package] | {package}, path.relative_to(ROOT)


@pytest.mark.parametrize("module", PURE)
def test_the_cores_import_neither_clock_nor_socket_nor_chance(module: str) -> None:
    assert not imported(ROOT / module) & IMPURE


def test_only_what_is_declared_is_imported() -> None:
    """A newcomer's environment has what setup.cfg says, and nothing else."""
    declared = {
        "click",
        "intervaltree",
        "msgspec",
        "networkx",
        "pydantic",
        "yaml",
        "rich",
        "sortedcontainers",
        "twisted",
        "zope",  # Twisted's own.
        "matplotlib",  # The extra "draw".
        *("jinja2", "markupsafe", "pandas", "pyarrow", "pyspark", "scipy"),  # The extra "spark".
        "pytest",  # padres_tx.testing, for who has pytest.
        "z3",  # The extra "test".
    }
    for package in ARROWS:
        for path in sorted((ROOT / package).rglob("*.py")):
            foreign = imported(path) - sys.stdlib_module_names - ARROWS.keys()
            assert foreign <= declared, path.relative_to(ROOT)


def test_no_module_hides_a_public_name() -> None:
    """Importing `package.name` sets `package.name`: a function of that name would be gone."""
    modules = {module.name for module in pkgutil.iter_modules(padres_tx.__path__)}
    for name in modules & set(padres_tx.__all__):
        assert inspect.ismodule(getattr(padres_tx, name)), name
