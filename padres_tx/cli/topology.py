"""`padres-tx topology`: show a topology, or generate one.

This module handles arguments, files and exit codes; the package `topologies` checks, generates and
draws. It must not know running brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from padres_tx.cli.common import WrongInput
from topologies import BASE_PORT, SUFFIXES, Topology, TopologyError, load


@contextmanager
def _input_errors() -> Iterator[None]:
    try:
        yield
    except TopologyError as error:
        raise WrongInput(str(error)) from None


@click.group()
def topology() -> None:
    """Show, check and generate topologies."""


@topology.command(
    epilog="""
\b
Examples:
  padres-tx topology show nine
  padres-tx topology show mine.yaml --out mine.svg
  padres-tx topology show five --json > five.json
"""
)
@click.argument("topology", metavar="TOPOLOGY")
@click.option("--json", "as_json", is_flag=True, help="Print the topology as JSON.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw a picture into FILE.png or FILE.svg (needs the extra 'draw').",
)
def show(topology: str, *, as_json: bool, out: Path | None) -> None:
    """Check TOPOLOGY and draw it as a tree.

    TOPOLOGY is one, three, five, nine, or a .yaml, .yml or .json file. Exit code 2 if the brokers
    do not form a tree; the error names the broker or edge.
    """
    # Imported here: importing networkx takes 0.2 s, and the help does not need it.
    from topologies import draw

    with _input_errors():
        tree = load(topology)
        if out is not None:
            draw.save(tree, out)
            click.echo(f"wrote {out}", err=True)
    if as_json:
        click.echo(tree.to_json())
    elif out is None:
        draw.show(tree, Console())


@topology.group(
    epilog="""
\b
Examples:
  padres-tx topology new chain 5
  padres-tx topology new balanced 3 2 --delay-ms 5 --out tree.yaml
  padres-tx topology new random 20 --seed 7 --base-port 0 --out random.json
"""
)
def new() -> None:
    """Generate a topology, and print it as YAML or write it to a file."""


def _generator(make: Callable[..., Topology]) -> Callable[..., None]:
    """Add the options that all `new` commands have, and the output of the topology."""

    @click.option(
        "--base-port",
        type=int,
        default=BASE_PORT,
        show_default=True,
        help="Port of B1; other brokers have the following ports. 0 means free ports.",
    )
    @click.option(
        "--delay-ms",
        type=float,
        default=0.0,
        show_default=True,
        help="Delay of every edge in milliseconds.",
    )
    @click.option("--name", help="The name of the topology. [default: shape and size]")
    @click.option(
        "--out",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write FILE.yaml, FILE.yml or FILE.json instead of printing.",
    )
    @click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
    @wraps(make)
    def run(*, name: str | None, out: Path | None, force: bool, **shape: Any) -> None:
        with _input_errors():
            made = make(**shape)
            if name is not None:
                made = Topology.model_validate({**made.model_dump(), "name": name})
        if out is None:
            click.echo(made.to_yaml(), nl=False)
        else:
            _write(made, out, force=force)
            click.echo(f"wrote {out}", err=True)

    return run


@new.command(
    epilog="""
\b
Example:
  padres-tx topology new chain 3 --delay-ms 5
"""
)
@click.argument("brokers", type=int)
@_generator
def chain(brokers: int, base_port: int, delay_ms: float) -> Topology:
    """A chain of BROKERS brokers."""
    from topologies import generators

    return generators.chain(brokers, base_port=base_port, delay_ms=delay_ms)


@new.command(
    epilog="""
\b
Example:
  padres-tx topology new star 6 --out star.yaml
"""
)
@click.argument("brokers", type=int)
@_generator
def star(brokers: int, base_port: int, delay_ms: float) -> Topology:
    """A star of BROKERS brokers, with B1 in the middle."""
    from topologies import generators

    return generators.star(brokers, base_port=base_port, delay_ms=delay_ms)


@new.command(
    epilog="""
\b
Example (1 + 3 + 9 brokers):
  padres-tx topology new balanced 3 2
"""
)
@click.argument("branching", type=int)
@click.argument("depth", type=int)
@_generator
def balanced(branching: int, depth: int, base_port: int, delay_ms: float) -> Topology:
    """A tree with BRANCHING children under each broker and DEPTH levels under B1."""
    from topologies import generators

    return generators.balanced(branching, depth, base_port=base_port, delay_ms=delay_ms)


@new.command(
    name="random",
    epilog="""
\b
Example:
  padres-tx topology new random 20 --seed 7
""",
)
@click.argument("brokers", type=int)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="The same seed gives the same tree.",
)
@_generator
def random_tree(brokers: int, seed: int, base_port: int, delay_ms: float) -> Topology:
    """A random tree of BROKERS brokers."""
    from topologies import generators

    return generators.random_tree(brokers, seed, base_port=base_port, delay_ms=delay_ms)


def _write(made: Topology, out: Path, *, force: bool) -> None:
    suffix = out.suffix.lower()
    if suffix not in SUFFIXES:
        raise WrongInput(f"invalid file name {str(out)!r}: expected one of {', '.join(SUFFIXES)}")
    content = made.to_json() + "\n" if suffix == ".json" else made.to_yaml()
    try:
        # Mode "x" and no check beforehand: the file could be created in between.
        with out.open("w" if force else "x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError:
        raise WrongInput(f"{str(out)!r} already exists; --force overwrites it") from None
    except OSError as error:
        raise WrongInput(f"cannot write {str(out)!r}: {error.strerror}") from None
