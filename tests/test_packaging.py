"""What users install: the wheel has all that it needs, and a missing extra is said in a line."""

from __future__ import annotations

import configparser
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path

import pytest

from padres_tx.cli.common import EXTRAS

ROOT = Path(__file__).parent.parent

PACKAGES = ("bench", "overlay", "padres_tx", "proofs", "topologies")

#: Names of packages where they differ from what is imported.
IMPORTED = {"z3-solver": "z3"}

#: Only what hangs runs into it.
WAIT_S = 250.0


def can_build() -> bool:
    """Whether setuptools can build a wheel without fetching anything."""
    return any(map(importlib.util.find_spec, ("setuptools.command.bdist_wheel", "wheel")))


def sources() -> Iterator[Path]:
    """The files of the five packages."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(ROOT)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not can_build():
        pytest.skip("needs setuptools 70.1 or newer, which the extra 'test' installs")
    place = tmp_path_factory.mktemp("wheel")
    # A copy, so that nothing of the build is left in the tree.
    for name in (*sources(), *map(Path, ("LICENSE", "README.md", "pyproject.toml", "setup.cfg"))):
        (place / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, place / "source" / name)
    pip("wheel", "--no-build-isolation", "--wheel-dir", place, place / "source")
    (built,) = place.glob("*.whl")
    return built


def pip(command: str, *arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", command, "--quiet", "--no-deps", "--no-index"]
        + [str(argument) for argument in arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr


def test_the_wheel_has_every_file_of_the_five_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == {path.as_posix() for path in sources()}
    assert {f"{package}/py.typed" for package in PACKAGES} <= packed
    assert any(name.endswith(".tla") for name in packed)


def test_the_metadata_is_complete(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = message_from_bytes(archive.read(name))
        (entries,) = (n for n in archive.namelist() if n.endswith("/entry_points.txt"))
        assert b"padres-tx = padres_tx.cli.main:main" in archive.read(entries)
        assert any(each.endswith("/LICENSE") for each in archive.namelist())
    for field in ("Name", "Version", "Summary", "Author", "Keywords", "Requires-Python"):
        assert metadata[field], field
    assert metadata["License"] or metadata["License-Expression"]
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert metadata["Description-Content-Type"] == "text/markdown"
    # Spark is for those who ask for it.
    needed = metadata.get_all("Requires-Dist", [])
    assert not [each for each in needed if "spark" in each and "extra ==" not in each]


@pytest.mark.slow
def test_an_installed_wheel_tells_the_story(wheel: Path, tmp_path: Path) -> None:
    pip("install", "--target", tmp_path / "site", wheel)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    for arguments, wanted in (
        (["-c", "import padres_tx; print(padres_tx.__file__)"], str(tmp_path / "site")),
        (["-m", "padres_tx.cli.main", "demo", "--story"], "all brokers have stopped"),
        (["-c", "from proofs.solvers import tlc; print(sorted(tlc.TLA.glob('*.tla')))"], "DTx.tla"),
    ):
        done = subprocess.run(
            [sys.executable, "-P", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert done.returncode == 0, done.stderr
        assert wanted in done.stdout


# --- extras ---


def test_every_package_of_an_extra_is_known_by_it() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    for extra in ("draw", "spark", "proofs"):
        for line in setup["options.extras_require"].get(extra, raw=True).splitlines():
            name = line.split("#")[0].strip()
            if name and not name.startswith("%"):
                for sign in "<>=~;[ ":
                    name = name.partition(sign)[0]
                assert IMPORTED.get(name, name) in EXTRAS


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("experiment", "report", "somewhere"), "spark"),
        (("experiment", "report", "--redraw", "somewhere"), "spark"),
        (("experiment", "compare", "one", "other"), "spark"),
        (("prove",), "proofs"),
        (("topology", "show", "three", "--out", "three.svg"), "draw"),
    ],
)
def test_without_its_extra_a_command_says_which_one(
    arguments: tuple[str, ...], extra: str, tmp_path: Path
) -> None:
    program = (
        "import json, sys\n"
        "missing, arguments = json.loads(sys.argv[1])\n"
        "sys.modules.update(dict.fromkeys(missing))\n"
        "from padres_tx.cli.main import main\n"
        "main(arguments, prog_name='padres-tx')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps([list(EXTRAS), arguments])],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1, done.stderr
    assert f"pip install 'padres-tx[{extra}]'" in done.stderr
