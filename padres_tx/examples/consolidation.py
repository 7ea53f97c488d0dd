"""Instance consolidation (Figure 1c): one worker takes over what two others have.

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

With d-tx each agent is also told when the last old event has passed (`Client.on_drained`): from
then on it can be shut down, and no event is lost.
"""

from __future__ import annotations

from padres_tx import Client, Filter, Notification, Part, static
from padres_tx.examples.example_cli import Received, command, is_static, received

P1 = Filter({"class": "p1"})
CONSOLIDATE = Filter({"class": "cons"})

#: Which agent has which instance.
INSTANCES = {"A1": "x1", "A2": "x2"}


def instance(x: str) -> Filter:
    return Filter({"class": "p1", "x": x})


async def run(e: Client, c: Client, a1: Client, a2: Client, *, engine: str = "d-tx") -> Received:
    """Consolidate x1 of A1 and x2 of A2 at C, and show who receives their events."""
    await e.advertise(P1)
    await c.advertise(CONSOLIDATE)
    for agent in (a1, a2):
        await agent.subscribe(instance(INSTANCES[agent.name]))
        await agent.subscribe({"class": "cons", "x": INSTANCES[agent.name]})
        agent.on_tcm(CONSOLIDATE, give_up)

    await publish(e, n=1)
    async with c.transaction(engine, wait="applied") as tx:
        for agent_name, x in INSTANCES.items():
            # In a static transaction C says for the agents what they do.
            ops = {agent_name: [static.usub(instance(x))]} if is_static(engine) else None
            tx.tcm({"class": "cons", "x": x}, ops=ops)
        for x in INSTANCES.values():
            tx.sub(instance(x))
    await publish(e, n=2)
    return await received(e, [c, a1, a2])


async def publish(e: Client, n: int) -> None:
    """E publishes the next event of each instance, as it does all the time."""
    for x in INSTANCES.values():
        await e.publish({"class": "p1", "x": x, "n": n})


def give_up(tx: Part, asked: Notification) -> None:
    """An agent lets go of an instance."""
    tx.usub(instance(str(asked["x"])))


if __name__ == "__main__":
    command(run, ["E", "C", "A1", "A2"])()
