"""Which changes are drawn, and that a run tells those that are noticed from those that are not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants import running
from tests.mutants.__main__ import ROOT, Reviewed, main, read_reviewed
from tests.mutants.covering import COVERING, MODULES, covering
from tests.mutants.mutations import WEIGHTS, Mutant, drawn, mutants
from tests.mutants.running import Cache, Outcome, workshop

EXAMPLE = '''
"""A module."""

LIMIT = 3


def example(ä: int, b: int, *rest: int) -> list[Effect]:
    """What it does."""
    if not b and ä > 1:
        return []
    for x in [y for y in rest if y < 7]:
        if x == 0:
            continue
        self.count += 1
        self.last[x] = other(ä, b, key=1)
        logger.info("said %s", x)
        tidy(x)
    del self.first
    assert b > 1, "text"
    return [*one(ä), *two(b)] + three() if True else f"{b > 1}"
'''


def changes(source: str = EXAMPLE) -> dict[str, set[tuple[str, str]]]:
    found: dict[str, set[tuple[str, str]]] = {kind: set() for kind in WEIGHTS}
    for mutant in mutants("example.py", source):
        found[mutant.kind].add((mutant.before.strip(), mutant.after.strip()))
    return found


def test_the_kinds_of_changes() -> None:
    found = changes()
    condition = "not b and ä > 1"
    assert found["clause left out"] == {
        (condition, "(ä > 1)"),
        (condition, "(not b)"),
        ("y < 7", "True"),
    }
    assert found["condition negated"] == {
        (condition, f"(not ({condition}))"),
        ("y < 7", "(not (y < 7))"),
        ("True", "(not (True))"),
    }
    assert found["comparison shifted"] == {(">", ">="), ("<", "<=")}
    assert found["comparison turned"] == {("==", "!=")}
    assert found["number shifted"] == {("1", "2"), ("7", "8"), ("0", "1")}
    assert found["call left out"] == {("tidy(x)", "pass")}
    assert found["assignment left out"] == {
        ("self.count += 1", "pass"),
        ("self.last[x] = other(ä, b, key=1)", "pass"),
    }
    assert found["deletion left out"] == {("del self.first", "pass")}
    assert found["jump left out"] == {("continue", "pass")}
    assert {after for _, after in found["guard left out"]} == {"pass"}
    assert len(found["guard left out"]) == 2
    assert found["arguments swapped"] == {("ä, b", "b, ä")}
    assert found["argument left out"] == {(", key=1", "")}
    assert found["term left out"] == {
        ("[*one(ä), *two(b)] + three()", "([*one(ä), *two(b)])"),
        ("[*one(ä), *two(b)] + three()", "(three())"),
    }
    assert found["element left out"] == {("*one(ä),", ""), (", *two(b)", "")}
    assert found["truth turned"] == {("True", "False")}
    assert found["returned early"] == {("", "return []")}


def test_what_is_drawn_is_valid_and_means_something_else() -> None:
    all_of_them = drawn("example.py", EXAMPLE, 1000, seed=1)
    assert len({mutant.id for mutant in all_of_them}) == len(all_of_them) > 20
    for mutant in all_of_them:
        assert ast.dump(ast.parse(mutant.source)) != ast.dump(ast.parse(EXAMPLE))
        lines = mutant.diff(EXAMPLE).splitlines()
        assert any(line.startswith(("-", "+")) for line in lines[2:])


def test_the_sample_depends_on_the_seed_alone_and_grows_at_its_end() -> None:
    few, more = (drawn("example.py", EXAMPLE, count, seed=7) for count in (4, 9))
    assert more[:4] == few and len(more) == 9
    assert drawn("example.py", EXAMPLE, 9, seed=8) != more


def test_the_same_change_of_another_module_is_another_mutant() -> None:
    one, other = (drawn(name, EXAMPLE, 1000, seed=1) for name in ("a.py", "b.py"))
    assert not {mutant.id for mutant in one} & {mutant.id for mutant in other}


def test_every_module_has_tests_that_cover_it_and_they_exist() -> None:
    modules = [path for pattern in MODULES for path in ROOT.glob(pattern)]
    assert len(modules) > 40
    for path in modules:
        assert covering(str(path.relative_to(ROOT)))
    for tests in COVERING.values():
        for test in tests:
            assert (ROOT / test).exists(), test


def test_what_was_reviewed_has_a_verdict_and_a_reason() -> None:
    for entry in read_reviewed():
        assert entry.verdict in ("equivalent", "harmless") and len(entry.reason) > 10, entry
        assert (ROOT / entry.module).exists(), entry


def test_what_was_reviewed_is_found_again_wherever_it_stands_by_then() -> None:
    mutant = next(one for one in mutants("m.py", EXAMPLE) if one.kind == "call left out")
    entry = Reviewed(
        "m.py", "example", "tidy(x)", "tidy( x )", "pass", "harmless", "it is only tidied"
    )
    moved = EXAMPLE.replace("LIMIT = 3", "LIMIT = 3\n\n\nMORE = 4")
    again = next(one for one in mutants("m.py", moved) if one.kind == "call left out")
    assert entry.is_about(mutant) and entry.is_about(again) and again.line > mutant.line
    assert not entry.is_about(again._replace(function="other"))
    assert not entry.is_about(again._replace(text="if more: tidy(x)"))


def test_what_survived_is_run_again_when_the_tests_have_changed(tmp_path: Path) -> None:
    path = tmp_path / "build/mutants.jsonl"
    cache = Cache(path)
    caught = Outcome("caught", "tests/test_it.py::test_a", 1.5)
    survived = Outcome("survived", "", 9.0)
    cache.keep("a", "tests-1", caught)
    cache.keep("b", "tests-1", survived)
    with path.open("a") as file:
        file.write('{"id": "c", "te')  # It was interrupted here.
    again = Cache(path)
    assert again.get("a", "tests-2") == caught
    assert again.get("b", "tests-1") == survived
    assert again.get("b", "tests-2") is None and again.get("c", "tests-1") is None


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tree with one module and its test."""
    root = tmp_path_factory.mktemp("project")
    (root / "thing.py").write_text("def double(x):\n    return x + x\n")
    (root / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--seeds', type=int)\n"
    )
    (root / "test_thing.py").write_text(
        "from thing import double\n\n\ndef test_two():\n    assert double(2) == 4\n"
    )
    (root / "test_nothing.py").write_text("def test_nothing():\n    pass\n")
    return root


