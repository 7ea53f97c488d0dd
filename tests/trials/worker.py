"""A worker process: it takes and gives streams as tcms ask for it, and writes down what it gets.

    python -m tests.trials.worker NAME HOST:PORT FILE --style plain --owns k0,k1

Each line of the file is a JSON object: an event that came, the end of a transaction, or how the
worker ended. SIGTERM lets it close. Its handlers are written in the ways that come naturally
(`STYLES`): each must be right.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import padres_tx
from padres_tx import Notification, Part

MOVE = "[class,eq,'move']"

#: How long a worker tries to get back to its broker: a trial cuts connections all the time.
RECONNECT_S = 30.0


def jobs_of(key: str) -> str:
    """The filter of a key's stream."""
    return f"[class,eq,'job'],[key,eq,'{key}']"


class Notes:
    """What a worker writes down, a line at a time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def write(self, **what: Any) -> None:
        self._file.write(json.dumps(what) + "\n")

    def event(self, n: Notification) -> None:
        self.write(event=[n.publisher, n["key"], n["n"]])


# --- handlers: what people write ---


def catching(name: str, callback: Callable[[Notification], Any]) -> Callable[..., Any]:
    """Try to let go, and take NotHeld for an answer."""

    def move(tx: Part, n: Notification) -> None:
        if n["to"] == name:
            tx.sub(jobs_of(str(n["key"])), callback)
        else:
            with contextlib.suppress(padres_tx.NotHeld):
                tx.usub(jobs_of(str(n["key"])))

    return move


def asking(name: str, callback: Callable[[Notification], Any]) -> Callable[..., Any]:
    """Ask the transaction first, and wait for each operation."""

    async def move(tx: Part, n: Notification) -> None:
        key = jobs_of(str(n["key"]))
        if n["to"] == name:
            await tx.sub(key, callback)
        elif tx.holds(key):
            await tx.usub(key)

    return move


# --- styles ---


async def run_plain(name: str, at: str, notes: Notes, owns: list[str]) -> None:
    """A synchronous callback."""
    await _run(name, at, notes, owns, notes.event, catching)


async def run_slow(name: str, at: str, notes: Notes, owns: list[str]) -> None:
    """An asynchronous callback that takes its time."""

    async def slowly(n: Notification) -> None:
        await asyncio.sleep(random.random() * 0.001)
        notes.event(n)

    await _run(name, at, notes, owns, slowly, asking)


async def _run(
    name: str,
    at: str,
    notes: Notes,
    owns: list[str],
    callback: Callable[[Notification], Any],
    handler: Callable[..., Callable[..., Any]],
) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with padres_tx.connect(at, name=name, reconnect_s=RECONNECT_S) as client:
        client.on_tcm(MOVE, handler(name, callback))
        client.on_end(lambda result: notes.write(end=[result.tx, result.status]))
        await client.subscribe(MOVE)
        for key in owns:
            await client.subscribe(jobs_of(key), callback)
        print("ready", flush=True)
        ended = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(client.wait_closed())]
        await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
        if ended[1].done():
            ended[1].result()


def run_blocking(name: str, at: str, notes: Notes, owns: list[str]) -> None:
    """The blocking client."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with padres_tx.sync.connect(at, name=name, reconnect_s=RECONNECT_S) as client:
        client.on_tcm(MOVE, catching(name, notes.event))
        client.on_end(lambda result: notes.write(end=[result.tx, result.status]))
        client.subscribe(MOVE)
        for key in owns:
            client.subscribe(jobs_of(key), notes.event)
        print("ready", flush=True)
        while not stop.wait(0.2):
            if client.closed:
                raise padres_tx.ConnectionLost(f"{name} has lost its broker")


STYLES: dict[str, Callable[..., Any]] = {
    "plain": run_plain,
    "slow": run_slow,
    "blocking": run_blocking,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("at")
    parser.add_argument("file", type=Path)
    parser.add_argument("--style", choices=STYLES, default="plain")
    parser.add_argument("--owns", default="", help="Keys that it owns at first: k0,k1.")
    args = parser.parse_args()
    notes = Notes(args.file)
    try:
        running = STYLES[args.style](
            args.name, args.at, notes, list(filter(None, args.owns.split(",")))
        )
        if running is not None:
            asyncio.run(running)
    except Exception as error:
        notes.write(failed=repr(error))
        raise
    notes.write(closed=True)


if __name__ == "__main__":
    main()
