"""The direction of imports: overlay and topologies know nobody, padres_tx knows both."""

from __future__ import annotations

import ast
import graphlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import padres_tx
from padres_tx import registry

ROOT = Path(__file__).parent.parent

#: Which of our packages each package may import.
ARROWS = {
    "overlay": set(),
    "topologies": set(),
    "padres_tx": {"overlay", "topologies"},
    "bench": {"overlay", "topologies", "padres_tx"},
    "proofs": {"overlay", "topologies", "padres_tx"},
}

#: What each room may import of ours, beside itself; "overlay.*" means the modules at overlay's top.
#: A room that is not listed here may import what its package may.
VOCABULARY = "overlay.*"
TX_VOCABULARY = "padres_tx.*"
PROOFS_VOCABULARY = "proofs.*"
PRODUCT = ("overlay", "padres_tx", "topologies")
BROKER_HALF = {
    *(VOCABULARY, "overlay.tables", "overlay.broker"),
    *(TX_VOCABULARY, "padres_tx.protocol"),
}
ROOMS = {
    "overlay/": {VOCABULARY},
    "overlay/matching": {VOCABULARY},
    "overlay/tables": {VOCABULARY, "overlay.matching"},
    "overlay/broker": {VOCABULARY, "overlay.matching", "overlay.tables"},
    "overlay/snapshots": {VOCABULARY, "overlay.broker"},
    "overlay/wire": {VOCABULARY},
    "overlay/files": {VOCABULARY},
    "overlay/node": {
        *(VOCABULARY, "overlay.broker", "overlay.wire", "overlay.log", "overlay.snapshots"),
    },
    "overlay/log": {"overlay.errors"},
    "overlay/hosts": {"overlay"},
    "padres_tx/client": {
        *(VOCABULARY, "overlay.wire", "overlay.matching", "overlay.tables"),
        TX_VOCABULARY,
    },
    "padres_tx/client/asyncio": {
        *(VOCABULARY, "overlay.wire"),
        *(TX_VOCABULARY, "padres_tx.client"),
    },
    "padres_tx/client/blocking": {
        *(VOCABULARY, "overlay.wire"),
        *(TX_VOCABULARY, "padres_tx.client", "padres_tx.client.asyncio"),
    },
    "padres_tx/protocol": {
        *(VOCABULARY, "overlay.matching", "overlay.tables", "overlay.broker", "overlay.wire"),
        *(TX_VOCABULARY, "padres_tx.protocol.validation"),
    },
    "padres_tx/protocol/validation": {
        *(VOCABULARY, "overlay.matching", "overlay.tables"),
        TX_VOCABULARY,
    },
    "padres_tx/audit": {VOCABULARY, "overlay.matching", "overlay.tables", TX_VOCABULARY},
    "padres_tx/engines": {VOCABULARY, TX_VOCABULARY, "padres_tx.client"},
    "padres_tx/engines/d_tx": BROKER_HALF,
    "padres_tx/engines/d_tx_ni": BROKER_HALF,
    "padres_tx/engines/s_tx": BROKER_HALF,
    "padres_tx/services": {
        *(VOCABULARY, "overlay.tables", "overlay.broker"),
        *(TX_VOCABULARY, "padres_tx.protocol"),
    },
    "padres_tx/launcher": {
        VOCABULARY,
        *(TX_VOCABULARY, "padres_tx.client"),
        "topologies",
    },
    "padres_tx/scenarios": {
        VOCABULARY,
        *(TX_VOCABULARY, "padres_tx.client", "padres_tx.launcher", "padres_tx.engines"),
        "topologies",
    },
    "padres_tx/testing": {
        *(VOCABULARY, "overlay.wire", "overlay.broker", "overlay.snapshots", "overlay.hosts"),
        *(TX_VOCABULARY, "padres_tx.client"),
        "topologies",
    },
    # `proofs` tries everything that the product has; its rooms are kept apart from each other.
    "proofs/": {VOCABULARY, "overlay.hosts", TX_VOCABULARY, "padres_tx.audit"},
    "proofs/sim": {*PRODUCT, PROOFS_VOCABULARY, "proofs.checkers"},
    "proofs/faults": {*PRODUCT, PROOFS_VOCABULARY, "proofs.checkers", "proofs.sim"},
    "proofs/explore": {
        *(*PRODUCT, PROOFS_VOCABULARY, "proofs.checkers", "proofs.faults"),
        # What processes are made of; never the random runs.
        *("proofs.sim.broker_processes", "proofs.sim.client_program", "proofs.sim.sockets"),
    },
    "proofs/solvers": {*PRODUCT, PROOFS_VOCABULARY, "proofs.sim"},
    "bench/micro": {"bench.*", "overlay", "padres_tx", "topologies"},
    "bench/experiments": {"bench.*", "bench.micro.path", "overlay", "padres_tx", "topologies"},
    "bench/spark": {"bench.*", "bench.report", "overlay", "padres_tx"},
    "bench/report": {"bench.*", "padres_tx.*", "padres_tx.audit", "padres_tx.cli"},
}

