"""Each limit of a broker's engines, exactly: what it allows succeeds, and one more is refused."""

from __future__ import annotations

from typing import Any

import pytest

from overlay.errors import ProtocolError
from overlay.filters import Filter
from overlay.messages import Hop, Pub
from overlay.wire.codec import encode
from padres_tx.client_messages import (
    DEADLINE_LIMIT_S,
    AskOutcome,
    Ended,
    Operate,
    OutcomeReply,
    Step,
    Tcm,
    engine_message,
    from_client,
    tx_text,
)
from padres_tx.protocol import dynamic, dynamic_operations, outcomes, planning, questions
from padres_tx.protocol.dynamic_messages import Fence, Init, Vote
from padres_tx.protocol.outcomes import OUTCOME_AGE_S, Outcomes
from padres_tx.protocol.static_state import Plan
from padres_tx.protocol.validation import losses
from padres_tx.protocol.validation.losses import FENCE_AFTER, LossCounts, LossRecord
from tests.protocol.one_broker import OneBroker, Said, of_kind, pubs, to_whom
from tests.protocol.steps import adv, box, pub, sub

DYNAMIC = ["d-tx", "d-tx-ni"]
DECIDED = [*DYNAMIC, "s-tx"]

P = box(class_="p")
Q = box(class_="q")


def alone(engine: str) -> OneBroker:
    """A broker without neighbours; E may publish p, D holds it."""
    one = OneBroker(engine, neighbours=())
    one.here("E", "D")
    one.holds("E", "adv", P)
    one.holds("D", "sub", P)
    return one


def outcome(said: list[Said], client: str = "E") -> tuple[bool, str]:
    """How a client's transaction has ended, by what it is told first."""
    ended = of_kind(said, Ended, f"@{client}")[0]
    return ended.committed, ended.code


def filters(count: int) -> list[Filter]:
    return [box(class_="z", n=n) for n in range(count)]


# --- how many transactions, and for how long ---


@pytest.mark.parametrize("engine", DYNAMIC)
def test_the_transactions_that_a_broker_knows(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic, "TX_LIMIT", 2)
    one = alone(engine)
    one.begin("E")
    _, said = one.begun("D")
    assert not of_kind(said, Ended)
    _, said = one.begun("E")
    assert outcome(said) == (False, "refused")


def test_the_static_transactions_that_a_broker_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "TX_LIMIT", 2)
    one = OneBroker("s-tx", neighbours=["B1"])
    one.here("E")
    one.behind("B1", "A")
    for _ in range(2):  # Which wait for B1.
        assert not of_kind(one.submit("E", sub("A", Q))[1], Ended)
    assert outcome(one.submit("E", sub("A", Q))[1]) == (False, "refused")


@pytest.mark.parametrize("engine", DECIDED)
@pytest.mark.parametrize(
    ("deadline_s", "code"),
    [(DEADLINE_LIMIT_S, ""), (DEADLINE_LIMIT_S + 0.001, "refused"), (0.0, "refused"), (0.001, "")],
)
def test_the_deadline_that_a_client_asks_for(engine: str, deadline_s: float, code: str) -> None:
    one = alone(engine)
    if engine == "s-tx":
        _, said = one.submit("E", sub("E", Q), deadline_s=deadline_s)
    else:
        _, said = one.begun("E", sub("E", Q), deadline_s=deadline_s, commit=True)
    assert outcome(said) == (not code, code)


def test_the_deadline_that_a_neighbour_forwards() -> None:
    def middle(engine: str) -> OneBroker:
        one = OneBroker(engine)
        one.here("D")
        one.behind("B1", "E")
        return one

    tx = ("E", 0, 9)

    def messages(deadline_s: float) -> list[tuple[str, Any]]:
        return [
            ("d-tx", Init(tx, 1, (), deadline_s)),
            ("d-tx", Fence(tx, 1, deadline_s)),
            ("s-tx", Plan(tx, (sub("D", P),), {"E": "B1", "D": "B2"}, deadline_s)),
        ]

    for deadline_s in (0.0, DEADLINE_LIMIT_S):
        for engine, message in messages(deadline_s):
            middle(engine).hear("B1", message)
    for deadline_s in (-0.001, DEADLINE_LIMIT_S + 0.001):
        for engine, message in messages(deadline_s):
            with pytest.raises(ProtocolError):
                middle(engine).hear("B1", message)


# --- what one transaction may do ---


@pytest.mark.parametrize("engine", DYNAMIC)
def test_the_operations_that_a_frame_may_have_waiting(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_operations, "FRAME_LIMIT", 3)
    one = OneBroker(engine, neighbours=["B1"])
    one.here("E")
    # The first one waits for B1, and the others for the first.
    tx, said = one.begun("E", *(adv("E", filter) for filter in filters(4)))
    assert not of_kind(said, Ended)
    assert outcome(one.operate(tx, adv("E", Q))) == (False, "refused")


