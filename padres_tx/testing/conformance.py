"""Checks whether an engine or a service keeps the contract of `overlay.broker.service`.

For authors, in a test of their own package:

    from padres_tx.testing.conformance import check_engine, check_service

    def test_my_engine_conforms():
        check_engine("my-engine")

    def test_my_service_conforms():
        check_service("my-service", script="my_package.my_test:drive")

or `python -m padres_tx.testing.conformance engine my-engine`. Each raises `NotConforming` with the
reason. What is checked:

- It can be loaded: all required hooks are there, and what it declares can be.
- Hooks that it overrides take the arguments that the contract says.
- It is deterministic. Random runs in simulated overlays, with clients that crash, links that are
  cut and brokers that are restarted, are repeated in processes with different PYTHONHASHSEEDs; all
  effects of all brokers have to be equal, byte for byte.
- An engine whose `promises` include "undecided" has no transaction left when a run is over.
- A durable service gives a snapshot that can be restored: in repetitions of the runs, services are
  replaced by new ones that have restored a snapshot, and all later effects have to be the same.
- If it can be kept in the snapshots of brokers (`overlay.snapshots.check_stored`), brokers behave
  the same after they were replaced by what their snapshots thaw to.

A service gets its messages from a script, `drive(run)`, which is called once for each run and says
what clients send, and when (`Run.at`, `Run.send`). Plain traffic is there in any case.

This says nothing about the promises of an engine; `proofs` and `tests/engines` check those.
"""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from overlay.broker.core import Broker
from overlay.broker.engine import Engine, EngineFactory
from overlay.broker.service import DurableService, Service, ServiceFactory
from overlay.effects import Effect, Send
from overlay.errors import OverlayError, SnapshotError
from overlay.filters import Filter, Value
from overlay.hosts.simulator import Choose, NeverSettles, Simulator, Tape
from overlay.messages import AnyMessage, BrokerName, EngineMessage
from overlay.snapshots import check_stored, freeze, thaw
from overlay.wire.codec import encode
from padres_tx import registry
from padres_tx.client.session import Answered, Event, Notification, SendMessage, Session
from padres_tx.client.transactions import (
    TCM_MARK,
    ClientTransaction,
    SendForOperation,
    SetTransactionTimer,
    TcmReceived,
    Transactions,
)
from padres_tx.client_messages import OpKind
from padres_tx.static import Op

#: Runs of each check: some seconds. Non-determinism shows in the first ones, as a rule.
RUNS = 12

#: Two seeds under which sets of strings have different orders.
HASH_SEEDS = ("1", "2")

#: What one process may take for all its runs; one that needs longer hangs.
TIMEOUT_S = 300.0

#: Things happen within this time of a run, on links that take up to 8 ms.
WINDOW_MS = 100

#: A tree in which a message can take several hops, and three ways meet.
TREE = {"B1": ["B2"], "B2": ["B1", "B3", "B4"], "B3": ["B2"], "B4": ["B2"]}

CLIENTS = {"C1": "B1", "C2": "B3", "C3": "B4", "C4": "B1"}

#: What all clients may publish: events, and tcms.
SPACES = (Filter({"class": "p"}), Filter({"class": "ctl"}))

OPERATIONS: Final[tuple[OpKind, ...]] = ("sub", "usub", "sub", "pub", "pub", "adv", "uadv")

#: Transactions have to be over by then, if their clients do not end them.
DEADLINE_S = 0.5

#: Characters of an effect that are shown when two runs differ.
SHOWN = 200


class NotConforming(AssertionError):
    """An engine or a service does not keep the contract; the message says how."""


def check_engine(name: str, *, runs: int = RUNS) -> None:
    """Check an engine that is installed under this name. Raises NotConforming."""
    try:
        half = registry.broker_half(name)
    except OverlayError as error:
        raise NotConforming(str(error)) from error
    arguments = ["engine", name, str(runs)]
    if half is None:
        _check_determinism(arguments)
        return
    _check_signatures(half, Engine)
    plain = _check_determinism(arguments)
    _check_thawing(arguments, plain, Broker(BrokerName("B1"), (), engines={name: half}))


