"""Instance dispatching (Figure 1b): a new instance of a process goes to a worker of its own.

    padres-tx up three
    python -m padres_tx.examples.dispatching --engine d-tx

D, the dispatcher, receives all events of process p1. When E starts instance x1, D assigns it to
the agent A1: from then on the events of x1 go to A1, and only to A1. In between there is no moment
at which an event of x1 would reach both or neither, because all of it is one transaction:

    1  E   tcm  (p1, x1, 0)            reaches D
    2  D   tcm  (assign, A1, x1)       reaches A1
    3  A1  sub  (p1, x1)
    4  D   usub (p1, x1)
    5  E   pub  (p1, x1, 1)            reaches A1
"""

from __future__ import annotations

from typing import TypeAlias

from padres_tx import Client, Filter, Notification, Part, Transaction, static
from padres_tx.examples.example_cli import Received, command, is_static, received

Point: TypeAlias = dict[str, str | int]

P1 = Filter({"class": "p1"})


def instance(x: str) -> Filter:
    return Filter({"class": "p1", "x": x})


def assignment(x: str) -> Point:
    return {"class": "assign", "to": "A1", "x": x}


async def run(e: Client, d: Client, a1: Client, *, engine: str = "d-tx") -> Received:
    """Dispatch instance x1 from D to A1, and show who receives its events."""
    await e.advertise(P1)
    await d.advertise({"class": "assign"})
    await d.subscribe(P1)
    await a1.subscribe({"class": "assign", "to": "A1"})

    # What D and A1 do when a transaction calls them. In a static one E says it for them.
    d.on_tcm(P1, dispatch)
    a1.on_tcm({"class": "assign"}, take_over)

    async with e.transaction(engine, wait="applied") as tx:
        start(tx, "x1")

    await e.publish({"class": "p1", "x": "x1", "n": 2})  # A1 has it now,
    await e.publish({"class": "p1", "x": "x2", "n": 0})  # and D still has all others.
    return await received(e, [d, a1])


def start(tx: Transaction, x: str) -> None:
    """E starts an instance, and publishes its first event."""
    first: Point = {"class": "p1", "x": x, "n": 0}
    if is_static(tx.engine):
        take = static.tcm(assignment(x), ops={"A1": [static.sub(instance(x))]})
        tx.tcm(first, ops={"D": [take, static.usub(instance(x))]})
    else:
        tx.tcm(first)
    tx.pub({"class": "p1", "x": x, "n": 1})


def dispatch(tx: Part, started: Notification) -> None:
    """D hands a new instance to A1, and lets go of it."""
    x = str(started["x"])
    tx.tcm(assignment(x))
    tx.usub(instance(x))


def take_over(tx: Part, assigned: Notification) -> None:
    """A1 takes an instance over."""
    tx.sub(instance(str(assigned["x"])))


if __name__ == "__main__":
    command(run, ["E", "D", "A1"])()
