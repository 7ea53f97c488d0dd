"""Ended transactions: remembered for a while, and told to whoever asks, at any broker."""

from __future__ import annotations

import asyncio
import itertools

import pytest

import padres_tx
from overlay.broker.core import Broker
from overlay.errors import ProtocolError
from overlay.filters import Filter
from overlay.hosts.simulator import Simulator
from overlay.messages import BrokerName, ClientName, Hop
from padres_tx import client_messages, static
from padres_tx.client.asking import OutcomeLearned
from padres_tx.client.session import Event
from padres_tx.client_messages import Abort, AskOutcome, Commit, Ended, OutcomeReply, Submit
from padres_tx.errors import (
    BadTransaction,
    CallTimeout,
    ConnectionLost,
    NotCoordinator,
    TooManyRequests,
    UnknownTransaction,
)
from padres_tx.protocol import outcomes, questions
from padres_tx.protocol.broker_messages import Answer, Ask
from padres_tx.protocol.dynamic_messages import Decided, Init, Prepare, Vote
from padres_tx.protocol.outcomes import Outcomes
from padres_tx.static import Op
from padres_tx.testing.inprocess import InProcessOverlay
from proofs.sim.simulated_overlay import all_engines
from tests.client.dispatching_clients import (
    ASSIGN,
    ASSIGN_X1,
    DECIDED,
    DYNAMIC,
    P1,
    X1,
    asynchronous,
    dispatching_clients,
    start,
    with_manual_broker,
)
from tests.client.test_simulated_clients import SimulatedClient
from tests.client.test_transactions import Half, said
from tests.protocol.one_broker import OneBroker, Said, of_kind, to_whom
from tests.protocol.steps import box, sub
from topologies import load

P = box(class_="p")
TX: client_messages.TxID = ("E", 0, 7)

# --- what is remembered ---


def ended(memory: Outcomes, number: int, at: float, **more: bool) -> None:
    memory.add(
        ("E", 0, number), committed=True, code="", reason="", began_at=at - 1, now=at, **more
    )


def test_the_oldest_are_forgotten_by_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "OUTCOMES_LIMIT", 3)
    memory = Outcomes()
    for number in range(5):
        ended(memory, number, 0.0)
    assert [one.tx[2] for one in memory.newest(0.0)] == [4, 3, 2]
    assert memory.get(("E", 0, 1), 0.0) is None and memory.get(("E", 0, 2), 0.0) is not None


def test_and_by_age() -> None:
    memory = Outcomes()
    ended(memory, 1, 0.0)
    ended(memory, 2, 300.0)
    assert memory.get(("E", 0, 1), outcomes.OUTCOME_AGE_S) is not None
    assert memory.get(("E", 0, 1), outcomes.OUTCOME_AGE_S + 1) is None
    assert [one.tx[2] for one in memory.newest(outcomes.OUTCOME_AGE_S + 1)] == [2]


def test_what_is_for_people_is_kept_short() -> None:
    memory = Outcomes()
    clients = [f"C{n:03}" for n in range(100)]
    memory.add(TX, committed=False, code="x", reason="y" * 9999, began_at=0, now=0, clients=clients)
    one = memory.get(TX, 0.0)
    assert one is not None and len(one.reason) == outcomes.REASON_LIMIT
    assert one.clients == tuple(clients[: outcomes.CLIENTS_LIMIT])


@pytest.mark.parametrize("engine", DECIDED)
def test_an_operator_sees_what_has_ended(engine: str) -> None:
    one = OneBroker(engine, neighbours=())
    one.here("E")
    tx = finished(one)
    known, _ = one.broker.engines[engine].inspect("ended", 5.0)
    assert (
        known == one.broker.engines[engine].inspect(f"ended {client_messages.tx_text(tx)}", 5.0)[0]
    )
    (line,) = known
    assert (line["tx"], line["engine"], line["coordinator"]) == (
        client_messages.tx_text(tx),
        engine,
        "E",
    )
    assert (line["status"], line["edge"], line["clients"]) == ("committed", True, ["E"])
    assert line["ended_s"] == 5.0 and (line["code"], line["reason"]) == ("", "")
    assert one.broker.engines[engine].inspect("", 5.0)[0] == [], "it is not open"
    assert one.broker.engines[engine].inspect("ended E:0:99", 5.0)[0] == []
    assert one.broker.engines[engine].inspect("ended nonsense", 5.0)[0] == []