def check_service(name: str, *, script: str = "", runs: int = RUNS) -> None:
    """Check a service that is installed under this name.

    `script` names a function as "module:function", which other processes can import.

    Raises NotConforming.
    """
    try:
        made = registry.load_service(name)
    except OverlayError as error:
        raise NotConforming(str(error)) from error
    contract: type[Any] = DurableService if made.durable else Service
    _check_signatures(made, contract)
    arguments = ["service", name, str(runs), script]
    plain = _check_determinism(arguments)
    if made.durable:
        restored = _output([*arguments, "restore"], HASH_SEEDS[0])
        _compare(plain, restored, f"{name} behaves differently after restoring its snapshot")
    _check_thawing(arguments, plain, Broker(BrokerName("B1"), (), services={name: made}))


def _check_signatures(made: type[Service], contract: type[Any]) -> None:
    for hook, function in inspect.getmembers(contract, inspect.isfunction):
        if hook.startswith("_"):
            continue
        expected = list(inspect.signature(function).parameters.values())
        found = list(inspect.signature(inspect.getattr_static(made, hook)).parameters.values())
        if len(found) < len(expected) or any(
            one.kind != other.kind for one, other in zip(found, expected, strict=False)
        ):
            names = ", ".join(str(one.name) for one in expected)
            raise NotConforming(f"{made.__name__}.{hook} has to take ({names})")


def _check_determinism(arguments: list[str]) -> str:
    one, other = (_output(arguments, seed) for seed in HASH_SEEDS)
    _compare(one, other, f"{arguments[1]} depends on PYTHONHASHSEED")
    return one


def _check_thawing(arguments: list[str], plain: str, example: Broker) -> None:
    """Compare runs in which whole brokers are replaced by what their snapshots thaw to."""
    try:
        check_stored(example)
    except SnapshotError:
        return  # It is for brokers that keep nothing on disk, and is refused by others.
    thawed = _output([*arguments, "thaw"], HASH_SEEDS[0])
    _compare(plain, thawed, f"{arguments[1]} behaves differently after its broker was thawed")


