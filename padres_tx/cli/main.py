"""`padres-tx`: the group of all commands, built in and from plug-ins.

Commands are listed here and loaded when they are used: `padres-tx broker` runs in every process of
an overlay, and should not load modules that only `demo` needs. A package adds commands through the
entry-point group `padres_tx.commands`. A plug-in that cannot be loaded reports that when it is used
and does not affect other commands. A built-in command takes precedence over a plug-in of its name.
"""

from __future__ import annotations

import difflib
import importlib
import io
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

from padres_tx.cli.common import WrongInput, failure_of

PLUG_INS = "padres_tx.commands"

#: Command -> its location, in the order in which a newcomer needs them.
COMMANDS = {
    "demo": "padres_tx.cli.demo:demo",
    "up": "padres_tx.cli.up:up",
    "status": "padres_tx.cli.status:status",
    "down": "padres_tx.cli.up:down",
    "sub": "padres_tx.cli.talk:sub",
    "pub": "padres_tx.cli.talk:pub",
    "adv": "padres_tx.cli.talk:adv",
    "tables": "padres_tx.cli.tables:tables",
    "tx": "padres_tx.cli.tx:tx",
    "handover": "padres_tx.cli.handover:handover",
    "calibrate": "padres_tx.cli.calibrate:calibrate",
    "topology": "padres_tx.cli.topology:topology",
    "broker": "padres_tx.cli.broker:broker",
    "broker restart": "padres_tx.cli.restart:restart_command",
    "log": "padres_tx.cli.log:log",
}


class CommandGroup(click.Group):
    """Loads a command when it is used, and turns its errors into one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *sorted(_plug_ins())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module, _, attribute = COMMANDS[cmd_name].partition(":")
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return command
        plug_in = _plug_ins().get(cmd_name)
        return None if plug_in is None else _load(plug_in)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # A command of two words; what follows the first is no argument that it could take.
        if (two_words := " ".join(args[:2])) in COMMANDS and len(args) > 1:
            return two_words, self.get_command(ctx, two_words), args[2:]
        known = self.list_commands(ctx) if args and args[0] not in COMMANDS else []
        if known and not args[0].startswith("-") and args[0] not in known:
            close = difflib.get_close_matches(args[0], known, n=1)
            hint = f"did you mean {close[0]}?" if close else "see 'padres-tx --help'"
            raise WrongInput(f"unknown command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:  # `failure_of` knows which errors are for users.
            failure = failure_of(error)
            if failure is None:
                raise
            raise failure from None


def _plug_ins() -> dict[str, EntryPoint]:
    found = {entry.name: entry for entry in entry_points(group=PLUG_INS)}
    return {name: entry for name, entry in found.items() if name not in COMMANDS}


def _load(plug_in: EntryPoint) -> click.Command:
    """Return the plug-in's command, or a command that reports why it cannot be loaded."""
    try:
        command = plug_in.load()
        if isinstance(command, click.Command):
            return command
        reason = f"expected a click command, got a {type(command).__name__}"
    except Exception as error:  # An error in a plug-in's module must not affect other commands.
        reason = f"{type(error).__name__}: {error}"

    def refuse(arguments: tuple[str, ...]) -> None:
        raise WrongInput(f"the command {plug_in.name} ({plug_in.value}) cannot be loaded: {reason}")

    return click.Command(
        plug_in.name,
        callback=refuse,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
        short_help=f"(cannot be loaded: {reason})",
    )


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""
\b
Start here:
  padres-tx demo

\b
Or, in three terminals:
  padres-tx up three
  padres-tx sub "[class,eq,'order'],[price,>,100]"
  padres-tx pub "[class,'order'],[price,150]" --payload hello

\b
Exit codes: 0 success, 1 a promise or check failed, 2 wrong usage or input.
""",
)
@click.version_option(package_name="padres-tx", prog_name="padres-tx")
def main() -> None:
    """Publish and subscribe by content, with transactions, through a tree of brokers."""
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot show must not end a command.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main(prog_name="padres-tx")
