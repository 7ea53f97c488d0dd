"""D-TX-NI when a broker dies between the coordinator and others who take part: one outcome.

The coordinator's edge broker decides without votes, so a side that has acknowledged everything
and is then cut off must not end the transaction by itself: it asks.
"""

from __future__ import annotations

import networkx as nx
import pytest

from overlay.errors import ProtocolError
from overlay.filters import Filter
from overlay.hosts.simulator import Tape
from overlay.messages import BrokerName, Pub
from padres_tx.client_messages import Drained, Ended, Finish, Step, Tcm, TxID
from padres_tx.protocol.broker_messages import Answer, Ask
from padres_tx.protocol.dynamic_messages import Decide, Decided, Forget, Init, TxOperation
from proofs.faults.injected_bugs import AbortsAlone
from proofs.sim.simulated_overlay import SimulatedOverlay, all_engines
from tests.protocol.aftermath import known, leftovers
from tests.protocol.one_broker import OneBroker, Said, of_kind, to_whom
from tests.protocol.steps import box, sub, tcm

P = box(class_="p")
CALL = box(class_="call")
TX: TxID = ("E", 0, 7)

# --- one broker ---


def taking_part(*, finished: bool = True) -> tuple[OneBroker, list[Said]]:
    """B2, where D takes part in a transaction of E behind B1; B3 and B4 are behind B2."""
    one = OneBroker("d-tx-ni", ["B1", "B3", "B4"])
    one.here("D")
    one.behind("B1", "E")
    one.holds("D", "sub", CALL)
    one.hear("B1", Init(TX, 1))
    said = one.hear("B1", TxOperation(TX, 5, pub=Pub("E", 1, {"class": "call"}), tcm=True))
    frame = of_kind(said, Tcm, "@D")[0].frame
    one.operate(TX, sub("D", P), frame=frame, client="D")
    if finished:
        said = one.say("D", Finish(TX, frame))
    return one, said


def reset(one: OneBroker, neighbour: str) -> list[Said]:
    """A neighbour of B2 has lost its memory, and has taken what it was told anew."""
    return one.reset(neighbour)


def test_a_side_that_has_acknowledged_asks_and_decides_nothing() -> None:
    one, _ = taking_part()
    said = reset(one, "B1")
    assert to_whom(said, Ask) == ["B1"] and not of_kind(said, Ended) and not of_kind(said, Decide)
    assert one.wanted_by(class_="p") == ["@D"], "what it has written stays written"


@pytest.mark.parametrize("status", ["committed", "aborted"])
def test_the_answer_is_the_decision_for_all_behind(status: str) -> None:
    one, _ = taking_part()
    reset(one, "B1")
    said = one.hear("B1", Answer(TX, status, "", ""))  # type: ignore[arg-type]
    assert [ended.committed for ended in of_kind(said, Ended, "@D")] == [status == "committed"]
    assert to_whom(said, Decide) == ["B3", "B4"]
    assert one.wanted_by(class_="p") == (["@D"] if status == "committed" else [])
    one.hear("B3", Decided(TX))
    said = one.hear("B4", Decided(TX))
    assert to_whom(said, Forget) == ["B3", "B4"], "nobody else would say that it is everywhere"
    assert len(of_kind(said, Drained, "@D")) == (status == "committed")
    assert one.at_rest


def test_nobody_knows_it_so_it_is_aborted() -> None:
    """The coordinator's edge broker has lost its memory as well."""
    one, _ = taking_part()
    reset(one, "B1")
    (ended,) = of_kind(one.hear("B1", Answer(TX, "unknown")), Ended, "@D")
    assert not ended.committed and ended.code == "broker"
    assert "no broker knows the decision" in ended.reason


def test_a_busy_broker_is_asked_again_and_is_no_reason_to_abort() -> None:
    one, _ = taking_part()
    reset(one, "B1")
    assert one.hear("B1", Answer(TX, "busy")) == []
    assert to_whom(one.ring("d-tx-ni/ask again"), Ask) == ["B1"]
    assert of_kind(one.hear("B1", Answer(TX, "committed")), Ended, "@D")[0].committed


def test_a_side_that_owes_an_acknowledgement_aborts_at_once() -> None:
    """Nobody can have committed what D has not finished."""
    one, _ = taking_part(finished=False)
    said = reset(one, "B1")
    assert not of_kind(said, Ask) and not of_kind(said, Ended, "@D")[0].committed
    assert to_whom(said, Decide) == ["B3", "B4"]


