"""The blocking client over an in-process overlay, from one thread and from several."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import padres_tx
from overlay.errors import NameTaken, NotAdvertised, NotHeld
from overlay.messages import PubRefused
from padres_tx.client.session import Notification
from padres_tx.errors import CallTimeout, ClientClosed, ConnectionLost
from padres_tx.testing.inprocess import InProcessOverlay

P1 = {"class": "p1"}
X1 = {"class": "p1", "x": "x1"}


@pytest.fixture
def overlay() -> Iterator[InProcessOverlay]:
    with InProcessOverlay("three") as overlay:
        yield overlay
    assert not [thread for thread in threading.enumerate() if thread.name == "padres_tx"]


def test_subscribe_publish_iterate(overlay: InProcessOverlay) -> None:
    with overlay.connect("A1", at="B1") as a1, overlay.connect("E", at="B3") as e:
        a1.subscribe("[class,eq,'p1']")
        e.advertise("[class,eq,'p1']")
        for x in range(1000):
            e.publish({"class": "p1", "x": x}, json=[x])
        got = list(a1.notifications(timeout_s=0))
        assert [(n["x"], n.json()) for n in got] == [(x, [x]) for x in range(1000)]
        a1.unsubscribe(P1)
        e.publish(P1)
        assert list(a1.notifications(timeout_s=0)) == []
        e.unadvertise(P1)
        with pytest.raises(NotAdvertised):
            e.publish(P1)


def test_errors_raise_at_the_call(overlay: InProcessOverlay) -> None:
    a1 = overlay.connect("A1")
    with pytest.raises(NameTaken):
        overlay.connect("A1", at="B3")
    with pytest.raises(NotHeld):
        a1.unsubscribe(P1)
    with pytest.raises(CallTimeout, match="nothing came to A1"):
        a1.next(timeout_s=0)
    with pytest.raises(padres_tx.BadAddress):
        padres_tx.sync.connect("nowhere")
    with pytest.raises(padres_tx.Unreachable):
        padres_tx.sync.connect("127.0.0.1:1", connect_timeout_s=0.2)


def test_callbacks_run_in_order_on_their_own_thread_and_may_use_the_client(
    overlay: InProcessOverlay,
) -> None:
    a1, e = overlay.connect("A1", at="B1"), overlay.connect("E", at="B3")
    e.advertise(P1)
    seen: queue.Queue[tuple[object, str]] = queue.Queue()

    def answer(n: Notification) -> None:
        a1.publish({"class": "answer", "x": n["x"]})
        seen.put((n["x"], threading.current_thread().name))

    a1.advertise({"class": "answer"})
    e.subscribe({"class": "answer"})
    a1.subscribe(P1, answer)
    a1.subscribe(X1, answer)
    for x in ("x1", "x2", "x3"):
        e.publish({"class": "p1", "x": x})
    got = [seen.get(timeout=30) for _ in range(3)]
    assert [x for x, _ in got] == ["x1", "x2", "x3"]
    assert {name.rpartition("_")[0] for _, name in got} == {"callbacks of A1"}
    assert [n["x"] for n in e.notifications(timeout_s=0)] == ["x1", "x2", "x3"]
    a1.unsubscribe(P1)
    e.publish(X1)
    assert seen.empty()


def test_a_callback_may_close_its_client(overlay: InProcessOverlay) -> None:
    a1 = overlay.connect("A1")
    a1.advertise(P1)
    ended = threading.Event()

    def last(n: Notification) -> None:
        a1.close()
        ended.set()

    a1.subscribe(P1, last)
    a1.publish(P1)
    assert ended.wait(30)
    assert a1.closed


def test_many_threads_share_a_client(overlay: InProcessOverlay) -> None:
    a1, e = overlay.connect("A1", at="B1"), overlay.connect("E", at="B3")
    e.advertise(P1)
    a1.subscribe(P1)

    def publish(publisher: int) -> None:
        for x in range(100):
            e.publish({"class": "p1", "publisher": publisher, "x": x})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(publish, range(4)))
        halves = pool.map(lambda _: list(a1.notifications(timeout_s=0)), range(2))
        got = [n for half in halves for n in half]
    assert sorted((int(n["publisher"]), int(n["x"])) for n in got) == [
        (publisher, x) for publisher in range(4) for x in range(100)
    ]


def test_closing_ends_a_thread_that_waits(overlay: InProcessOverlay) -> None:
    a1 = overlay.connect("A1")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: list(a1))
        while not waiting.running():
            pass
        a1.close()
        assert waiting.result(30) == []


def test_what_has_arrived_can_be_read_after_closing(overlay: InProcessOverlay) -> None:
    with overlay.connect("A1") as a1:
        a1.advertise(P1)
        a1.subscribe(P1)
        a1.publish(X1)
        a1.publish(P1)
        assert a1.next(timeout_s=0)["x"] == "x1"
    assert len(list(a1)) == 1
    a1.close()
    assert a1.closed
    for call in (lambda: a1.publish(P1), lambda: a1.subscribe(P1), a1.next):
        with pytest.raises(ClientClosed, match="A1 has been closed"):
            call()


def test_an_overlay_that_stops_is_a_lost_connection(overlay: InProcessOverlay) -> None:
    a1 = overlay.connect("A1")
    overlay.stop()
    with pytest.raises(ConnectionLost):
        next(a1.notifications())
    with pytest.raises(ConnectionLost):
        a1.wait_closed()


def test_an_error_in_the_block_is_not_hidden_by_closing(overlay: InProcessOverlay) -> None:
    with pytest.raises(ZeroDivisionError), overlay.connect("A1"):
        raise ZeroDivisionError


def test_a_call_that_blocks_can_be_interrupted(overlay: InProcessOverlay) -> None:
    a1 = overlay.connect("A1")

    def interrupt_when_blocked() -> None:
        while not a1._reading.locked():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    interrupt = threading.Thread(target=interrupt_when_blocked)
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        a1.next()
    interrupt.join()
    a1.subscribe(P1)


def test_the_thread_is_shared_and_ends_with_the_last_client(overlay: InProcessOverlay) -> None:
    def threads() -> int:
        return sum(thread.name == "padres_tx" for thread in threading.enumerate())

    assert threads() == 0
    with overlay.connect("A1"):
        with overlay.connect("D"):
            assert threads() == 1
        assert threads() == 1
    assert threads() == 0
    with overlay.connect("A1"):
        assert threads() == 1


def test_a_program_that_forgets_to_close_still_ends() -> None:
    program = """
import padres_tx
from padres_tx.testing.inprocess import InProcessOverlay
a1 = InProcessOverlay("one").connect("A1")
a1.subscribe({"class": "p1"}, print)
a1.advertise({"class": "p1"})
print("forgotten", flush=True)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "forgotten\n"
    assert ended.stderr == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_is_told_not_to_use_its_parents_client(overlay: InProcessOverlay) -> None:
    a1 = overlay.connect("A1")
    child = os.fork()
    if child == 0:
        try:
            a1.publish(P1)
        except ClientClosed:
            a1.close()
            os._exit(7)
        os._exit(1)
    deadline = time.monotonic() + 30
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(ended[1]) == 7
    a1.subscribe(P1)


def test_what_closing_raises_is_raised_by_a_block_without_an_error(
    overlay: InProcessOverlay,
) -> None:
    with pytest.raises(NotAdvertised), overlay.connect("A1") as a1:

        async def refuse() -> None:
            a1._client._requests.receive(PubRefused(7, "not-advertised", "not that"))

        a1._background.run(refuse())
