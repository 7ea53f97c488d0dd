"""What clients believe that they hold, and whom they call: the same as their edge brokers have.

Random runs with real sessions: plain calls, others' plans (S-TX) and dynamic transactions at once,
on few filters that overlap and cover each other. Brokers are watched: for each publication that
one hands to a client, which of the client's subscriptions it is for, there and then. So nothing
is lost between the broker's table and the client's callbacks.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from overlay.broker.core import Broker, Taken
from overlay.effects import Forward, Send
from overlay.messages import BrokerName, Hop, Pub, client_hop, is_client
from proofs.faults.client_bugs import EndsCallbacksAtCommit, NumbersByCall
from proofs.sim.simulated_overlay import SimulatedOverlay
from proofs.sim.simulated_sessions import SessionClient, SimulatedSessions, disagreements
from tests.engines.test_contract import APART, DECIDED, FILTERS, POINTS, Run
from tests.engines.test_handover import Handover

SEEDS = int(os.environ.get("PADRES_TX_SEEDS", "500"))


class Watched(Broker):
    """Notes for each publication to a client which entries of the client it is for."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.meant: dict[Hop, list[set[int]]] = {}

    def take(self, source: Hop, messages: Sequence[Any], now: float, start: int = 0) -> Taken:
        taken = super().take(source, messages, now, start)
        for effect in taken.effects:
            if isinstance(effect, Forward):
                for pub in messages[effect.start : effect.start + effect.count]:
                    self._note(pub, effect.hops)
            elif isinstance(effect, Send) and isinstance(effect.message, Pub):
                self._note(effect.message, effect.hops)
        return taken

    def _note(self, pub: Pub, hops: tuple[Hop, ...]) -> None:
        found = self.routing.prt.matching(pub.point, self.versions.view(pub.hidden))
        for hop in filter(is_client, hops):
            mine = {entry.seq for entry in found if entry.hop == hop}
            self.meant.setdefault(hop, []).append(mine)


class Mixed(Run):
    """A run whose clients are sessions, and whose brokers are watched."""

    def __init__(self, seed: int, engine_names: list[str], **more: Any) -> None:
        self.seen: Counter[str] = Counter()
        super().__init__(seed, engine_names, plain=8, **more)

    def make_world(self, *, sessions: bool) -> SimulatedOverlay:
        return SimulatedSessions(self.tree, self.choose, broker=Watched)

    def transaction(self) -> None:
        """And a few events at any time, some of them while it is decided."""
        super().transaction()
        for _ in range(self.choose(3)):
            self.world.sim.run(until=self.world.sim.now + 0.001 * self.choose(12))
            for client in ("C1", "C3"):
                self.counter += 1
                point = {"class": "p", "x": self.choose(4), "n": self.counter}
                self.world.publish(client, point)

    def check(self) -> None:
        super().check()
        assert isinstance(self.world, SimulatedSessions)
        for client in self.world.sessions.values():
            self._check_callbacks(client)

    def _check_callbacks(self, client: SessionClient) -> None:
        """Each publication has come to the callbacks that it is for."""
        broker = self.world.sim.brokers[BrokerName(client.edge)]
        assert isinstance(broker, Watched)
        meant = broker.meant.get(client_hop(client.name), [])
        assert len(meant) == len(client.deliveries)
        for numbers, (pub, callbacks, after) in zip(meant, client.deliveries, strict=True):
            # A later subscription covers what has ended an earlier one, and does not bring it back.
            over = [
                end.seq
                for end, tx in client.ended[:after]
                if tx not in pub.hidden and end.filter.matches(pub.point)
            ]
            wanted = {
                name
                for name, number in client.numbered.items()
                if number in numbers and number > max(over, default=0)
            }
            assert wanted <= set(callbacks), f"{pub} is for {wanted}, and went to {callbacks}"
            self.seen["called"] += bool(wanted)
            self.seen["stamped"] += bool(wanted) and bool(pub.hidden)
            if not pub.hidden:  # Else only the broker knows what of this comes after.
                for name in callbacks:
                    number = client.numbered.get(name, max(over, default=0) + 1)
                    assert number > max(over, default=0), f"{pub} went to {name}, which has ended"


def try_out(engines: list[str], seeds: Iterable[int]) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        run = Mixed(seed, engines)
        try:
            run.check()
        except AssertionError as error:
            raise AssertionError(f"Mixed({seed}, {engines}): {error}") from error
        seen += run.seen
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("engines", [DECIDED, ["s-tx"], ["d-tx"]], ids=" ".join)
def test_at_rest_clients_agree_with_their_brokers_and_all_callbacks_were_called(
    engines: list[str],
) -> None:
    first = APART * (900 + len(engines))
    seen = try_out(engines, range(first, first + SEEDS // 2))
    assert seen["called"] > SEEDS / 2, "too little happened"
    if engines == ["d-tx"]:
        assert seen["stamped"], "too little happened"


# --- what it was before ---


@pytest.mark.slow
def test_a_callback_that_ends_with_the_transaction_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a stream that is handed over, by who reads it by callbacks."""
    seeds = range(1, SEEDS // 2, 2)
    assert all(Handover(seed, world=SimulatedSessions).judge() == (0, 0, 0) for seed in seeds)
    monkeypatch.setattr("padres_tx.client.session.Holdings", EndsCallbacksAtCommit)
    lost, doubled, _ = map(
        sum, zip(*(Handover(seed, world=SimulatedSessions).judge() for seed in seeds), strict=True)
    )
    assert lost and not doubled


@pytest.mark.slow
def test_a_client_that_counts_for_itself_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("padres_tx.client.session.Holdings", NumbersByCall)
    mistaken: Counter[str] = Counter()
    for seed in range(APART * 902, APART * 902 + SEEDS):
        run = Mixed(seed, ["s-tx"])
        assert isinstance(run.world, SimulatedSessions)
        for _, how in disagreements(run.world, POINTS, FILTERS):
            mistaken["holds"] += "believes" in how
            mistaken["calls"] += "goes to" in how
    assert mistaken["holds"] and mistaken["calls"]
