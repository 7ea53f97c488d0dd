"""Which Java is taken: the first that is new enough, and an error that says what there was."""

from __future__ import annotations

from pathlib import Path

import pytest

from padres_tx.java import NoJava, find_java, version_of


def a_java(home: Path, version: str) -> Path:
    """A program that answers `-version` as a Java of that version does."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("text", "version"), [("1.8.0_402", 8), ("17.0.15", 17), ("21-ea", 21), ("nonsense", None)]
)
def test_the_feature_release_is_read(tmp_path: Path, text: str, version: int | None) -> None:
    assert version_of(a_java(tmp_path, text)) == version


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    a_java(tmp_path / "home", "17.0.1")
    on_path = a_java(tmp_path / "path", "21.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert find_java(environment=environment) == (tmp_path / "home").resolve()


def test_one_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    a_java(tmp_path / "home", "1.8.0_402")
    on_path = a_java(tmp_path / "path", "17.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert find_java(environment=environment) == (tmp_path / "path").resolve()


def test_the_error_says_what_there_is(tmp_path: Path) -> None:
    a_java(tmp_path / "home", "11.0.2")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": ""}
    with pytest.raises(NoJava, match=r"Java 99 or newer is needed: JAVA_HOME .* is Java 11"):
        find_java(99, environment=environment)


def test_a_link_on_the_path_leads_home(tmp_path: Path) -> None:
    real = a_java(tmp_path / "jvm", "17.0.1")
    link = tmp_path / "bin" / "java"
    link.parent.mkdir()
    link.symlink_to(real)
    assert find_java(environment={"PATH": str(link.parent)}) == (tmp_path / "jvm").resolve()
