"""`Broker.take`: messages taken together have the effects that they have one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import overlay.matching.index
from overlay.broker.core import Broker
from overlay.effects import Effect, Forward, Send
from overlay.errors import PeerError, ProtocolError
from overlay.filters import Filter, ge, present
from overlay.identity import SALT_BITS
from overlay.messages import AnyMessage, BrokerName, Done, Hop, Inspect, Join, Operation, Pub
from overlay.tables.space import Entry

NEIGHBOURS: Final = ("A", "B")
CLIENTS: Final = ("p", "q")
SOURCES: Final = (*NEIGHBOURS, "@p", "@p", "@p", "@q", "@stranger")

VERSION: Final = ("tx", 0, 1)

#: Which lives the clients of `core` live, in the order of their joins.
LIVES: Final = {"p": 1 << SALT_BITS, "q": 2 << SALT_BITS}


@pytest.fixture(autouse=True, scope="module")
def small_batches() -> Iterator[None]:
    """Look at a few points together, as otherwise only at many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlay.matching.index, "MANY", 3)
        yield


def core(*, trace: bool = False) -> Broker:
    """A broker with two clients, of which one has advertised most of what there is."""
    made = Broker(BrokerName("M"), map(BrokerName, NEIGHBOURS), trace=trace)
    for client in CLIENTS:
        for effect in made.receive(Hop(f"@{client}"), Join(1, client, ""), 0.0):
            if isinstance(effect, Send) and isinstance(effect.message, Join):
                made.receive(effect.hops[0], Done(effect.message.req), 0.0)
    for filter in (Filter(cls="x", n=ge(0)), Filter(cls=present())):
        made.receive(Hop("@p"), Operation(0, "adv", "p", 0, filter), 0.0)
    return made


def one_by_one(made: Broker, source: Hop, messages: list[AnyMessage]) -> list[Any]:
    """The effects if each message is handled by itself, without runs."""
    done: list[Any] = []
    for message in messages:
        try:
            effects = made.receive(source, message, 0.0)
        except PeerError as error:
            return [*done, str(error)]
        done += effects_of(effects, [message])
    return done


def together(made: Broker, source: Hop, messages: list[AnyMessage]) -> list[Any]:
    """The same as a host does it."""
    done: list[Any] = []
    at = 0
    while at < len(messages):
        try:
            taken = made.take(source, messages, 0.0, at)
        except PeerError as error:
            return [*done, str(error)]
        assert taken.consumed > 0
        done += effects_of(taken.effects, messages)
        at += taken.consumed
    return done


def effects_of(effects: list[Effect], messages: list[AnyMessage]) -> list[Any]:
    """What a host has to do, with forwarded messages written out."""
    done: list[Any] = []
    for effect in effects:
        if isinstance(effect, Forward):
            end = effect.start + effect.count
            done += [Send(effect.hops, message) for message in messages[effect.start : end]]
        else:
            done.append(effect)
    return done


class_values = st.sampled_from(["x", "y"])
right = st.sampled_from([0, 1, 2.5])
wrong = st.sampled_from([-1, True, float("nan"), 2**63, "a", "\ud800"])
points = st.one_of(
    st.fixed_dictionaries({"cls": class_values}, optional={"n": right}),
    st.fixed_dictionaries({"cls": class_values}, optional={"n": right, "more": right | wrong}),
    st.fixed_dictionaries({}, optional={"cls": class_values, "n": wrong}),
)
filters = st.one_of(
    class_values.map(lambda value: Filter(cls=value)),
    st.integers(0, 2).map(lambda least: Filter(n=ge(least))),
    st.builds(lambda value, least: Filter(cls=value, n=ge(least)), class_values, st.integers(0, 2)),
)


def publications(client: st.SearchStrategy[str]) -> st.SearchStrategy[Pub]:
    hidden = st.sampled_from([(), (), (), (), (), (VERSION,)])
    whose = client.flatmap(lambda name: st.tuples(st.just(name), lives(name)))

    def made(whose: tuple[str, int], point: Any, hidden: Any) -> Pub:
        return Pub(whose[0], 1, point, hidden=hidden, life=whose[1])

    return st.builds(made, whose, points, hidden)


def lives(client: str) -> st.SearchStrategy[int]:
    """Mostly the one that it lives."""
    own = LIVES.get(client, 0)
    return st.sampled_from([own, own, own, own, own, 0, 7])


@st.composite
def batches(draw: st.DrawFn) -> tuple[Hop, list[AnyMessage]]:
    """What one peer has said, mostly rightly."""
    source = draw(st.sampled_from(SOURCES))
    own = st.just(source[1:] if source.startswith("@") else f"behind{source}")
    client = st.one_of(own, own, own, own, own, st.just("somebody"))
    operations = st.builds(
        Operation,
        st.just(0),
        st.sampled_from(["sub", "sub", "sub", "usub", "adv", "uadv"]),
        own,
        st.integers(1, 9),
        filters,
    )
    pubs = publications(client)
    said = st.lists(st.one_of(pubs, pubs, pubs, operations), min_size=4, max_size=8)
    return Hop(source), draw(said)


