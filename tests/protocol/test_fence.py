"""How often one D-TX transaction can lose, and what a fence does to others.

A victim takes its time and meets something that conflicts and is committed meanwhile, on every
attempt. It keeps its age, as a client's `transaction` with retries does, and gets a fence from its
broker after some losses; then it must win, whatever the others are, and leave nothing behind. Who
has not lost to others gets none, whatever it says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import networkx as nx
import pytest

from overlay.filters import Filter
from overlay.hosts.simulator import Tape
from overlay.messages import Hop
from padres_tx.client_messages import (
    Abort,
    Began,
    Begin,
    Commit,
    Ended,
    Look,
    Operate,
    Step,
    TxID,
    engine_message,
    from_client,
    tx_text,
)
from padres_tx.engines.d_tx.broker import DTx
from padres_tx.engines.d_tx_ni.broker import PRECEDENCE
from padres_tx.protocol.dynamic import DynamicState
from padres_tx.protocol.dynamic_messages import AbortRequest, Fence
from padres_tx.protocol.validation.losses import (
    FENCE_AFTER,
    FENCE_LIMIT_S,
    FENCE_SHARE,
    LOST_LIMIT,
    LossCounts,
    LossRecord,
)
from proofs.sim.simulated_overlay import SimulatedOverlay, all_engines
from tests.protocol.one_broker import OneBroker, of_kind, to_whom
from tests.protocol.steps import box, chain, pub, sub, tcm, usub

#: Runs of each random test; PADRES_TX_SEEDS gives more.
RUNS = max(10, int(os.environ.get("PADRES_TX_SEEDS", "500")) // 50)

EVENTS = box(class_="p")
ASK = box(class_="ask")
#: Milliseconds after which everybody must be through; it takes some hundred.
ROUNDS = 4000

RIVALS = ("plain", "d-tx", "d-tx-ni", "s-tx")


class FencesVictims(DTx):
    """Gives every victim a fence at once."""

    def grants_fence(self, tx: DynamicState, now: float) -> bool:
        return tx.id[0].startswith("V")


class Contest(SimulatedOverlay):
    """Victims that publish events after a long way round, and rivals that change who gets them."""

    def __init__(self, seed: int, rival: str, *, victims: int = 1, at_once: bool = False) -> None:
        self.tape = Tape(seed=seed)
        choose = self.tape.choose
        tree: nx.Graph[str] = nx.Graph()
        tree.add_node("B1")
        for n in range(2, 3 + choose(4)):
            tree.add_edge(f"B{n}", f"B{1 + choose(n - 1)}")
        engine: Any = FencesVictims if at_once else DTx
        super().__init__(tree, choose, factories={**all_engines(), "d-tx": engine}, trace=False)
        self.rival = rival
        self.victims = [f"V{n}" for n in range(victims)]
        brokers = sorted(tree)
        for client in (*self.victims, "P", "R"):
            self.join(client, brokers[choose(len(brokers))])
        held = [(victim, "adv", filter) for victim in self.victims for filter in (EVENTS, ASK)]
        for client, kind, filter in (*held, ("P", "sub", ASK), ("P", "adv", ASK)):
            self.settled(client, kind, filter)
        #: What each victim has tried.
        self.attempts: dict[str, list[TxID]] = {victim: [] for victim in self.victims}
        self.subscribed = False
        self.asked: TxID | int | None = None

    def settled(self, client: str, kind: Any, filter: Filter) -> None:
        self.plain(client, kind, filter)
        self.oracle.operate(client, kind, filter)
        self.sim.run()

    # --- the victims ---

    def attempt(self, victim: str) -> None:
        tried = self.attempts[victim]
        age = next((m.age for m in self.log[victim] if isinstance(m, Began)), 0)
        steps = [tcm(victim, class_="ask", n=n) for n in range(2)]
        steps.append(pub(victim, class_="p", n=len(tried)))
        tried.append(self.begin("d-tx", victim, steps, age=age))

    def carry_on(self, victim: str) -> bool:
        """Try again after a loss; whether the victim is through."""
        if not self.attempts[victim]:
            self.attempt(victim)
        ended = self.ended.get(self.attempts[victim][-1])
        if ended is None or ended.committed:
            return ended is not None
        assert ended.code == "conflict", ended
        self.attempt(victim)
        return False

    # --- the rivals ---

    def compete(self) -> None:
        """R subscribes to the events or un-subscribes, as fast as it can."""
        request = ("R", self.asked) if isinstance(self.asked, int) else self.asked
        if request is not None and request not in self.done and request not in self.ended:
            return
        self.settle()
        kind: Any = "usub" if self.subscribed else "sub"
        step = Step("R", kind, EVENTS)
        match self.rival:
            case "plain":
                self.asked = self.plain("R", kind, EVENTS)
            case "s-tx":
                self.asked = self.submit("R", [step])
            case engine:
                self.asked = self.begin(engine, "R", [step])

    def changed(self, happened: bool) -> None:
        if happened:
            self.oracle.operate("R", "usub" if self.subscribed else "sub", EVENTS)
            self.subscribed = not self.subscribed

    # --- the contest ---

    def play(self, *, meanwhile: Callable[[], None] = lambda: None) -> None:
        for _ in range(ROUNDS):
            self.compete()
            meanwhile()
            through = [self.carry_on(victim) for victim in self.victims]
            if all(through):
                break
            self.sim.run(until=self.sim.now + 0.001)
        else:
            raise AssertionError(f"nobody is through: {self.attempts} {self.ended}")
        self.sim.run()
        self.settle()

    def settle(self) -> None:
        """Let the oracle know what has become of the last rival."""
        if isinstance(self.asked, int):
            self.changed(self.done["R", self.asked] == "")
        elif self.asked is not None:
            self.changed(self.ended[self.asked].committed)
        self.asked = None


@pytest.mark.parametrize("rival", RIVALS)
def test_a_transaction_that_meets_a_rival_every_time_wins_behind_its_fence(rival: str) -> None:
    losses = 0
    for seed in range(RUNS):
        contest = Contest(seed, rival)
        contest.play()
        assert len(contest.attempts["V0"]) <= FENCE_AFTER + 1, f"seed {seed}"
        losses += len(contest.attempts["V0"]) - 1
        contest.check_at_rest()
    assert losses > RUNS, "too easy: the rival hardly ever won"


@pytest.mark.parametrize("rival", RIVALS)
def test_each_fence_of_an_older_one_costs_one_attempt_at_most(rival: str) -> None:
    most = 0
    for seed in range(RUNS):
        contest = Contest(seed, rival, victims=3)
        contest.play()
        for victim in contest.victims:
            assert len(contest.attempts[victim]) <= FENCE_AFTER + 3, f"seed {seed}"
            most = max(most, len(contest.attempts[victim]))
        contest.check_at_rest()
    assert most > FENCE_AFTER, "nobody has raised a fence"


# --- fences that end otherwise ---


@pytest.mark.parametrize("rival", RIVALS)
def test_who_crashes_behind_its_fence_is_in_nobodys_way(rival: str) -> None:
    crashes = 0
    for seed in range(RUNS):
        contest = Contest(seed, rival, victims=3)
        # So long after it has asked for its fence.
        patience = iter(range(contest.tape.choose(40)))

        def crash(contest: Contest = contest, patience: Iterator[int] = patience) -> None:
            fenced = len(contest.attempts["V0"]) > FENCE_AFTER
            if fenced and "V0" in contest.victims and next(patience, None) is None:
                contest.crash("V0")
                contest.victims.remove("V0")

        contest.play(meanwhile=crash)
        for victim in contest.victims:
            assert len(contest.attempts[victim]) <= FENCE_AFTER + 3, f"seed {seed}"
        contest.check_at_rest()
        crashes += len(contest.victims) < 3
    assert crashes, "nobody has crashed"


@pytest.mark.parametrize("rival", RIVALS)
def test_a_fence_ends_with_its_deadline(rival: str) -> None:
    """A link is slow, so the fence is half up when its time is over."""
    for seed in range(RUNS):
        contest = Contest(seed, rival, at_once=True)
        contest.compete()
        contest.sim.run(until=contest.sim.now + 0.001 * contest.tape.choose(10))
        one, other = sorted(contest.oracle.tree.edges)[0]
        contest.sim.cut(one, other, 5.0)
        steps = [tcm("V0", class_="ask", n=1), pub("V0", class_="p", n=1)]
        tx = contest.begin("d-tx", "V0", steps, deadline_s=1.0)
        contest.attempts["V0"].append(tx)
        contest.sim.run(until=contest.sim.now + 2.0)
        assert contest.ended[tx].code in ("deadline", ""), f"seed {seed}"
        contest.sim.run()
        contest.settle()
        contest.check_at_rest()
        contest.compete()
        contest.sim.run()
        contest.settle()
        contest.check_at_rest()


def test_plain_operations_wait_for_a_fence_and_are_done_behind_it() -> None:
    for seed in range(RUNS):
        contest = Contest(seed, "plain", victims=2, at_once=True)
        waiting = []
        for victim in contest.victims:
            contest.begin("d-tx", victim, [pub(victim, class_="p", n=1)])
        for n in range(6):
            contest.sim.run(until=contest.sim.now + 0.002)
            filter = box(class_="q", n=n)
            waiting.append((("R", "P")[n % 2], contest.plain(("R", "P")[n % 2], "sub", filter)))
            contest.oracle.operate(("R", "P")[n % 2], "sub", filter)
        contest.sim.run()
        assert all(contest.done[request] == "" for request in waiting), f"seed {seed}"
        assert all(ended.committed for ended in contest.ended.values()), f"seed {seed}"
        contest.check_at_rest()


# --- those that do not conflict ---


def side_by_side(engines: list[str], alone: int | None = None) -> dict[int, float]:
    """How long each of some transactions takes that have nothing to do with each other."""
    world = SimulatedOverlay(chain(3), lambda n: 0, trace=False)
    of: dict[TxID, int] = {}
    for n in range(len(engines)):
        for client, edge in ((f"E{n}", f"B{1 + n % 3}"), (f"D{n}", f"B{1 + (n + 2) % 3}")):
            world.join(client, edge)
        for client, kind in ((f"E{n}", "adv"), (f"D{n}", "sub")):
            world.plain(client, kind, box(class_=f"p{n}"))
            world.sim.run()
        world.reactions[f"D{n}"] = lambda point, n=n: [usub(f"D{n}", box(class_=f"p{n}", x=1))]
    began = world.sim.now
    for n, engine in enumerate(engines):
        if alone not in (None, n):
            continue
        e, d, about = f"E{n}", f"D{n}", box(class_=f"p{n}", x=1)
        first = Step(e, "tcm", point={"class": f"p{n}", "x": 1}, receivers=(d,))
        if engine == "plain":
            of[d, world.plain(d, "sub", box(class_=f"p{n}", x=2))] = n
        elif engine == "s-tx":
            of[world.submit(e, [first, Step(d, "usub", about, after=(0,))])] = n
        else:
            of[world.begin(engine, e, [first, sub(e, about), pub(e, class_=f"p{n}", x=1)])] = n
    took: dict[int, float] = {}
    while len(took) < len(of):
        world.sim.run(until=world.sim.now + 0.001)
        for tx, n in of.items():
            if n not in took and (tx in world.ended or tx in world.done):
                took[n] = round(world.sim.now - began, 6)
                assert tx in world.done or world.ended[tx].committed, world.ended[tx]
    return took


def test_what_does_not_conflict_neither_aborts_nor_delays_each_other() -> None:
    """With every link as fast as ever, each takes just as long as it takes alone."""
    engines = ["d-tx", "plain", "d-tx-ni", "d-tx", "s-tx", "plain", "d-tx", "d-tx-ni", "s-tx"]
    together = side_by_side(engines)
    for n in range(len(engines)):
        assert side_by_side(engines, alone=n) == {n: together[n]}, engines[n]


# --- who gets one ---

P = box(class_="p")


def alone() -> OneBroker:
    """A broker without neighbours: C may publish p, and R may subscribe to it."""
    one = OneBroker("d-tx", neighbours=[])
    one.here("C", "R")
    one.holds("C", "adv", P)
    one.holds("C", "adv", ASK)
    one.holds("R", "adv", ASK)
    return one


def engine_of(one: OneBroker) -> DTx:
    engine = one.broker.engines["d-tx"]
    assert isinstance(engine, DTx)
    return engine


def begun(one: OneBroker, age: int = 0, client: str = "C") -> tuple[TxID, int]:
    """Begin a transaction that claims this age; the age that it is given."""
    tx, said = one.begun(client, age=age)
    return tx, of_kind(said, Began)[0].age


def lose(one: OneBroker, age: int = 0, *, to: str = "R") -> int:
    """Let a transaction of C lose to a plain operation of somebody; its age."""
    tx, age = begun(one, age)
    one.operate(tx, pub("C", class_="p"))
    one.holds(to, "sub", P)
    one.holds(to, "usub", P)
    [ended] = of_kind(one.say("C", Commit(tx)), Ended)
    assert ended.code == "conflict"
    return age


def has_fence(one: OneBroker, tx: TxID) -> bool:
    return engine_of(one).txs[tx].fenced


def test_an_attempt_gets_a_fence_after_some_losses() -> None:
    one = alone()
    age = 0
    for _ in range(FENCE_AFTER):
        age = lose(one, age)
    tx, given = begun(one, age)
    assert given == age and has_fence(one, tx)


def test_no_fence_stands_for_longer_than_the_limit() -> None:
    """Whatever a client asks for: meanwhile nobody else can begin anything."""
    one = alone()
    plain, _ = one.begun("R", deadline_s=3600.0)
    age = 0
    for _ in range(FENCE_AFTER):
        age = lose(one, age)
    fenced = one.begin("C", deadline_s=3600.0, age=age)
    assert one.timers == {
        f"d-tx/{tx_text(plain)}": 3600.0,
        f"d-tx/{tx_text(fenced)}": FENCE_LIMIT_S,
    }


def test_who_has_not_lost_gets_no_fence() -> None:
    """An older client asks for one in so many words; nobody listens."""
    one = alone()
    tx = ("C", 0, 77)
    body = msgspec.msgpack.encode([1, tx, 30.0, 0, True])
    one.raw("@C", body)
    assert not has_fence(one, tx)


def test_an_age_counts_if_this_broker_gave_it_to_this_client_and_it_has_lost() -> None:
    one = alone()
    first, age = begun(one)
    assert begun(one, age)[1] != age, "its attempt is not over"
    one.say("C", Abort(first))
    assert begun(one, age)[1] != age, "it was not lost"
    lost = lose(one)
    assert begun(one, lost, client="R")[1] != lost, "it is C's"
    assert begun(one, 1)[1] > lost and begun(one, 1 << 60)[1] < 1 << 10, "anybody can say that"
    assert begun(one, lost)[1] == lost
    assert begun(one, lost)[1] != lost, "once"


def test_losing_to_ones_own_does_not_count() -> None:
    one = alone()
    age = 0
    for _ in range(2 * FENCE_AFTER):
        age = lose(one, age, to="C")
    for _ in range(2 * FENCE_AFTER):
        tx, given = begun(one, age)
        assert given == age and not has_fence(one, tx), "it keeps its age"
        one.operate(tx, pub("C", class_="p"))
        own = one.begin("C", sub("C", P), usub("C", P), commit=True)
        assert of_kind(one.say("C", Commit(tx)), Ended)[0].code == "conflict", own


def test_lying_about_ones_own_state_does_not_count() -> None:
    one = alone()
    age = 0
    for _ in range(2 * FENCE_AFTER):
        tx, age = begun(one, age)
        assert not has_fence(one, tx)
        [ended] = of_kind(one.say("C", Look(tx, 0, "sub", True, P)), Ended)
        assert ended.code == "conflict"


def test_what_a_client_has_lost_is_forgotten_when_it_leaves() -> None:
    one = alone()
    age = 0
    for _ in range(FENCE_AFTER):
        age = lose(one, age)
    one.leaves("C")
    one.here("C")
    tx, given = begun(one, age)
    assert given != age and not has_fence(one, tx)


def test_lost_ages_are_bounded() -> None:
    counts = LossCounts()
    for age in range(1, LOST_LIMIT + 2):
        counts.lost(Hop("@C"), age, LossRecord(), to="R", fenced=False)
    assert counts.resume(Hop("@C"), 1) is None
    assert counts.resume(Hop("@C"), 2) == LossRecord(1)


def test_a_client_has_one_fence_at_a_time_and_then_none_for_a_while() -> None:
    counts = LossCounts()
    client, lost = Hop("@C"), LossRecord(FENCE_AFTER)
    assert not counts.grants_fence(client, LossRecord(FENCE_AFTER - 1), 0.0)
    assert counts.grants_fence(client, lost, 0.0)
    assert not counts.grants_fence(client, lost, 1.0), "one at a time"
    assert counts.grants_fence(Hop("@D"), lost, 1.0)
    counts.fence_ended(client, 0.0, 2.0)
    counts.client_left(client)
    over = 2.0 * FENCE_SHARE
    assert not counts.grants_fence(client, lost, over - 0.1), "its share of the time"
    assert counts.grants_fence(client, lost._replace(outranked=True), over - 0.1)
    counts.fence_ended(client, over, over)
    assert counts.grants_fence(client, lost, over)


def test_others_operations_give_way_to_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """In D-TX-NI, which changes the tables at once."""
    monkeypatch.setattr(DTx, "grants_fence", lambda self, tx, now: True)
    one = alone()
    one.begin("C")
    tx = ("R", 0, 1000)
    for message in (Begin(tx, 30.0), Operate(tx, 0, 1, sub("R", P))):
        said = one.send("@R", engine_message("d-tx-ni", from_client.encode(message)))
    [ended] = of_kind(said, Ended, "@R")
    assert (ended.code, ended.reason) == ("conflict", PRECEDENCE)


def test_a_fence_comes_twice_and_not_more_often() -> None:
    one = OneBroker("d-tx")
    one.behind("B1", "E1")
    fence = Fence(("E1", 0, 1), 1, 30.0)
    assert to_whom(one.hear("B1", fence), Fence) == ["B3"]
    assert of_kind(one.hear("B1", fence), AbortRequest, "B1"), "while the first round is under way"