def finished(one: OneBroker) -> client_messages.TxID:
    """A committed transaction of E at a broker without neighbours."""
    if one.engine == "s-tx":
        return one.submit("E", sub("E", P))[0]
    return one.begin("E", sub("E", P), commit=True)


@pytest.mark.parametrize("engine", DYNAMIC)
@pytest.mark.parametrize("crowded", [False, True])
def test_a_commit_is_remembered_from_when_all_have_it(
    engine: str, crowded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1 is away for long; when it is back without its memory, those behind it ask through it."""
    if crowded:
        monkeypatch.setattr(outcomes, "OUTCOMES_LIMIT", 1)
    one = OneBroker(engine, neighbours=["B1"])
    one.here("E")
    tx = one.begin("E", sub("E", P), commit=True)
    if engine == "d-tx":
        one.hear("B1", Vote(tx))
    late = outcomes.OUTCOME_AGE_S * 2
    core = one.broker.engines[engine]
    if crowded:
        other = one.begin("E")
        one.say("E", Abort(other))
        one.hear("B1", Decided(other))
        late = 0.0
    ask = client_messages.engine_message(engine, one.codec.encode(Ask(tx)))
    for moment in (late, late + 1):
        said = one.see(one.broker.receive(Hop("B1"), ask, moment))
        assert said == [Said("B1", Answer(tx, "committed"))]
        one.see(one.broker.link_reset(BrokerName("B1"), moment))
    assert core.inspect("", late)[0] == [], "it is over"


# --- a client that asks, message by message ---


@pytest.mark.parametrize("engine", DECIDED)
def test_a_broker_that_knows_answers_at_once_to_anybody(engine: str) -> None:
    one = OneBroker(engine, neighbours=())
    one.here("E", "D")
    tx = finished(one)
    for client in ("E", "D"):
        assert one.say(client, AskOutcome(tx)) == [
            Said(f"@{client}", OutcomeReply(tx, "committed"))
        ]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_a_broker_where_it_is_open_answers_when_it_is_decided(engine: str) -> None:
    one = OneBroker(engine, neighbours=())
    one.here("E", "D", "A")
    tx = one.begin("E", sub("E", P))
    for client in ("D", "A", "E", "D"):
        assert one.say(client, AskOutcome(tx)) == []
    one.leaves("A")
    told = of_kind(one.say("E", Abort(tx, "enough")), OutcomeReply)
    assert told == [OutcomeReply(tx, "aborted", "aborted", "enough")] * 2


@pytest.mark.parametrize("engine", DECIDED)
def test_a_broker_that_does_not_know_asks_all_others(engine: str) -> None:
    one = OneBroker(engine, neighbours=["B1", "B3"])
    one.here("D")
    assert to_whom(one.say("D", AskOutcome(TX)), Ask) == ["B1", "B3"]
    assert one.hear("B1", Answer(TX, "unknown")) == []
    assert one.hear("B3", Answer(TX, "committed")) == [Said("@D", OutcomeReply(TX, "committed"))]
    assert one.say("D", AskOutcome(TX)) == [Said("@D", OutcomeReply(TX, "committed"))], "remembered"


@pytest.mark.parametrize("engine", DECIDED)
def test_nobody_knows_it(engine: str) -> None:
    one = OneBroker(engine, neighbours=["B1", "B3"])
    one.here("D")
    one.say("D", AskOutcome(TX))
    one.hear("B1", Answer(TX, "unknown"))
    (told,) = of_kind(one.hear("B3", Answer(TX, "unknown")), OutcomeReply)
    assert told.status == "unknown" and "no broker knows it" in told.reason
    alone = OneBroker(engine, neighbours=())
    alone.here("D")
    assert of_kind(alone.say("D", AskOutcome(TX)), OutcomeReply)[0].status == "unknown"


@pytest.mark.parametrize("engine", DECIDED)
def test_one_client_cannot_ask_without_end(engine: str) -> None:
    one = OneBroker(engine, neighbours=["B1"])
    one.here("D", "A")
    for number in range(client_messages.QUESTIONS_PER_CLIENT):
        assert to_whom(one.say("D", AskOutcome(("E", 0, number))), Ask) == ["B1"]
    (told,) = of_kind(one.say("D", AskOutcome(("E", 0, 999))), OutcomeReply)
    assert told.status == "busy" and "64 questions open at B2 already" in told.reason
    assert to_whom(one.say("A", AskOutcome(("E", 0, 999))), Ask) == ["B1"], "others may"
    one.hear("B1", Answer(("E", 0, 0), "unknown"))
    assert to_whom(one.say("D", AskOutcome(("E", 0, 998))), Ask) == ["B1"]
    # Who leaves takes its questions along.
    one.leaves("D")
    one.hear("B1", Answer(("E", 0, 1), "committed"))
    one.hear("B1", Answer(("E", 0, 999), "committed"))
    assert len(one.broker.engines[engine].questions) == 0  # type: ignore[attr-defined]


def test_all_clients_together_cannot_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "QUESTIONS_LIMIT", 2)
    one = OneBroker("d-tx", neighbours=["B1", "B3"])
    one.here("D")
    for number in range(2):
        one.hear("B1", Ask(("E", 0, number)))
    assert of_kind(one.say("D", AskOutcome(TX)), OutcomeReply)[0].status == "busy"
    (said,) = one.hear("B1", Ask(TX))
    assert said.message.status == "busy" and said.message.reason == "B2 has 2 questions open"


def test_busy_is_never_taken_for_unknown() -> None:
    one = OneBroker("d-tx", neighbours=["B1", "B3"])
    one.here("D")
    one.say("D", AskOutcome(TX))
    one.hear("B1", Answer(TX, "busy"))
    (told,) = of_kind(one.hear("B3", Answer(TX, "unknown")), OutcomeReply)
    assert told.status == "busy"


@pytest.mark.parametrize("engine", DECIDED)
def test_brokers_and_clients_ask_by_their_own_messages(engine: str) -> None:
    one = OneBroker(engine)
    one.here("D")
    for source, message in (("B1", AskOutcome(TX)), ("@D", Ask(TX)), ("@D", Answer(TX, "aborted"))):
        with pytest.raises(ProtocolError):
            one.raw(source, one.codec.encode(message))
    with pytest.raises(ProtocolError, match="was not asked"):
        one.hear("B1", Answer(TX, "committed"))
    with pytest.raises(ProtocolError):
        one.raw("B1", one.codec.encode(["", 62]))


@pytest.mark.parametrize("engine", DECIDED)
def test_a_neighbour_answers_a_question_once(engine: str) -> None:
    one = OneBroker(engine, neighbours=["B1", "B3"])
    one.here("D")
    one.say("D", AskOutcome(TX))
    assert one.hear("B1", Answer(TX, "unknown")) == []
    with pytest.raises(ProtocolError, match="was not asked"):
        one.hear("B1", Answer(TX, "unknown"))


def test_a_side_that_has_ended_it_alone_asks_first() -> None:
    """D-TX: B2 has voted yes, and B1 was restarted before the decision came."""
    one = OneBroker("d-tx", neighbours=["B1"])
    one.behind("B1", "E")
    one.here("D")
    one.hear("B1", Init(TX, 1))
    one.hear("B1", Prepare(TX))
    one.see(one.broker.link_reset(BrokerName("B1"), 0.0))
    assert of_kind(one.hear("B1", Ask(TX)), Answer)[0].status == "unknown"
    assert to_whom(one.say("D", AskOutcome(TX)), Ask) == ["B1"]
    told = of_kind(one.hear("B1", Answer(TX, "committed")), OutcomeReply)
    assert told == [OutcomeReply(TX, "committed")]
    one.say("D", AskOutcome(TX))
    told = of_kind(one.hear("B1", Answer(TX, "unknown")), OutcomeReply)
    assert told == [OutcomeReply(TX, "aborted", "broker", "broker B1 was restarted")]


# --- a commit that is asked for again ---


@pytest.mark.parametrize("engine", DYNAMIC)
def test_a_repeated_commit_is_answered_with_the_outcome(engine: str) -> None:
    one = OneBroker(engine, neighbours=["B1"])
    one.here("E", "D")
    kept = one.begin("E", sub("E", P))
    one.say("E", Abort(kept, "enough"))
    again = Ended(kept, False, "aborted", "enough")
    assert of_kind(one.say("E", Commit(kept)), Ended) == [again], "B1 has not acknowledged it yet"
    assert of_kind(one.say("D", Commit(kept)), Ended)[0].code == "unknown", "it is not D's"
    lone = OneBroker(engine, neighbours=())
    lone.here("E")
    tx = finished(lone)
    assert lone.at_rest
    assert of_kind(lone.say("E", Commit(tx)), Ended) == [Ended(tx, True)]


@pytest.mark.parametrize("engine", DECIDED)
def test_a_name_that_is_remembered_is_not_used_again(engine: str) -> None:
    one = OneBroker(engine, neighbours=())
    one.here("E")
    tx = finished(one)
    message = (
        Submit(tx, 9.0, (sub("E", P),)) if engine == "s-tx" else client_messages.Begin(tx, 9.0)
    )
    (refused,) = of_kind(one.say("E", message), Ended)
    assert (refused.committed, refused.code) == (False, "refused")
    assert "earlier transaction of this name" in refused.reason


# --- the client's half ---


def learned(events: list[Event]) -> list[OutcomeLearned]:
    return [event for event in events if isinstance(event, OutcomeLearned)]


def test_all_engines_are_asked_and_the_first_decision_counts() -> None:
    half = Half()
    name, events = half.transactions.questions.ask("X:0:7")
    assert said(events) == [AskOutcome(("X", 0, 7))] * 3 and name == "X:0:7"
    assert half.transactions.questions.ask("X:0:7")[1] == [], "it is asked already"
    assert half.told(OutcomeReply(("X", 0, 7), "unknown"), engine="d-tx") == []
    (told,) = learned(half.told(OutcomeReply(("X", 0, 7), "aborted", "c", "r"), engine="s-tx"))
    assert told.result is not None
    assert (told.result.engine, told.result.status, told.result.reason) == ("s-tx", "aborted", "r")
    assert half.told(OutcomeReply(("X", 0, 7), "unknown"), engine="d-tx-ni") == []
    with pytest.raises(ProtocolError, match="was not asked"):
        half.told(OutcomeReply(("X", 0, 7), "committed"), engine="d-tx-ni")


def test_it_is_unknown_when_no_engine_knows_it() -> None:
    half = Half()
    half.transactions.questions.ask("X:0:7")
    reason = "no broker knows it"
    for engine in ("d-tx", "d-tx-ni"):
        assert half.told(OutcomeReply(("X", 0, 7), "unknown", "", reason), engine=engine) == []
    (told,) = learned(half.told(OutcomeReply(("X", 0, 7), "unknown", "", reason), engine="s-tx"))
    assert isinstance(told.error, UnknownTransaction) and str(told.error) == f"X:0:7: {reason}"


def test_what_the_client_knows_itself_is_not_asked() -> None:
    half = Half()
    tx = half.begin()
    assert said(half.transactions.questions.ask(tx.name)[1]) == [AskOutcome(tx.id)], "d-tx only"
    half.told(Ended(tx.id, True))
    (told,) = half.transactions.questions.ask(tx.name)[1]
    assert isinstance(told, OutcomeLearned) and told.result is tx.result


def test_a_client_asks_why_so_often_and_not_oftener() -> None:
    half = Half()
    why = half.transactions.questions.explain
    assert why("no id") == []
    names = [f"X:0:{number}" for number in range(client_messages.QUESTIONS_PER_CLIENT)]
    for number, name in enumerate(names):
        half.transactions.questions.ask(name, "d-tx")
        assert said(why(name)) == [AskOutcome(("X", 0, number), at_once=True)]
    tx = half.begin()
    assert why(tx.name) == [], "one too many"
    half.told(OutcomeReply(("X", 0, 3), "waiting", "", "B3 is away"), engine="d-tx")
    assert said(why(tx.name)) == [AskOutcome(tx.id, at_once=True)]


def test_wrong_questions_raise_at_the_call() -> None:
    half = Half()
    for name in ("X", "", ":7", "X:y", None, 7):
        with pytest.raises(UnknownTransaction, match="invalid transaction id"):
            half.transactions.questions.ask(name)  # type: ignore[arg-type]
    with pytest.raises(padres_tx.UnknownEngine):
        half.transactions.questions.ask("X:0:7", "no-such")
    with pytest.raises(BadTransaction, match="remember no outcomes of bl-wait"):
        half.transactions.questions.ask("X:0:7", "bl-wait")
    for number in range(client_messages.QUESTIONS_PER_CLIENT):
        half.transactions.questions.ask(f"X:0:{number}")
    with pytest.raises(TooManyRequests):
        half.transactions.questions.ask("X:0:99")


# --- programs ---


@pytest.mark.parametrize("engine", DECIDED)
@asynchronous
async def test_anybody_with_the_name_can_ask_anywhere(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, d, a1):
        async with e.transaction(engine) as tx:
            start(tx)
        with pytest.raises(RuntimeError):
            async with e.transaction(engine) as other:
                other.sub(P1)
                raise RuntimeError("enough")
        await e.close()
        async with (
            overlay.connect_async("E", at="B3") as again,
            overlay.connect_async("X", at="B1") as stranger,
        ):
            for client in (again, d, a1, stranger):
                result = await client.outcome(tx.id)
                assert (result.tx, result.engine, result.committed) == (tx.id, engine, True)
            assert (await again.commitTX(tx.id)).committed
            with pytest.raises(UnknownTransaction, match="takes no part"):
                await stranger.commitTX(tx.id)
            if engine != "s-tx":  # Of which brokers hear at the commit only.
                result = await a1.outcome(other.id)
                assert (result.status, result.code) == ("aborted", "aborted")
                assert result.reason == "RuntimeError: enough"
                assert (await again.commitTX(other.id)).reason == "RuntimeError: enough"


@asynchronous
async def test_what_no_broker_knows_is_an_error_that_says_so() -> None:
    async with dispatching_clients() as (_, e, d, _):
        with pytest.raises(UnknownTransaction, match="X:0:1: no broker knows it: it was never"):
            await e.outcome("X:0:1")
        with pytest.raises(UnknownTransaction, match="no broker knows it"):
            await e.commitTX("E:0:1")
        with pytest.raises(UnknownTransaction, match="invalid transaction id"):
            await e.outcome("nonsense")
        with pytest.raises(NotCoordinator):
            await _commit_somebody_elses(e, d)


async def _commit_somebody_elses(e: padres_tx.Client, d: padres_tx.Client) -> None:
    parts: list[padres_tx.Part] = []
    d.on_tcm(None, lambda tx, notification: parts.append(tx))
    async with e.transaction("d-tx") as tx:
        await tx.tcm({**X1, "n": 0})
        await d.commitTX(tx.id)


@asynchronous
async def test_an_open_one_is_waited_for() -> None:
    async with dispatching_clients() as (_, e, d, _):
        tx = await e.beginTX("d-tx")
        await e.txSub(tx, P1)
        with pytest.raises(CallTimeout, match=f"the outcome of {tx}"):
            await d.outcome(tx, timeout_s=0.01)
        asked = asyncio.create_task(d.outcome(tx))
        await asyncio.sleep(0)
        await e.abortTX(tx, "enough")
        assert (await asked).reason == "enough"


@asynchronous
async def test_a_lost_connection_ends_the_question() -> None:
    async with dispatching_clients() as (overlay, e, d, _):
        tx = await e.beginTX("d-tx")
        await e.txSub(tx, P1)
        asked = asyncio.create_task(d.outcome(tx))
        await asyncio.sleep(0.01)
        overlay.stop()
        with pytest.raises(ConnectionLost):
            await asked
        with pytest.raises(ConnectionLost):
            await d.outcome(tx)


@asynchronous
async def test_a_broker_without_room_says_so() -> None:
    async with with_manual_broker() as (e, broker):
        broker.answer = lambda message: [OutcomeReply(message.tx, "busy", "busy", "too many")]
        with pytest.raises(TooManyRequests, match="X:0:1: too many"):
            await e.outcome("X:0:1", engine="d-tx")


def test_blocking_programs_ask_as_well() -> None:
    with InProcessOverlay("three") as overlay:
        e, x = overlay.connect("E", at="B1"), overlay.connect("X", at="B3")
        with e.transaction("s-tx") as tx:
            tx.sub(P1)
        assert x.outcome(tx.id).committed
        e.close()
        assert overlay.connect("E", at="B2").commitTX(tx.id).committed


# --- a coordinator that loses its connection at any moment of its commit ---


class Asker(SimulatedClient):
    """A client that asks for an outcome."""

    def __init__(self, simulator: Simulator, name: str, edge: str) -> None:
        super().__init__(simulator, name, edge)
        self.learned: list[OutcomeLearned] = []

    def ask(self, name: str) -> OutcomeLearned:
        self._carry_out(self.transactions.questions.ask(name)[1])
        self.simulator.run()
        (learned,) = self.learned
        return learned

    def _take(self, event: Event) -> None:
        if isinstance(event, OutcomeLearned):
            self.learned.append(event)
        else:
            super()._take(event)


def commit_and_crash(
    engine: str, at_ms: float, back: str, *, lost: bool
) -> tuple[OutcomeLearned, set[str]]:
    """What E's next life is told at the broker `back`, and what those who took part were told.

    `lost`: what was on its way from E then never comes to its broker.
    """
    three = load("three")
    simulator = Simulator(
        {broker.name: three.neighbours(broker.name) for broker in three.brokers},
        lambda n: 0,
        broker=lambda name, others: Broker(name, others, engines=all_engines()),
    )
    e, d, a1 = (
        SimulatedClient(simulator, *who) for who in (("E", "B1"), ("D", "B2"), ("A1", "B3"))
    )
    e.plain("adv", P1)
    d.plain("adv", ASSIGN)
    d.plain("sub", P1)
    a1.plain("sub", {"class": "assign", "to": "A1"})
    d.reaction = lambda notification: [static.tcm(ASSIGN_X1), static.usub(X1)]
    a1.reaction = lambda notification: [static.sub(X1)]
    ops: dict[str, list[Op]] | None = None
    if engine == "s-tx":
        ops = {"D": [static.tcm(ASSIGN_X1, ops={"A1": [static.sub(X1)]}), static.usub(X1)]}
    tx, events = e.transactions.begin(engine)
    e._carry_out(events)
    e._carry_out(e.transactions.operate(tx, 0, static.tcm({**X1, "n": 0}, ops=ops))[1])
    e._carry_out(e.transactions.commit(tx))
    simulator.run(until=simulator.now + at_ms / 1000)
    simulator.crash("E", lost=lost)
    simulator.run()
    learned = Asker(simulator, "E", back).ask(tx.name)
    told = {result.status for player in (e, d, a1) for result in player.results}
    held = simulator.brokers[BrokerName("B3")].routing.prt.of(ClientName("A1"))
    if any(entry.filter == Filter(X1) for entry in held):
        told.add("committed")
    return learned, told


@pytest.mark.parametrize("back", ["B1", "B3"])
@pytest.mark.parametrize("engine", DECIDED)
def test_whenever_the_connection_is_lost_the_outcome_is_what_all_others_saw(
    engine: str, back: str
) -> None:
    seen: set[str] = set()
    for half, lost in itertools.product(range(1, 60), (False, True)):
        learned, told = commit_and_crash(engine, half / 2, back, lost=lost)
        if learned.result is None:
            # Nothing of it had reached a broker.
            assert half < 2 and lost and not told, (half, learned, told)
            seen.add("unknown")
            continue
        seen.add(learned.result.status)
        assert told <= {learned.result.status}, (half, learned, told)
        if learned.result.committed:
            assert told == {"committed"}, half
    assert seen >= {"unknown", "committed"}
    assert engine == "s-tx" or "aborted" in seen


@pytest.mark.parametrize("engine", ["d-tx", "d-tx-ni", "s-tx"])
def test_a_client_may_ask_what_it_waits_for(engine: str) -> None:
    one = OneBroker(engine)
    one.here("D")
    assert one.say("D", AskOutcome(TX, at_once=True)) == [Said("@D", OutcomeReply(TX, "waiting"))]
    one.see(one.broker.link_down(BrokerName("B3"), 0.0))
    (told,) = of_kind(one.say("D", AskOutcome(TX, at_once=True)), OutcomeReply, "@D")
    assert told.status == "waiting" and told.reason == "unreachable: B3 (no link from B2)"


def test_no_neighbour_answers_that_it_waits() -> None:
    one = OneBroker("d-tx")
    one.here("D")
    one.say("D", AskOutcome(TX))
    with pytest.raises(ProtocolError):
        one.hear("B1", Answer(TX, "waiting"))
