"""A call that times out because a broker is unreachable names that broker."""

from __future__ import annotations

import asyncio

import pytest

from padres_tx.client.asyncio import transaction_driver
from padres_tx.errors import CallTimeout
from padres_tx.testing.inprocess import InProcessOverlay

P = {"class": "p"}
#: Calls wait for so long here; the overlay itself is at rest when a call returns.
LIMIT_S = 0.05


def test_the_outcome_of_a_transaction_that_only_a_missing_broker_may_know() -> None:
    async def play(overlay: InProcessOverlay) -> None:
        async with overlay.connect_async("E", at="B1") as e:
            overlay.core.cut("B2", "B3")
            overlay.core.advance(2.0)
            with pytest.raises(CallTimeout, match=r"outcome of X:0:7; .*B3 \(no link from B2\)"):
                await e.outcome("X:0:7", timeout_s=LIMIT_S)
            overlay.core.mend("B2", "B3")

    with InProcessOverlay("three") as overlay:
        asyncio.run(play(overlay))


def test_without_a_missing_broker_the_error_names_none() -> None:
    async def play(overlay: InProcessOverlay) -> None:
        async with overlay.connect_async("E", at="B1") as e:
            overlay.core.cut("B2", "B3")  # Not noticed yet.
            with pytest.raises(CallTimeout, match=r"outcome of X:0:7$"):
                await e.outcome("X:0:7", timeout_s=LIMIT_S)
            overlay.core.mend("B2", "B3")

    with InProcessOverlay("three") as overlay:
        asyncio.run(play(overlay))


@pytest.mark.parametrize(
    ("engine", "awaited"), [("d-tx", "the outcome of"), ("d-tx-ni", "all brokers to apply")]
)
def test_a_commit_that_waits_for_a_missing_broker(
    monkeypatch: pytest.MonkeyPatch, engine: str, awaited: str
) -> None:
    monkeypatch.setattr(transaction_driver, "CALL_TIMEOUT_S", LIMIT_S)

    async def play(overlay: InProcessOverlay) -> None:
        async with overlay.connect_async("E", at="B1") as e:
            overlay.core.cut("B2", "B3")
            overlay.core.advance(2.0)
            with pytest.raises(CallTimeout, match=awaited) as timeout:
                async with e.transaction(engine, deadline_s=LIMIT_S, wait="applied") as tx:
                    tx.sub(P)
            assert str(timeout.value).endswith("; unreachable: B3 (no link from B2)")
            overlay.core.mend("B2", "B3")

    with InProcessOverlay("three") as overlay:
        asyncio.run(play(overlay))