@pytest.mark.parametrize("engine", DYNAMIC)
def test_the_bytes_of_filters_that_the_end_tells(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subs = [sub("E", filter) for filter in filters(3)]
    sizes = []
    for count in (2, 3):
        one = alone(engine)
        tx = one.begin("E", *subs[:count])
        sizes.append(one.broker.engines[engine].txs[tx].effective_bytes)  # type: ignore[attr-defined]
    for limit, code in ((sizes[1], ""), (sizes[1] - 1, "refused"), (sizes[0], "refused")):
        monkeypatch.setattr(dynamic_operations, "EFFECTIVE_LIMIT_BYTES", limit)
        _, said = alone(engine).begun("E", *subs, commit=True)
        assert outcome(said) == (not code, code)


@pytest.mark.parametrize("engine", DYNAMIC)
@pytest.mark.parametrize("step", [sub("E", Q), pub("E", class_="p")])
def test_the_operations_of_a_transaction_at_one_broker(
    engine: str, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_operations, "OPERATION_LIMIT", 3)
    _, said = alone(engine).begun("E", *[step] * 3, commit=True)
    assert outcome(said) == (True, "")
    _, said = alone(engine).begun("E", *[step] * 4, commit=True)
    assert outcome(said) == (False, "refused")


@pytest.mark.parametrize("engine", DYNAMIC)
def test_the_publications_that_come_to_a_client_at_once(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_operations, "DELIVERIES_LIMIT", 3)
    steps = [pub("E", class_="p", n=n) for n in range(4)]
    _, said = alone(engine).begun("E", *steps[:3], commit=True)
    assert outcome(said) == (True, "") and len(pubs(said, "D")) == 3
    _, said = alone(engine).begun("E", *steps, commit=True)
    assert outcome(said) == (False, "refused") and not pubs(said, "D")


@pytest.mark.parametrize("engine", DYNAMIC)
def test_the_bytes_that_come_to_a_client_at_once(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [pub("E", class_="p", n=n) for n in range(3)]
    _, said = alone(engine).begun("E", *steps, commit=True)
    size = sum(len(encode(message)) for message in of_kind(said, Pub, "@D"))
    for limit, code in ((size, ""), (size - 1, "refused")):
        monkeypatch.setattr(dynamic_operations, "DELIVERIES_LIMIT_BYTES", limit)
        _, said = alone(engine).begun("E", *steps, commit=True)
        assert outcome(said) == (not code, code)


@pytest.mark.parametrize("engine", DYNAMIC)
def test_each_client_has_its_own_share_of_what_comes_at_once(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_operations, "DELIVERIES_LIMIT", 3)
    one = alone(engine)
    one.here("D2")
    one.holds("D2", "sub", P)
    _, said = one.begun("E", *(pub("E", class_="p", n=n) for n in range(3)), commit=True)
    assert outcome(said) == (True, "") and len(pubs(said, "D")) == len(pubs(said, "D2")) == 3


@pytest.mark.parametrize("engine", DYNAMIC)
def test_the_receivers_that_a_tcm_names(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic_operations, "RECEIVERS_LIMIT", 2)
    one = alone(engine)
    one.here("D2", "D3")
    for client in ("D2", "D3"):
        one.holds(client, "sub", P)

    def names(*clients: str) -> list[Said]:
        step = Step("E", "tcm", point={"class": "p"}, seq=99, receivers=clients)
        return one.say("E", Operate(one.begin("E"), 0, 1, step))

    assert to_whom(names("D", "D2"), Tcm) == ["@D", "@D2"]
    assert to_whom(names("D", "D2", "D"), Tcm) == ["@D", "@D2"], "each once"
    assert outcome(names("D", "D2", "D3")) == (False, "refused")


# --- plans ---


@pytest.mark.parametrize("limit", ["STEP_LIMIT", "ATTRIBUTE_LIMIT", "DEPENDENCY_LIMIT"])
def test_the_steps_of_a_plan_their_attributes_and_what_they_come_after(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [Step("E", "sub", box(z=n), after=tuple(range(n))) for n in range(3)]
    monkeypatch.setattr(planning, limit, 3)  # Three of each.
    one = alone("s-tx")
    assert outcome(one.submit("E", *steps)[1]) == (True, "")
    monkeypatch.setattr(planning, limit, 2)
    assert outcome(one.submit("E", *steps)[1]) == (False, "refused")
    assert one.at_rest


def test_a_plan_has_at_least_one_step() -> None:
    assert outcome(alone("s-tx").submit("E")[1]) == (False, "refused")


def test_the_steps_of_a_plan_that_a_neighbour_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "STEP_LIMIT", 2)
    for count in range(4):
        one = OneBroker("s-tx")
        one.here("D")
        one.behind("B1", "E")
        steps = tuple(sub("D", filter) for filter in filters(count))
        plan = Plan(("E", 0, 9), steps, {"E": "B1", "D": "B2"})
        if count in (1, 2):
            one.hear("B1", plan)
        else:
            with pytest.raises(ProtocolError, match=f"a plan of {count} steps"):
                one.hear("B1", plan)


# --- what is remembered ---


def test_the_outcomes_that_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "OUTCOMES_LIMIT", 3)
    monkeypatch.setattr(outcomes, "SHOWN_LIMIT", 2)
    monkeypatch.setattr(outcomes, "CLIENTS_LIMIT", 2)
    monkeypatch.setattr(outcomes, "REASON_LIMIT", 4)
    known = Outcomes()

    def end(number: int, now: float = 0.0) -> outcomes.EndedTx:
        return known.add(
            ("E", 0, number),
            committed=False,
            code="late",
            reason="abcde",
            began_at=now,
            now=now,
            clients=["C", "B", "A"],
        )

    def remembered(now: float = 0.0) -> list[int]:
        return [n for n in range(1, 9) if known.get(("E", 0, n), now) is not None]

    ended = end(1)
    assert ended.reason == "abcd" and ended.clients == ("A", "B")
    end(2), end(3)
    assert remembered() == [1, 2, 3]
    assert [one.tx[2] for one in known.newest(0.0)] == [3, 2]
    end(4)
    assert remembered() == [2, 3, 4], "the oldest goes"
    end(3)
    assert remembered() == [2, 3, 4], "one that is known takes no more room"
    end(5, now=1.0)
    assert remembered() == [3, 4, 5], "the second oldest by now"
    assert remembered(OUTCOME_AGE_S) == [3, 4, 5], "for exactly so long"
    assert remembered(OUTCOME_AGE_S + 0.5) == [5]
    assert known.newest(OUTCOME_AGE_S + 2) == []


def test_the_questions_that_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "QUESTIONS_LIMIT", 3)
    monkeypatch.setattr(questions, "QUESTIONS_PER_CLIENT", 2)
    one = OneBroker("d-tx")
    one.here("D", "E")

    def ask(client: str, number: int) -> list[str]:
        body = from_client.encode(AskOutcome(("X", 0, number)))
        said = one.send(f"@{client}", engine_message("d-tx", body))
        return [answer.status for answer in of_kind(said, OutcomeReply, f"@{client}")]

    assert ask("D", 1) == [] and ask("D", 2) == []
    assert ask("D", 3) == ["busy"], "each client has its share"
    assert ask("E", 3) == []
    assert ask("E", 4) == ["busy"], "and so has the broker"
    assert ask("E", 1) == [], "the same question once more takes no room"


