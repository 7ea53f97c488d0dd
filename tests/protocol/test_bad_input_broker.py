"""Bad input at a broker, as raw messages: a clear answer each, and tables as before.

What a client gets wrong in a transaction is answered (`Ended` with a code); what breaks the
protocol raises PeerError, upon which the host closes that link, and nothing else notices. A body
that is no message at all is the latter.
"""

from __future__ import annotations

import random

import msgspec
import pytest

from overlay.errors import PeerError
from overlay.messages import EngineMessage
from padres_tx.client_messages import (
    Abort,
    Began,
    Begin,
    Commit,
    Ended,
    Finish,
    Operate,
    Step,
    Submit,
    Tcm,
    from_client,
)
from padres_tx.engines.d_tx.broker import DTx
from padres_tx.protocol import static_state
from padres_tx.protocol.dynamic_messages import Acked, Decide, Init, Prepare, TxOperation, Vote
from tests.protocol.one_broker import OneBroker, Said, of_kind, pubs
from tests.protocol.steps import adv, box, pub, sub, tcm, uadv, usub

DYNAMIC = ["d-tx", "d-tx-ni"]
DECIDED = [*DYNAMIC, "s-tx"]

P = box(class_="p")
Q = box(class_="q")


def alone(engine: str) -> OneBroker:
    """A broker without neighbours; E may publish p, D holds it."""
    one = OneBroker(engine, neighbours=())
    one.here("E", "D", "A")
    one.holds("E", "adv", P)
    one.holds("D", "sub", P)
    return one


def codes(said: list[Said], client: str) -> list[str]:
    """The codes of what the client is told to be over."""
    return [ended.code for ended in of_kind(said, Ended, f"@{client}")]


def called(one: OneBroker) -> tuple[tuple[str, int], int]:
    """A transaction of E in which D has been called, and D's frame."""
    tx, said = one.begun("E", tcm("E", class_="p"))
    return tx, of_kind(said, Tcm, "@D")[0].frame


# --- unknown, foreign and finished transactions ---


@pytest.mark.parametrize("engine", DYNAMIC)
def test_an_unknown_transaction(engine: str) -> None:
    one = alone(engine)
    before = one.tables()
    step = Step("E", "sub", Q)
    for message in (Operate(("E", 0, 99), 0, 1, step), Commit(("E", 0, 99)), Abort(("E", 0, 99))):
        assert codes(one.say("E", message), "E") == ["unknown"]
    assert codes(one.say("D", Finish(("E", 0, 99), 4)), "D") == ["unknown"]
    assert one.tables() == before and one.at_rest


@pytest.mark.parametrize("engine", DYNAMIC)
def test_somebody_elses_transaction(engine: str) -> None:
    one = alone(engine)
    tx, _ = called(one)
    before = one.tables()
    for message in (Operate(tx, 0, 1, Step("A", "sub", P)), Commit(tx), Abort(tx), Finish(tx, 0)):
        assert codes(one.say("A", message), "A") == ["foreign"], message
    assert one.tables() == before
    said = one.say("E", Abort(tx))
    assert codes(said, "E") == ["aborted"] and not codes(said, "A"), "A has nothing to do with it"
    assert one.tables() == before and one.at_rest


@pytest.mark.parametrize("engine", DYNAMIC)
def test_a_commit_by_a_participant(engine: str) -> None:
    one = alone(engine)
    tx, frame = called(one)
    before = one.tables()
    assert codes(one.say("D", Commit(tx)), "D") == ["foreign"]
    assert one.tables() == before
    one.say("D", Finish(tx, frame))
    assert codes(one.say("E", Commit(tx)), "E") == [""], "it has not disturbed anybody"


