"""The broker over real sockets: who may connect, what a bad peer loses, what nobody loses."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from overlay.errors import ProtocolError
from overlay.filters import Filter
from overlay.hosts.flow import HIGH_WATER_MESSAGES, Flow
from overlay.hosts.peers import ClientPeer, Neighbour
from overlay.hosts.tcp import DELAYED_BYTES, EARLY_LIMIT_S, DelayLine
from overlay.messages import (
    PROTOCOL_VERSION,
    Ack,
    BrokerName,
    ClientName,
    Done,
    Goodbye,
    Hello,
    Inspect,
    Join,
    Operation,
    Ping,
    Pub,
)
from overlay.wire.codec import FRAME_LIMIT
from overlay.wire.frames import pack
from overlay.wire.link import WINDOW_MESSAGES, Link, Opening
from tests.overlay.broker_processes import (
    Process,
    RawClient,
    Refused,
    free_ports,
    inspect,
    one,
    running,
    running_all,
)
from tests.overlay.hosts.proxy import proxied

SETTINGS = {
    "secret": "s3cret",
    "hello_timeout_s": 0.3,
    "client_grace_s": 0.5,
    "takeover_s": 0.1,
    "client_outbox_messages": 2000,
    "heartbeat_s": 0.3,
    "idle_s": 1.5,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with running(tmp_path_factory.mktemp("broker"), "B1", one(), settings=SETTINGS) as process:
        yield process
        assert process.end() == 0


class Innocents:
    """A publisher and a subscriber that must not notice what others do."""

    def __init__(self, port: int) -> None:
        self.publisher = RawClient("innocent-p", secret="s3cret").join(port)
        self.subscriber = RawClient("innocent-s", secret="s3cret").join(port)
        self.publisher.operate("adv", Filter(cls="innocent"))
        self.subscriber.operate("sub", Filter(cls="innocent"))

    def work(self) -> None:
        self.publisher.publish(7, cls="innocent")
        assert self.subscriber.numbers(1) == [7]

    def leave(self) -> None:
        for client in (self.publisher, self.subscriber):
            leave(client)


@pytest.fixture
def innocents(broker: Process) -> Iterator[Innocents]:
    both = Innocents(broker.port)
    both.work()
    yield both
    both.work()
    both.leave()


def client(name: str) -> RawClient:
    return RawClient(name, secret="s3cret")


def leave(client: RawClient) -> None:
    assert client.socket is not None
    client.socket.sendall(pack(Goodbye()))
    assert client.goodbye().code == ""
    client.cut()


def eventually(ready: Callable[[], bool]) -> None:
    """Ask until it is so; a test that waits in vain runs into its timeout."""
    while not ready():
        time.sleep(0.01)  # Out of politeness to the broker.


def clients_at(broker: Process) -> list[str]:
    return [entry["client"] for entry in inspect(broker.port, "tables", "s3cret")["clients"]]


# A bad peer gets its reason and loses its own connection.


def goodbye_to(broker: Process, data: bytes) -> Goodbye:
    """What a connection that says this gets for an answer."""
    stranger = client("stranger")
    with stranger.dial(broker.port) as connection:
        connection.sendall(data)
        answer = stranger.next()
        with pytest.raises(ConnectionError):
            stranger.next()
    assert isinstance(answer, Goodbye)
    return answer


def test_garbage_bytes(broker: Process, innocents: Innocents) -> None:
    goodbye = goodbye_to(broker, b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n" * 1000)
    assert goodbye.code == "protocol"
    assert "at most" in goodbye.reason


def test_a_frame_that_is_no_message(broker: Process, innocents: Innocents) -> None:
    goodbye = goodbye_to(broker, (5).to_bytes(4, "big") + b"\xc1junk")
    assert goodbye.code == "protocol"
    assert "undecodable" in goodbye.reason


def test_a_first_frame_that_is_no_hello(broker: Process, innocents: Innocents) -> None:
    goodbye = goodbye_to(broker, pack(Ping()))
    assert goodbye == Goodbye("protocol", "the first frame is a Ping, not a hello")


def test_a_peer_that_connects_and_says_nothing(broker: Process, innocents: Innocents) -> None:
    goodbye = goodbye_to(broker, b"")
    assert goodbye == Goodbye("protocol", "no hello within 0.3 s")


@pytest.mark.parametrize(
    ("changes", "code", "reason"),
    [
        ({"version": 99}, "protocol", "protocol version 99: B1 speaks version 3"),
        ({"secret": "guess"}, "unauthorized", "secret"),
        ({"secret": ""}, "unauthorized", "secret"),
        ({"name": "no name"}, "protocol", "no name"),
        ({"name": "x" * 1000}, "protocol", "no name"),
        ({"incarnation": ""}, "protocol", "incarnation"),
        ({"role": "broker", "name": "B9"}, "protocol", "B9 is no neighbour of B1"),
    ],
)
def test_a_hello_that_is_not_accepted(
    broker: Process, innocents: Innocents, changes: dict[str, Any], code: str, reason: str
) -> None:
    with pytest.raises(Refused) as refused:
        client("c").connect(broker.port, **changes)
    assert refused.value.code == code
    assert reason in refused.value.reason


def test_an_unknown_role_is_no_hello(broker: Process, innocents: Innocents) -> None:
    hello = pack(Hello(PROTOCOL_VERSION, "client", "c", "i", "", 0, "s3cret"))
    body = hello.replace(b"client", b"wizard")
    assert goodbye_to(broker, body).code == "protocol"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ((FRAME_LIMIT + 1).to_bytes(4, "big"), "at most"),
        ((3).to_bytes(4, "big") + b"\xc1\xc1\xc1", "undecodable"),
        (pack(Hello(PROTOCOL_VERSION, "client", "c", "i", "", 0, "s3cret")), "second hello"),
        (pack(Done(1)), "was not asked"),
        (pack(Pub("somebody-else", 1, {"x": 1})), "somebody-else"),
        (pack(Join(2, "again", "")), "again"),
        (pack(Pub("\0" * 500_000, 1, {"x": 1})), "in the name of"),
    ],
    ids=["oversize", "undecodable", "hello", "answer", "impersonation", "join", "long"],
)
def test_a_client_that_breaks_the_rules_later(
    broker: Process, innocents: Innocents, data: bytes, reason: str
) -> None:
    offender = client("offender").join(broker.port)
    offender.link.send(data)
    offender.flush()
    refused = offender.goodbye()
    assert refused.code == "protocol"
    assert reason in refused.reason
    offender.cut()
    # It is gone at once, without a grace period.
    assert "offender" not in clients_at(broker)


def test_an_operator_may_only_inspect(broker: Process, innocents: Innocents) -> None:
    operator = RawClient("op", role="operator", secret="s3cret")
    operator.connect(broker.port)
    operator.send(Inspect(1, "tables"), Pub("innocent-p", 1, {"cls": "innocent"}))
    assert operator.goodbye().reason == "an operator may inspect, and nothing else"
    operator.cut()


def test_the_status_for_operators(broker: Process, innocents: Innocents) -> None:
    status = inspect(broker.port, "status", "s3cret")
    assert status["broker"] == "B1"
    assert status["pid"] == broker.popen.pid
    assert status["links"] == []
    assert [entry["client"] for entry in status["clients"]] == ["innocent-p", "innocent-s"]
    assert status["messages_in"] >= 3
    assert status["messages_out"] >= 3


# Clients come, break off, come back, and go.


def test_a_second_client_of_one_name_is_refused(broker: Process, innocents: Innocents) -> None:
    with pytest.raises(Refused) as refused:
        client("innocent-p").connect(broker.port)
    assert refused.value.code == "name-taken"
    assert "'innocent-p'" in refused.value.reason


def test_a_client_that_comes_back_finds_what_it_missed(
    broker: Process, innocents: Innocents
) -> None:
    subscriber = client("comes-back").join(broker.port)
    subscriber.operate("sub", Filter(cls="innocent"))
    for n in range(5):
        subscriber.cut()
        innocents.work()
        assert subscriber.connect(broker.port) is Opening.RESUMED
        innocents.work()
        assert subscriber.numbers(2) == [7, 7], n
    leave(subscriber)


def test_a_newer_connection_replaces_a_half_open_one(broker: Process) -> None:
    c = client("half-open").join(broker.port)
    old = c.socket
    assert old is not None
    c.link.cut()
    assert c.connect(broker.port) is Opening.RESUMED
    c.operate("sub", Filter(x=1))
    with pytest.raises(ConnectionError):
        while old.recv(1 << 16):
            pass
        raise ConnectionResetError("or an orderly end")
    old.close()
    leave(c)


def test_a_newcomer_takes_the_name_of_one_who_lost_its_connection(broker: Process) -> None:
    first = client("name").join(broker.port)
    first.operate("sub", Filter(cls="first"))
    first.cut()
    second = client("name")
    eventually_joined(second, broker.port)
    tables = inspect(broker.port, "tables", "s3cret")
    assert [entry for entry in tables["prt"] if entry["client"] == "name"] == []
    # The first is a stranger now.
    with pytest.raises(Refused, match="name-taken"):
        first.connect(broker.port)
    leave(second)


def eventually_joined(c: RawClient, port: int) -> None:
    """Join as soon as the broker has seen the other connection break."""
    while True:
        try:
            c.join(port)
            return
        except Refused as refused:
            assert refused.code in ("name-taken", "name-away")
            c.cut()


def test_a_client_that_stays_away_is_forgotten(broker: Process) -> None:
    c = client("stays-away").join(broker.port)
    c.operate("sub", Filter(cls="x"))
    c.cut()
    eventually(lambda: "stays-away" not in clients_at(broker))
    assert c.connect(broker.port) is Opening.RESET
    leave(c)


def test_a_client_that_says_goodbye_is_heard_to_the_end_and_goes(
    broker: Process, innocents: Innocents
) -> None:
    c = client("goes").join(broker.port)
    c.operate("adv", Filter(cls="innocent"))
    for n in range(100):
        c.link.send(pack(Pub("goes", n, {"cls": "innocent"})))
    assert c.socket is not None
    c.socket.sendall(b"".join(c.link.take(0.0)) + pack(Goodbye()) + pack(Join(9, "ignored", "")))
    assert c.goodbye().code == ""
    c.cut()
    assert innocents.subscriber.numbers(100) == list(range(100))
    assert "goes" not in clients_at(broker)


def test_a_silent_client_is_taken_for_dead(broker: Process) -> None:
    c = client("silent").join(broker.port)
    assert c.socket is not None
    with pytest.raises(ConnectionError):
        while True:
            assert isinstance(c.next(), Ping | Ack)
    c.cut()
    assert any(
        event["hop"] == "@silent" for event in broker.events("connection silent, taken for dead")
    )


def test_a_slow_reader_is_cut_off_with_a_reason(broker: Process, innocents: Innocents) -> None:
    slow = client("slow").join(broker.port)
    slow.operate("sub", Filter(cls="flood"))
    innocents.publisher.operate("adv", Filter(cls="flood"))
    rounds = 0
    while not broker.events("slow reader cut off"):
        rounds += 1
        for n in range(500):
            innocents.publisher.link.send(pack(Pub("innocent-p", n, {"cls": "flood"}, bytes(2000))))
        innocents.publisher.flush()
        innocents.publisher.settle()
        innocents.work()
    refused = slow.goodbye()
    assert refused.code == "slow-reader"
    assert "wait for @slow" in refused.reason
    slow.cut()


# Neighbours.


def pair(b1: int, b2: int, **more: Any) -> dict[str, Any]:
    return {
        "name": "pair",
        "brokers": [{"name": "B1", "port": b1}, {"name": "B2", "port": b2}],
        "edges": [{"a": "B1", "b": "B2", **more}],
    }


@contextmanager
def both(
    directory: Path, *, b1: int, b2: int, dialled: int = 0, **options: Any
) -> Iterator[list[Process]]:
    """B1, which dials B2 at the port `dialled`, and B2."""
    tasks = {
        "B1": {"topology": pair(b1, dialled or b2), **options},
        "B2": {"topology": pair(b1, b2), **options},
    }
    with running_all(directory, tasks) as processes:
        yield processes


class Stream:
    """Numbered events from one client to another, each in its own thread."""

    def __init__(self, name: str, source: int, target: int, count: int) -> None:
        self.count = count
        self.publisher = RawClient(f"{name}-p").join(source)
        self.subscriber = RawClient(f"{name}-s").join(target)
        self.publisher.operate("adv", Filter(cls=name))
        self.subscriber.operate("sub", Filter(cls=name))
        self.name = name
        self.got: list[int] = []
        self.threads = [threading.Thread(target=self._publish), threading.Thread(target=self._read)]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def _publish(self) -> None:
        self.publisher.publish(*range(self.count), cls=self.name)
        self.publisher.settle()

    def _read(self) -> None:
        self.got = self.subscriber.numbers(self.count)

    def finish(self) -> None:
        for thread in self.threads:
            thread.join()
        assert self.got == list(range(self.count))
        assert not self.subscriber.link.inbox


@pytest.mark.slow
def test_nothing_is_lost_doubled_or_reordered_when_connections_are_cut(tmp_path: Path) -> None:
    b1, b2 = free_ports(2)
    with (
        proxied(b2, cut_every=20_000, seed=7) as proxy,
        both(tmp_path, b1=b1, b2=b2, dialled=proxy.port) as (first, second),
    ):
        streams = [Stream("there", b1, b2, 6_000), Stream("back", b2, b1, 6_000)]
        for stream in streams:
            stream.start()
        for stream in streams:
            stream.finish()
        assert proxy.cuts >= 10
        for process in (first, second):
            ups = [event["opening"] for event in process.events("link up")]
            assert ups.count("reset") == 0
            assert ups.count("resumed") >= 10
            assert process.events("messages given up") == []
        assert second.end() == 0
        assert first.end() == 0


def test_a_neighbour_that_does_not_take_holds_up_those_who_send(tmp_path: Path) -> None:
    b1, b2 = free_ports(2)
    with (
        proxied(b2) as proxy,
        both(tmp_path, b1=b1, b2=b2, dialled=proxy.port) as (first, _),
    ):
        stream = Stream("there", b1, b2, 1)
        local = RawClient("local").join(b1)
        local.operate("sub", Filter(cls="there"))
        proxy.hold()
        publisher = stream.publisher
        total = 5 * WINDOW_MESSAGES
        publisher.publish(*range(total), cls="there")
        publishing = threading.Thread(target=publisher.settle)
        publishing.start()
        # The publisher's window, B1's and its outbox are full, and there it stops.
        eventually(lambda: bool(inspect(b1, "status")["links"][0]["congested"]))
        link = inspect(b1, "status")["links"][0]
        assert link["unacked"] + link["outbox"] < WINDOW_MESSAGES + 2 * HIGH_WATER_MESSAGES
        proxy.release()
        assert stream.subscriber.numbers(total) == list(range(total))
        assert local.numbers(total) == list(range(total))
        publishing.join()
        assert first.events("messages given up") == []


def test_a_neighbour_that_is_down_for_long_is_given_up_and_begins_anew(tmp_path: Path) -> None:
    b1, b2 = free_ports(2)
    with both(tmp_path, b1=b1, b2=b2, settings={"neighbour_outbox_messages": 500}) as (
        first,
        second,
    ):
        stream = Stream("there", b1, b2, 1)
        second.popen.kill()
        second.popen.wait()
        eventually(lambda: not inspect(b1, "status")["links"][0]["up"])
        stream.publisher.publish(*range(2000), cls="there")
        stream.publisher.settle()
        given_up = first.events("messages given up")
        assert [event["level"] for event in given_up] == ["error"]
        with running(tmp_path, "B2", pair(b1, b2)):
            # The subscriber went down with its broker; a new one finds the advertisement there.
            subscriber = RawClient("again").join(b2)
            subscriber.operate("sub", Filter(cls="there"))
            stream.publisher.publish(1, 2, 3, cls="there")
            assert subscriber.numbers(3) == [1, 2, 3]
        # Each is counted once: the 2000 events, and what else was said to a neighbour not there.
        assert 2000 <= sum(event["messages"] for event in first.events("messages given up")) < 2010


def test_brokers_that_do_not_trust_each_other_stay_apart(tmp_path: Path) -> None:
    b1, b2 = free_ports(2)
    tasks = {
        name: {"topology": pair(b1, b2), "settings": {"secret": secret}}
        for name, secret in (("B1", "one"), ("B2", "two"))
    }
    with running_all(tmp_path, tasks) as (first, second):
        eventually(lambda: bool(first.events("refused by neighbour")))
        refusal = first.events("refused by neighbour")[0]
        assert (refusal["neighbour"], refusal["code"]) == ("B2", "unauthorized")
        assert second.events("connection refused")[0]["code"] == "unauthorized"
        assert inspect(b1, "status", "one")["links"][0]["up"] is False


def test_links_with_an_emulated_delay_keep_their_order(tmp_path: Path) -> None:
    b1, b2 = free_ports(2)
    topology = {**pair(b1, b2, delay_ms=5), "client_delay_ms": 3}
    with running_all(tmp_path, {name: {"topology": topology} for name in ("B1", "B2")}):
        stream = Stream("there", b1, b2, 3000)
        stream.start()
        stream.finish()


# The pieces, without sockets.


def test_a_delay_line_gives_on_in_order_and_in_time() -> None:
    clock, out = Clock(), list[bytes]()
    line = DelayLine(clock, 1.0, out.append)
    line.put(b"a")
    clock.advance(0.5)
    line.put(b"b")
    clock.advance(0.5)
    assert out == [b"a"]
    clock.advance(0.5)
    assert out == [b"a", b"b"]
    line.put(b"c")
    line.end(give_on=True)
    assert out == [b"a", b"b", b"c"]
    line.put(b"d")
    line.end(give_on=False)
    assert clock.getDelayedCalls() == []
    assert out == [b"a", b"b", b"c"]


def delays_with_timers_late_by(late_s: float) -> list[float]:
    """How long a line of 5 ms takes, one time after the other."""
    clock, given = Clock(), list[float]()
    line = DelayLine(clock, 0.005, lambda data: given.append(clock.seconds()))
    delays = []
    for _ in range(50):
        put_at = clock.seconds()
        line.put(b"a")
        while not given:
            (timer,) = clock.getDelayedCalls()
            clock.advance(timer.getTime() + late_s - clock.seconds())
        delays.append(given.pop() - put_at)
    return delays


def test_a_delay_line_makes_up_for_timers_that_are_late() -> None:
    delays = delays_with_timers_late_by(0.0003)
    assert delays[0] == pytest.approx(0.0053)
    assert delays[-1] == pytest.approx(0.005, abs=0.00001)


def test_a_delay_line_is_early_by_little_at_most() -> None:
    assert delays_with_timers_late_by(0.1)[-1] == pytest.approx(0.105 - EARLY_LIMIT_S, abs=0.00001)


def test_the_fine_reactor_has_timers_sockets_and_no_second_one() -> None:
    program = """
