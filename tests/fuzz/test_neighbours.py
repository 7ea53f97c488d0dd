"""Any sequence of messages from a neighbour costs it its link at most, never the broker its life.

The random runs are those of `tests.fuzz.forged_world`; what they have found stands below them, each
as a test of its own. `PADRES_TX_FUZZ=5000` in the environment makes so many random runs.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.broker.core import Broker
from overlay.errors import ProtocolError
from overlay.identity import LIFE_LIMIT
from overlay.messages import (
    BrokerName,
    Hop,
    Inspect,
    Join,
    Operation,
    Pub,
    Reachability,
    client_hop,
)
from overlay.wire import codec
from padres_tx.client_messages import Abort, Began, Begin, Commit, Ended, Step, Submit, from_client
from padres_tx.protocol import static_state
from padres_tx.protocol.dynamic_messages import (
    AbortRequest,
    Acked,
    Decide,
    Decided,
    Fence,
    Fenced,
    Forget,
    Init,
    Prepare,
    TxOperation,
    Vote,
)
from padres_tx.protocol.static_state import Admitted, Complete, Plan
from tests.fuzz.forged_world import ForgedWorld
from tests.fuzz.forging import Tape
from tests.protocol.one_broker import OneBroker, Said, of_kind
from tests.protocol.steps import box

RUNS = int(os.environ.get("PADRES_TX_FUZZ", "300"))

P = box(class_="p")
Q = box(class_="q")
TX = ("F", 0, 1)
DYNAMIC = ["d-tx", "d-tx-ni"]


@settings(max_examples=RUNS)
@given(
    tape=st.binary(min_size=200, max_size=1500),
    slice=st.sampled_from((0, 1, 3)),
    trace=st.booleans(),
)
def test_forged_messages_end_no_broker_and_leave_honest_clients_alone(
    tape: bytes, slice: int, trace: bool
) -> None:
    world = ForgedWorld(Tape(tape), slice=slice, trace=trace)
    world.run()
    world.honest_end()
    assert world.leftovers() == []


def middle(engine: str) -> OneBroker:
    """B2 with E and D, between B1 with F and B3 with C."""
    one = OneBroker(engine)
    one.here("E", "D")
    one.behind("B1", "F")
    one.behind("B3", "C")
    one.holds("D", "sub", P)
    return one


def works(one: OneBroker) -> bool:
    """Whether a client here can still do something, when B1 has begun a new life."""
    one.reset("B1")
    one.holds("E", "adv", Q)
    return any(row.startswith("@E") for row in one.tables()["srt"])


# --- numbers ---


@pytest.mark.parametrize("life", [-1, 1 << 63])
def test_a_transaction_of_a_life_that_is_none(life: int) -> None:
    """Its name has no text; to write it down took for ever."""
    for engine in ("d-tx", "d-tx-ni", "s-tx"):
        one = middle(engine)
        with pytest.raises(ProtocolError, match="undecodable"):
            one.raw("B1", one.codec.encode(static_state.Ask(("F", life, 1))))
        with pytest.raises(ProtocolError, match="undecodable"):
            one.raw("@E", from_client.encode(Commit(("E", life, 1))))
        assert works(one)


def test_a_publication_of_a_life_that_is_none() -> None:
    with pytest.raises(ProtocolError):
        codec.decode_message(codec.encode(Pub("F", 1, {"class": "p"}, life=-1)))


def test_a_life_in_the_far_future_does_not_use_up_the_lives_of_others() -> None:
    core = Broker(BrokerName("B2"), [BrokerName("B1")])
    for life in (LIFE_LIMIT - 1, LIFE_LIMIT // 2 - 1):
        core.receive(Hop("B1"), Join(0, f"F{life}", "B1", life), 0.0)
    effects = core.receive(client_hop("E"), Join(1, "E", ""), 0.0)
    (join,) = [e.message for e in effects if hasattr(e, "message")]
    assert isinstance(join, Join)
    codec.decode_message(codec.encode(join))
    Broker(BrokerName("B3"), [BrokerName("B2")]).receive(Hop("B2"), join, 0.0)


@pytest.mark.parametrize("engine", DYNAMIC)
def test_an_age_as_high_as_numbers_go_leaves_room_for_the_next(engine: str) -> None:
    one = middle(engine)
    one.hear("B1", Init(TX, (1 << 63) - 1))
    with pytest.raises(ProtocolError, match="undecodable"):
        one.hear("B1", Init(("F", 0, 2), (1 << 64) - 1))
    _, said = one.begun("E")
    assert of_kind(said, Began)[0].age == 1
    assert of_kind(said, Init)[0].age == 1


def test_receivers_beyond_what_a_message_can_count() -> None:
    one = middle("d-tx")
    with pytest.raises(ProtocolError, match="undecodable"):
        one.hear("B1", Acked(TX, 1, (1 << 64) - 1))


# --- names and places ---


def test_a_join_at_this_broker_that_a_neighbour_tells_of() -> None:
    """A plan for such a client was taken for one of this broker's own clients."""
    one = middle("s-tx")
    for edge in ("B2", "B3", "", "no name", "x" * 64):
        if edge != "x" * 64:
            with pytest.raises(ProtocolError):
                one.send("B1", Join(1, "Z", edge))
    one.send("B1", Join(1, "Z", "x" * 64))
    with pytest.raises(ProtocolError):
        one.send("B1", Join(1, "no name", "B1"))
    assert works(one)