def _output(arguments: list[str], hash_seed: str) -> str:
    command = [sys.executable, "-m", "padres_tx.testing.conformance", "run", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise NotConforming(f"{arguments[1]} failed in a run:\n{done.stderr.strip()}")
    return done.stdout


def _compare(one: str, other: str, what: str) -> None:
    lines = one.splitlines(), other.splitlines()
    for number, (mine, theirs) in enumerate(zip(*lines, strict=False), 1):
        if mine != theirs:
            raise NotConforming(
                f"{what}: effect {number} is {mine[:SHOWN]!r}, and {theirs[:SHOWN]!r}"
            )
    if len(lines[0]) != len(lines[1]):
        raise NotConforming(f"{what}: {len(lines[0])} and {len(lines[1])} effects")


# --- one run ------------------------------------------------------------------------------------


class Run:
    """One run in a simulated overlay. A service's script gets it before the run begins."""

    def __init__(
        self,
        seed: int,
        *,
        engines: dict[str, EngineFactory] | None = None,
        services: dict[str, ServiceFactory] | None = None,
    ) -> None:
        #: One of 0 to n-1; all that is open in a run comes from here.
        self.choose: Choose = Tape(seed=seed).choose
        self.lines: list[str] = []

        def broker(name: BrokerName, others: Iterable[BrokerName]) -> Broker:
            return Broker(name, others, engines=engines, services=services, trace=True)

        self._make = broker
        self.sim = Simulator(TREE, self.choose, broker=broker)
        self.sim.observe = self._note
        self.clients = {
            name: _ScriptedClient(self, name, broker) for name, broker in CLIENTS.items()
        }
        self.sim.run()

    # --- for scripts ---

    def at(self, ms: int, action: Callable[[], object]) -> None:
        """Do something after so many milliseconds."""
        self.sim.at(ms / 1000, lambda: (action(), None)[1])

    def send(self, client: str, service: str, body: bytes) -> None:
        """Let a client send a message to a service at its broker; nothing if it has gone."""
        if self.sim.connected(client):
            self.sim.send(client, EngineMessage(service, msgspec.Raw(body)))

    # --- what is compared ---

    def _note(self, broker: BrokerName, effect: Effect) -> None:
        if isinstance(effect, Send):
            frame = encode(effect.message).hex()
            self.lines.append(f"{broker} Send {' '.join(effect.hops)} {frame}")
        else:
            self.lines.append(f"{broker} {effect!r}")

    # --- what happens in a run ---

    def plain_traffic(self) -> None:
        for client in self.clients.values():
            for _ in range(self.choose(5)):
                self.at(self.choose(WINDOW_MS), client.plain)

    def transactions(self, engine: str) -> None:
        is_static = registry.load(engine).is_static
        for _ in range(2 + self.choose(4)):
            client = self.clients[f"C{1 + self.choose(len(self.clients))}"]
            self.at(self.choose(WINDOW_MS), partial(client.transact, engine, is_static=is_static))

    def fault(self) -> None:
        """At most one in a run."""
        moment = self.choose(WINDOW_MS)
        match self.choose(4):
            case 1:
                self.at(moment, lambda: self._crash("C2"))
            case 2:
                self.at(moment, lambda: self.sim.cut("B2", "B3", 0.05))
            case 3:
                self.at(moment, lambda: self.sim.restart("B4"))

    def _crash(self, client: str) -> None:
        if self.sim.connected(client):
            self.sim.crash(client)

    def restore(self, name: str) -> None:
        """Replace a durable service by a new one, at one broker after the other."""
        for ms in range(0, WINDOW_MS, 7):
            broker = BrokerName(f"B{1 + ms % len(TREE)}")
            self.at(ms, partial(self._restore, broker, name))

    def _restore(self, at: BrokerName, name: str) -> None:
        broker = self.sim.brokers[at]
        old = broker.services[name]
        assert isinstance(old, DurableService)
        new = type(old)(broker)
        snapshot = old.snapshot()
        effects = new.restore(snapshot, self.sim.now)
        if new.snapshot() != snapshot:
            raise NotConforming(f"{name} has another snapshot after restoring one")
        broker.services[name] = new
        self.sim.replace_timers(at, f"{name}/", effects)

    def thaw(self) -> None:
        """Replace one broker after the other by what its snapshot thaws to."""
        for ms in range(0, WINDOW_MS, 7):
            self.at(ms, partial(self._thaw, BrokerName(f"B{1 + ms % len(TREE)}")))

    def _thaw(self, at: BrokerName) -> None:
        data = freeze(self.sim.brokers[at])
        new = self._make(at, map(BrokerName, TREE[at]))
        thaw(new, data, self.sim.now)
        if freeze(new) != data:
            raise NotConforming(f"broker {at} has another snapshot after it was thawed")
        self.sim.brokers[at] = new


class _ScriptedClient:
    """A client as a program has it, whose operations are drawn."""

    def __init__(self, run: Run, name: str, at: str) -> None:
        self.run = run
        self.name = name
        self.session = Session(name)
        self.transactions = Transactions(self.session)
        run.sim.connect(name, at, self._receive)
        run.sim.send(name, self.session.join())
        run.sim.run()
        for space in SPACES:
            run.sim.send(name, self.session.operate("adv", space))
        tcms = Filter({"class": "ctl", "to": name})
        run.sim.send(name, self.session.operate("sub", tcms))

    def plain(self) -> None:
        if not self.run.sim.connected(self.name):
            return
        op = self._operation()
        try:
            if op.point is not None:
                self.run.sim.send(self.name, self.session.publish(op.point))
            elif op.filter is not None and op.kind != "pub" and op.kind != "tcm":
                self.run.sim.send(self.name, self.session.operate(op.kind, op.filter))
        except OverlayError:
            return  # It holds no part of what it was to give back.

    def _operation(self) -> Op:
        choose = self.run.choose
        kind = OPERATIONS[choose(len(OPERATIONS))]
        x = choose(3)
        if kind == "pub":
            return Op("pub", point={"class": "p", "x": x})
        return Op(kind, filter=Filter({"class": "p", "x": (x, x + choose(2))}))

    def transact(self, engine: str, *, is_static: bool) -> None:
        if not self.run.sim.connected(self.name):
            return
        choose = self.run.choose
        tx, events = self.transactions.begin(engine, deadline_s=DEADLINE_S)
        self._carry_out(events)
        try:
            for _ in range(1 + choose(4)):
                op = self._operation()
                if choose(3) == 0:
                    to = f"C{1 + choose(len(CLIENTS))}"
                    control: dict[str, Value] = {"class": "ctl", "to": to}
                    op = Op("tcm", point=control, ops={to: [op]} if is_static else None)
                self._carry_out(self.transactions.operate(tx, 0, op)[1])
            ending = choose(5)
            if ending == 0:
                self._carry_out(self.transactions.abort(tx))
            elif ending > 1:  # Else it is forgotten, and ends by its deadline.
                self._carry_out(self.transactions.commit(tx))
        except OverlayError as error:
            self._carry_out(self.transactions.abort(tx, str(error)))

    def _receive(self, message: AnyMessage, now: float) -> list[AnyMessage]:
        if isinstance(message, EngineMessage) and message.engine not in registry.names():
            return []  # A service's; scripts see only what is sent.
        self._carry_out(self.session.receive(message))
        return []

    def _carry_out(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case SendMessage(message) | SendForOperation(message=message):
                    if self.run.sim.connected(self.name):
                        self.run.sim.send(self.name, message)
                case Answered():
                    self._carry_out(self.transactions.answered(event.req, event.error))
                case Notification() if TCM_MARK in event.point:
                    self._carry_out(self.transactions.notified(event) or [])
                case TcmReceived(tx, frame, _):
                    self._act(tx, frame)
                case SetTransactionTimer(tx, delay_s):
                    self.run.sim.at(delay_s, partial(self._wake, tx))

    def _wake(self, tx: ClientTransaction) -> None:
        self._carry_out(self.transactions.wake(tx))

    def _act(self, tx: ClientTransaction, frame: int) -> None:
        error = ""
        try:
            for _ in range(self.run.choose(3)):
                self._carry_out(self.transactions.operate(tx, frame, self._operation())[1])
        except OverlayError as refused:
            error = str(refused)
        self._carry_out(self.transactions.finish(tx, frame, error))


def _engine_runs(name: str, runs: int, *, mode: str) -> Iterator[str]:
    factories = registry.broker_factories()
    for seed in range(runs):
        run = Run(seed, engines=factories)
        run.plain_traffic()
        run.transactions(name)
        run.fault()
        if mode == "thaw":
            run.thaw()
        _finish(run, seed)
        yield from run.lines
        if name in factories and "undecided" in registry.load(name).promises:
            for broker, core in run.sim.brokers.items():
                if left := list(core.engines[name].transactions()):
                    raise NotConforming(f"in run {seed} {broker} still has transactions {left}")


def _service_runs(name: str, runs: int, script: str, *, mode: str) -> Iterator[str]:
    module, _, function = script.partition(":")
    drive = getattr(importlib.import_module(module), function) if script else None
    services = registry.service_factories([name])
    for seed in range(runs):
        run = Run(seed, engines=registry.broker_factories(), services=services)
        run.plain_traffic()
        if drive is not None:
            drive(run)
        run.fault()
        if mode == "restore":
            run.restore(name)
        elif mode == "thaw":
            run.thaw()
        _finish(run, seed)
        yield from run.lines


def _finish(run: Run, seed: int) -> None:
    try:
        run.sim.run()
    except NeverSettles as error:
        raise NotConforming(f"run {seed} never ends: {error}") from None


def main(arguments: list[str]) -> int:
    """Check, or do what a check needs another process for."""
    match arguments:
        case ["run", "engine", name, runs, *mode]:
            lines = _engine_runs(name, int(runs), mode="".join(mode))
        case ["run", "service", name, runs, script, *mode]:
            lines = _service_runs(name, int(runs), script, mode="".join(mode))
        case ["engine", name]:
            check_engine(name)
            lines = iter([f"{name} conforms"])
        case ["service", name, *script]:
            check_service(name, script="".join(script))
            lines = iter([f"{name} conforms"])
        case _:
            print("usage: engine NAME | service NAME [MODULE:FUNCTION]", file=sys.stderr)
            return 2
    for line in lines:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
