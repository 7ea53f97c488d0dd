"""The session, one call or message at a time."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.errors import (
    BrokerAway,
    FilterError,
    NameTaken,
    NotAdvertised,
    NotHeld,
    OperationError,
    OverlayError,
    ProtocolError,
)
from overlay.filters import Filter, ge
from overlay.hosts.simulator import Simulator, Tape
from overlay.messages import (
    AnyMessage,
    Done,
    EngineMessage,
    Inspect,
    Join,
    Kind,
    Leave,
    Operation,
    Pub,
    PubRefused,
    Report,
)
from padres_tx.client.session import (
    PENDING_LIMIT,
    Answered,
    Event,
    Notification,
    PublicationRefused,
    SendMessage,
    Session,
)
from padres_tx.errors import BadName, TooManyRequests
from topologies import load

P1 = Filter(class_="p1")
X1 = Filter(class_="p1", x="x1")


def joined(name: str = "A1") -> Session:
    session = Session(name)
    session.receive(Done(session.join().req))
    return session


def settled(session: Session, kind: str, filter: object) -> Operation:
    """An operation that the overlay has carried out."""
    operation = session.operate(kind, filter)  # type: ignore[arg-type]
    assert session.receive(done(operation)) == [Answered(operation.req)]
    return operation


def done(operation: Operation) -> Done:
    """The answer of an edge broker that numbers calls in their order, as all do."""
    return Done(operation.req, number=operation.req)


# --- joining and names ---


def test_the_first_message_is_a_join() -> None:
    session = Session("A1")
    assert session.join() == Join(1, "A1", edge="")
    assert session.receive(Done(1)) == [Answered(1)]


def test_a_refused_join_names_the_error() -> None:
    session = Session("A1")
    (event,) = session.receive(Done(session.join().req, "name-taken", "A1 is there already"))
    assert isinstance(event, Answered)
    assert isinstance(event.error, NameTaken)
    assert str(event.error) == "A1 is there already"


@pytest.mark.parametrize("name", ["", "@A1", "A 1", "x" * 65, "ä", None, 7])
def test_a_bad_name_raises_at_once(name: str) -> None:
    with pytest.raises(BadName, match="invalid client name"):
        Session(name)


# --- one numbering ---


def test_everything_that_the_client_says_shares_one_numbering() -> None:
    session = joined()
    adv = settled(session, "adv", P1)
    pub = session.publish({"class": "p1"})
    sub = session.operate("sub", P1)
    assert [adv.seq, pub.seq, sub.seq] == [2, 3, 4]
    assert sub.req == sub.seq


def test_a_call_that_raises_says_nothing() -> None:
    session = joined()
    with pytest.raises(NotHeld):
        session.operate("usub", P1)
    with pytest.raises(NotAdvertised):
        session.publish({"class": "p1"})
    with pytest.raises(FilterError):
        session.operate("sub", "[class,neq,'p1']")
    assert session.operate("sub", P1).seq == 2
    assert session.pending == 1


# --- what can be given as a filter and as a point ---


@pytest.mark.parametrize(
    "given_filter", [X1, {"class": "p1", "x": "x1"}, "[class,eq,'p1'],[x,eq,'x1']"]
)
def test_a_filter_comes_in_three_forms(given_filter: object) -> None:
    assert joined().operate("sub", given_filter) == Operation(2, "sub", "A1", 2, X1)  # type: ignore[arg-type]


@pytest.mark.parametrize("point", [{"class": "p1", "x": 4}, "[class,'p1'],[x,4]"])
def test_a_publication_comes_in_two_forms(point: object) -> None:
    session = joined()
    settled(session, "adv", P1)
    expected = Pub("A1", 3, {"class": "p1", "x": 4}, b"payload")
    assert session.publish(point, b"payload") == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [None, 7, ["class"], b"[class,eq,'p1']"])
def test_what_is_no_filter_is_a_filter_error(bad: object) -> None:
    with pytest.raises(FilterError, match="expected a Filter"):
        joined().operate("sub", bad)  # type: ignore[arg-type]


def test_a_publication_does_not_share_the_callers_dict() -> None:
    session = joined()
    settled(session, "adv", P1)
    point = {"class": "p1"}
    pub = session.publish(point)
    point["class"] = "p2"
    assert pub.point == {"class": "p1"}


# --- the last word decides ---


def test_an_advertisement_on_its_way_already_counts() -> None:
    session = joined()
    session.operate("adv", P1)
    assert session.publish({"class": "p1"}).seq == 3


def test_an_advertisement_that_is_refused_does_not_count_any_more() -> None:
    session = joined()
    adv = session.operate("adv", P1)
    session.receive(Done(adv.req, "operation", "too many entries"))
    with pytest.raises(NotAdvertised, match=r"A1 has not advertised \[class,'p1'\]"):
        session.publish({"class": "p1"})


def test_a_hole_in_the_advertised_space_is_a_hole() -> None:
    session = joined()
    settled(session, "adv", P1)
    settled(session, "uadv", X1)
    session.publish({"class": "p1", "x": "x2"})
    with pytest.raises(NotAdvertised):
        session.publish({"class": "p1", "x": "x1"})
    settled(session, "adv", X1)
    session.publish({"class": "p1", "x": "x1"})


def test_taking_back_what_is_held_in_no_part_raises() -> None:
    session = joined()
    settled(session, "sub", X1)
    with pytest.raises(NotHeld, match=r"A1 holds no part of \[class,eq,'p2'\] to un-subscribe"):
        session.operate("usub", Filter(class_="p2"))
    with pytest.raises(NotHeld, match="un-advertise"):
        session.operate("uadv", X1)
    settled(session, "usub", P1)
    with pytest.raises(NotHeld):
        session.operate("usub", X1)


def test_a_refused_unsubscription_leaves_what_was_held() -> None:
    session = joined()
    settled(session, "sub", P1)
    usub = session.operate("usub", P1)
    session.receive(Done(usub.req, "operation", "no"))
    settled(session, "usub", P1)


def test_answers_may_come_in_another_order() -> None:
    session = joined()
    first = session.operate("adv", X1)
    second = session.operate("adv", P1)
    session.receive(done(second))
    session.receive(Done(first.req, "operation", "no"))
    session.publish({"class": "p1", "x": "x1"})


def test_a_message_that_could_not_be_sent_is_taken_back() -> None:
    session = joined()
    adv = session.operate("adv", P1)
    session.unsent(adv, OverlayError("too large"))
    assert session.pending == 0
    with pytest.raises(NotAdvertised):
        session.publish({"class": "p1"})


BOXES = st.builds(
    Filter,
    st.fixed_dictionaries(
        {"class": st.just("p1")}, optional={"x": st.integers(0, 3), "y": st.just(ge(2))}
    ),
)
POINTS = [{"class": "p1", "x": x, "y": y} for x in range(5) for y in range(4)]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), BOXES, st.sampled_from(["done", "refused", "later"]))),
    st.randoms(use_true_random=False),
)
def test_what_may_be_published_is_what_the_last_words_say(words, random) -> None:  # type: ignore[no-untyped-def]
    """Against an oracle that asks every word that was not refused."""
    session = joined()
    said: dict[int, tuple[bool, Filter]] = {}
    late: list[int] = []
    for positive, box, fate in words:
        try:
            operation = session.operate("adv" if positive else "uadv", box)
        except NotHeld:
            continue
        said[operation.req] = (positive, box)
        if fate == "later":
            late.append(operation.req)
        elif fate == "done":
            session.receive(done(operation))
        else:
            session.receive(Done(operation.req, "operation", "no"))
            del said[operation.req]
    random.shuffle(late)
    for req in late:
        session.receive(Done(req, number=req))
    assert session.pending == 0
    for point in POINTS:
        last = [positive for positive, box in said.values() if box.matches(point)][-1:]
        try:
            session.publish(point)
        except NotAdvertised:
            assert last != [True]
        else:
            assert last == [True]


# --- limits ---


def test_requests_are_bounded() -> None:
    session = joined()
    requests = [session.operate("sub", P1) for _ in range(PENDING_LIMIT)]
    with pytest.raises(TooManyRequests, match=f"has {PENDING_LIMIT} pending requests"):
        session.operate("sub", P1)
    session.receive(done(requests[0]))
    session.operate("sub", P1)


# --- messages ---


def test_a_publication_is_a_notification() -> None:
    (event,) = joined().receive(Pub("E", 9, {"class": "p1", "x": 4}, b'{"a": [1]}'))
    assert event == Notification("E", 9, {"class": "p1", "x": 4}, b'{"a": [1]}')  # type: ignore[arg-type]
    assert event["x"] == 4
    assert event.json() == {"a": [1]}


def test_a_payload_that_is_no_json_says_whose() -> None:
    (event,) = joined().receive(Pub("E", 9, {"class": "p1"}, b"{"))
    assert isinstance(event, Notification)
    with pytest.raises(ValueError, match="the payload of E:0:9"):
        event.json()


@pytest.mark.parametrize("error", [NotAdvertised, BrokerAway])
def test_a_refused_publication_is_an_event(error: type[OperationError]) -> None:
    (event,) = joined().receive(PubRefused(3, error.code, "the reason"))
    assert isinstance(event, PublicationRefused)
    assert event.seq == 3
    assert type(event.error) is error
    assert str(event.error) == "the reason"


def test_an_inspection_is_answered_with_a_body() -> None:
    session = Session("operator")
    assert session.inspect("tables") == Inspect(1, "tables")
    assert session.receive(Report(1, {"srt": []})) == [Answered(1, None, {"srt": []})]


def test_an_inspection_of_nothing_is_an_error() -> None:
    session = Session("operator")
    session.inspect("tea")
    (event,) = session.receive(Report(1, {"error": "nothing called 'tea' to inspect"}))
    assert isinstance(event, Answered)
    assert isinstance(event.error, OperationError)


@pytest.mark.parametrize(
    "message",
    [
        Done(77),
        Report(77, {}),
        Join(1, "A1", ""),
        Leave(0, "A1", "B1"),
        Operation(1, "sub", "A1", 1, P1),
        Inspect(1, "tables"),
        EngineMessage("d-tx", msgspec.Raw(b"\x01")),
    ],
)
def test_what_a_broker_may_not_say_is_its_mistake(message: object) -> None:
    with pytest.raises(ProtocolError):
        joined().receive(message)  # type: ignore[arg-type]


def test_an_answer_counts_once() -> None:
    session = joined()
    sub = settled(session, "sub", P1)
    with pytest.raises(ProtocolError, match="did not make"):
        session.receive(Done(sub.req))


def test_an_engine_gets_its_messages_unread_and_may_answer() -> None:
    class Echo:
        def receive(self, body: msgspec.Raw) -> list[Event]:
            return [SendMessage(EngineMessage("echo", body))]

    session = joined()
    session.extend("echo", Echo())
    message = EngineMessage("echo", msgspec.Raw(b"\x01"))
    assert session.receive(message) == [SendMessage(message)]


# --- in the simulator ---


@pytest.mark.parametrize("seed", range(5))
def test_the_session_runs_in_the_simulator_as_it_is(seed: int) -> None:
    """A handover under every delay: D gives x1 to A1, and E's numbered events go to one of them."""
    three = load("three")
    simulator = Simulator(
        {broker.name: three.neighbours(broker.name) for broker in three.brokers},
        Tape(seed=seed).choose,
    )
    got: dict[str, list[int]] = {}
    answered: dict[str, list[int]] = {}
    sessions: dict[str, Session] = {}
    for name, edge in (("A1", "B1"), ("D", "B2"), ("E", "B3")):
        session = sessions[name] = Session(name)
        got[name], answered[name] = [], []

        def receive(message: AnyMessage, now: float, name: str = name) -> list[AnyMessage]:
            for event in sessions[name].receive(message):
                match event:
                    case Notification():
                        got[name].append(int(event["n"]))
                    case Answered():
                        assert event.error is None
                        answered[name].append(event.req)
            return []

        simulator.connect(name, edge, receive)
        simulator.send(name, session.join())
    simulator.run()

    def say(name: str, kind: Kind, filter: Filter) -> None:
        simulator.send(name, sessions[name].operate(kind, filter))
        simulator.run()

    def publish(n: int) -> None:
        simulator.send("E", sessions["E"].publish({"class": "p1", "x": "x1", "n": n}))

    say("E", "adv", P1)
    say("D", "sub", P1)
    publish(1)
    simulator.run()
    say("A1", "sub", X1)
    say("D", "usub", X1)
    publish(2)
    simulator.run()
    assert got == {"A1": [2], "D": [1], "E": []}
    assert answered == {"A1": [1, 2], "D": [1, 2, 3], "E": [1, 2]}
