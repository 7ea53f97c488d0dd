"""Snapshots of small states: what is kept, what is shared, what is refused, what is migrated."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from overlay import stored as stored_module
from overlay.broker.core import Broker
from overlay.broker.service import DurableService, Service, Snapshot
from overlay.effects import Effect, SetTimer
from overlay.errors import SnapshotError
from overlay.filters import Filter
from overlay.messages import BrokerName, Hop, Join
from overlay.snapshots import check_stored, freeze, thaw
from overlay.stored import stored, stored_value

B1 = BrokerName("B1")
NEIGHBOURS = [BrokerName("B2"), BrokerName("B3")]


class Keeper(Service):
    """A service that keeps whatever a test gives it."""

    name = "keeper"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.kept: Any = None

    def receive(self, source: Hop, body: msgspec.Raw, now: float) -> list[Effect]:
        return []

    def inspect(self, argument: str, now: float) -> tuple[Any, list[Effect]]:
        return None, []


@pytest.fixture(autouse=True)
def declarations() -> Iterator[None]:
    """What a test declares is forgotten after it."""
    by_class, by_name = dict(stored_module._by_class), dict(stored_module._by_name)
    stored("keeper", fields=("kept",))(Keeper)
    yield
    stored_module._by_class.clear()
    stored_module._by_class.update(by_class)
    stored_module._by_name.clear()
    stored_module._by_name.update(by_name)


def core(**services: Any) -> Broker:
    return Broker(B1, NEIGHBOURS, services=services or {"keeper": Keeper})


def keeper(broker: Broker) -> Keeper:
    found = broker.services["keeper"]
    assert isinstance(found, Keeper)
    return found


def frozen(kept: Any) -> bytes:
    broker = core()
    keeper(broker).kept = kept
    return freeze(broker)


def thawed(data: bytes) -> Any:
    broker = core()
    thaw(broker, data)
    assert freeze(broker) == data
    return keeper(broker).kept


def kept(what: Any) -> Any:
    return thawed(frozen(what))


@pytest.mark.parametrize(
    "what",
    [
        None,
        *(True, False, 0, 1, -(2**63), 2**63 - 1, 1.0, -0.0, float("inf"), "", "é", b"\x00\xff"),
        *([], {}, (), set(), frozenset(), deque(), OrderedDict()),
        [1, [2, (3,)], {"a": [None]}],
        {("C", 1, 2): "version", 3: 4.0, "x": {}},
        {"b", "a", "c"},
        frozenset({("b", 2), ("a", 1)}),
        OrderedDict([("z", 1), ("a", 2)]),
        deque([1, "2", (3, 4)]),
        [0, "looks like a mark"],
        Filter({"class": "p", "x": (1, None), "b": True, "any": ..., "s": ("", "m")}),
        msgspec.Raw(b"\x93\x01\x02\x03"),
        Join(1, "C", "B1", 7),
    ],
    ids=lambda what: type(what).__name__,
)
def test_values_come_back_equal_and_of_their_types(what: Any) -> None:
    back = kept(what)
    assert back == what
    assert type(back) is type(what)
    if not isinstance(what, msgspec.Raw | set | frozenset):  # A set's order may differ.
        assert repr(back) == repr(what)


def test_numbers_that_are_equal_stay_what_they_are() -> None:
    what = [Filter(x=1), Filter(x=1.0), Filter(x=0.0), Filter(x=-0.0), Filter(x=True)]
    assert [repr(filter) for filter in kept(what)] == [repr(filter) for filter in what]


def test_the_order_of_a_dict_is_kept_and_a_set_has_none() -> None:
    assert list(kept({"b": 1, "a": 2})) == ["b", "a"]
    names = [f"name {number}" for number in range(100)]
    assert frozen(dict.fromkeys(names).keys() | set()) == frozen({*names[50:], *names[:50]})


def test_what_is_shared_stays_shared_and_cycles_are_kept() -> None:
    @stored("knot")
    class Knot:
        __slots__ = ("name", "others")

        def __init__(self, name: str) -> None:
            self.name = name
            self.others: list[Any] = []

    one, two = Knot("one"), Knot("two")
    one.others += [two, one]
    two.others = one.others
    counts = {one: 1, two: 2}
    back = kept([one, two, counts, counts])
    first, second, by_knot, again = back
    assert (first.name, second.name) == ("one", "two")
    assert first.others is second.others
    assert first.others == [second, first]
    assert by_knot is again
    assert by_knot == {first: 1, second: 2}


def test_what_refers_to_the_broker_finds_the_one_that_was_filled() -> None:
    broker = core()
    keeper(broker).kept = [broker, keeper(broker), broker.waiting, broker.routing]
    data = freeze(broker)
    other = core()
    thaw(other, data)
    found = keeper(other).kept
    assert [id(thing) for thing in found] == [
        id(other),
        id(keeper(other)),
        id(other.waiting),
        id(other.routing),
    ]


def test_a_subclass_keeps_its_own_and_what_its_base_declares() -> None:
    @stored("base", fields=("a",), derived=("cache",))
    class Base:
        def __init__(self) -> None:
            self.a = [1]
            self._rebuild()

        def _rebuild(self) -> None:
            self.cache = list(self.a)

    @stored("derived", fields=("b",))
    class Derived(Base):
        def __init__(self) -> None:
            super().__init__()
            self.b = 2

    thing = Derived()
    thing.a.append(5)
    back = kept(thing)
    assert (type(back), back.a, back.b, back.cache) == (Derived, [1, 5], 2, [1, 5])


# --- what is refused ---


def test_an_attribute_that_nobody_declared_is_named() -> None:
    broker = core()
    broker.routing.novelty = 1  # type: ignore[attr-defined]
    with pytest.raises(SnapshotError, match=r"Routing\.novelty cannot be kept: declare it"):
        freeze(broker)


def test_a_class_that_nobody_declared_is_named() -> None:
    class Stranger:
        pass

    with pytest.raises(SnapshotError, match=r"Stranger cannot be kept: it is not declared"):
        frozen(Stranger())


@pytest.mark.parametrize(
    "what", [2**64, open, lambda: 1, object()], ids=str.split("int def lambda object")
)
def test_what_is_no_state_is_refused(what: Any) -> None:
    with pytest.raises(SnapshotError, match="cannot be kept"):
        frozen(what)


def test_a_slot_that_is_neither_stored_nor_derived_cannot_be_declared() -> None:
    with pytest.raises(AssertionError, match="neither stored nor derived"):

        @stored("slots", fields=("a",))
        class Slots:
            __slots__ = ("a", "b")


def test_two_classes_cannot_have_one_name() -> None:
    with pytest.raises(AssertionError, match="two stored classes called 'entry'"):

        @stored("entry", fields=())
        class Other:
            pass


def test_an_engine_that_cannot_be_kept_is_refused_at_once_with_the_reason() -> None:
    class Forgetful(Keeper):
        name = "forgetful"

        def __init__(self, broker: Broker) -> None:
            super().__init__(broker)
            self.memory: dict[str, int] = {}

    broker = core(forgetful=Forgetful)
    with pytest.raises(SnapshotError, match=r"forgetful cannot .*Forgetful\.memory cannot be kept"):
        check_stored(broker)
    with pytest.raises(SnapshotError, match=r"Forgetful\.memory cannot be kept"):
        freeze(broker)
    stored("forgetful", fields=("memory",))(Forgetful)
    check_stored(broker)
    freeze(broker)


@pytest.mark.parametrize("cut", [0, 5, 25, 60, -1])
def test_truncated_snapshots_are_refused(cut: int) -> None:
    with pytest.raises(SnapshotError):
        thaw(core(), frozen(1)[:cut])


def test_every_flipped_byte_is_noticed() -> None:
    data = frozen([1, 2, Filter(x=3)])
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(SnapshotError):
            thaw(core(), bytes(damaged))


def test_a_later_format_is_refused() -> None:
    later = frozen(1).replace(b"snapshot 1 ", b"snapshot 2 ", 1)
    with pytest.raises(SnapshotError, match="format 2, expected 1: a later program"):
        thaw(core(), later)


def test_a_snapshot_of_another_broker_is_refused() -> None:
    with pytest.raises(SnapshotError, match=r"broker B1 .* expected B2"):
        thaw(Broker(BrokerName("B2"), NEIGHBOURS, services={"keeper": Keeper}), frozen(1))
    with pytest.raises(SnapshotError, match="neighbours B2, B3, expected B1 with B2"):
        thaw(Broker(B1, NEIGHBOURS[:1], services={"keeper": Keeper}), frozen(1))


def test_a_service_that_is_gone_is_named_and_a_new_one_begins_empty() -> None:
    with pytest.raises(SnapshotError, match="a state of keeper, and the broker has no such"):
        thaw(Broker(B1, NEIGHBOURS), frozen(1))
    broker = core()
    thaw(broker, freeze(Broker(B1, NEIGHBOURS)))
    assert keeper(broker).kept is None


# --- versions ---


def test_migrations_make_new_fields_out_of_old_ones() -> None:
    @stored("thing", fields=("a", "gone"))
    class Old:
        def __init__(self) -> None:
            self.a, self.gone = 1, 2

    data = frozen(Old())
    del stored_module._by_name["thing"]

    def second(fields: dict[str, Any]) -> dict[str, Any]:
        return {"a": fields["a"] + fields["gone"], "b": "two"}

    def third(fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "c": [fields["b"]]}

    @stored("thing", fields=("c", "b", "a"), version=3, migrations={1: second, 2: third})
    class New:
        c: list[str]
        b: str
        a: int

    broker = core()
    thaw(broker, data)
    back = keeper(broker).kept
    assert (type(back), back.a, back.b, back.c) == (New, 3, "two", ["two"])
    assert freeze(broker) != data


def test_fields_that_change_without_a_version_are_refused() -> None:
    @stored("thing", fields=("a",))
    class Old:
        def __init__(self) -> None:
            self.a = 1

    data = frozen(Old())
    del stored_module._by_name["thing"]

    @stored("thing", fields=("a", "b"))
    class New:
        pass

    with pytest.raises(SnapshotError, match="thing, version 1, has the fields a, b; the snap"):
        thaw(core(), data)


def test_a_version_from_the_future_is_refused() -> None:
    @stored("thing", fields=(), version=2, migrations={1: dict})
    class New:
        pass

    data = frozen(New())
    del stored_module._by_name["thing"]

    @stored("thing", fields=())
    class Old:
        pass

    with pytest.raises(SnapshotError, match=r"thing in version 2, this program knows .* up to 1"):
        thaw(core(), data)


def test_a_class_that_is_gone_is_named() -> None:
    @stored("thing", fields=())
    class Thing:
        pass

    data = frozen(Thing())
    del stored_module._by_name["thing"]
    with pytest.raises(SnapshotError, match="something called 'thing', which this program"):
        thaw(core(), data)


def test_a_version_needs_all_migrations_up_to_it() -> None:
    with pytest.raises(AssertionError, match="cannot read all of its versions"):

        @stored("thing", fields=(), version=3, migrations={2: dict})
        class Thing:
            pass


def test_a_value_may_get_fields_with_defaults() -> None:
    @stored_value("pair")
    class Old(NamedTuple):
        a: int

    data = frozen([Old(1)])
    del stored_module._by_name["pair"]

    @stored_value("pair")
    class Pair(NamedTuple):
        a: int
        b: str = "new"

    broker = core()
    thaw(broker, data)
    assert keeper(broker).kept == [Pair(1, "new")]


# --- services with snapshots of their own ---


class Counter(DurableService):
    name = "counter"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.count = 0

    def receive(self, source: Hop, body: msgspec.Raw, now: float) -> list[Effect]:
        self.count += 1
        return []

    def snapshot(self) -> Snapshot:
        return Snapshot(4, b"%d" % self.count)

    def restore(self, snapshot: Snapshot, now: float) -> list[Effect]:
        if snapshot.version > 4:
            raise ValueError(f"counter cannot read version {snapshot.version}")
        self.count = int(snapshot.data)
        return [self.timer("again", now)]

    def inspect(self, argument: str, now: float) -> tuple[Any, list[Effect]]:
        return self.count, []


def test_a_durable_service_is_kept_by_its_own_snapshot() -> None:
    broker = core(counter=Counter)
    check_stored(broker)
    broker.services["counter"].receive(Hop("@C"), msgspec.Raw(b""), 0.0)
    other = core(counter=Counter)
    assert thaw(other, freeze(broker), 2.5) == [SetTimer("counter/again", 2.5)]
    assert other.services["counter"].inspect("", 0.0)[0] == 1


def test_a_durable_service_that_cannot_restore_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    data = freeze(core(counter=Counter))
    monkeypatch.setattr(Counter, "snapshot", lambda self: Snapshot(5, b"1"))
    later = freeze(core(counter=Counter))
    thaw(core(counter=Counter), data)
    with pytest.raises(SnapshotError, match="counter cannot read version 5"):
        thaw(core(counter=Counter), later)
