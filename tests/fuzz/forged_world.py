"""Three real brokers in a row, honest clients, and a forger on the link from B1 to B2.

The tape says what happens next: a message on its way arrives, a client does something, a timer runs
out, a link goes down, or the forger repeats, changes, drops, swaps or invents messages that B2
takes for B1's. Everything crosses the codec. A peer that breaks the protocol loses its link, as
the host does it: what is on its way is dropped, and later the link begins anew.

Whatever comes out of a broker but effects and PeerError ends the run as a failure. In the end B1 is
restarted, the forger is gone, all timers run out, and a client that is new at B2 does one of
everything (`honest_end`).
"""

from __future__ import annotations

from collections import deque
from typing import Any

from overlay.broker.core import Broker
from overlay.effects import CancelTimer, Close, Effect, Send, SetTimer
from overlay.errors import PeerError
from overlay.filters import Filter
from overlay.messages import (
    AnyMessage,
    BrokerName,
    Done,
    EngineMessage,
    Hop,
    Join,
    Operation,
    Pub,
    client_hop,
    is_client,
)
from overlay.wire import codec
from padres_tx.client_messages import (
    Abort,
    AskOutcome,
    Begin,
    Commit,
    Ended,
    Finish,
    Operate,
    Step,
    Submit,
    Tcm,
    TxID,
    engine_message,
    from_client,
    to_client,
)
from proofs.sim.simulated_overlay import all_engines
from tests.fuzz.forging import DYNAMIC, ENGINES, FILTERS, POINTS, Forger, Tape

TREE = {"B1": ("B2",), "B2": ("B1", "B3"), "B3": ("B2",)}
HOMES = {"F": "B1", "E": "B2", "D": "B2", "C": "B3"}

#: Time for everything to end by itself: the longest deadline, and what is waited on top of it.
LONG_S = 4000.0
#: How often links may begin anew before all that was forged must be gone.
ROUNDS = 3
#: Inputs after which a broker that is left to itself does not come to rest any more.
PATIENCE = 20_000


class Client:
    """A client that says what the tape wants, and keeps what it is told."""

    def __init__(self, name: str, broker: str) -> None:
        self.name = name
        self.broker = broker
        self.here = False
        self.joined = False
        self.life = 0
        self.number = 0
        self.txs: list[tuple[str, TxID]] = []
        self.frames: list[tuple[str, TxID, int]] = []
        self.told: list[Any] = []

    def next(self) -> int:
        self.number += 1
        return self.number

    def hear(self, message: AnyMessage) -> None:
        said: Any = message
        if isinstance(message, EngineMessage):
            said = to_client.decode(message.body)
            if isinstance(said, Tcm):
                self.frames.append((message.engine, said.tx, said.frame))
        elif isinstance(message, Done) and message.req == 1:
            self.joined, self.life = not message.code, message.number
        self.told.append(said)

    def begun(self, engine: str) -> TxID:
        tx = (self.name, self.life, self.next())
        self.txs.append((engine, tx))
        return tx


