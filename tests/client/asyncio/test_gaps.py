"""Gaps: to callbacks in order with notifications, to iterators that ask, else into the log."""

from __future__ import annotations

import asyncio
import logging

import pytest

from overlay.messages import Gap, Pub
from padres_tx.client.session import Notification
from tests.client.dispatching_clients import asynchronous, with_manual_broker

FIRST = Gap("B2", 10.0, "in")
SECOND = Gap("B2", 11.0, "out")


def event(number: int) -> Pub:
    return Pub("P", number, {"n": number})


@asynchronous
async def test_callbacks_get_gaps_in_their_place() -> None:
    got: list[object] = []
    async with with_manual_broker() as (client, broker):
        client.notify(lambda notification: got.append(notification["n"]))
        client.on_gap(got.append)
        for message in (event(1), FIRST, event(2)):
            broker.end.receive(message)
        while len(got) < 3:
            await asyncio.sleep(0)
    assert got == [1, FIRST, 2]


@asynchronous
async def test_an_iterator_gets_gaps_if_it_asks() -> None:
    async with with_manual_broker() as (client, broker):
        everything = client.notifications(gaps=True)
        broker.end.receive(event(1))
        first = await anext(everything)
        for message in (FIRST, SECOND, event(2)):
            broker.end.receive(message)
        gap, second = await anext(everything), await anext(everything)
    assert isinstance(first, Notification) and isinstance(second, Notification)
    assert (first["n"], second["n"]) == (1, 2)
    assert gap == Gap("B2", 11.0, "both"), "they waited together, and merge"


@asynchronous
async def test_other_iterators_get_none_and_a_warning_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "padres_tx")
    async with with_manual_broker() as (client, broker):
        for message in (FIRST, event(1)):
            broker.end.receive(message)
        assert (await client.next())["n"] == 1
    (record,) = caplog.records
    assert "publications for it" in record.getMessage() and "B2" in record.getMessage()
