"""Instance dispatching (Figure 1b): a new instance of a process goes to a worker of its own.

    padres-tx up three
    python -m padres_tx.examples.dispatching --engine d-tx

D, the dispatcher, receives all events of process p1. When E starts instance x1, D assigns it to
the agent A1: from then on the events of x1 go to A1, and only to A1. At no moment would an event of
x1 reach both or neither, because all of it is one transaction:

    1  E   tcm  (p1, x1, 0)            reaches D
    2  D   tcm  (assign, A1, x1)       reaches A1
    3  A1  sub  (p1, x1)
    4  D   usub (p1, x1)
    5  E   pub  (p1, x1, 1)            reaches A1
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import padres_tx
from padres_tx import Client, Notification, Part, Transaction, static

BROKERS = ["127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"]

P1 = {"class": "p1"}
BYE = {"class": "bye"}


def instance(x: str) -> dict[str, Any]:
    return {"class": "p1", "x": x}


def assignment(x: str) -> dict[str, Any]:
    return {"class": "assign", "to": "A1", "x": x}


async def run(e: Client, d: Client, a1: Client, *, engine: str) -> dict[str, list[Notification]]:
    """Dispatch instance x1 from D to A1; returns the events that each of them received."""
    await e.advertise(P1)
    await e.advertise(BYE)
    await d.advertise({"class": "assign"})
    await d.subscribe(P1)
    await a1.subscribe({"class": "assign", "to": "A1"})
    for worker in (d, a1):
        await worker.subscribe(BYE)

    # What D and A1 do when a transaction calls them.
    d.on_tcm(P1, dispatch)
    a1.on_tcm({"class": "assign"}, take_over)

    async with e.transaction(engine, wait="applied") as tx:
        start(tx, "x1")

    await e.publish({"class": "p1", "x": "x1", "n": 2})  # A1 receives this one,
    await e.publish({"class": "p1", "x": "x2", "n": 0})  # and D still receives all others.
    await e.publish(BYE)
    return {worker.name: await received(worker) for worker in (d, a1)}


def start(tx: Transaction, x: str) -> None:
    """E starts an instance, and publishes its first event."""
    first = {**instance(x), "n": 0}
    if tx.is_static:  # A static transaction: E also says what D and A1 do.
        take = static.tcm(assignment(x), ops={"A1": [static.sub(instance(x))]})
        tx.tcm(first, ops={"D": [take, static.usub(instance(x))]})
    else:
        tx.tcm(first)
    tx.pub({"class": "p1", "x": x, "n": 1})


def dispatch(tx: Part, started: Notification) -> None:
    """D gives a new instance to A1."""
    x = str(started["x"])
    tx.tcm(assignment(x))
    tx.usub(instance(x))


def take_over(tx: Part, assigned: Notification) -> None:
    """A1 takes an instance over."""
    tx.sub(instance(str(assigned["x"])))


async def received(client: Client) -> list[Notification]:
    """All events of a client before the last one."""
    events = []
    async for notification in client.notifications(timeout_s=20):
        if notification["class"] == "bye":
            break
        events.append(notification)
    return events


async def main(at: list[str], engine: str) -> None:
    async with (
        padres_tx.connect(at[0], name="E", retry=False) as e,
        padres_tx.connect(at[1 % len(at)], name="D", retry=False) as d,
        padres_tx.connect(at[2 % len(at)], name="A1", retry=False) as a1,
    ):
        for name, events in (await run(e, d, a1, engine=engine)).items():
            for event in events:
                print(name, "received", event.point)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=run.__doc__)
    parser.add_argument("--engine", default="d-tx", help="d-tx, d-tx-ni, s-tx or bl-wait")
    parser.add_argument("--at", action="append", metavar="HOST:PORT", help="a broker; repeatable")
    options = parser.parse_args()
    try:
        asyncio.run(main(options.at or BROKERS, options.engine))
    except padres_tx.OverlayError as error:
        parser.exit(2, f"Error: {error}\n")
