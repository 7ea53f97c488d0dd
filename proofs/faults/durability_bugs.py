"""Injected bugs of durable brokers: each breaks one rule of the way of inputs, or of the recovery.

A bug is a broker process with a wrong part. Random runs with crashes must find it:

    RandomRun(shape, ..., simulator=BUGS["send-before-sync"])

    python -m proofs.faults.durability_bugs 24    # in how many of 24 runs each is found

What finds it is mostly the link: numbers of messages show that a peer has lost what it had
acknowledged, or sends what it had not sent before. That is an `error`. `set-order` is found by
another process only (`proofs.sim.replays`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from overlay.broker.core import Broker, Taken
from overlay.effects import Send
from overlay.hosts.peers import Peer
from overlay.log import file_format
from overlay.log.file_format import open_segment, seal_batch, seed_of, tail_of
from overlay.log.log import Appended, AppendOutcome
from overlay.messages import AnyMessage, Hop, Operation
from overlay.node.inputs import Input, Opened, Took, decode_batch, encode_batch
from overlay.node.journal import Journal, Staged
from proofs.sim.broker_processes import DIRECTORY, BrokerProcess, Keeping, MortalInputs, SlowLog
from proofs.sim.durable_simulator import DurableSimulator
from proofs.sim.many_runs import run_and_check
from proofs.sim.program import CRASH, MIXED, Shape
from proofs.sim.random_run import RandomRun
from proofs.sim.replays import CORES

# --- the way of inputs ---


class _CommitsAtOnce(SlowLog):
    """Calls a batch committed, and writes it later."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._promised = self.inner.last

    @property
    def last(self) -> int:
        return self._promised

    def append(
        self, expected_last: int, batch: bytes, done: Callable[[AppendOutcome], None]
    ) -> None:
        self._promised += 1
        self._write_later(expected_last, batch)
        self.process.callLater(0, done, Appended(self._promised))

    def _write_later(self, expected_last: int, batch: bytes) -> None:
        def write() -> None:
            if self.inner.last < expected_last:
                self._write_later(expected_last, batch)  # Not before the one before it.
            else:
                self.write(expected_last, batch, lambda outcome: None)

        self.process.callLater(self.process.world.chosen_wait_s(), write)

    def snapshot(self, position: int, state: bytes, done: Callable[..., None]) -> None:
        if position <= self.inner.last:
            super().snapshot(position, state, done)


class SendsBeforeSync(BrokerProcess):
    log_type = _CommitsAtOnce


class _AcknowledgesEarly(MortalInputs):
    """Counts messages as received when they are staged."""

    def _stage(self, journal: Journal[Peer], staged: Staged[Peer]) -> None:
        if type(staged.input) is Took and staged.peer is not None:
            staged.peer.link.count(len(staged.frames), 0)
            self._host.touch(staged.peer)
        super()._stage(journal, staged)

    def _apply_staged(self, staged: Staged[Peer], now: float) -> None:
        took = staged.input
        if type(took) is Took and staged.peer is not None and self._node.is_from(staged.peer, took):
            staged.peer.link.count(-len(staged.frames), 0)
        super()._apply_staged(staged, now)


class AcknowledgesBeforeSync(BrokerProcess):
    inputs_type = _AcknowledgesEarly


class _OpensUnlogged(MortalInputs):
    """Does not log the lives of links."""

    def submit(
        self, input: Input, peer: Peer | None = None, then: Callable[[], None] | None = None
    ) -> None:
        if isinstance(input, Opened):
            self.apply(Staged(input, peer, then), self._host.now())
        else:
            super().submit(input, peer, then)


class LosesLives(BrokerProcess):
    inputs_type = _OpensUnlogged


class _TrimsWhatIsWritten(MortalInputs):
    """Logs that peers have acknowledged all that was written to them."""

    def use_log(self, *arguments: Any) -> None:
        super().use_log(*arguments)
        journal: Any = self.journal
        hints = journal._hints

        def all_written() -> list[tuple[str, str, str, int]]:
            wrong = []
            for hop, incarnation, peer, received in hints():
                end = self._node.ends.get(hop)
                written = received if end is None else received + len(end.link.unacked)
                wrong.append((hop, incarnation, peer, written))
            return wrong

        journal._hints = all_written


class TrimsUnacknowledged(BrokerProcess):
    inputs_type = _TrimsWhatIsWritten


# --- recovery ---


class LosesOutboxes(BrokerProcess):
    """Comes back without what peers have not acknowledged."""

    def recovered(self) -> None:
        for end in self.host.node.ends.values():
            end.link._acknowledge(end.link.acknowledged + len(end.link.unacked))


