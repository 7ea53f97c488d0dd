"""Replays of brokers' logs in another process: the same inputs give the same bytes on every link.

A random run keeps the inputs of each broker (`record`). Another Python process, with another seed
of hashes, makes each broker's node again from them (`python -m proofs.sim.replays FILE`). Both say
what came of it: a checksum of all bytes on each link, of all trace records and of the state, and
the node's own digest. They must be equal.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from overlay.broker.core import Broker
from overlay.errors import LogDiverges
from overlay.hosts.simulator import Simulator
from overlay.identity import Lives
from overlay.log.log import Log
from overlay.log.memory_log import MemoryLog
from overlay.messages import BrokerName, Hop
from overlay.node.ends import End
from overlay.node.node import Node, plain_end
from overlay.node.recovery import recover
from overlay.snapshots import freeze
from overlay.trace import Record
from overlay.wire.link import Link
from proofs.sim.broker_processes import BrokerProcess, Keeping
from proofs.sim.durable_simulator import DurableSimulator
from proofs.sim.program import Shape
from proofs.sim.random_run import RandomRun
from proofs.sim.simulated_overlay import all_engines

#: A replay of some runs takes seconds; this allows for a very busy machine.
TIMEOUT_S: Final = 300


class ReplayedOutputs(msgspec.Struct):
    """What has come of the inputs of one broker."""

    broker: str
    batches: int
    #: Of each link: how many frames, and the checksum of all of them.
    links: dict[str, tuple[int, str]]
    records: tuple[int, str]
    digest: int
    state: str
    #: Why the log could not be replayed to its end.
    problem: str = ""


class RecordedLog(msgspec.Struct):
    """The inputs of one broker, and what it takes to make the broker."""

    broker: str
    #: Its neighbours, each with the name of this end's first life.
    neighbours: dict[str, str]
    salt: int
    slice: int
    #: The name of a class of brokers (`CORES`).
    core: str
    batches: list[bytes]


#: The brokers that can be replayed, by name; wrong ones are added by tests.
CORES: Final[dict[str, type[Broker]]] = {"": Broker}


class Streams:
    """Everything that a node puts on its links and records."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._links: dict[str, tuple[int, Any]] = {}
        self._records = 0
        self._hash = hashlib.sha256()
        queue = node.queue

        def note(end: End) -> None:
            self._sent(end.hop, end.outgoing)
            queue(end)

        watched: Any = node
        watched.queue = note

    def _sent(self, hop: str, frames: list[bytes]) -> None:
        if frames:
            count, digest = self._links.get(hop) or (0, hashlib.sha256())
            digest.update(b"".join(frames))
            self._links[hop] = count + len(frames), digest

    def record(self, record: Record) -> None:
        self._records += 1
        self._hash.update(msgspec.msgpack.encode(record))

    def outputs(self, batches: int) -> ReplayedOutputs:
        self._node.queue_all()
        self._node.core.take_freed()  # A host has looked at it, or would first of all.
        links = {hop: (count, made.hexdigest()) for hop, (count, made) in self._links.items()}
        return ReplayedOutputs(
            self._node.core.name,
            batches,
            dict(sorted(links.items())),
            (self._records, self._hash.hexdigest()),
            self._node.digest,
            hashlib.sha256(freeze(self._node.core)).hexdigest(),
        )


class _NoSnapshots(Keeping):
    def consider_snapshot(self) -> None:
        pass


class RecordingProcess(BrokerProcess):
    """A process whose log is in memory, and kept."""

    keeping_type = _NoSnapshots

    def open_log(self, birth: str) -> Log:
        self.log = MemoryLog(birth, keep=True)
        return self.log

    def recovered(self) -> None:
        node = self.host.node
        self.incarnations = {str(hop): end.link.incarnation for hop, end in node.ends.items()}
        self.streams = Streams(node)
        write = self.host.inputs._record
        assert write is not None

        def record(record: Record) -> None:
            self.streams.record(record)
            write(record)

        self.host.inputs._record = record


class Recording(DurableSimulator):
    """A simulated overlay that keeps the inputs of its brokers."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more, process=RecordingProcess)

    def logs(self, slice: int, core: str) -> list[tuple[RecordedLog, ReplayedOutputs]]:
        found = []
        for number, (name, process) in enumerate(self.processes.items(), start=1):
            assert isinstance(process, RecordingProcess)
            batches = [data for _, data in process.log.read(0)]
            log = RecordedLog(name, process.incarnations, number, slice, core, batches)
            found.append((log, process.streams.outputs(len(batches))))
        return found


def record(shape: Shape, seed: int, *, core: str = "") -> list[tuple[RecordedLog, ReplayedOutputs]]:
    """Carry out a run; returns the log of each broker, and what came of it."""
    run = RandomRun(shape.of_seed(seed), shape.tape(seed), simulator=Recording, broker=CORES[core])
    run.go()
    sim: Simulator = run.world.sim
    assert isinstance(sim, Recording)
    return sim.logs(shape.slice, core)


def replay(log: RecordedLog) -> ReplayedOutputs:
    """Make a broker's node again from its inputs."""
    neighbours = [BrokerName(name) for name in log.neighbours]
    core = CORES[log.core](BrokerName(log.broker), neighbours, engines=all_engines(), trace=True)
    if log.slice:
        core.slice = log.slice
    core.lives = Lives(log.salt)
    ends = [End(Hop(name), Link(life)) for name, life in log.neighbours.items()]
    node = Node(core, ends, plain_end)
    streams = Streams(node)
    kept = MemoryLog(keep=True)
    for data in log.batches:
        kept.append(kept.last, data, lambda outcome: None)
    problem = ""
    try:
        recover(node, kept, record=streams.record)
    except LogDiverges as error:
        problem = str(error)
    return msgspec.structs.replace(streams.outputs(len(log.batches)), problem=problem)


def replay_elsewhere(
    logs: list[RecordedLog], *, hash_seed: int, prepare: str = ""
) -> list[ReplayedOutputs]:
    """Replay logs in another process, with this seed of hashes; `prepare` runs there first."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "logs"
        file.write_bytes(msgspec.msgpack.encode(logs))
        code = f"{prepare}\nfrom proofs.sim.replays import main\nmain({str(file)!r})"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert not done.returncode, done.stderr.decode()
    return msgspec.json.decode(done.stdout, type=list[ReplayedOutputs])


def differences(here: list[ReplayedOutputs], there: list[ReplayedOutputs]) -> list[str]:
    """What a replay has made differently, in words."""
    found: list[str] = []
    for one, other in zip(here, there, strict=True):
        for hop in sorted({*one.links, *other.links}):
            if one.links.get(hop) != other.links.get(hop):
                found.append(f"{one.broker}: other bytes for {hop}")
        for what in ("records", "digest", "state", "problem"):
            if getattr(one, what) != getattr(other, what):
                found.append(f"{one.broker}: other {what}")
    return found


def main(file: str, write: Callable[[bytes], object] = sys.stdout.buffer.write) -> None:
    """Replay the logs in a file, and write what comes of them."""
    logs = msgspec.msgpack.decode(Path(file).read_bytes(), type=list[RecordedLog])
    write(msgspec.json.encode([replay(log) for log in logs]))


if __name__ == "__main__":
    main(sys.argv[1])