import socket
from overlay.hosts import submillisecond_reactor
submillisecond_reactor.install()
from twisted.internet import reactor
from twisted.internet.protocol import Factory, Protocol
submillisecond_reactor.install()  # There is one: nothing happens.
assert type(reactor).__name__ == "FineReactor"
class Hear(Protocol):
    def dataReceived(self, data):
        print("heard", data.decode())
        reactor.stop()
port = reactor.listenTCP(0, Factory.forProtocol(Hear), interface="127.0.0.1")
sock = socket.create_connection(("127.0.0.1", port.getHost().port))
reactor.callLater(0.0001, sock.sendall, b"it")
reactor.callLater(30, reactor.stop)
reactor.run()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "heard it\n", done.stderr


def test_a_delay_line_is_bounded() -> None:
    line = DelayLine(Clock(), 1.0, lambda data: None)
    line.put(bytes(DELAYED_BYTES))
    with pytest.raises(ProtocolError, match="without waiting"):
        line.put(b"x")


def congested(*names: str) -> tuple[Flow, dict[str, Neighbour]]:
    flow, peers = Flow(), {}
    for name in ("B1", "B2", "B3"):
        peers[name] = Neighbour(BrokerName(name), Link(name), 0.0)
        peers[name].link.open(Hello(PROTOCOL_VERSION, "broker", name, "there"), 0.0)
    for name in names:
        for _ in range(HIGH_WATER_MESSAGES + 1):
            peers[name].link.send(b"x")
        flow.gauge(peers[name])
    return flow, peers