def test_the_neighbour_is_asked_again_when_it_is_restarted_again() -> None:
    one, _ = taking_part()
    reset(one, "B1")
    assert to_whom(reset(one, "B1"), Ask) == ["B1"]
    assert of_kind(one.hear("B1", Answer(TX, "committed")), Ended, "@D")[0].committed


def test_the_decision_comes_by_the_usual_way_after_all() -> None:
    """Only the link was lost, and the neighbour has decided before it was asked."""
    one, _ = taking_part()
    reset(one, "B1")
    said = one.hear("B1", Decide(TX, True))
    assert of_kind(said, Ended, "@D")[0].committed and to_whom(said, Decide) == ["B3", "B4"]
    assert one.hear("B1", Answer(TX, "committed")) == []
    one.hear("B3", Decided(TX))
    assert to_whom(one.hear("B4", Decided(TX)), Decided) == ["B1"]
    assert to_whom(one.hear("B1", Forget(TX)), Forget) == ["B3", "B4"]
    assert one.at_rest


def test_the_decision_comes_by_the_usual_way_behind_the_answer() -> None:
    one, _ = taking_part()
    reset(one, "B1")
    one.hear("B1", Answer(TX, "committed"))
    assert one.hear("B1", Decide(TX, True)) == [], "B3 and B4 have not acknowledged it yet"
    one.hear("B3", Decided(TX))
    assert to_whom(one.hear("B4", Decided(TX)), Decided) == ["B1"]
    one.hear("B1", Forget(TX))
    assert one.at_rest


def test_who_was_not_asked_has_no_say() -> None:
    one, _ = taking_part()
    with pytest.raises(ProtocolError, match="B1 was not asked"):
        one.hear("B1", Answer(TX, "aborted"))
    reset(one, "B1")
    with pytest.raises(ProtocolError, match="B3 was not asked"):
        one.hear("B3", Answer(TX, "aborted"))
    one.hear("B1", Answer(TX, "committed"))
    with pytest.raises(ProtocolError, match="B1 was not asked"):
        one.hear("B1", Answer(TX, "aborted"))


# --- a broker that is asked ---


def test_a_restarted_broker_passes_the_question_on_and_the_answer_back() -> None:
    one = OneBroker("d-tx-ni", ["B1", "B3", "B4"])
    assert to_whom(one.hear("B3", Ask(TX)), Ask) == ["B1", "B4"]
    assert one.hear("B4", Answer(TX, "unknown")) == []
    said = one.hear("B1", Answer(TX, "aborted", "deadline", "late"))
    assert said == [Said("B3", Answer(TX, "aborted", "deadline", "late"))]
    assert one.hear("B4", Ask(TX)) == [Said("B4", Answer(TX, "aborted", "deadline", "late"))]


def test_unknown_is_the_answer_when_all_others_have_said_so() -> None:
    one = OneBroker("d-tx-ni", ["B1", "B3", "B4"])
    one.hear("B3", Ask(TX))
    assert to_whom(one.hear("B4", Ask(TX)), Ask) == ["B3"], "B4 does not know what B3 might"
    assert one.hear("B3", Answer(TX, "unknown")) == []
    said = one.hear("B1", Answer(TX, "unknown"))
    assert to_whom(said, Answer) == ["B4"]
    said = one.hear("B4", Answer(TX, "unknown"))
    assert to_whom(said, Answer) == ["B3"]
    assert of_kind(said, Answer)[0].status == "unknown"


def test_a_broker_where_it_is_open_answers_when_it_is_decided() -> None:
    one, _ = taking_part()
    reset(one, "B3")
    assert one.hear("B3", Ask(TX)) == []
    said = one.hear("B1", Decide(TX, True))
    assert of_kind(said, Answer, "B3") == [Answer(TX, "committed")]


def test_a_side_that_is_cut_off_itself_does_not_know() -> None:
    """B3 asks, too, and B1 asks for B3: nobody behind B1 can know what B1 never said."""
    one, _ = taking_part()
    reset(one, "B1")
    said = one.hear("B1", Ask(TX))
    assert of_kind(said, Answer, "B1")[0].status == "unknown"