@pytest.mark.parametrize("engine", DYNAMIC)
def test_operations_after_the_commit(engine: str) -> None:
    one = alone(engine)
    tx = one.begin("E", sub("E", Q), commit=True)
    before = one.tables()
    for step in (usub("E", Q), adv("E", Q), pub("E", class_="p")):
        said = one.operate(tx, step)
        assert codes(said, "E")[0] in ("finished", "unknown") and not pubs(said, "D")
    assert of_kind(one.say("E", Commit(tx)), Ended, "@E") == [Ended(tx, True)], "as it has ended"
    assert codes(one.say("D", Commit(tx)), "D") == ["unknown"], "D had no part in it"
    assert one.tables() == before and one.at_rest


@pytest.mark.parametrize("engine", DYNAMIC)
def test_operations_in_a_frame_that_is_finished(engine: str) -> None:
    one = alone(engine)
    tx, frame = called(one)
    before = one.tables()
    one.say("D", Finish(tx, frame))
    assert codes(one.operate(tx, usub("D", P), frame=frame, client="D"), "D") == ["foreign"]
    assert codes(one.say("D", Finish(tx, frame)), "D") == ["foreign"]
    assert one.tables() == before


@pytest.mark.parametrize("engine", DECIDED)
def test_begun_twice_under_one_name(engine: str) -> None:
    one = OneBroker(engine, neighbours=["B1"])
    one.here("E")
    one.behind("B1", "F1")
    if engine == "s-tx":
        tx, _ = one.submit("E", Step("F1", "sub", P))
        again = Submit(tx, 30.0, (Step("F1", "sub", P),))
    else:
        tx = one.begin("E")
        again = Begin(tx, 30.0)
    with pytest.raises(PeerError, match="cannot begin"):
        one.say("E", again)
    assert codes(one.say("E", Abort(tx)), "E") == ["aborted"], "the first is not disturbed"


@pytest.mark.parametrize("engine", DECIDED)
def test_begun_in_anothers_name(engine: str) -> None:
    one = alone(engine)
    begin = Submit(("D", 0, 5), 9.0, (Step("D", "usub", P),)) if engine == "s-tx" else None
    with pytest.raises(PeerError, match="cannot begin D:0:5"):
        one.say("E", begin or Begin(("D", 0, 5), 9.0))
    assert one.at_rest


