"""A stream of events, and beside it the rudest client that one can write.

    python -m tests.trials.rude_guest --size 100000

`three` runs as processes. A publisher at B1 and a subscriber at B3, each a process of its own, are
the stream: every event carries when it was published, and the subscriber writes down how long it
took. The guest is a process, too, at B1 where the publisher is, and does one rude thing after the
other (`ACTS`), with pauses between them. The 99th percentile of the stream's latency during the
acts, over that of the pauses in the same run, is the result; it should be at most 3.

The guest's own work takes processor time as well, so with few cores a part of the ratio is not the
brokers'. Time is CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from overlay.errors import OverlayError
from overlay.filters import Filter
from overlay.messages import Done, Operation, Ping, Pub
from overlay.wire.frames import pack
from padres_tx.client_messages import Begin, Commit, Operate, Step, engine_message, from_client
from padres_tx.launcher import overlay
from tests.overlay.broker_processes import RawClient, Refused

#: The goal: the stream's latency with the guest, over that without.
RATIO_LIMIT = 3.0

#: Events of the stream come so far apart.
INTERVAL_S = 0.005

#: How long the stream runs without the guest before each act, and what follows an act counts as
#: part of it.
PAUSE_S = 3.0
AFTERWARDS_S = 0.5

#: Of what is given as a size (100,000 subscriptions), the number of other things.
SOCKETS = 100
CLIENTS = 50
TRANSACTIONS = 200

#: A client that has vanished is missed after this time (`overlay.hosts.settings.CLIENT_GRACE_S`).
GRACE_S = 10.0

STREAM = {"class": "stream"}


# --- the stream ---


def publish(port: int) -> None:
    """Publish until standard input ends."""
    client = RawClient("stream-publisher").join(port)
    client.operate("adv", Filter(STREAM))
    print("ready", flush=True)
    number = 0
    due = time.monotonic()
    sys_in = sys.stdin.fileno()
    selector = selectors.DefaultSelector()
    selector.register(sys_in, selectors.EVENT_READ)
    assert client.socket is not None
    selector.register(client.socket, selectors.EVENT_READ)
    while True:
        due += INTERVAL_S
        while (left := due - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if key.fd == sys_in and not os.read(sys_in, 1):
                    return
                if key.fd != sys_in:
                    client._advance()
        number += 1
        point = {**STREAM, "sent_ns": time.monotonic_ns()}
        client.send(Pub(client.name, number, point, life=client.life))


def subscribe(port: int, file: Path) -> None:
    """Write down when each event was published and how long it took, until killed."""
    client = RawClient("stream-subscriber").join(port)
    client.operate("sub", Filter(STREAM))
    print("ready", flush=True)
    with file.open("w", buffering=1) as notes:
        while True:
            pub = client.receive()
            now = time.monotonic_ns()
            client.flush(idle=True)
            if isinstance(pub, Pub):
                sent = int(pub.point["sent_ns"])
                notes.write(f"{pub.seq} {sent} {now - sent}\n")


# --- the guest ---


class Ports(NamedTuple):
    """Where the broker of the publisher listens, and that of the subscriber."""

    first: int
    last: int


def guest_client(name: str, port: int) -> RawClient:
    return RawClient(f"guest-{name}").join(port)


def boxes(size: int) -> list[Filter]:
    """Filters of several kinds, which name different attributes: all of two kinds overlap."""
    made = []
    for n in range(size):
        match n % 6:
            case 0:
                made.append(Filter({"class": "rude", "x": n}))
            case 1:
                made.append(Filter({"class": "rude", "x": (n, n + 40)}))
            case 2:
                made.append(Filter({"class": "rude", "y": n}))
            case 3:
                made.append(Filter({"class": "rude", "x": (n, n + 3), "y": (0, n)}))
            case 4:
                made.append(Filter({"class": "rude", "z": (n, n + 9)}))
            case _:
                made.append(Filter({"class": "rude", "y": (n, None), "z": n}))
    return made


def operate_all(client: RawClient, kind: Any, filters: list[Filter]) -> None:
    """Send operations without waiting for answers, then wait for all of them."""
    first = client.seq + 1000
    for filter in filters:
        client.seq += 1
        client.link.send(pack(Operation(1000 + client.seq, kind, client.name, 1, filter)))
    client.flush()
    answered = 0
    while answered < len(filters):
        message = client.receive()
        client.flush(idle=len(client.link.inbox) == 0)
        if isinstance(message, Done) and message.req > first:
            answered += 1


def operate_beside(client: RawClient, kind: Any, filter: Filter, idle: RawClient) -> None:
    """An operation that may take long, while another client must not seem dead."""
    client.seq += 1
    client.send(Operation(1000 + client.seq, kind, client.name, client.seq, filter))
    assert client.socket is not None and idle.socket is not None
    idle.socket.sendall(pack(Ping()))
    client.socket.settimeout(1.0)
    while True:
        try:
            if isinstance(client.receive(), Done):
                break
        except TimeoutError:
            for each in (client, idle):
                each.socket.sendall(pack(Ping()))
    client.socket.settimeout(None)


def flood(ports: Ports, size: int) -> Iterator[str]:
    """Publish as fast as the broker takes it, to nobody and to oneself."""
    client = guest_client("flood", ports.first)
    client.operate("adv", Filter({"class": "flood"}))
    client.operate("sub", Filter({"class": "flood", "x": 0}))
    yield "flood"
    for at in range(0, size, 1000):
        points = [{"class": "flood", "x": n % 10} for n in range(at, at + 1000)]
        client.send(*[Pub(client.name, at + n, p, life=client.life) for n, p in enumerate(points)])
        while client.link.pending > 2000:
            client.receive()
    client.settle()
    client.cut()


def subscriptions(ports: Ports, size: int) -> Iterator[str]:
    """Very many subscriptions, an advertisement that attracts them, and all of it taken back."""
    client = guest_client("subscriber", ports.first)
    yield "subscriptions"
    operate_all(client, "sub", boxes(size))
    yield "advertisement that attracts them"
    publisher = guest_client("publisher", ports.last)
    operate_beside(publisher, "adv", Filter({"class": "rude"}), client)
    yield "un-advertising it"
    operate_beside(publisher, "uadv", Filter({"class": "rude"}), client)
    yield "un-subscribing from all"
    operate_beside(client, "usub", Filter({"class": "rude"}), publisher)
    yield "subscriptions again"
    publisher.cut()
    operate_all(client, "sub", boxes(size // 2))
    yield "leaving with all of them"
    client.cut()
    time.sleep(GRACE_S + 4 * size / 100_000)


def half_open(ports: Ports, size: int) -> Iterator[str]:
    """Connections that say a part of a hello, or nothing."""
    yield "half-open sockets"
    opened = []
    for n in range(max(size // SOCKETS, 1)):
        opened.append(socket.create_connection(("127.0.0.1", ports.first)))
        if n % 2:
            opened[-1].sendall(b"\x00\x00\x04")
    time.sleep(2)
    for one in opened:
        one.close()


def garbage(ports: Ports, size: int) -> Iterator[str]:
    """Frames of noise, of wrong types, and of wrong lengths."""
    yield "garbage"
    noise = random.Random(1)
    for n in range(max(size // TRANSACTIONS, 1)):
        client = RawClient(f"guest-garbage-{n}")
        with contextlib.suppress(OSError, Refused, OverlayError):
            client.join(ports.first)
            assert client.socket is not None
            body = noise.randbytes(200)
            client.socket.sendall(len(body).to_bytes(4, "big") + body)
            client.goodbye()
        if client.socket is not None:
            client.socket.close()


def transactions(ports: Ports, size: int) -> Iterator[str]:
    """Transactions that begin, do something and never end."""
    client = guest_client("transactions", ports.first)
    yield "transactions never finished"
    for number in range(1, max(size // TRANSACTIONS, 1) + 1):
        tx = (client.name, client.life, number)
        step = Step(client.name, "sub", Filter({"class": "rude", "x": number}))
        for message in (Begin(tx, 5.0), Operate(tx, 0, 1, step)):
            client.send(engine_message("d-tx", from_client.encode(message)))
    client.settle()
    time.sleep(7)
    client.cut()


def fences(ports: Ports, size: int) -> Iterator[str]:
    """Two clients whose transactions conflict for ever, and begin again at once."""
    clients = [guest_client(f"fence-{n}", ports.first) for n in range(2)]
    for client in clients:
        client.operate("adv", Filter({"class": "fence"}))
    yield "fences"
    for number in range(1, max(size // TRANSACTIONS, 1) + 1):
        for client in clients:
            tx = (client.name, client.life, number)
            steps = [
                Step(client.name, "sub", Filter({"class": "fence", "x": number % 3})),
                Step(client.name, "pub", point={"class": "fence", "x": (number + 1) % 3}),
            ]
            said = [Begin(tx, 5.0), *(Operate(tx, 0, at, s) for at, s in enumerate(steps, 1))]
            for message in (*said, Commit(tx)):
                client.send(engine_message("d-tx", from_client.encode(message)))
    for client in clients:
        client.settle()
        client.cut()


def vanishing(ports: Ports, size: int) -> Iterator[str]:
    """Clients with a few subscriptions each, which are all gone at once."""
    clients = []
    for n in range(max(size // CLIENTS, 1)):
        client = guest_client(f"vanishing-{n}", ports.first)
        for m in range(3):
            client.operate("sub", Filter({"class": "rude", "x": n * 3 + m}))
        clients.append(client)
    yield "clients that vanish"
    for client in clients:
        client.cut()
    time.sleep(GRACE_S + 2)


ACTS: dict[str, Callable[[Ports, int], Iterator[str]]] = {
    "flood": flood,
    "subscriptions": subscriptions,
    "half-open": half_open,
    "garbage": garbage,
    "transactions": transactions,
    "fences": fences,
    "vanishing": vanishing,
}


def be_rude(ports: Ports, size: int, acts: list[str]) -> None:
    """Do one act after the other, and tell when each step of it began and ended."""

    def tell(name: str, began: int) -> None:
        print(json.dumps({"act": name, "from": began, "to": time.monotonic_ns()}), flush=True)

    for act in acts:
        name, began = "", 0
        for step in ACTS[act](ports, size):
            if name:
                tell(name, began)
            time.sleep(PAUSE_S)
            name, began = step, time.monotonic_ns()
        time.sleep(AFTERWARDS_S)
        tell(name, began)


# --- the judge ---


class Phase(NamedTuple):
    """How the stream was during an act, or without the guest (no name)."""

    name: str
    events: int
    p99_ms: float
    worst_ms: float


class Findings(NamedTuple):
    alone: Phase
    acts: list[Phase]
    guest: Phase
    #: Events that were published and did not arrive, or not in their order.
    missing: int
    crashes: list[str]

    @property
    def ratio(self) -> float:
        return self.guest.p99_ms / self.alone.p99_ms

    def __str__(self) -> str:
        lines = [
            f"{phase.name:36} {phase.events:7} events, p99 {phase.p99_ms:8.2f} ms, "
            f"worst {phase.worst_ms:8.2f} ms, ratio {phase.p99_ms / self.alone.p99_ms:6.2f}"
            for phase in (self.alone, *self.acts, self.guest)
        ]
        return "\n".join([*lines, f"missing events: {self.missing}", *self.crashes])


def phase(name: str, latencies_ns: list[int]) -> Phase:
    ordered = sorted(latencies_ns) or [0]
    p99 = ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)]
    return Phase(name, len(latencies_ns), p99 / 1e6, ordered[-1] / 1e6)


def judge(notes: list[tuple[int, int, int]], acts: list[dict[str, Any]]) -> tuple[Phase, ...]:
    """The phases: without the guest, each act, all acts."""
    during: dict[str, list[int]] = {act["act"]: [] for act in acts}
    alone: list[int] = []
    for _, sent, latency in notes:
        name = next((a["act"] for a in acts if a["from"] <= sent <= a["to"]), "")
        (during[name] if name else alone).append(latency)
    everything = [each for latencies in during.values() for each in latencies]
    return (
        phase("the stream alone", alone),
        *(phase(name, latencies) for name, latencies in during.items()),
        phase("all of the guest", everything),
    )


def _start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.trials.rude_guest", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _warnings(directory: Path) -> str:
    """The last warnings and errors in the brokers' logs."""
    lines = [line for log in sorted(directory.rglob("*.log")) for line in log.open()]
    return "".join([line for line in lines if '"info"' not in line][-20:])