def test_a_decision_on_something_unknown_answers_those_who_ask() -> None:
    """B2 was restarted; B1's decision comes before its answer."""
    one = OneBroker("d-tx-ni", ["B1", "B3"])
    one.hear("B3", Ask(TX))
    said = one.hear("B1", Decide(TX, True))
    assert of_kind(said, Answer, "B3") == [Answer(TX, "committed")]
    assert to_whom(said, Decided) == ["B1"]
    assert one.hear("B1", Answer(TX, "committed")) == []


def test_a_restarted_broker_has_asked_nothing_and_is_asked_again() -> None:
    one = OneBroker("d-tx-ni", ["B1", "B3", "B4"])
    one.hear("B3", Ask(TX))
    assert to_whom(reset(one, "B1"), Ask) == ["B1"]
    reset(one, "B3")
    assert one.hear("B1", Answer(TX, "committed")) == []
    assert one.hear("B4", Answer(TX, "unknown")) == []
    assert one.hear("B3", Ask(("F", 0, 1))) != [] and reset(one, "B4") != []


# --- all together ---

#: B2 is in the middle: E and its agent before it, those who take part behind it on two ways.
EDGES = (("B1", "B2"), ("B2", "B3"), ("B3", "B4"), ("B2", "B5"))
HOMES = {"E": "B1", "D": "B3", "A": "B4", "C": "B5", "F": "B1"}


def cut(
    at_ms: float, *, seed: int | None = None, alone: bool = False, link: bool = False
) -> tuple[SimulatedOverlay, TxID, list[str]]:
    """E makes D, A and C act, D lets A act; so late, B2 is restarted, or a link of it is reset."""
    tree: nx.Graph[str] = nx.Graph(EDGES)
    factories = {**all_engines(), "d-tx-ni": AbortsAlone} if alone else None
    choose = Tape(seed=seed).choose if seed is not None else lambda n: 0
    world = SimulatedOverlay(tree, choose, factories=factories, trace=False)
    for client, edge in HOMES.items():
        world.join(client, edge)
        world.plain(client, "adv", CALL)
        world.plain(client, "sub", Filter({"class": "call", "to": client}))
        world.plain(client, "adv", P)
        world.sim.run()
        world.reactions[client] = lambda point, client=client: [Step(client, "sub", P)]
    world.reactions["D"] = lambda point: [sub("D", P), tcm("D", class_="call", to="A")]
    steps = [tcm("E", class_="call", to=client) for client in ("D", "C", "F")]
    tx = world.begin("d-tx-ni", "E", [*steps, Step("E", "sub", P)])
    world.sim.run(until=world.sim.now + at_ms / 1000)
    if link:
        world.sim.reset("B2", "B3")
    else:
        world.sim.restart("B2")
    world.sim.run()
    told = {client: ended.committed for client, ended in world.ended_at[tx].items()}
    outcomes = {*told.values(), *known(world, "d-tx-ni", tx).values()}
    wrong = leftovers(world, tree, HOMES)
    if len(outcomes) != 1:
        wrong.append(f"{at_ms} ms: {told}, {known(world, 'd-tx-ni', tx)}")
    holds = {
        client
        for client, edge in HOMES.items()
        for row in world.sim.brokers[BrokerName(edge)].routing.as_data()["prt"]
        if row["hop"] == "@" + client and "'p'" in row["filter"]
    }
    if holds != ({"E", "D", "A", "C", "F"} if outcomes == {True} else set()):
        wrong.append(f"{at_ms} ms: {outcomes}, and these hold p: {holds}")
    return world, tx, wrong


#: Every message takes 1 ms, so nothing changes between these moments, and after 60 ms all is over.
MOMENTS = [half / 2 for half in range(1, 130)]


def test_at_every_moment_there_is_one_outcome_and_tables_are_right() -> None:
    outcomes = set()
    for at_ms in MOMENTS:
        world, tx, wrong = cut(at_ms)
        assert not wrong
        outcomes.add(world.ended[tx].committed)
    assert outcomes == {True, False}


def test_at_every_moment_a_link_may_be_lost() -> None:
    for at_ms in MOMENTS:
        assert not cut(at_ms, link=True)[2]


def test_with_other_delays_as_well() -> None:
    for seed in range(60):
        assert not cut(1 + 2 * seed, seed=seed)[2], seed
        assert not cut(1 + 2 * seed, seed=seed, link=True)[2], seed


def test_to_abort_alone_would_be_seen() -> None:
    assert any(wrong for at_ms in MOMENTS for wrong in cut(at_ms, alone=True)[2])