def test_what_comes_from_a_neighbour_waits_for_the_others_only() -> None:
    flow, peers = congested("B1")
    a_client = ClientPeer(ClientName("c"), Link("c"), 0.0)
    assert flow.admits(peers["B1"])
    assert not flow.admits(peers["B2"])
    assert not flow.admits(a_client)
    flow, peers = congested("B1", "B2")
    assert not flow.admits(peers["B1"])


def test_a_congested_neighbour_counts_as_such_until_half_is_gone() -> None:
    flow, peers = congested("B1")
    outbox = peers["B1"].link.outbox
    while len(outbox) * 2 > HIGH_WATER_MESSAGES:
        assert not flow.admits(peers["B2"])
        outbox.popleft()
        flow.gauge(peers["B1"])
    assert flow.admits(peers["B2"])


def test_a_neighbour_that_is_down_is_not_waited_for() -> None:
    flow, peers = congested("B1")
    peers["B1"].link.cut()
    flow.gauge(peers["B1"])
    assert flow.admits(peers["B2"])


def behind(messages: int) -> tuple[Flow, dict[str, Neighbour]]:
    """B1 is back, and so many messages have waited for it."""
    flow, peers = congested()
    for _ in range(messages):
        peers["B1"].link.send(b"x")
    flow.catches_up(peers["B1"])
    flow.gauge(peers["B1"])
    return flow, peers


