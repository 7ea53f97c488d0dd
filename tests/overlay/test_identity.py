"""Lives of clients: none is issued twice, and texts of names can be read again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from overlay.broker.core import Broker
from overlay.errors import ProtocolError
from overlay.hosts.broker_time import BrokerTime
from overlay.hosts.host import Host
from overlay.hosts.simulator import Simulator
from overlay.identity import LIFE_LIMIT, SALT_BITS, Lives, life_text, name_text, parse_name
from overlay.messages import (
    NAME_PATTERN,
    PROTOCOL_VERSION,
    AnyMessage,
    BrokerName,
    Done,
    Goodbye,
    Hello,
    Hop,
    Join,
    Leave,
    Message,
)
from overlay.wire.frames import pack
from tests.overlay.hosts.test_host import Recorded

NOW_S = 1_795_000_000.0


# --- texts ---


@given(
    st.from_regex(NAME_PATTERN, fullmatch=True),
    st.integers(0, LIFE_LIMIT - 1),
    st.integers(0, 2**63 - 1),
)
def test_a_name_can_be_read_again(client: str, life: int, number: int) -> None:
    assert parse_name(name_text(client, life, number)) == (client, life, number)


def test_a_name_is_short_and_shows_what_it_is_made_of() -> None:
    life = Lives(salt=0xB7C1).issue(NOW_S)
    assert name_text("E", life, 17) == f"E:{life_text(life)}:17"
    assert len(life_text(life)) <= 13
    assert life_text(Lives().issue(0.0)) == "1", "of a simulated broker"


@pytest.mark.parametrize(
    "text",
    ["", "E", "E:17", ":1:17", "E::17", "E:1:", "E:1:x", "E:1:-1", "E:1:٣", "E:A:1", "E:1.:2",
     "E:.1:2", "E:1.0:2", "E:01:2", "E:1.zzzzz:2", "E:" + "z" * 50 + ":1", "E:1:" + "9" * 5000,
     "E:" + "9" * 5000 + ":1"],
)  # fmt: skip
def test_a_text_that_is_no_name(text: str) -> None:
    assert parse_name(text) is None


# --- lives ---


@given(st.lists(st.floats(0, 4e9), min_size=2, max_size=20))
def test_a_clock_that_jumps_does_not_repeat_a_life(times_s: list[float]) -> None:
    lives = Lives(salt=3)
    issued = [lives.issue(now) for now in times_s]
    assert issued == sorted(set(issued))


def test_a_life_follows_the_lives_that_were_seen() -> None:
    ahead, behind = Lives(salt=1), Lives(salt=2)
    first = ahead.issue(NOW_S + 3600)
    behind.saw(first)
    assert behind.issue(NOW_S) > first


def test_two_brokers_that_issue_at_once_issue_different_lives() -> None:
    assert len({Lives(salt).issue(NOW_S) for salt in range(100)}) == 100


@pytest.mark.parametrize("life", [-1, LIFE_LIMIT])
def test_a_life_that_no_broker_issues(life: int) -> None:
    with pytest.raises(ProtocolError):
        Lives().saw(life)


def test_lives_fit_until_long_after_anybody_cares() -> None:
    year_2200_s = 7_258_118_400
    assert Lives((1 << SALT_BITS) - 1).issue(year_2200_s) < LIFE_LIMIT


# --- through the host, whose clock is what the machine's is ---


class Process:
    """One process of broker M, a neighbour of A, with a wall clock that shows `wall_s`."""

    def __init__(self, wall_s: float, salt: int) -> None:
        self.clock = Clock()
        core = Broker(BrokerName("M"), [BrokerName("A")], salt=salt)
        time = BrokerTime(wall_s, self.clock.seconds)
        self.host = Host(core, {BrokerName("A"): 0.0}, self.clock, self.crash, own_time=time)
        self.wires: dict[str, Recorded] = {}
        self.says("A", "broker")

    def crash(self) -> None:
        raise  # The host calls it while it handles the exception.

    def says(self, name: str, role: str) -> None:
        wire = self.wires[name] = Recorded()
        self.host.accept(wire, Hello(PROTOCOL_VERSION, role, name, f"i-{name}"))  # type: ignore[arg-type]

    def hears(self, name: str, *values: Message | Goodbye) -> None:
        self.host.arrived(self.wires[name].peer, [pack(value) for value in values])
        self.clock.advance(0)  # A round may have been over.

    def life_of(self, name: str) -> int:
        """The life that a program gets which connects, and then leaves."""
        self.says(name, "client")
        self.hears(name, Join(1, name, ""))
        self._agree()
        [done] = [m for m in self.wires[name].take() if isinstance(m, Done)]
        self.hears(name, Goodbye())
        self._agree()
        assert self.wires[name].goodbye == Goodbye()
        return done.number

    def _agree(self) -> None:
        asked = [m for m in self.wires["A"].take() if isinstance(m, Join | Leave)]
        self.hears("A", *[Done(one.req) for one in asked])


def test_a_program_that_is_restarted_gets_another_life() -> None:
    process = Process(NOW_S, salt=1)
    lives = [process.life_of("E") for _ in range(5)]
    assert lives == sorted(set(lives))


def test_a_broker_that_is_restarted_with_its_clock_set_back_repeats_no_life() -> None:
    lives = [Process(NOW_S - 3600 * n, salt=100 + n).life_of("E") for n in range(5)]
    lives += [Process(NOW_S, salt=200 + n).life_of("E") for n in range(5)]
    assert len(set(lives)) == len(lives)


def test_a_broker_that_is_restarted_with_its_clock_set_back_goes_on_above_what_it_is_told() -> None:
    before = Process(NOW_S, salt=1).life_of("E")
    after = Process(NOW_S - 3600, salt=1)
    after.hears("A", Join(0, "somebody", "A", before))
    assert after.life_of("E") > before


# --- in the simulator ---


def test_a_client_that_comes_back_to_a_restarted_broker_gets_another_life() -> None:
    """Many join at once, so that the broker's lives are ahead of its clock."""
    sim = Simulator({"B1": []}, lambda n: 0)
    lives: list[int] = []

    def receive(message: AnyMessage, now: float) -> list[AnyMessage]:
        assert isinstance(message, Done)
        lives.append(message.number)
        return []

    for _ in range(4):
        for n in range(40):
            sim.connect(f"C{n}", "B1", receive)
            sim.send(f"C{n}", Join(1, f"C{n}", ""))
        sim.run()
        sim.restart("B1")
    assert len(set(lives)) == len(lives) == 160


def test_of_two_of_one_name_that_come_at_once_each_has_a_life_of_its_own() -> None:
    salts = iter((5, 6))
    tree = {"B1": ["B2"], "B2": ["B1"]}
    sim = Simulator(tree, lambda n: 0, broker=lambda n, o: Broker(n, o, salt=next(salts)))
    lives: list[int] = []
    for name in ("B1", "B2"):
        for effect in sim.brokers[BrokerName(name)].receive(Hop("@E"), Join(1, "E", ""), 0.0):
            message = getattr(effect, "message", None)
            if isinstance(message, Join):
                lives.append(message.life)
    assert len(set(lives)) == 2
