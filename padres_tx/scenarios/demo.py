"""The demo: routing by content with three brokers, a publisher and two subscribers, and then a
stream of events that changes hands, with each engine.

It is written to be read, and uses only the public API, as a user's program would. The brokers are
processes of their own; the clients run in this process.

The publications that each subscriber should receive follow from its operations; they are compared
with those that it has received, and a difference is reported as a broken promise. The module
`padres_tx.scenarios.handover` judges the handovers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table
from rich.text import Text

import padres_tx
from overlay.notation import format_filter, format_publication, parse_filter, parse_publication
from padres_tx import Client, Filter, launcher, registry
from padres_tx.launcher import Running
from padres_tx.scenarios import handover_table

#: How long one step may take: milliseconds on a quiet machine, but the demo must end.
STEP_S = 20.0

ALL_ORDERS = parse_filter("[class,eq,'order']")
LARGE_ORDERS = parse_filter("[class,eq,'order'],[price,>,100]")
END_MARK = parse_filter("[class,eq,'end mark']")

#: Enough to show the differences between the engines, in a few seconds.
STREAM_EVENTS = 4000
HANDOVERS = 10

EVENTS = (
    "[class,'order'],[price,40]",
    "[class,'order'],[price,150]",
    "[class,'refund'],[price,150]",
)


def run(console: Console) -> bool:
    """Run the demo; returns whether every promise was kept.

    Raises LaunchError if the brokers cannot be started.
    """
    console.rule("[bold]1. An overlay of three brokers, one process each")
    with console.status("starting the brokers") as starting, launcher.overlay("three") as running:
        starting.stop()
        show_brokers(console, running)
        kept = asyncio.run(show_routing(console, running))
        kept = hand_over(console, running) and kept
    console.print("\nAll clients have left; all brokers have stopped.")
    return kept


async def show_routing(console: Console, running: Running) -> bool:
    """Show which subscribers receive which publications; returns whether that was right."""
    async with (
        padres_tx.connect(running.address("B1"), name="shop") as shop,
        padres_tx.connect(running.address("B2"), name="manager") as manager_client,
        padres_tx.connect(running.address("B3"), name="warehouse") as warehouse_client,
    ):
        manager = DemoSubscriber(manager_client, "B2")
        warehouse = DemoSubscriber(warehouse_client, "B3")
        both = (manager, warehouse)

        console.rule("[bold]2. Subscriptions")
        # A publisher advertises first, so that subscriptions are forwarded towards it.
        await shop.advertise("[class,isPresent]")
        await manager.subscribe(LARGE_ORDERS)
        await warehouse.subscribe(ALL_ORDERS)
        console.print("shop, at B1, publishes. Two other clients have subscribed, by content:")
        for subscriber in both:
            console.print(subscriptions(subscriber))

        console.rule("[bold]3. Publications: which subscriber receives which, and why")
        kept = await publish(console, running, shop, both, number=1)

        console.rule("[bold]4. A hole in a subscription")
        await warehouse.unsubscribe(LARGE_ORDERS)
        console.print(
            "From now on only manager receives large orders: warehouse un-subscribes from a part "
            "of its subscription and keeps the rest. For each publication, a client's latest "
            "matching operation decides. B1, two brokers away, already knows:"
        )
        console.print(await routes_table(running.address("B1")))
        console.print("The same publications again:")
        return await publish(console, running, shop, both, number=2) and kept


# --- the handover of a stream ---


def hand_over(console: Console, running: Running) -> bool:
    """Hand a stream from worker to worker; returns whether every engine kept its promises."""
    console.rule("[bold]5. The handover of a stream")
    console.print(
        f"Two publishers publish {STREAM_EVENTS:,} numbered events, as fast as possible. First the "
        f"worker ann receives them, then ben, then ann again: {HANDOVERS} handovers, each a "
        "transaction in which one worker subscribes and the other un-subscribes. In the last "
        "handover the old worker leaves as soon as it learns that no older event is on its way. "
        "The same with each engine:"
    )
    outcomes = handover_table.run(
        console, running, registry.by_promises(own=True), events=STREAM_EVENTS, handovers=HANDOVERS
    )
    console.print(handover_table.table(outcome.counts for outcome in outcomes))
    console.print(Text(handover_table.EXPLANATION, "dim"))
    console.print(
        "d-tx promises that every event reaches exactly one worker, before or after each commit. "
        "d-tx-ni and s-tx promise that a handover is atomic, bl-wait (plain operations with waits "
        "between them) promises nothing; with these, events near a handover may reach both workers "
        "or neither."
    )
    for outcome in outcomes:
        for line in outcome.broken:
            console.print(Text(f"  ! {outcome.counts.engine}: {line}", "bold red"))
    return not any(outcome.broken for outcome in outcomes)


# --- subscribers and what they expect ---


@dataclass
class DemoSubscriber:
    """A client, its broker, and its operations so far."""

    client: Client
    broker: str
    operations: list[tuple[str, Filter]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.client.name

    async def subscribe(self, filter: Filter) -> None:
        await self.client.subscribe(filter)
        self.operations.append(("sub", filter))

    async def unsubscribe(self, filter: Filter) -> None:
        await self.client.unsubscribe(filter)
        self.operations.append(("usub", filter))

    def expects(self, event: str) -> tuple[bool, str]:
        """Return whether it should receive a publication, and why."""
        point = parse_publication(event)
        for kind, filter in reversed(self.operations):
            if filter.matches(point):
                verb = "subscribed to" if kind == "sub" else "un-subscribed from"
                return kind == "sub", f"{verb} {format_filter(filter)}"
        # No filter matches: name the predicate of the first one that does not.
        _, filter = self.operations[0]
        predicate = next(
            Filter({name: interval})
            for name, interval in filter.predicates.items()
            if name not in point or not interval.contains(point[name])
        )
        return False, f"does not match {format_filter(predicate)}"

    async def received_before(self, end_mark: str) -> list[str]:
        """Return the publications that arrive before the end mark."""
        received: list[str] = []
        while True:
            notification = await self.client.next(timeout_s=STEP_S)
            event = format_publication(notification.point)
            if event == end_mark:
                return received
            received.append(event)


async def publish(
    console: Console,
    running: Running,
    shop: Client,
    subscribers: Sequence[DemoSubscriber],
    *,
    number: int,
) -> bool:
    """Publish the events and show who received them; returns whether that was right."""
    # Links keep the order: when this last publication has arrived, no earlier one is still on its
    # way. So it is certain, without waiting, that a publication did not arrive.
    end_mark = format_publication({"class": "end mark", "number": number})
    for subscriber in subscribers:
        await subscriber.client.subscribe(END_MARK)
    for event in (*EVENTS, end_mark):
        await shop.publish(event)

    received = {s.name: await s.received_before(end_mark) for s in subscribers}
    kept = True
    for event in EVENTS:
        console.print(Text(f"\n{event}", "bold"))
        for subscriber in subscribers:
            got = event in received[subscriber.name]
            wanted, why = subscriber.expects(event)
            kept = kept and got == wanted
            path = " → ".join(running.topology.path("B1", subscriber.broker))
            console.print(verdict(subscriber.name, got=got, wanted=wanted, why=why, path=path))
        if not any(event in events for events in received.values()):
            console.print("  so B1 did not forward it", style="dim")
    return kept


# --- output ---


def verdict(name: str, *, got: bool, wanted: bool, why: str, path: str) -> Text:
    """Return a line: the subscriber, whether it received the publication, its path, and why."""
    if got != wanted:
        outcome = "received it" if got else "did not receive it"
        return Text(f"  ! {name} {outcome}, but {why}", "bold red")
    if got:
        return Text.assemble((f"  ✓ {name:10}", "green"), f" received it through {path}: {why}")
    return Text.assemble((f"  ✗ {name:10}", "red"), f" did not: {why}")


def show_brokers(console: Console, running: Running) -> None:
    brokers = running.topology.brokers
    console.print(Text(" ─── ".join(broker.name for broker in brokers), "bold cyan"))
    for broker in brokers:
        pid = running.process(broker.name).pid
        console.print(f"{broker.name} listens on {broker.address}, process {pid}", highlight=False)


def subscriptions(subscriber: DemoSubscriber) -> Text:
    filters = " and ".join(format_filter(filter) for _, filter in subscriber.operations)
    return Text(f"  {subscriber.name}, at {subscriber.broker}, to {filters}")


async def routes_table(address: str) -> Table:
    """Return the subscriptions in a broker's routing table."""
    async with padres_tx.operator(address) as operator:
        known = (await operator.tables())["prt"]
    table = Table("", "client", "filter", "forwarded to")
    for entry in known:
        if entry["filter"] != format_filter(END_MARK):
            table.add_row(entry["kind"], entry["client"], Text(entry["filter"]), entry["hop"])
    return table
