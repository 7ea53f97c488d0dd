"""What brokers would have recorded of a made-up run, if nothing had gone wrong.

Brokers are a chain B1, B2, ...; E is at the first, its agents at the last. Each agent holds some
instances, and every so often a transaction subscribes one of them to a further one and publishes
for it, while the stream goes on. Nothing here is drawn, and clients' records do not know of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final

from overlay import trace
from overlay.identity import SALT_BITS, name_text

#: When a run begins; any time will do.
EPOCH_NS: Final = 1_700_000_000_000_000_000

#: The life of all clients, issued when the run begins.
LIFE: Final = EPOCH_NS // 1_000_000 << SALT_BITS

#: Instances that the stream goes to, held by the two agents in turn.
HELD: Final = 4

#: Further instances are numbered from here.
FURTHER: Final = 1_000

#: Events that come while a transaction is open, and while it is committed and not yet over.
MEANWHILE: Final = 5


def write(place: Path, fields: Mapping[str, Any], events: int) -> int:
    """Write what the brokers of a run record; answers how many records that is.

    `events` is how many the stream of each instance of the scenario has.
    """
    # What waits instead has no transactions that a broker would know of.
    several = fields["transactions"] if fields["engine"] != "bl-wait" else 0
    if not fields["options"].get("dispatch", True):
        several = 0
    with ExitStack() as files:
        brokers = Brokers(place, fields, files)
        for instance in range(1, fields["instances"] + 1):
            scene = Scene(brokers, instance)
            for number in range(1, several + 1):
                scene.streams(events // several)
                scene.dispatches(number)
            scene.streams(events % several if several else events)
        return brokers.written


class Scene:
    """One instance of the scenario, in an event space of its own."""

    def __init__(self, brokers: Brokers, instance: int) -> None:
        self._brokers = brokers
        self._class = f"p{instance}"
        self._publisher = f"E.{instance}"
        self._agents = (f"A2.{instance}", f"A1.{instance}")
        self._n = 0
        brokers.says(self._publisher, "adv", f"[class,eq,'{self._class}']")
        for x in range(HELD):
            brokers.says(self._agents[x % 2], "sub", self._of(x))

    def _of(self, x: int) -> str:
        return f"[class,eq,'{self._class}'],[x,=,{x}]"

    def streams(self, events: int) -> None:
        for _ in range(events):
            self._n += 1
            x = self._n % HELD
            self._publishes(x, self._agents[x % 2])

    def _publishes(self, x: int, receiver: str, after: tuple[str, ...] = ()) -> None:
        text = f"[class,'{self._class}'],[x,{x}]"
        self._brokers.publishes(self._publisher, text, receiver, after=after)

    def dispatches(self, number: int) -> None:
        """An agent subscribes to a further instance, and gets its first event."""
        x, agent = FURTHER + number, self._agents[number % 2]
        tx = name_text(self._publisher, LIFE, number)
        self._brokers.begins(tx)
        self.streams(MEANWHILE)
        word = self._brokers.says(agent, "sub", self._of(x), tx=tx)
        self._publishes(x, agent, after=(word,))
        self.streams(MEANWHILE)
        self._brokers.ends()


class Brokers:
    """The record files of all brokers of a run."""

    def __init__(self, place: Path, fields: Mapping[str, Any], files: ExitStack) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self._run = fields["run_id"]
        self._engine = fields["engine"]
        self._names = [f"B{number}" for number in range(1, fields["brokers"] + 1)]
        self._files: dict[str, IO[bytes]] = {
            name: files.enter_context((place / f"{name}.jsonl").open("wb")) for name in self._names
        }
        self._seqs: Counter[str] = Counter()
        self._words: Counter[str] = Counter()
        self._publications: Counter[str] = Counter()
        #: The transaction that is open, and the one that is committed and not over.
        self._open = ""
        self._fresh = ""

    @property
    def written(self) -> int:
        return self._seqs.total()

    def _record(self, node: str, kind: trace.TraceKind, **fields: Any) -> None:
        at_ns = EPOCH_NS + self._seqs.total()
        self._seqs[node] += 1
        record = trace.Record(
            seq=self._seqs[node], node=node, kind=kind, at_ns=at_ns, run=self._run, **fields
        )
        trace.write(record, self._files[node])

    def _of_tx(self, tx: str) -> dict[str, str]:
        return {"tx": tx, "engine": self._engine} if tx else {}

    def _view(self) -> str:
        return self._fresh if self._engine == "d-tx" else ""

    # --- routing ---

    def says(self, client: str, kind: str, filter: str, *, tx: str = "") -> str:
        """An operation goes from its client's broker to the other end; answers its name."""
        self._words[client] += 1
        name = f"{client}#{self._words[client]}"
        way = self._names if kind == "adv" else self._names[::-1]
        source = f"@{client}"
        for node, after in zip(way, [*way[1:], ""], strict=True):
            self._record(
                node,
                "apply",
                **self._of_tx(tx),
                op_id=name,
                op_kind=kind,
                client=client,
                filter=filter,
                source=source,
                dests=(after,) if after else (),
                version=self._view(),
                outcome="+",
            )
            source = node
        return name

    def publishes(
        self, client: str, point: str, receiver: str, *, after: tuple[str, ...] = ()
    ) -> None:
        """A publication goes to the last broker and to its receiver; with `after` in the open
        transaction, whose commit it waits for there."""
        self._publications[client] += 1
        tx = self._open if after else ""
        about = self._of_tx(tx) | {
            "op_id": name_text(client, LIFE, self._publications[client]),
            "op_kind": "pub",
            "client": client,
            "filter": point,
        }
        source, last = f"@{client}", self._names[-1]
        entry = about | {"source": source, "after": after}
        self._record(self._names[0], "publish", **entry)
        for node, onward in zip(self._names, [*self._names[1:], ""], strict=True):
            dests: tuple[str, ...] = (onward or f"@{receiver}",)
            if tx and onward and self._engine == "s-tx":
                dests = ()  # Every broker of the span does its own part.
            more = {"source": source, "dests": dests, "version": self._view()}
            self._record(node, "match", **about, **more)
            source = node
        if tx:
            self._decides(tx)
        self._record(last, "deliver", **about, dests=(f"@{receiver}",))

    # --- transactions ---

    def begins(self, tx: str) -> None:
        source = f"@{tx.rsplit(':', 2)[0]}"
        for node, onward in zip(self._names, [*self._names[1:], ""], strict=True):
            dests = (onward,) if onward else ()
            self._record(node, "begin", **self._of_tx(tx), source=source, dests=dests)
            source = node
        self._open = tx

    def _decides(self, tx: str) -> None:
        for node in self._names:
            self._record(node, "decide", **self._of_tx(tx), outcome="committed")
        self._open, self._fresh = "", tx

    def ends(self) -> None:
        """The transaction that was committed is over everywhere."""
        for node in self._names:
            self._record(node, "end", **self._of_tx(self._fresh))
        self._fresh = ""