class ForgedWorld:
    """The overlay, its clients and the forger."""

    def __init__(self, tape: Tape, *, slice: int = 0, trace: bool = False) -> None:
        self.tape = tape
        self.forger = Forger(tape)
        self.now = 100.0
        self.slice = slice
        self.trace = trace
        self.brokers = {name: self._made(name) for name in TREE}
        self.links: dict[tuple[str, str], deque[bytes]] = {
            (one, other): deque() for one, others in TREE.items() for other in others
        }
        #: Links that a broker has closed, and that have not begun anew.
        self.broken: set[frozenset[str]] = set()
        self.down: set[tuple[str, str]] = set()
        self.timers: dict[tuple[str, str], float] = {}
        self.clients = {name: Client(name, at) for name, at in HOMES.items()}
        self.honest = False
        #: How often a link was closed, by who closed it on whom.
        self.closings: list[tuple[str, str, str]] = []
        for client in self.clients.values():
            self.join(client)
        self.settle()

    def _made(self, name: str) -> Broker:
        others = [BrokerName(other) for other in TREE[name]]
        broker = Broker(BrokerName(name), others, engines=all_engines(), trace=self.trace)
        if self.slice:
            broker.slice = self.slice
        return broker

    # --- inputs of brokers ---

    def receive(self, name: str, source: str, body: bytes) -> None:
        """A broker takes a message; a peer that may not send it loses its link."""
        try:
            message: Any = codec.decode_message(body)
            effects = self.brokers[name].receive(Hop(source), message, self.now)
        except PeerError as error:
            self.close(name, source, str(error))
        else:
            self.carry_out(name, effects)

    def carry_out(self, name: str, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(hops, message):
                    body = codec.encode(message)
                    for hop in hops:
                        self._send(name, hop, message, body)
                case SetTimer(key, delay_s):
                    assert delay_s >= 0, effect
                    self.timers[name, key] = self.now + delay_s
                case CancelTimer(key):
                    self.timers.pop((name, key), None)
                case Close(hop, _, reason):
                    self.close(name, hop, reason)

    def _send(self, name: str, hop: Hop, message: AnyMessage, body: bytes) -> None:
        if is_client(hop):
            client = self.clients.get(hop[1:])
            if client is not None and client.here and client.broker == name:
                client.hear(codec.decode_message(body))
            return
        assert hop in TREE[name], f"{name} sends to {hop}"
        if frozenset((name, hop)) in self.broken:
            return
        self.links[name, hop].append(body)
        if name == "B1" or hop == "B1":
            self.forger.see(codec.decode_message(body))

    def close(self, name: str, hop: str, reason: str) -> None:
        """A broker closes on a peer."""
        self.closings.append((name, hop, reason))
        if is_client(Hop(hop)):
            client = self.clients.get(hop[1:])
            if client is not None and client.here:
                client.here = client.joined = False
                self.carry_out(name, self.brokers[name].client_left(client.name, self.now))
            return
        self.broken.add(frozenset((name, hop)))
        self.links[name, hop].clear()
        self.links[hop, name].clear()

    def reset(self, one: str, other: str, *, restart: bool = False) -> None:
        """A link begins anew; with `restart` the one end has lost its memory."""
        self.broken.discard(frozenset((one, other)))
        self.links[one, other].clear()
        self.links[other, one].clear()
        if restart:
            self.brokers[one] = self._made(one)
            for client in self.clients.values():
                if client.broker == one:
                    client.here = client.joined = False
            self.timers = {key: at for key, at in self.timers.items() if key[0] != one}
        for end, far in ((one, other), (other, one)):
            self.down.discard((end, far))
            self.carry_out(end, self.brokers[end].link_reset(BrokerName(far), self.now))

    def lose(self, end: str, far: str) -> None:
        if (end, far) in self.down:
            self.down.discard((end, far))
            self.carry_out(end, self.brokers[end].link_up(BrokerName(far), self.now))
        else:
            self.down.add((end, far))
            self.carry_out(end, self.brokers[end].link_down(BrokerName(far), self.now))

    def arrive(self, link: tuple[str, str]) -> None:
        source, name = link
        self.receive(name, source, self.links[link].popleft())

    def ring(self, timer: tuple[str, str]) -> None:
        self.now = max(self.now, self.timers.pop(timer))
        name, key = timer
        self.carry_out(name, self.brokers[name].wake(key, self.now))

    # --- clients ---

    def say(self, client: Client, message: AnyMessage) -> None:
        self.receive(client.broker, client_hop(client.name), codec.encode(message))

    def say_tx(self, client: Client, engine: str, message: Any) -> None:
        self.say(client, engine_message(engine, from_client.encode(message)))

    def join(self, client: Client) -> None:
        client.here, client.number = True, 10
        client.told, client.txs, client.frames = [], [], []
        self.say(client, Join(1, client.name, ""))

    def leave(self, client: Client) -> None:
        client.here = client.joined = False
        broker = self.brokers[client.broker]
        self.carry_out(client.broker, broker.client_left(client.name, self.now))

    def step(self, client: Client) -> Step:
        """An operation, of any kind."""
        kind = self.tape.one(("sub", "usub", "adv", "uadv", "pub", "tcm"))
        number = client.next()
        if kind in ("pub", "tcm"):
            receivers = (self.tape.one(tuple(HOMES)),) if self.tape.choose(2) else ()
            point = dict(self.tape.one(POINTS))
            return Step(client.name, kind, point=point, seq=number, receivers=receivers)
        return Step(client.name, kind, self.tape.one(FILTERS), seq=number)

    def act(self, client: Client) -> None:
        """A client does something that clients do."""
        tape = self.tape
        if not client.here:
            self.join(client)
            return
        if not client.joined:
            return
        if client.frames and tape.choose(2):
            engine, tx, frame = client.frames.pop()
            self.say_tx(client, engine, Operate(tx, frame, client.next(), self.step(client)))
            self.say_tx(client, engine, Finish(tx, frame))
            return
        match tape.choose(10):
            case 0 | 1:
                kind = tape.one(("sub", "adv", "usub", "uadv"))
                number = client.next()
                operation = Operation(number, kind, client.name, number, tape.one(FILTERS))
                self.say(client, operation)
            case 2:
                point = dict(tape.one(POINTS))
                self.say(client, Pub(client.name, client.next(), point))
            case 3 | 4:
                engine = tape.one(DYNAMIC)
                self.say_tx(client, engine, Begin(client.begun(engine), tape.one((5.0, 50.0))))
            case 5:
                steps = [self._planned(client, at) for at in range(1 + tape.choose(4))]
                self.say_tx(client, "s-tx", Submit(client.begun("s-tx"), 20.0, tuple(steps)))
            case 6:
                self.leave(client)
            case _ if not client.txs:
                return
            case 7:
                engine, tx = tape.one(client.txs)
                asked = AskOutcome(tx) if tape.choose(2) else Abort(tx)
                self.say_tx(client, engine, asked)
            case 8:
                engine, tx = tape.one(client.txs[::-1])
                if engine != "s-tx":
                    operate = Operate(tx, 0, client.next(), self.step(client))
                    self.say_tx(client, engine, operate)
            case _:
                engine, tx = client.txs.pop()
                if engine != "s-tx":
                    self.say_tx(client, engine, Commit(tx))

    def _planned(self, client: Client, at: int) -> Step:
        other = self.clients[self.tape.one(tuple(HOMES))]
        step = self.step(other)
        after = (at - 1,) if at and self.tape.choose(2) else ()
        seq = step.seq if other is client else 0
        receivers = step.receivers or (("D",) if step.kind == "tcm" else ())
        return Step(
            other.name,
            step.kind,
            step.filter,
            step.point,
            seq=seq,
            after=after,
            receivers=receivers if step.kind == "tcm" else (),
        )

    # --- what happens ---

    def run(self, limit: int = 400) -> None:
        """Let happen what the tape says, up to its end."""
        for _ in range(limit):
            if self.tape.ended:
                return
            self.once()

    def once(self) -> None:
        tape = self.tape
        if self.broken and tape.choose(3) == 0:
            for one, other in sorted(tuple(sorted(link)) for link in self.broken):
                self.reset(one, other)
        match tape.choose(16):
            case 0 | 1 | 2 | 3 | 4:
                links = [link for link, waiting in self.links.items() if waiting]
                if links:
                    self.arrive(tape.one(links))
            case 5 | 6 | 7 | 8:
                self.forge()
            case 9 | 10 | 11:
                self.act(tape.one(list(self.clients.values())))
            case 12:
                self.settle()
            case 13:
                self.tamper()
            case 14:
                if self.timers and tape.choose(3) == 0:
                    self.ring(min(self.timers, key=lambda timer: self.timers[timer]))
            case _:
                self.disturb()

    def forge(self) -> None:
        """B2 takes a message for one of B1's."""
        try:
            body = self.forger.forged()
        except (OverflowError, ValueError, TypeError):
            return  # No bytes say that.
        if frozenset(("B1", "B2")) in self.broken:
            return
        self.receive("B2", "B1", body)

    def tamper(self) -> None:
        """Drop, swap or change what B1 has sent."""
        waiting = self.links["B1", "B2"]
        if not waiting:
            return
        how = self.tape.choose(3)
        if how == 0:
            waiting.popleft()
        elif how == 1:
            waiting.rotate(1)
        else:
            try:
                changed = self.forger.changed(codec.decode_message(waiting[0]))
                waiting[0] = codec.encode(changed)
            except (PeerError, OverflowError, ValueError, TypeError):
                return  # It was changed before and does not decode, or no bytes say that.

    def disturb(self) -> None:
        """A link breaks, is lost, comes back, or begins anew."""
        tape = self.tape
        how = tape.choose(8)
        one, other = tape.one((("B1", "B2"), ("B3", "B2")))
        if how == 0:
            self.reset("B1", "B2", restart=bool(tape.choose(2)))
        elif how == 1:
            self.lose(other, one)

    def settle(self) -> None:
        """Let everything arrive that is on its way, and long work be done."""
        for _ in range(PATIENCE):
            link = next((link for link, waiting in self.links.items() if waiting), None)
            if link is not None:
                self.arrive(link)
                continue
            timer = next((key for key, at in self.timers.items() if at <= self.now), None)
            if timer is None:
                return
            self.ring(timer)
        raise AssertionError("the overlay does not come to rest")

    # --- the end ---

    def honest_end(self) -> None:
        """B1 begins anew, time passes, and a client that is new at B2 does one of everything."""
        self.honest = True
        self.reset("B1", "B2", restart=True)
        for end, far in sorted(self.down):
            self.lose(end, far)
        for _ in range(ROUNDS):
            # What was forged may still be on its way from B2 to B3, and cost B2 that link.
            for one, other in sorted(tuple(sorted(link)) for link in self.broken):
                self.reset(one, other)
            self.settle()
            self.pass_time()
        for client in self.clients.values():
            if client.here:
                self.leave(client)
        self.settle()
        self.pass_time()
        closed = len(self.closings)
        new = self.clients["N"] = Client("N", "B2")
        self.join(new)
        self.settle()
        assert new.joined, f"N cannot join: {new.told}"
        for kind in ("adv", "sub"):
            number = new.next()
            self.say(new, Operation(number, kind, "N", number, Filter(cls="n")))
            self.settle()
            done = [said for said in new.told if isinstance(said, Done) and said.req == number]
            assert [said.code for said in done] == [""], f"N cannot {kind}: {new.told}"
        number = new.next()
        self.say(new, Pub("N", number, {"cls": "n"}))
        self.settle()
        assert [said.seq for said in new.told if isinstance(said, Pub)] == [number], new.told
        for engine in ENGINES:
            self._one_transaction(new, engine)
        assert len(self.closings) == closed, self.closings[closed:]

    def _one_transaction(self, client: Client, engine: str) -> None:
        tx = client.begun(engine)
        sub = Step("N", "sub", Filter(cls="m"), seq=client.next())
        pub = Step("N", "pub", point={"cls": "n"}, seq=client.next())
        if engine == "s-tx":
            self.say_tx(client, engine, Submit(tx, 30.0, (sub, pub)))
        else:
            self.say_tx(client, engine, Begin(tx, 30.0))
            for step in (sub, pub):
                self.say_tx(client, engine, Operate(tx, 0, client.next(), step))
            self.say_tx(client, engine, Commit(tx))
        self.settle()
        ended = [said for said in client.told if isinstance(said, Ended) and said.tx == tx]
        assert [said.committed for said in ended] == [True], f"{engine}: {client.told[-6:]}"
        got = [said for said in client.told if isinstance(said, Pub) and said.seq == pub.seq]
        assert len(got) == 1, f"{engine}: {client.told[-6:]}"

    def pass_time(self) -> None:
        """Let all timers run out that there are, and those that follow."""
        until = self.now + LONG_S
        for _ in range(PATIENCE):
            timer = min(self.timers, key=lambda key: self.timers[key], default=None)
            if timer is None or self.timers[timer] > until:
                break
            self.ring(timer)
            self.settle()
        else:
            raise AssertionError("timers without end")
        self.now = until

    def leftovers(self) -> list[str]:
        """What brokers still know of transactions that nobody is in any more."""
        found: list[str] = []
        for name, broker in self.brokers.items():
            for engine, half in broker.engines.items():
                if getattr(half, "txs", None):
                    found.append(f"{name}: {engine} {list(half.txs)}")  # type: ignore[attr-defined]
            if not broker.at_rest:
                found.append(f"{name}: {broker.held} {broker.requests.tasks.to(Hop('B1'))}")
            if broker.versions.open or broker.versions.voted:
                found.append(f"{name}: versions {broker.versions.open} {broker.versions.voted}")
        return found