def open_version(made: Broker) -> None:
    if VERSION not in made.versions.open and VERSION not in made.versions.committed:
        made.versions.begin(VERSION)
        operation = Operation(0, "sub", "tx", 1, Filter(cls="x"))
        made.routing.prt.add(Entry(operation, Hop("B"), VERSION))


def vote_version(made: Broker) -> None:
    if VERSION in made.versions.open:
        made.versions.vote(VERSION)


def commit_version(made: Broker) -> None:
    if VERSION in made.versions.open:
        made.versions.commit(VERSION)


def end_version(made: Broker) -> None:
    made.versions.abort(VERSION)
    made.versions.forget(VERSION)
    entry = made.routing.prt.copy("tx", 1, VERSION)
    if entry is not None:
        made.routing.prt.remove(entry)


changes = st.sampled_from([end_version, end_version, open_version, vote_version, commit_version])


@pytest.mark.slow
@settings(max_examples=100)
@given(st.lists(st.tuples(batches(), changes), min_size=4, max_size=12), st.booleans())
def test_together_messages_have_the_effects_that_they_have_one_by_one(
    script: list[tuple[tuple[Hop, list[AnyMessage]], Any]], trace: bool
) -> None:
    plain, batched = core(trace=trace), core(trace=trace)
    for (source, messages), change in script:
        expected = one_by_one(plain, source, messages)
        assert repr(together(batched, source, messages)) == repr(expected)  # NaN is not NaN.
        change(plain)
        change(batched)


def subscribed(made: Broker, hop: str, filter: Filter) -> None:
    if hop in NEIGHBOURS:
        made.receive(Hop(hop), Join(0, hop, hop), 0.0)
    made.receive(Hop(hop), Operation(0, "sub", hop.strip("@"), 1, filter), 0.0)


def test_what_goes_the_same_way_is_one_run() -> None:
    made = core()
    subscribed(made, "A", Filter(cls="x"))
    subscribed(made, "B", Filter(cls="y"))
    life = made.life_of(Hop("@p"))
    said: list[AnyMessage] = [
        Pub("p", n, {"cls": "xy"[n // 3 % 2], "n": n}, life=life) for n in range(9)
    ]
    assert runs(made, "@p", said) == [(("A",), 0, 3), (("B",), 3, 3), (("A",), 6, 3)]
    assert runs(made, "@p", said, 4) == [(("B",), 4, 2), (("A",), 6, 3)]
    # Not back to where they came from.
    assert runs(made, "A", said) == [(("B",), 3, 3)]


def runs(made: Broker, source: str, messages: list[AnyMessage], start: int = 0) -> list[Any] | None:
    """Where the next run goes; None if the next message is not taken as a run."""
    taken = made.take(Hop(source), messages, 0.0, start)
    if not taken.is_run:
        assert taken.consumed == 1
        return None
    return [(e.hops, e.start, e.count) for e in taken.effects if isinstance(e, Forward)]


def test_a_run_ends_at_the_first_message_that_needs_more_than_routing() -> None:
    made = core()
    subscribed(made, "A", Filter(cls="x"))
    life = made.life_of(Hop("@p"))
    good = Pub("p", 1, {"cls": "x", "n": 1}, life=life)
    bad = Pub("p", 2, {"cls": "x", "n": float("inf")}, life=life)
    one = [(("A",), 0, 1)]
    assert runs(made, "@p", [good, bad, good]) == one
    assert runs(made, "@p", [good, bad, good], 1) is None
    assert runs(made, "@p", [good, Inspect(1, "tables"), good]) == one
    assert runs(made, "@p", [Pub("p", 1, good.point)]) is None  # It lacks its life.
    assert runs(made, "@q", [Pub("q", 1, {"cls": "x"})]) is None  # Advertised nothing.
    made.versions.begin(VERSION)
    assert runs(made, "@p", [good]) == one  # The transaction cannot be committed yet.
    made.versions.vote(VERSION)
    assert runs(made, "@p", [good]) is None  # It needs a stamp.
    assert runs(made, "B", [good]) == one
    made.versions.commit(VERSION)
    assert runs(made, "@p", [good]) == one
    stamped = Pub("p", 1, good.point, hidden=(VERSION,), life=life)
    assert runs(made, "B", [good, stamped]) == one


def test_with_a_trace_publications_are_routed_together_too() -> None:
    made = core(trace=True)
    subscribed(made, "A", Filter(cls="x"))
    good = Pub("p", 1, {"cls": "x", "n": 1})
    assert runs(made, "B", [good, good]) == [(("A",), 0, 1), (("A",), 1, 1)]
    bad: list[AnyMessage] = [Pub("p", 1, {"cls": float("nan")})]
    with pytest.raises(ProtocolError, match="forwarded an invalid publication"):
        made.take(Hop("B"), bad, 0.0)