class LosesTimers(BrokerProcess):
    def recovered(self) -> None:
        self.host.node.timers.clear()


class ReadsTwice(SlowLog):
    def read(self, after: int) -> Iterator[tuple[int, bytes]]:
        batches = list(super().read(after))
        return iter(batches + batches[-1:])


class ReplaysTwice(BrokerProcess):
    """Applies the last batch twice."""

    log_type = ReadsTwice


class _ReadsWithWallClock(SlowLog):
    def read(self, after: int) -> Iterator[tuple[int, bytes]]:
        for position, data in super().read(after):
            batch = msgspec.structs.replace(decode_batch(data), now=self.process.world.now)
            yield position, encode_batch(batch)


class ReplaysByWallClock(BrokerProcess):
    """Applies old inputs at the present time."""

    log_type = _ReadsWithWallClock


class _FreezesWithoutCounts(Keeping):
    def freeze(self) -> bytes:
        links = [end.link for end in self.process.host.node.ends.values()]
        counts = [link.handed_over for link in links]
        for link in links:
            link.handed_over = max(link.handed_over - 1, 0)
        try:
            return super().freeze()
        finally:
            for link, count in zip(links, counts, strict=True):
                link.handed_over = count


class FreezesWithoutCounts(BrokerProcess):
    """Takes snapshots that do not know the last message of each peer."""

    keeping_type = _FreezesWithoutCounts


class AcceptsTornBatches(BrokerProcess):
    """Takes what there is of a batch that was not written to its end, and zeros for the rest."""

    def begin(self, *arguments: Any, **more: Any) -> None:
        for path, data in self.disk.contents().items():
            if path.parent == DIRECTORY and file_format.SEGMENT_NAME.fullmatch(path.name):
                self.disk.overwrite(path, _mended(data, path.name))
        super().begin(*arguments, **more)


def _mended(data: bytes, name: str) -> bytes:
    """A segment whose last batch is sealed as it is."""
    header, begin = open_segment(data, name)
    tail = tail_of(data, begin, header)
    rest = data[tail.end :]
    if len(rest) <= file_format._BATCH.size:
        return data
    length = file_format._BATCH.unpack_from(rest)[2]
    body = rest[file_format._BATCH.size :][:length].ljust(length, b"\0")
    if not body:
        return data
    return data[: tail.end] + seal_batch(tail.last + 1, tail.chain, seed_of(header.birth), body)[0]


# --- the core ---


class SetOrder(Broker):
    """Sends operations that come of one message in the order of a set."""

    def take(self, source: Hop, messages: Sequence[AnyMessage], now: float, at: int = 0) -> Taken:
        taken = super().take(source, messages, now, at)
        effects = list(taken.effects)
        places = [
            place
            for place, effect in enumerate(effects)
            if isinstance(effect, Send) and isinstance(effect.message, Operation)
        ]
        sends = {repr(effects[place]): effects[place] for place in places}
        for place, text in zip(places, set(sends), strict=False):
            effects[place] = sends[text]
        return taken._replace(effects=effects)


def register() -> None:
    """Let logs of such brokers be replayed."""
    CORES["set-order"] = SetOrder


BUGS: Final = {
    name: partial(DurableSimulator, process=process)
    for name, process in {
        "send-before-sync": SendsBeforeSync,
        "acknowledge-before-sync": AcknowledgesBeforeSync,
        "lives-unlogged": LosesLives,
        "outbox-lost": LosesOutboxes,
        "replayed-twice": ReplaysTwice,
        "snapshot-without-counts": FreezesWithoutCounts,
        "timers-lost": LosesTimers,
        "wall-clock": ReplaysByWallClock,
        "trimmed-unacknowledged": TrimsUnacknowledged,
        "torn-batch": AcceptsTornBatches,
    }.items()
}

#: The runs that show the bugs; timers do most where long work is split by them.
SHAPE: Final = Shape(MIXED, faults=("delay", "link-cut", "client-crash", CRASH))
SLICED: Final = msgspec.structs.replace(SHAPE, slice=1)


def shape_of(name: str) -> Shape:
    """The shape of the runs in which a bug is searched."""
    return SLICED if name == "timers-lost" else SHAPE


def is_found(name: str, seed: int) -> bool:
    """Whether the run of a seed shows a bug."""
    shape = shape_of(name)
    run = RandomRun(shape.of_seed(seed), shape.tape(seed), simulator=BUGS[name])
    return bool(run_and_check(run))


def main(runs: int) -> None:
    """Print in how many of the first runs each bug is found."""
    for name in BUGS:
        print(
            f"{name:24} {sum(is_found(name, seed) for seed in range(runs)):3} of {runs}", flush=True
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 24)