def test_a_report_on_a_link_of_another_neighbour() -> None:
    """B3 would close on us for passing it on."""
    one = middle("d-tx")
    with pytest.raises(ProtocolError, match="not behind it"):
        one.send("B1", Reachability("B1", "B3", up=False))


@pytest.mark.parametrize("source", ["B1", "@E"])
def test_only_operators_inspect_and_abort(source: str) -> None:
    one = middle("d-tx")
    tx = one.begin("E")
    with pytest.raises(ProtocolError, match="no operator"):
        one.send(source, Inspect(1, "d-tx", f"abort E:0:{tx[2]}"))
    assert one.broker.engines["d-tx"].transactions()


@pytest.mark.parametrize("engine", DYNAMIC)
def test_a_neighbour_that_begins_or_decides_a_transaction_of_our_client(engine: str) -> None:
    """It may have been made up by another one behind it, so its link is not closed for that."""
    one = middle(engine)
    refusal = AbortRequest(("E", 0, 50), "refused", "E is not behind B1")
    assert one.hear("B1", Init(("E", 0, 50), 1)) == [Said("B1", refusal)]
    assert one.hear("B1", Decide(("E", 0, 50), True)) == [Said("B1", Decided(("E", 0, 50)))]
    said = one.say("E", Begin(("E", 0, 50), 9.0))
    assert not of_kind(said, Ended, "@E"), "the client can begin it"


def test_a_neighbour_that_plans_for_our_client() -> None:
    one = middle("s-tx")
    plan = Plan(("E", 0, 50), (Step("E", "sub", P),), {"E": "B2"})
    (answer,) = one.hear("B1", plan)
    assert answer.to == "B1" and answer.message.code == "refused"
    said = one.say("E", Submit(("E", 0, 50), 9.0, (Step("E", "sub", P),)))
    assert of_kind(said, Ended, "@E")[0].committed


def test_a_transaction_of_a_client_behind_another_neighbour_is_not_passed_on() -> None:
    one = middle("d-tx")
    said = one.hear("B1", Init(("C", 0, 9), 1))
    assert [(each.to, type(each.message)) for each in said] == [("B1", AbortRequest)]
    one = middle("s-tx")
    said = one.hear("B1", Plan(("C", 0, 9), (Step("C", "sub", P),), {"C": "B3"}))
    assert [(each.to, each.message.code) for each in said] == [("B1", "refused")]


# --- the tables ---


def test_an_entry_that_is_dropped_twice_at_once() -> None:
    one = middle("d-tx")
    one.send("B1", Operation(1, "adv", "F", 1, P))
    with pytest.raises(ProtocolError, match="twice"):
        one.send("B1", Operation(2, "uadv", "F", 2, P, store=False, drop=(1, 1)))
    assert works(one)


# --- dynamic transactions: the right message in the wrong phase ---


def fenced() -> OneBroker:
    """B1 has raised a fence, and the transaction has not begun."""
    one = middle("d-tx")
    one.hear("B1", Fence(TX, 1))
    one.hear("B3", Fenced(TX))
    return one


