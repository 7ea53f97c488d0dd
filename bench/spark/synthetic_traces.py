"""The records of brokers in a synthetic run without anomalies.

Brokers are a chain B1, B2, ...; E is at the first, its agents are at the last. Each agent has some
instances, and at intervals a transaction subscribes one of them to a further instance and publishes
for it, while the stream continues. Nothing here is random, and the records of clients are
independent of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final

from overlay import trace
from overlay.identity import SALT_BITS, name_text
from padres_tx import registry
from padres_tx.audit.promises import REPLICATED, VERSIONED

#: The beginning of a run; arbitrary.
EPOCH_NS: Final = 1_700_000_000_000_000_000

#: The life of all clients, issued when the run begins.
LIFE: Final = EPOCH_NS // 1_000_000 << SALT_BITS

#: Instances that the stream goes to; the two agents have them in turn.
HELD: Final = 4

#: Further instances are numbered from here.
FURTHER: Final = 1_000

#: Events while a transaction is open, and while it is committed and not yet over.
MEANWHILE: Final = 5


def write(place: Path, fields: Mapping[str, Any], events: int) -> int:
    """Write the records of a run's brokers; returns how many.

    `events` is the length of the stream of each instance of the scenario.
    """
    # Without a broker's half an engine has no transactions that a broker records.
    has_broker = registry.load(fields["engine"]).broker is not None
    several = fields["transactions"] if has_broker else 0
    if not fields["options"].get("dispatch", True):
        several = 0
    with ExitStack() as files:
        brokers = SyntheticBrokers(place, fields, files)
        for instance in range(1, fields["instances"] + 1):
            scenario = SyntheticScenario(brokers, instance)
            for number in range(1, several + 1):
                scenario.stream(events // several)
                scenario.dispatch(number)
            scenario.stream(events % several if several else events)
        return brokers.written


class SyntheticScenario:
    """One instance of the scenario, in its own event space."""

    def __init__(self, brokers: SyntheticBrokers, instance: int) -> None:
        self._brokers = brokers
        self._class = f"p{instance}"
        self._publisher = f"E.{instance}"
        self._agents = (f"A2.{instance}", f"A1.{instance}")
        self._n = 0
        brokers.operate(self._publisher, "adv", f"[class,eq,'{self._class}']")
        for x in range(HELD):
            brokers.operate(self._agents[x % 2], "sub", self._of(x))

    def _of(self, x: int) -> str:
        return f"[class,eq,'{self._class}'],[x,=,{x}]"

    def stream(self, events: int) -> None:
        for _ in range(events):
            self._n += 1
            x = self._n % HELD
            self._publish(x, self._agents[x % 2])

    def _publish(self, x: int, receiver: str, after: tuple[str, ...] = ()) -> None:
        text = f"[class,'{self._class}'],[x,{x}]"
        self._brokers.publish(self._publisher, text, receiver, after=after)

    def dispatch(self, number: int) -> None:
        """An agent subscribes to a further instance, and gets its first event."""
        x, agent = FURTHER + number, self._agents[number % 2]
        tx = name_text(self._publisher, LIFE, number)
        self._brokers.begin(tx)
        self.stream(MEANWHILE)
        operation = self._brokers.operate(agent, "sub", self._of(x), tx=tx)
        self._publish(x, agent, after=(operation,))
        self.stream(MEANWHILE)
        self._brokers.end()


class SyntheticBrokers:
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
        self._operations: Counter[str] = Counter()
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
        return self._fresh if self._engine in VERSIONED else ""

    # --- routing ---

    def operate(self, client: str, kind: str, filter: str, *, tx: str = "") -> str:
        """An operation goes from its client's broker to the other end; returns its name."""
        self._operations[client] += 1
        name = f"{client}#{self._operations[client]}"
        path = self._names if kind == "adv" else self._names[::-1]
        source = f"@{client}"
        for node, after in zip(path, [*path[1:], ""], strict=True):
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

    def publish(
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
            if tx and onward and self._engine in REPLICATED:
                dests = ()  # Every broker of the plan does its own part.
            more = {"source": source, "dests": dests, "version": self._view()}
            self._record(node, "match", **about, **more)
            source = node
        if tx:
            self._decide(tx)
        self._record(last, "deliver", **about, dests=(f"@{receiver}",))

    # --- transactions ---

    def begin(self, tx: str) -> None:
        source = f"@{tx.rsplit(':', 2)[0]}"
        for node, onward in zip(self._names, [*self._names[1:], ""], strict=True):
            dests = (onward,) if onward else ()
            self._record(node, "begin", **self._of_tx(tx), source=source, dests=dests)
            source = node
        self._open = tx

    def _decide(self, tx: str) -> None:
        for node in self._names:
            self._record(node, "decide", **self._of_tx(tx), outcome="committed")
        self._open, self._fresh = "", tx

    def end(self) -> None:
        """The transaction that was committed is over everywhere."""
        for node in self._names:
            self._record(node, "end", **self._of_tx(self._fresh))
        self._fresh = ""