def test_what_has_waited_for_a_neighbour_that_is_back_holds_nobody_up() -> None:
    flow, peers = behind(10 * HIGH_WATER_MESSAGES)
    assert flow.admits(peers["B2"])
    for _ in range(HIGH_WATER_MESSAGES + 1):
        assert flow.admits(peers["B2"])
        peers["B1"].link.send(b"x")
        flow.gauge(peers["B1"])
    assert not flow.admits(peers["B2"]), "but what comes on top of it does"
    outbox = peers["B1"].link.outbox
    while len(outbox) * 2 > 19 * HIGH_WATER_MESSAGES:
        assert not flow.admits(peers["B2"])
        outbox.popleft()
        flow.gauge(peers["B1"])
    assert flow.admits(peers["B2"])


def test_a_neighbour_catches_up_however_much_comes_for_it() -> None:
    flow, peers = behind(10 * HIGH_WATER_MESSAGES)
    outbox = peers["B1"].link.outbox
    taken = came = 0
    while len(outbox) > HIGH_WATER_MESSAGES:
        for _ in range(100):
            outbox.popleft()
        taken += 100
        if flow.admits(peers["B2"]):
            came += 200
            peers["B1"].link.send_all([b"x"] * 200)
        flow.gauge(peers["B1"])
        assert taken < 100 * HIGH_WATER_MESSAGES
    assert came > 10 * HIGH_WATER_MESSAGES
    outbox.clear()
    flow.gauge(peers["B1"])
    peers["B1"].link.send_all([b"x"] * (HIGH_WATER_MESSAGES + 1))
    flow.gauge(peers["B1"])
    assert not flow.admits(peers["B2"]), "it has caught up, and is one as all others"


def test_who_has_waited_longest_is_next() -> None:
    flow, peers = congested("B1")
    flow.waiting = {peers["B3"]: None, peers["B1"]: None, peers["B2"]: None}
    assert flow.next() is peers["B1"]
    assert flow.next() is None
    flow.congested.clear()
    assert flow.next() is peers["B3"]
    assert flow.next() is peers["B2"]
    assert flow.next() is None


def test_operations_are_answered_through_a_neighbour_that_comes_late(tmp_path: Path) -> None:
    b1, b2 = free_ports(2)
    with running(tmp_path, "B1", pair(b1, b2)):
        c = RawClient("early")
        c.connect(b1)
        c.send(Join(1, "early", ""))
        c.flush()
        with running(tmp_path, "B2", pair(b1, b2)):
            done = c.receive()
            assert isinstance(done, Done) and (done.req, done.code) == (1, "")
            c.send(Operation(2, "adv", "early", 1, Filter(x=1)))
            assert c.receive() == Done(2, number=1)