@pytest.mark.parametrize(
    "message",
    [TxOperation(TX, 0, Operation(0, "sub", "F", 1, P)), Prepare(TX), Vote(TX)],
    ids=lambda message: type(message).__name__,
)
def test_a_transaction_that_has_only_its_fence(message: Any) -> None:
    """It has no snapshot yet."""
    one = fenced()
    with pytest.raises(ProtocolError, match="which is"):
        one.hear("B1", message)
    assert works(one)


def test_a_transaction_is_prepared_once() -> None:
    one = middle("d-tx")
    one.hear("B1", Init(TX, 1))
    one.hear("B1", Prepare(TX))
    with pytest.raises(ProtocolError, match="preparing"):
        one.hear("B1", Prepare(TX))


def test_a_vote_that_nobody_asked_for() -> None:
    one = middle("d-tx")
    one.hear("B1", Init(TX, 1))
    with pytest.raises(ProtocolError, match="which is active"):
        one.hear("B3", Vote(TX))
    one.hear("B1", Prepare(TX))
    with pytest.raises(ProtocolError, match="was not asked"):
        one.hear("B1", Vote(TX))


def test_an_answer_to_a_fence_is_no_vote() -> None:
    one = fenced()
    one.hear("B1", Fence(TX, 1))
    one.hear("B3", Fenced(TX))
    one.hear("B1", Init(TX, 1))
    one.hear("B1", Prepare(TX))
    with pytest.raises(ProtocolError, match="which is preparing"):
        one.hear("B3", Fenced(TX))


def test_a_commit_without_our_yes() -> None:
    one = middle("d-tx")
    one.hear("B1", Init(TX, 1))
    with pytest.raises(ProtocolError, match="without our yes"):
        one.hear("B1", Decide(TX, True))
    assert works(one)


def test_a_transaction_that_is_forgotten_twice() -> None:
    """An older snapshot keeps it known between the two."""
    one = middle("d-tx")
    one.begin("E")
    one.hear("B1", Init(TX, 1))
    one.hear("B1", TxOperation(TX, 0, Operation(0, "sub", "F", 1, P)))
    one.hear("B1", Prepare(TX))
    one.hear("B3", Vote(TX))
    one.hear("B1", Decide(TX, True))
    for _ in range(3):
        one.hear("B1", Forget(TX))
    assert works(one)


@pytest.mark.parametrize("engine", DYNAMIC)
@pytest.mark.parametrize("point", [{}, {"class": float("nan")}, {"": 1}])
def test_a_publication_in_a_transaction_that_is_none(engine: str, point: dict[str, Any]) -> None:
    one = middle(engine)
    one.hear("B1", Init(TX, 1))
    with pytest.raises(ProtocolError, match="invalid publication"):
        one.hear("B1", TxOperation(TX, 0, pub=Pub("F", 1, point)))
    assert works(one)


def test_a_reason_of_any_length_fits_in_the_next_message() -> None:
    one = middle("d-tx")
    one.hear("B1", Init(TX, 1))
    with pytest.raises(ProtocolError, match="undecodable"):
        one.hear("B3", AbortRequest(TX, "conflict", "x" * 2000))
    tx = one.begin("E")
    said = one.say("E", Abort(tx, "because " * 10_000))
    (told,) = of_kind(said, Decide, "B1")
    one.codec.decode(one.codec.encode(told))


# --- static transactions ---

EDGES = {"F": "B1", "E": "B2", "C": "B3"}


def planned(*steps: Step) -> OneBroker:
    """B1 has sent a plan, and B2 has admitted its part."""
    one = middle("s-tx")
    one.hear("B1", Plan(TX, steps, EDGES))
    return one


def test_a_commit_without_the_answers_of_all() -> None:
    """Nobody knows what its steps change."""
    one = planned(Step("F", "sub", P), Step("E", "sub", P))
    with pytest.raises(ProtocolError, match="before all have answered"):
        one.hear("B1", static_state.DecidePlan(TX, True))
    assert works(one)


