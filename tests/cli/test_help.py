"""Help texts: every example can be typed, and names topologies, scenarios and engines we have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from bench.experiments import spec
from padres_tx import registry
from padres_tx.cli.main import main
from proofs.explore.scenarios import SCENARIOS
from topologies import load

ROOT = Path(__file__).parents[2]

#: Files of the user's that examples name.
FILES = (".yaml", ".yml", ".json", ".tape")


def commands(
    command: click.Command, path: tuple[str, ...], parent: click.Context | None = None
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A command and all below it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path[-1], parent=parent)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None, (*path, name)
            yield from commands(found, (*path, name), context)


def help_of(path: tuple[str, ...], command: click.Command) -> str:
    return command.get_help(click.Context(command, info_name=" ".join(path)))


def examples(text: str) -> Iterator[str]:
    """The commands in a text that stand on a line of their own."""
    for line in text.splitlines():
        found = re.match(r"(?:\w+=\S+ )?padres-tx ((?!is |comes ).*)", line.strip())
        if found:
            # What is behind a comment or goes elsewhere is the shell's.
            yield found[1].partition("  #")[0].partition(" > ")[0].partition(" | ")[0].strip()


def all_examples() -> list[str]:
    texts = [help_of(path, command) for path, command in commands(main, ("padres-tx",))]
    documents = (*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "proofs/README.md")
    texts += [document.read_text() for document in (*documents, ROOT / "Makefile")]
    return sorted({example for text in texts for example in examples(text)})


def parsed(example: str) -> tuple[str, click.Context]:
    """The innermost command of an example, and its arguments. Raises UsageError."""
    command: click.Command | None = main
    path, arguments = [], shlex.split(example)
    while isinstance(command, click.Group):
        name, command, arguments = command.resolve_command(click.Context(command), arguments)
        path.append(name or "")
    assert command is not None, example
    return " ".join(path), command.make_context(path[-1], arguments)


@pytest.mark.parametrize("example", all_examples())
def test_an_example_can_be_typed_and_names_what_exists(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for word in shlex.split(example):
        if word.endswith(FILES):
            Path(word).parent.mkdir(exist_ok=True)
            Path(word).touch()
    command, context = parsed(example)
    given = context.params
    if command == "explore" and given["scenario"]:
        assert given["rules"] in SCENARIOS[given["scenario"]].rules
    if command == "experiment run":
        assert all(spec.load(name) for name in given["specs"] if not name.endswith(FILES))
    engine = given.get("engine")
    assert engine in (None, "all", "mixed", "bl-wait", *registry.broker_factories())
    topology = given.get("topology")
    assert topology is None or topology.endswith(FILES) or load(topology)


def test_there_are_examples_for_every_command() -> None:
    told = all_examples()
    for path, command in commands(main, ("padres-tx",)):
        if not isinstance(command, click.Group):
            name = " ".join(path[1:])
            assert any(example.startswith(name) for example in told), name
