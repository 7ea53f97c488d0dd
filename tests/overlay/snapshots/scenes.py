"""All brokers of an overlay in the middle of everything, as snapshots, and how it goes on.

A scene is kept in a file (`tests/data/snapshots`), together with what is on the links and the
timers, so that every later version can show that it reads this version's snapshots and goes on with
them. `python -m tests.overlay.snapshots.scenes` writes the files of the present version anew; that
is right only while no version with this format was released.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Final

import msgspec

from overlay.broker.core import Broker
from overlay.effects import CancelTimer, Effect, Forward, Send, SetTimer
from overlay.hosts.simulator import _Arrival
from overlay.messages import AnyMessage, BrokerName, EngineMessage, Hop, is_client
from overlay.snapshots import freeze, thaw
from overlay.wire.codec import decode_message, encode
from padres_tx.client_messages import (
    Commit,
    Ended,
    Finish,
    FromClient,
    Tcm,
    TxID,
    engine_message,
    from_client,
    to_client,
)
from padres_tx.protocol.dynamic import Dynamic
from padres_tx.protocol.questions import OutcomeEngine
from padres_tx.registry import broker_factories
from proofs.sim.program import Shape
from proofs.sim.random_run import RandomRun

DATA: Final = Path(__file__).parents[2] / "data" / "snapshots"

#: By file: the seed of a crowded run with all engines and everything in slices, and the moment at
#: which transactions of all engines are open and most kinds of things wait.
MOMENTS: Final = {"crowd-1.scene": (2, 0.092), "crowd-2.scene": (10, 0.067)}

#: Units of a slice in these runs: even short work is cut.
SLICE = 1


class Scene(msgspec.Struct):
    """One moment of a run."""

    now: float
    neighbours: dict[str, list[str]]
    snapshots: dict[str, bytes]
    #: What is on the links, in the order of arrival: from where, to where, and the frame.
    frames: list[tuple[str, str, bytes]]
    #: Of which broker, the key, and in how many seconds it is due.
    timers: list[tuple[str, str, float]]


def record(seed: int, moment: float) -> Scene:
    """The scene at a moment of a run."""
    shape = Shape("mixed", faults=("delay", "link-cut"), crowded=True, slice=SLICE)
    shape = msgspec.structs.replace(shape, transactions=8, clients=8)
    run = RandomRun(shape, shape.tape(seed))
    sim = run.world.sim
    until_rest = sim.run

    def until_the_moment(steps: int = 0) -> None:
        # Setting up has no delays, and comes to rest.
        if sim.delay_steps == 1:
            until_rest()
        else:
            until_rest(until=moment)

    sim.run = until_the_moment  # type: ignore[method-assign,assignment]
    run.go()
    arrivals = [what for _, _, what in sorted(sim._events, key=lambda event: event[:2])]
    frames = [
        (str(each.link[0]), str(each.link[1]), each.what)
        for each in arrivals
        if isinstance(each, _Arrival)
        and isinstance(each.what, bytes)
        and sim._lives.get(each.link, 0) == each.life
    ]
    return Scene(
        now=sim.now,
        neighbours={name: [*core.routing.neighbours] for name, core in sim.brokers.items()},
        snapshots={name: freeze(core) for name, core in sim.brokers.items()},
        frames=frames,
        timers=[(name, key, due - sim.now) for (name, key), (_, due) in sim._timers.items()],
    )


class Continuation:
    """An overlay that goes on from a scene; all messages arrive in the order of their sending.

    Its clients finish what tcms ask of them, at once, and commit what they have begun.
    """

    def __init__(self, scene: Scene) -> None:
        self.now = scene.now
        self.cores = {BrokerName(name): self._core(scene, name) for name in scene.snapshots}
        #: The outcome of each transaction, as clients are told.
        self.ended: dict[TxID, set[bool]] = {}
        self.received: dict[Hop, list[AnyMessage]] = {}
        self._posted = deque((Hop(a), Hop(b), frame) for a, b, frame in scene.frames)
        self._due = {(BrokerName(n), key): self.now + delay for n, key, delay in scene.timers}

    @staticmethod
    def _core(scene: Scene, name: str) -> Broker:
        neighbours = map(BrokerName, scene.neighbours[name])
        core = Broker(BrokerName(name), neighbours, engines=broker_factories())
        core.slice = SLICE
        thaw(core, scene.snapshots[name])
        return core

    def open(self) -> dict[str, list[TxID]]:
        """The transactions that brokers know, by engine."""
        found: dict[str, list[TxID]] = {}
        for core in self.cores.values():
            for name, engine in core.engines.items():
                assert isinstance(engine, OutcomeEngine)
                found.setdefault(name, []).extend(
                    tx.id for tx in engine.txs.values() if tx.open and tx.id not in found[name]
                )
        return found

    def outcomes(self, tx: TxID) -> set[bool]:
        """How a transaction has ended, as brokers remember it."""
        engines = [engine for core in self.cores.values() for engine in core.engines.values()]
        known = [
            engine.outcome(tx, self.now) for engine in engines if isinstance(engine, OutcomeEngine)
        ]
        return {outcome.committed for outcome in known if outcome is not None}

    def finish_frames(self) -> None:
        """Let clients finish what they were in the middle of when the scene was recorded."""
        on_the_way = {
            (source, message.engine, bytes(message.body))
            for source, _, frame in self._posted
            if isinstance(message := decode_message(frame), EngineMessage)
        }
        for core in self.cores.values():
            for name, engine in core.engines.items():
                for tx in engine.txs.values() if isinstance(engine, Dynamic) else ():
                    for frame in tx.frames.values() if tx.open else ():
                        last: FromClient = Finish(tx.id, frame.number)
                        if not frame.number:
                            last = Commit(tx.id)
                        waits = any(isinstance(each, Finish | Commit) for each in frame.queue)
                        sent = (frame.hop, name, from_client.encode(last)) in on_the_way
                        if not (waits or sent) and tx.status == "active":
                            self.say(core.name, frame.hop, name, last)

    def say(self, at: BrokerName, hop: Hop, engine: str, message: FromClient) -> None:
        self.post(hop, Hop(at), engine_message(engine, from_client.encode(message)))

    def post(self, source: Hop, dest: Hop, message: AnyMessage) -> None:
        self._posted.append((source, dest, encode(message)))

    def run(self) -> None:
        """Go on until nothing is left to do."""
        for _ in range(100_000):
            if self._posted:
                self._arrive(*self._posted.popleft())
            elif self._due:
                (name, key), at = min(self._due.items(), key=lambda item: (item[1], item[0]))
                del self._due[name, key]
                self.now = max(self.now, at)
                self._carry_out(name, self.cores[name].wake(key, self.now))
            else:
                return
        raise AssertionError("it never ends")

    def _arrive(self, source: Hop, dest: Hop, frame: bytes) -> None:
        message = decode_message(frame)
        if is_client(dest):
            self._answer(dest, BrokerName(source), message)
            return
        name = BrokerName(dest)
        effects = self.cores[name].take(source, [message], self.now).effects
        self._carry_out(name, effects, frame)

    def _answer(self, client: Hop, edge: BrokerName, message: AnyMessage) -> None:
        self.received.setdefault(client, []).append(message)
        if not isinstance(message, EngineMessage):
            return
        match to_client.decode(message.body):
            case Tcm(tx, frame):
                self.say(edge, client, message.engine, Finish(tx, frame))
            case Ended(tx, committed) as ended if ended.code != "unknown":
                self.ended.setdefault(tx, set()).add(committed)

    def _carry_out(self, name: BrokerName, effects: list[Effect], frame: bytes = b"") -> None:
        for effect in effects:
            match effect:
                case Send(hops, message):
                    self._posted += [(Hop(name), hop, encode(message)) for hop in hops]
                case Forward(hops):
                    self._posted += [(Hop(name), hop, frame) for hop in hops]
                case SetTimer(key, delay_s):
                    self._due[name, key] = self.now + delay_s
                case CancelTimer(key):
                    self._due.pop((name, key), None)


def read(path: Path) -> Scene:
    return msgspec.msgpack.decode(path.read_bytes(), type=Scene)


if __name__ == "__main__":
    for file, (seed, moment) in MOMENTS.items():
        (DATA / file).write_bytes(msgspec.msgpack.encode(record(seed, moment)))
