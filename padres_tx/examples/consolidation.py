"""Instance consolidation (Figure 1c): one worker takes over the instances of two others.

    padres-tx up three
    python -m padres_tx.examples.consolidation --engine d-tx

The agents A1 and A2 have an instance each, x1 and x2. C, the consolidator, takes both over, so that
A1 and A2 can be shut down. All of it is one transaction:

    1  C   tcm  (cons, x1)             reaches A1
    2  A1  usub (p1, x1)
    3  C   tcm  (cons, x2)             reaches A2
    4  A2  usub (p1, x2)
    5  C   sub  (p1, x1)
    6  C   sub  (p1, x2)

With d-tx each agent learns when its last old event has come (`Client.on_drained`). From then on it
can be shut down, and no event is lost.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import padres_tx
from padres_tx import Client, Notification, Part, static

BROKERS = ["127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"]

P1 = {"class": "p1"}
CONSOLIDATE = {"class": "cons"}
BYE = {"class": "bye"}

#: The instance of each agent.
INSTANCES = {"A1": "x1", "A2": "x2"}


def instance(x: str) -> dict[str, Any]:
    return {"class": "p1", "x": x}


async def run(
    e: Client, c: Client, a1: Client, a2: Client, *, engine: str
) -> dict[str, list[Notification]]:
    """Consolidate x1 of A1 and x2 of A2 at C; returns the events that each of them received."""
    await e.advertise(P1)
    await e.advertise(BYE)
    await c.advertise(CONSOLIDATE)
    for agent in (a1, a2):
        await agent.subscribe(instance(INSTANCES[agent.name]))
        await agent.subscribe({"class": "cons", "x": INSTANCES[agent.name]})
        agent.on_tcm(CONSOLIDATE, give_up)
    for worker in (c, a1, a2):
        await worker.subscribe(BYE)

    await publish(e, n=1)
    async with c.transaction(engine, wait="applied") as tx:
        for name, x in INSTANCES.items():
            # In a static transaction C also says what the agents do.
            ops = {name: [static.usub(instance(x))]} if tx.is_static else None
            tx.tcm({"class": "cons", "x": x}, ops=ops)
        for x in INSTANCES.values():
            tx.sub(instance(x))
    await publish(e, n=2)
    await e.publish(BYE)
    return {worker.name: await received(worker) for worker in (c, a1, a2)}


async def publish(e: Client, n: int) -> None:
    """E publishes the next event of each instance."""
    for x in INSTANCES.values():
        await e.publish({"class": "p1", "x": x, "n": n})


def give_up(tx: Part, asked: Notification) -> None:
    """An agent gives up an instance."""
    tx.usub(instance(str(asked["x"])))


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
        padres_tx.connect(at[1 % len(at)], name="C", retry=False) as c,
        padres_tx.connect(at[2 % len(at)], name="A1", retry=False) as a1,
        padres_tx.connect(at[3 % len(at)], name="A2", retry=False) as a2,
    ):
        for name, events in (await run(e, c, a1, a2, engine=engine)).items():
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
