"""Programs that take one name after the other: what they say is never named twice."""

from __future__ import annotations

from typing import Any

import pytest

from overlay.broker.core import Broker
from overlay.errors import ProtocolError
from overlay.identity import parse_name
from overlay.messages import BrokerName, Hop, Join, Pub
from padres_tx import static
from padres_tx.client.asyncio.handles import Part
from padres_tx.client.session import Notification
from padres_tx.client_messages import Begin, Step, Submit, engine_message, from_client
from padres_tx.protocol.planning import PLANNED
from padres_tx.testing.inprocess import InProcessOverlay
from proofs.sim.simulated_overlay import all_engines
from tests.client.dispatching_clients import DECIDED, asynchronous
from tests.protocol.one_broker import OneBroker
from tests.protocol.steps import box

P1 = {"class": "p1"}

#: Only what hangs runs into it.
PATIENCE_S = 20.0


@pytest.mark.parametrize("engine", [*DECIDED, "bl-wait"])
@asynchronous
async def test_a_restarted_program_repeats_no_name(engine: str) -> None:
    """It does the very same again: its numbers are those of the program before."""
    names: list[str] = []
    numbers: set[int] = set()
    with InProcessOverlay("three") as overlay:
        async with overlay.connect_async("A", at="B3") as a:
            await a.subscribe(P1)
            for at in ("B1", "B1", "B2"):
                async with overlay.connect_async("E", at=at) as e:
                    await e.advertise(P1)
                    await e.publish(P1)
                    async with e.transaction(engine) as tx:
                        tx.pub(P1)
                    names.append(tx.id)
                    number = parse_name(tx.id)
                    assert number is not None
                    numbers.add(number[2])
            for _ in range(6):
                names.append((await a.next(timeout_s=PATIENCE_S)).name)
    assert len(numbers) == 1
    assert len(set(names)) == len(names) == 9


@asynchronous
async def test_a_tcm_has_a_name_as_other_publications_have() -> None:
    heard: list[Notification] = []
    with InProcessOverlay("three") as overlay:
        async with (
            overlay.connect_async("E", at="B1") as e,
            overlay.connect_async("D", at="B3") as d,
        ):
            await e.advertise(P1)
            await d.subscribe(P1)

            async def act(part: Part, tcm: Notification) -> None:
                heard.append(tcm)

            d.on_tcm(None, act)
            async with e.transaction("d-tx") as tx:
                tx.tcm(P1)
                tx.pub(P1)
            event = await d.next()
            life = overlay.core.brokers[BrokerName("B1")].life_of(Hop("@E"))
            assert [n.life for n in (*heard, event)] == [life, life]
            assert len({tx.id, heard[0].name, event.name}) == 3


@asynchronous
async def test_what_a_plan_publishes_for_a_client_is_not_named_as_its_own() -> None:
    got: list[Notification] = []
    with InProcessOverlay("three") as overlay:
        async with (
            overlay.connect_async("A", at="B2") as a,
            overlay.connect_async("D", at="B1") as d,
            overlay.connect_async("E", at="B3") as e,
        ):
            await a.subscribe(P1)
            await d.advertise(P1)
            await d.subscribe({"class": "ask"})
            await e.advertise({"class": "ask"})
            for _ in range(2):
                async with e.transaction("s-tx", wait="applied") as tx:
                    tx.tcm({"class": "ask"}, ops={"D": [static.pub(P1), static.pub(P1)]})
                await d.publish(P1)
            for _ in range(6):
                got.append(await a.next(timeout_s=PATIENCE_S))
            life = overlay.core.brokers[BrokerName("B1")].life_of(Hop("@D"))
    assert {n.life for n in got} == {life}
    assert len({n.name for n in got}) == len(got) == 6


def test_nobody_numbers_anothers_publications() -> None:
    one = OneBroker("s-tx", neighbours=[])
    one.here("E", "D", "A")
    one.holds("D", "adv", box(class_="p"))
    one.holds("A", "sub", box(class_="p"))
    _, said = one.submit("E", Step("D", "pub", point={"class": "p"}, seq=1))
    [pub] = [message for to, message in said if isinstance(message, Pub)]
    assert pub.seq > PLANNED


@pytest.mark.parametrize("engine", DECIDED)
def test_a_transaction_in_another_life_cannot_begin(engine: str) -> None:
    broker = Broker(BrokerName("B1"), [], engines=all_engines())
    broker.receive(Hop("@E"), Join(1, "E", ""), 0.0)
    life = broker.life_of(Hop("@E"))
    step = Step("E", "sub", box(class_="p"))

    def begin(life: int) -> Any:
        tx = ("E", life, 9)
        message = Submit(tx, 9.0, (step,)) if engine == "s-tx" else Begin(tx, 9.0)
        body = engine_message(engine, from_client.encode(message))
        return broker.receive(Hop("@E"), body, 0.0)

    for wrong in (0, life - 1, life + 1):
        with pytest.raises(ProtocolError, match="cannot begin"):
            begin(wrong)
    assert begin(life)
