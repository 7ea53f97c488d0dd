"""The first look: three brokers, a publisher, two subscribers, and who gets what and why; then a
stream of events that changes hands, with each engine.

Written to be read: it uses the public API only, as a program of yours would. The brokers are
processes of their own, the clients live in this one.

What each subscriber should get is worked out here from its own words, and compared with what
the overlay has brought; a difference is a promise broken, and the demo says so. The handovers are
judged by `padres_tx.scenarios.handover`.
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

#: On a quiet machine each step takes milliseconds; a demo must end all the same.
STEP_S = 20.0

ALL_ORDERS = parse_filter("[class,eq,'order']")
LARGE_ORDERS = parse_filter("[class,eq,'order'],[price,>,100]")
BELL = parse_filter("[class,eq,'bell']")

#: Enough for every engine to show what it is like, in a few seconds.
STREAM_EVENTS = 4000
HANDOVERS = 10

EVENTS = (
    "[class,'order'],[price,40]",
    "[class,'order'],[price,150]",
    "[class,'refund'],[price,150]",
)


def run(console: Console) -> bool:
    """Show it all; answers whether every promise was kept.

    Raises LaunchError if the brokers cannot be started.
    """
    console.rule("[bold]1. An overlay: three brokers, one process each")
    with console.status("starting them") as starting, launcher.overlay("three") as running:
        starting.stop()
        show_brokers(console, running)
        kept = asyncio.run(tell(console, running))
        kept = hand_over(console, running) and kept
    console.print("\nAll clients have left, all brokers have ended.")
    return kept


async def tell(console: Console, running: Running) -> bool:
    """The story itself; answers whether it went as it should."""
    async with (
        padres_tx.connect(running.address("B1"), name="shop") as shop,
        padres_tx.connect(running.address("B2"), name="manager") as manager_client,
        padres_tx.connect(running.address("B3"), name="warehouse") as warehouse_client,
    ):
        manager = Subscriber(manager_client, "B2")
        warehouse = Subscriber(warehouse_client, "B3")
        both = (manager, warehouse)

        console.rule("[bold]2. Who wants what")
        # Whoever publishes says first what is to be expected; subscriptions then find the way.
        await shop.advertise("[class,isPresent]")
        await manager.subscribe(LARGE_ORDERS)
        await warehouse.subscribe(ALL_ORDERS)
        console.print("shop, at B1, publishes. Two others have subscribed, by content:")
        for subscriber in both:
            console.print(said(subscriber))

        console.rule("[bold]3. Publish: who got it, and why")
        kept = await publish(console, running, shop, both, number=1)

        console.rule("[bold]4. A hole in a subscription")
        await warehouse.unsubscribe(LARGE_ORDERS)
        console.print(
            "Large orders are the manager's from now on: warehouse un-subscribes from a part of "
            "what it has, and keeps the rest. Of its words on a publication, the last decides. "
            "B1, two brokers away, knows it already:"
        )
        console.print(await routes_table(running.address("B1")))
        console.print("The same publications again:")
        return await publish(console, running, shop, both, number=2) and kept


# --- a stream changes hands ---


def hand_over(console: Console, running: Running) -> bool:
    """Hand a stream from worker to worker; answers whether every engine kept its promises."""
    console.rule("[bold]5. A stream changes hands")
    console.print(
        f"Two publishers stream {STREAM_EVENTS:,} numbered events, as fast as it goes. First ann "
        f"works on them, then ben, then ann again: {HANDOVERS} handovers, each a transaction in "
        "which one subscribes and the other un-subscribes. In the last one the old worker retires, "
        "as soon as it is told that no event from before is still to come. "
        "The same with each engine:"
    )
    outcomes = handover_table.run(
        console, running, registry.by_promises(own=True), events=STREAM_EVENTS, handovers=HANDOVERS
    )
    console.print(handover_table.table(outcome.row for outcome in outcomes))
    console.print(Text(handover_table.EXPLANATION, "dim"))
    console.print(
        "d-tx promises that every event comes to one worker, on whichever side of a commit it "
        "falls. d-tx-ni and s-tx promise that a handover happens as a whole, bl-wait (plain "
        "operations with waits between them) nothing; where they cut a plain stream, events come "
        "to both workers or to neither."
    )
    for outcome in outcomes:
        for line in outcome.broken:
            console.print(Text(f"  ! {outcome.row.engine}: {line}", "bold red"))
    return not any(outcome.broken for outcome in outcomes)


# --- subscribers that can explain themselves ---


@dataclass
class Subscriber:
    """A client, the broker it sits at, and what it has said so far."""

    client: Client
    broker: str
    words: list[tuple[str, Filter]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.client.name

    async def subscribe(self, filter: Filter) -> None:
        await self.client.subscribe(filter)
        self.words.append(("sub", filter))

    async def unsubscribe(self, filter: Filter) -> None:
        await self.client.unsubscribe(filter)
        self.words.append(("usub", filter))

    def expects(self, event: str) -> tuple[bool, str]:
        """Whether it should get a publication, and why."""
        point = parse_publication(event)
        for kind, filter in reversed(self.words):
            if filter.matches(point):
                said = "it wants" if kind == "sub" else "it no longer wants"
                return kind == "sub", f"{said} {format_filter(filter)}"
        # It is in none of the filters: name what keeps it out of the first.
        _, filter = self.words[0]
        predicate = next(
            Filter({name: interval})
            for name, interval in filter.predicates.items()
            if name not in point or not interval.contains(point[name])
        )
        return False, f"it is not in {format_filter(predicate)}"

    async def received_before(self, bell: str) -> list[str]:
        """Everything that comes before the bell."""
        received: list[str] = []
        while True:
            notification = await self.client.next(timeout_s=STEP_S)
            event = format_publication(notification.point)
            if event == bell:
                return received
            received.append(event)


async def publish(
    console: Console,
    running: Running,
    shop: Client,
    subscribers: Sequence[Subscriber],
    *,
    number: int,
) -> bool:
    """Publish the events and show who got them; answers whether that is as it should be."""
    # Links keep the order: once this last publication has come, nothing from before it can still
    # be on its way. So one can be sure, without waiting, that a publication did not come.
    bell = format_publication({"class": "bell", "number": number})
    for subscriber in subscribers:
        await subscriber.client.subscribe(BELL)
    for event in (*EVENTS, bell):
        await shop.publish(event)

    received = {s.name: await s.received_before(bell) for s in subscribers}
    kept = True
    for event in EVENTS:
        console.print(Text(f"\n{event}", "bold"))
        for subscriber in subscribers:
            got = event in received[subscriber.name]
            wanted, why = subscriber.expects(event)
            kept = kept and got == wanted
            way = " → ".join(running.topology.path("B1", subscriber.broker))
            console.print(verdict(subscriber.name, got=got, wanted=wanted, why=why, way=way))
        if not any(event in events for events in received.values()):
            console.print("  so it went no further than B1", style="dim")
    return kept


# --- how it looks ---


def verdict(name: str, *, got: bool, wanted: bool, why: str, way: str) -> Text:
    """A line: who, whether it got the publication, by which way, and why."""
    if got != wanted:
        outcome = "got it" if got else "did not get it"
        return Text(f"  ! {name} {outcome}, although {why}", "bold red")
    if got:
        return Text.assemble((f"  ✓ {name:10}", "green"), f" got it by {way}: {why}")
    return Text.assemble((f"  ✗ {name:10}", "red"), f" no: {why}")


def show_brokers(console: Console, running: Running) -> None:
    brokers = running.topology.brokers
    console.print(Text(" ─── ".join(broker.name for broker in brokers), "bold cyan"))
    for broker in brokers:
        pid = running.process(broker.name).pid
        console.print(f"{broker.name} listens at {broker.address}, process {pid}", highlight=False)


def said(subscriber: Subscriber) -> Text:
    filters = " and ".join(format_filter(filter) for _, filter in subscriber.words)
    return Text(f"  {subscriber.name}, at {subscriber.broker}, to {filters}")


async def routes_table(address: str) -> Table:
    """The subscriptions that a broker knows, as it tells an operator."""
    async with padres_tx.operator(address) as operator:
        known = (await operator.tables())["prt"]
    table = Table("", "client", "filter", "goes to")
    for entry in known:
        if entry["filter"] != format_filter(BELL):
            table.add_row(entry["kind"], entry["client"], Text(entry["filter"]), entry["hop"])
    return table