def play(*, size: int, acts: list[str]) -> Findings:
    """Run the trial on `three`."""
    with (
        tempfile.TemporaryDirectory(prefix="trial-") as directory,
        overlay("three") as running,
        contextlib.ExitStack() as stack,
    ):
        file = Path(directory) / "latencies"
        first, last = (running.address(name).rpartition(":")[2] for name in ("B1", "B3"))
        processes = []
        for arguments in (["--publish", first], ["--subscribe", last, "--file", str(file)]):
            process = _start(*arguments)
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            processes.append(process)
        time.sleep(1)
        began = time.monotonic_ns()
        guest = _start("--guest", f"{first},{last}", "--size", str(size), "--acts", ",".join(acts))
        stack.callback(guest.kill)
        said, _ = guest.communicate()
        assert guest.returncode == 0, f"the guest failed\n{_warnings(running.directory)}"
        time.sleep(PAUSE_S)
        publisher = processes[0]
        publisher.communicate()
        time.sleep(PAUSE_S)
        notes = [tuple(map(int, line.split())) for line in file.read_text().splitlines()]
        numbers = [number for number, _, _ in notes]
        missing = numbers[-1] - numbers[0] + 1 - len(set(numbers)) if numbers else 0
        missing += sum(a >= b for a, b in itertools.pairwise(numbers))
        told = [json.loads(line) for line in said.splitlines()]
        events = [(n, sent, latency) for n, sent, latency in notes if sent >= began]
        alone, *during, everything = judge(events, told)
        crashes = [str(crash) for crash in running.crashes()]
        return Findings(alone, during, everything, missing, crashes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=100_000)
    parser.add_argument("--acts", default=",".join(ACTS))
    parser.add_argument("--publish", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--subscribe", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--guest", help=argparse.SUPPRESS)
    args = parser.parse_args()
    acts = args.acts.split(",")
    if args.publish:
        publish(args.publish)
    elif args.subscribe:
        subscribe(args.subscribe, args.file)
    elif args.guest:
        be_rude(Ports(*map(int, args.guest.split(","))), args.size, acts)
    else:
        findings = play(size=args.size, acts=acts)
        print(findings)
        fine = findings.ratio <= RATIO_LIMIT and not (findings.missing or findings.crashes)
        sys.exit(not fine)


if __name__ == "__main__":
    main()