def test_a_commit_of_what_this_broker_has_refused() -> None:
    one = middle("s-tx")
    one.hear("B1", Plan(TX, (Step("E", "sub", P),), {"F": "B1", "E": "B2", "Z": "B1"}))
    one.hear("B1", Admitted(TX, "B1", {}))
    with pytest.raises(ProtocolError, match="before all have answered"):
        one.hear("B1", static_state.DecidePlan(TX, True))
    assert works(one)


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("B1", Admitted(TX, "B1", {})),
        ("B1", Admitted(TX, "B1", {0: Operation(0, "usub", "F", 1, P)})),
        ("B1", Admitted(TX, "B1", {0: Operation(0, "sub", "F", 1, Q)})),
        ("B1", Admitted(TX, "B1", {7: Operation(0, "sub", "F", 1, P)})),
        ("B1", Admitted(TX, "B1", {0: Operation(0, "sub", "E", 1, P)})),
        ("B1", Admitted(TX, "B2", {})),
        ("B1", Admitted(TX, "B3", {})),
        ("B3", Admitted(TX, "B1", {0: Operation(0, "sub", "F", 1, P)})),
        ("B1", Admitted(TX, "B9", {})),
        ("B1", Admitted(TX, "B1", {0: Operation(0, "sub", "F", 1, P)}, code="left")),
    ],
)
def test_an_answer_to_a_plan_that_is_none(source: str, answer: Admitted) -> None:
    one = planned(Step("F", "sub", P), Step("E", "sub", P))
    with pytest.raises(ProtocolError):
        one.hear(source, answer)
    assert works(one)


def test_an_answer_to_a_plan_that_comes_twice() -> None:
    one = planned(Step("F", "sub", P))
    one.hear("B1", Admitted(TX, "B1", {0: Operation(0, "sub", "F", 1, P)}))
    with pytest.raises(ProtocolError, match="which it may not"):
        one.hear("B1", Admitted(TX, "B1", {0: Operation(0, "sub", "F", 1, P)}))


def test_a_plan_that_comes_twice() -> None:
    one = planned(Step("E", "sub", P))
    with pytest.raises(ProtocolError, match="twice"):
        one.hear("B1", Plan(TX, (Step("E", "usub", P),), EDGES))


@pytest.mark.parametrize(
    "steps",
    [
        (Step("X", "sub", P),),
        (Step("E", "tcm", point={"class": "p"}, receivers=("X",)),),
        (Step("F", "pub", point={"class": float("nan")}),),
    ],
)
def test_a_plan_that_cannot_be_carried_out(steps: tuple[Step, ...]) -> None:
    one = middle("s-tx")
    with pytest.raises(ProtocolError):
        one.hear("B1", Plan(TX, steps, EDGES))
    assert works(one) and not one.broker.engines["s-tx"].transactions()


def test_a_step_that_is_complete_before_the_decision() -> None:
    one = planned(Step("F", "adv", P))
    with pytest.raises(ProtocolError, match="not decided"):
        one.hear("B1", Complete(TX, 0))


def test_a_long_plan_whose_answers_do_not_fit_its_steps() -> None:
    """They came before the steps were read, and are compared when the steps are carried out."""
    one = middle("s-tx")
    one.broker.slice = 1
    edges = {"F": "B1", "C": "B3"}
    one.hear("B1", Plan(TX, (Step("F", "sub", P),) * 3, edges))
    one.hear("B1", Admitted(TX, "B1", {}))
    one.hear("B3", Admitted(TX, "B3", {}))
    one.hear("B1", static_state.DecidePlan(TX, True))
    while "work" in one.timers:
        one.ring("work")
    assert one.closed == ["B1"]
    assert works(one) and one.at_rest


def test_a_message_that_leaves_no_room_to_be_passed_on() -> None:
    """Floats of four bytes go on in eight, and what comes out must still fit in a frame."""
    count = codec.BROKER_FRAME_LIMIT // 6
    short = b"\x93\x01\xa1x\xdd" + count.to_bytes(4) + b"\xca\x3f\x80\x00\x00" * count
    floats = codec.StructCodec[Any](_Floats)
    with pytest.raises(ProtocolError, match="cannot be passed on"):
        floats.decode(short)


class _Floats(msgspec.Struct, array_like=True, tag=1):
    name: str
    values: list[float]