@pytest.mark.parametrize("engine", DECIDED)
@pytest.mark.parametrize("deadline_s", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_a_deadline_that_is_none(engine: str, deadline_s: float) -> None:
    one = alone(engine)
    before = one.tables()
    if engine == "s-tx":
        _, said = one.submit("E", Step("E", "sub", P), deadline_s=deadline_s)
    else:
        _, said = one.begun("E", deadline_s=deadline_s)
    assert codes(said, "E") == ["refused"]
    assert one.tables() == before and one.at_rest and not one.timers


@pytest.mark.parametrize("engine", DYNAMIC)
@pytest.mark.parametrize("age", [-1, 2**63, 2**64 - 1])
def test_an_age_that_no_broker_has_given(engine: str, age: int) -> None:
    """Brokers go on counting from what they hear, and could not say the next number."""
    one = alone(engine)
    _, said = one.begun("E", age=age)
    assert of_kind(said, Began)[0].age == 1, "it counts as a first attempt"
    _, said = one.begun("D")
    assert of_kind(said, Began)[0].age == 2, "others begin as ever"


@pytest.mark.parametrize("engine", DYNAMIC)
def test_more_transactions_than_one_client_may_have_open(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("padres_tx.protocol.dynamic.TX_PER_CLIENT_LIMIT", 2)
    one = alone(engine)
    first = one.begin("E")
    one.begin("E")
    _, said = one.begun("E")
    assert codes(said, "E") == ["refused"] and "2 open" in of_kind(said, Ended)[0].reason
    assert not codes(one.begun("D")[1], "D"), "others are not concerned"
    one.say("E", Abort(first))
    assert not codes(one.begun("E")[1], "E")


# --- operations that cannot be done ---


@pytest.mark.parametrize("engine", DECIDED)
@pytest.mark.parametrize(
    ("step", "code"),
    [
        (pub("E", class_="q"), "not-advertised"),
        (tcm("E", class_="q"), "not-advertised"),
        (usub("E", P), "not-held"),
        (uadv("E", Q), "not-held"),
        (tcm("E", class_="p", x=1), "unheard"),
        (Step("E", "sub"), ("filter", "refused")),
        (Step("E", "pub"), ("filter", "refused")),
        (Step("E", "pub", point={}, seq=4), ("filter", "refused", "not-advertised")),
        (Step("E", "pub", point={"class": float("nan")}, seq=4), ("filter", "not-advertised")),
    ],
    ids=lambda value: value.kind if isinstance(value, Step) else "",
)
def test_an_operation_that_cannot_be_done_aborts_it(
    engine: str, step: Step, code: str | tuple[str, ...]
) -> None:
    one = alone(engine)
    one.holds("D", "usub", box(class_="p", x=1))  # Nobody hears that tcm.
    before = one.tables()
    good = Step("E", "sub", box(class_="z"))
    if engine == "s-tx":
        receivers = ("D",) if step.kind == "tcm" else ()
        bad = msgspec.structs.replace(step, after=(0,), receivers=receivers, seq=7)
        _, said = one.submit("E", good, bad)
    else:
        _, said = one.begun("E", good, step)
    (told,) = codes(said, "E")
    assert told in ((code,) if isinstance(code, str) else code), of_kind(said, Ended)
    assert of_kind(said, Ended, "@E")[0].reason
    assert not pubs(said, "D") and one.tables() == before and one.at_rest


@pytest.mark.parametrize("engine", DYNAMIC)
def test_a_participant_that_cannot(engine: str) -> None:
    one = alone(engine)
    tx, frame = called(one)
    before = one.tables()
    one.operate(tx, usub("D", P), frame=frame, client="D")
    said = one.say("D", Finish(tx, frame, "ValueError: no"))
    assert codes(said, "E") == codes(said, "D") == ["participant"]
    assert of_kind(said, Ended, "@E")[0].reason == "D: ValueError: no"
    assert one.tables() == before and one.at_rest


@pytest.mark.parametrize("engine", DYNAMIC)
@pytest.mark.parametrize("who", ["E", "D"])
def test_a_client_that_dies(engine: str, who: str) -> None:
    one = alone(engine)
    tx, frame = called(one)
    one.operate(tx, usub("D", P), frame=frame, client="D")
    said = one.leaves(who)
    other = "D" if who == "E" else "E"
    assert codes(said, other) == ["left"] and who in of_kind(said, Ended, f"@{other}")[0].reason
    assert one.at_rest
    assert ("@D" in one.wanted_by(class_="p")) == (who == "E")


# --- plans that are none (S-TX) ---


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((), "1 to 1000 operations"),
        ((Step("E", "sub", Q),) * 1001, "1 to 1000 operations"),
        ((Step("E", "sub", Q, after=(1,)), Step("E", "usub", Q, after=(0,))), "in a circle"),
        ((Step("E", "sub", Q, after=(0,)),), "in a circle"),
        ((Step("E", "sub", Q, after=(7,)),), "on one that is not there"),
        ((Step("E", "sub", Q, after=(-1,)),), "on one that is not there"),
        ((Step("E", "tcm", point={"class": "p"}, seq=3),), "names the clients"),
        ((Step("Z", "sub", Q),), "Z not connected"),
        ((Step("E", "tcm", point={"class": "p"}, receivers=("Z",), seq=3),), "Z not connected"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_impossible_plan(steps: tuple[Step, ...], words: str) -> None:
    one = alone("s-tx")
    before = one.tables()
    _, said = one.submit("E", *steps)
    (ended,) = of_kind(said, Ended, "@E")
    assert ended.code in ("refused", "left") and words in ended.reason
    assert one.tables() == before and one.at_rest and not one.timers


def test_who_takes_part_in_a_plan_cannot_abort_it() -> None:
    one = OneBroker("s-tx", neighbours=["B1"])
    one.here("E", "D")
    one.behind("B1", "F1")
    tx, _ = one.submit("E", Step("D", "sub", P), Step("F1", "sub", P))
    assert codes(one.say("D", Abort(tx)), "D") == ["unknown"]
    assert codes(one.say("E", Abort(tx)), "E") == ["aborted"]


# --- what breaks the protocol ---


@pytest.mark.parametrize("engine", DECIDED)
def test_garbage_as_a_message(engine: str) -> None:
    one = alone(engine)
    before = one.tables()
    draw = random.Random(1)
    bodies = [b"", b"\xc1", b"\x90", b"\x91\x63", b"\xff" * 40]
    bodies += [draw.randbytes(draw.randrange(1, 60)) for _ in range(500)]
    for source in ("@E", "B9"):
        for body in bodies:
            with pytest.raises(PeerError):
                one.raw(source, body)
    assert one.tables() == before and one.at_rest


@pytest.mark.parametrize("engine", DECIDED)
def test_half_of_a_message_and_one_with_other_types(engine: str) -> None:
    """Good messages, cut short or with a byte changed: an error or an answer, never a crash."""
    step = Step("E", "sub", P)
    good = [
        Begin(("E", 0, 50), 30.0),
        Operate(("E", 0, 50), 0, 1, step),
        Finish(("E", 0, 50), 1),
        Commit(("E", 0, 50)),
        Abort(("E", 0, 50)),
        Submit(("E", 0, 51), 30.0, (step,)),
    ]
    draw = random.Random(2)
    for message in good:
        whole = from_client.encode(message)
        for at in range(len(whole)):
            changed = bytearray(whole)
            changed[at] ^= 1 << draw.randrange(8)
            for body in (whole[:at], bytes(changed)):
                one = alone(engine)
                try:
                    one.raw("@E", body)
                except PeerError:
                    assert one.at_rest, (message, at)


@pytest.mark.parametrize("engine", DECIDED)
def test_a_client_that_speaks_as_a_broker(engine: str) -> None:
    one = alone(engine)
    tx = ("E", 0, 1)
    messages = [Init(tx, 1), TxOperation(tx, 1), Acked(tx, 1), Prepare(tx), Decide(tx, True)]
    if engine == "s-tx":
        messages = [
            static_state.Plan(tx, (), {}),
            static_state.DecidePlan(tx, True),
            static_state.Complete(tx, 0),
        ]
    for message in messages:
        with pytest.raises(PeerError, match="may not say"):
            one.hear("@E", message)
    assert one.at_rest


@pytest.mark.parametrize("engine", DECIDED)
def test_a_broker_that_speaks_as_a_client(engine: str) -> None:
    one = OneBroker(engine)
    with pytest.raises(PeerError, match="may not say"):
        one.raw("B1", from_client.encode(Commit(("E", 0, 1))))


@pytest.mark.parametrize("engine", DECIDED)
def test_a_client_that_has_not_joined(engine: str) -> None:
    one = alone(engine)
    with pytest.raises(PeerError, match="in the name of"):
        one.say("Nobody", Commit(("Nobody", 0, 1)))


def test_an_engine_that_the_broker_does_not_have() -> None:
    one = alone("d-tx")
    with pytest.raises(PeerError, match="no engine or service 'x-tx'"):
        one.send("@E", EngineMessage("x-tx", msgspec.Raw(b"\x90")))


def test_the_wrong_half_for_an_engine() -> None:
    with pytest.raises(PeerError, match="d-tx takes no Submit"):
        alone("d-tx").say("E", Submit(("E", 0, 9), 9.0, (Step("E", "sub", P),)))
    with pytest.raises(PeerError, match="s-tx takes no Begin"):
        alone("s-tx").say("E", Begin(("E", 0, 9), 9.0))


@pytest.mark.parametrize("engine", DYNAMIC)
def test_a_broker_that_speaks_for_a_transaction_that_is_not_behind_it(engine: str) -> None:
    one = OneBroker(engine)
    one.behind("B1", "F1")
    one.hear("B1", Init(("F1", 0, 1), 1))
    with pytest.raises(PeerError, match="B3 does not decide F1:0:1"):
        one.hear("B3", Decide(("F1", 0, 1), True))
    # Its neighbour may have been restarted, and then this broker knows of nothing: no.
    assert [vote.code for vote in of_kind(one.hear("B3", Prepare(("F1", 0, 1))), Vote)] == [
        "broker"
    ]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_more_operations_than_a_frame_may_have_waiting(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("padres_tx.protocol.dynamic_operations.FRAME_LIMIT", 5)
    one = OneBroker(engine, neighbours=["B1"])
    one.here("E")
    before = one.tables()
    tx, said = one.begun("E", adv("E", P), *[adv("E", Q)] * 6)
    assert codes(said, "E") == ["refused"]
    assert one.tables() == before, "the first, which was under way, is taken back"
    assert tx


@pytest.mark.parametrize("engine", DYNAMIC)
def test_more_words_than_the_end_could_tell(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame with all of them was too large, and the broker crashed at the commit."""
    monkeypatch.setattr("padres_tx.protocol.dynamic_operations.EFFECTIVE_LIMIT_BYTES", 100)
    one = alone(engine)
    before = one.tables()
    _, said = one.begun("E", *[sub("E", box(class_="z", n=n)) for n in range(20)])
    assert codes(said, "E")[0] == "refused"
    assert "100 bytes" in of_kind(said, Ended)[0].reason
    assert one.tables() == before and one.at_rest


@pytest.mark.parametrize("engine", DYNAMIC)
def test_more_operations_than_a_broker_looks_at_in_one_turn(
    monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setattr("padres_tx.protocol.dynamic_operations.OPERATION_LIMIT", 3)
    one = alone(engine)
    before = one.tables()
    tx = one.begin("E", *(Step("E", "sub", Q) for _ in range(3)))
    said = one.operate(tx, Step("E", "sub", Q))
    (ended,) = of_kind(said, Ended, "@E")
    assert ended.code == "refused" and "operations at one broker" in ended.reason
    assert one.tables() == before


@pytest.mark.parametrize("engine", DYNAMIC)
@pytest.mark.parametrize("limit", ["DELIVERIES_LIMIT", "DELIVERIES_LIMIT_BYTES"])
def test_more_publications_than_a_client_could_take_at_once(
    engine: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They fill its outbox, and it was cut off with a part of the transaction."""
    monkeypatch.setattr(
        f"padres_tx.protocol.dynamic_operations.{limit}", 2 if limit == "DELIVERIES_LIMIT" else 40
    )
    one = alone(engine)
    _, said = one.begun("E", *[pub("E", class_="p", n=n) for n in range(3)], commit=True)
    assert codes(said, "E")[0] == "refused" and "to D at once" in of_kind(said, Ended)[0].reason
    assert not pubs(said, "D") and one.at_rest


def test_nobody_is_called_by_a_tcm_that_has_aborted_its_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of those it is for has left: another would act in it, and never hear of its end."""
    monkeypatch.setattr(DTx, "grants_fence", lambda self, tx, now: tx.id[0] == "A")
    one = alone("d-tx")
    one.here("F")
    one.holds("F", "sub", P)
    one.begin("A")  # While its fence lasts, what a client that leaves has said stays.
    one.leaves("D")
    _, said = one.begun("E", tcm("E", class_="p"))
    assert codes(said, "E") == ["conflict"], "next time D is gone"
    assert not of_kind(said, Tcm, "@F")