def test_the_lost_transactions_that_a_client_can_begin_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(losses, "LOST_LIMIT", 2)
    client = Hop("@C")
    for count, first in ((2, LossRecord(1)), (3, None)):
        counts = LossCounts()
        for age in range(1, count + 1):
            counts.lost(client, age, LossRecord(), to="R", fenced=False)
        assert counts.resume(client, 1) == first
        assert counts.resume(client, 2) == LossRecord(1)


def test_the_clients_that_wait_for_their_next_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "PAUSES_LIMIT", 2)
    lost = LossRecord(FENCE_AFTER)
    for clients, again in (("AB", False), ("ABC", True)):
        counts = LossCounts()
        for client in clients:
            assert counts.grants_fence(Hop(f"@{client}"), lost, 0.0)
        assert counts.grants_fence(Hop("@A"), lost, 0.0) is again, "the oldest is forgotten"
    assert not counts.grants_fence(Hop("@C"), lost, 0.0)


def test_only_a_loss_to_another_client_that_is_known_counts() -> None:
    client = Hop("@C")
    for to, losses_ in (("R", 1), ("C", 0), ("", 0)):
        counts = LossCounts()
        counts.lost(client, 1, LossRecord(), to=to, fenced=True)
        assert counts.resume(client, 1) == LossRecord(losses_, outranked=bool(losses_))


# --- what comes too late ---


@pytest.mark.parametrize("engine", DYNAMIC)
def test_an_operator_cannot_abort_what_is_decided_or_is_decided_elsewhere(engine: str) -> None:
    one = OneBroker(engine)
    one.here("D")
    one.behind("B1", "E")
    looked = one.broker.engines[engine]
    tx = one.begin("D", commit=True)
    for neighbour in ("B1", "B3"):
        one.hear(neighbour, Vote(tx))
    one.hear("B1", Init(("E", 0, 9), 5))
    for name in (tx_text(tx), "E:0:9", "D:0:77"):
        answer, effects = looked.inspect(f"abort {name}", 0.0)
        assert "is not open" in answer["error"] and not effects, name
    open_tx = one.begin("D")
    answer, effects = looked.inspect(f"abort {tx_text(open_tx)}", 0.0)
    assert answer == {"aborted": tx_text(open_tx)} and effects


@pytest.mark.parametrize("engine", DECIDED)
def test_a_deadline_of_what_is_over_or_unknown_changes_nothing(engine: str) -> None:
    one = alone(engine)
    for key in ("E:0:99", tx_text(one.begin("E", commit=True)) if engine != "s-tx" else "E:0:98"):
        assert one.see(one.broker.wake(f"{engine}/{key}", 0.0)) == []