#: Rooms without I/O, clock or chance: what a module there may not even import.
PURE = (
    *("overlay", "overlay/matching", "overlay/tables", "overlay/broker", "overlay/wire"),
    "overlay/snapshots",
    *("overlay/node",),
    *("padres_tx/audit", "padres_tx/client", "padres_tx/protocol", "padres_tx/protocol/validation"),
    *("padres_tx/engines", "padres_tx/engines/d_tx", "padres_tx/engines/d_tx_ni"),
    *("padres_tx/engines/s_tx", "padres_tx/services"),
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


def modules_imported(path: Path) -> set[str]:
    """The full names of the modules of ours that a module imports, also inside functions; not
    those that only its annotations need."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if is_module(name) else node.module)
    return {name for name in found if name.partition(".")[0] in ARROWS}


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


def allows(rule: str, module: str) -> bool:
    """Whether a rule of `ROOMS` allows a module."""
    if rule.endswith(".*"):
        package = rule[:-2]
        is_room = (ROOT / module.replace(".", "/")).is_dir()
        return module == package or (module.rpartition(".")[0] == package and not is_room)
    return module == rule or module.startswith(f"{rule}.")


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_each_room_keeps_its_rule(room: str) -> None:
    own = room.strip("/").replace("/", ".")
    for path in sorted((ROOT / room).glob("*.py")):
        for module in sorted(modules_imported(path)):
            inside = own if not room.endswith("/") else f"{own}.*"
            assert any(allows(rule, module) for rule in (inside, *ROOMS[room])), (
                f"{path.relative_to(ROOT)} imports {module}"
            )


def test_every_room_says_its_rule() -> None:
    for room in ROOMS:
        text = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text())) or ""
        is_below_a_rule = room in ("overlay/", "proofs/") or room.startswith("padres_tx/engines/")
        assert "Rule:" in text or is_below_a_rule, room


def test_no_two_rooms_import_each_other() -> None:
    arrows: dict[str, set[str]] = {}
    for package in ARROWS:
        for path in sorted((ROOT / package).rglob("*.py")):
            room = ".".join(path.parent.relative_to(ROOT).parts)
            for module in modules_imported(path):
                is_room = (ROOT / module.replace(".", "/")).is_dir()
                other = module if is_room else module.rpartition(".")[0]
                # A package's top is vocabulary and faces, which lead to the rooms behind them.
                if other != room and "." in other and "." in room:
                    arrows.setdefault(room, set()).add(other)
    order = graphlib.TopologicalSorter(arrows)
    assert list(order.static_order())


def test_a_class_name_stands_in_one_module() -> None:
    homes: dict[str, set[str]] = {}
    for package in ARROWS:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes.setdefault(node.name, set()).add(str(path.relative_to(ROOT)))
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def compared_strings(path: Path) -> set[str]:
    """The strings with which a module compares: by an operator, by how a text begins or ends, or in
    a `match`."""
    found: set[ast.AST] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Compare):
            found |= {node.left, *node.comparators}
        elif isinstance(node, ast.match_case):
            found.add(node.pattern)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("startswith", "endswith")
        ):
            found.update(node.args)
    constants = {each for node in found for each in ast.walk(node)}
    return {
        each.value
        for each in constants
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }


def test_no_module_compares_with_the_name_of_an_engine() -> None:
    """An engine declares its properties; what depends on an engine asks for those."""
    for package in ARROWS:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not path.is_relative_to(ROOT / "padres_tx" / "engines"):
                names = compared_strings(path) & set(registry.own_names())
                assert not names, f"{path.relative_to(ROOT)} compares with {names}"


@pytest.mark.parametrize(
    "program",
    [
        'engine == "s-tx"',
        'engine in ("d-tx", other)',
        'engine.startswith("bl-wait")',
        'match engine:\n    case "d-tx-ni": pass',
    ],
)
def test_a_comparison_with_an_engine_is_noticed(tmp_path: Path, program: str) -> None:
    (tmp_path / "module.py").write_text(program)
    assert compared_strings(tmp_path / "module.py") & set(registry.own_names())


def test_only_one_room_imports_spark() -> None:
    for path in sorted((ROOT / "bench").rglob("*.py")):
        if "pyspark" in imported(path):
            assert path.parent == ROOT / "bench" / "spark", path.relative_to(ROOT)


@pytest.mark.parametrize("room", PURE)
def test_the_cores_import_neither_clock_nor_socket_nor_chance(room: str) -> None:
    for path in sorted((ROOT / room).glob("*.py")):
        assert not imported(path) & IMPURE, path.relative_to(ROOT)


def test_a_log_runs_on_a_simulated_disk() -> None:
    """Two modules of the log's room talk to the operating system, and no other does."""
    impure = {
        path.name: found
        for path in sorted((ROOT / "overlay" / "log").glob("*.py"))
        if (found := imported(path) & (IMPURE | {"fcntl", "queue", "subprocess", "tempfile"}))
    }
    assert impure == {"os_disk.py": {"os", "fcntl"}, "worker.py": {"threading", "queue"}}


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


@pytest.mark.parametrize("client", ["padres_tx.client.asyncio.client", "padres_tx.sync"])
def test_a_client_loads_no_broker(client: str) -> None:
    program = f"import sys, {client}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = done.stdout.decode().split()
    brokers = ("overlay.broker", "overlay.hosts", "padres_tx.protocol", "padres_tx.broker_process")
    assert not [name for name in loaded if name.startswith((*brokers, "twisted"))]