@pytest.mark.parametrize(
    ("source", "tests", "expected"),
    [
        ("def double(x):\n    return x\n", "test_thing.py", ("caught", "test_thing.py::test_two")),
        ("def double(x):\n    return x * x\n", "test_thing.py", ("survived", "")),
        ("def double(x):\n    return x\n", "test_nothing.py", ("survived", "")),
        (
            "def double(x):\n    while True:\n        pass\n",
            "test_thing.py",
            ("caught", "test_thing.py::test_two"),
        ),
    ],
)
def test_a_mutant_is_caught_or_survives(
    source: str,
    tests: str,
    expected: tuple[str, str],
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that hangs is caught."""
    monkeypatch.setattr(running, "TEST_PATIENCE_S", 5.0)
    mutant = Mutant("thing.py", "call left out", "double", 2, "", "", "", source)
    original = (project / "thing.py").read_text()
    with workshop(project, 1) as shop:
        durations = shop.durations(["test_thing.py", "test_nothing.py"])
        assert list(durations) == ["test_thing.py::test_two", "test_nothing.py::test_nothing"]
        outcome = shop.attempt(mutant, [tests], durations)
        assert (outcome.status, outcome.by) == expected
        assert shop.durations(["test_thing.py"]), "it is as before"
    assert (project / "thing.py").read_text() == original


def test_no_such_module_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--modules", "no/such/*"]) == 2
    assert "no module matches no/such/*" in capsys.readouterr().err
