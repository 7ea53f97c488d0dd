"""The records of one node: numbered, and with the views and changes that they tell as text.

A part of the broker, which knows what there is to record; here it is put into the one format of
`trace`, which says what each field means.
"""

from __future__ import annotations

from overlay.effects import Effect
from overlay.identity import name_text
from overlay.matching.index import View
from overlay.messages import BrokerName, Hop, Operation, Pub, is_client
from overlay.notation import format_filter, format_publication
from overlay.stored import stored
from overlay.tables.routing import Outcome
from overlay.tables.versions import Versions
from overlay.trace import EVENTS, Record, TraceKind


@stored("recorder", fields=("versions", "_records"), derived=("name",))
class Recorder:
    """Something with a name and versions that numbers its records."""

    def __init__(self, name: BrokerName, versions: Versions) -> None:
        self.name = name
        self.versions = versions
        self._records = 0

    def record(
        self,
        kind: TraceKind,
        now: float,
        what: Pub | Operation | None,
        source: Hop | str = "",
        dests: tuple[Hop, ...] = (),
        *,
        tx: str = "",
        engine: str = "",
        op_kind: str = "",
        client: str = "",
        view: View | None = None,
        outcome: str = "",
        after: tuple[str, ...] = (),
        trigger: str = "",
    ) -> Record:
        """The next record of this node. The caller has asked whether there is a trace."""
        self._records += 1
        op_id = text = ""
        if what is not None:
            client = what.client
            if isinstance(what, Pub):
                op_id, op_kind = name_text(client, what.life, what.seq), op_kind or "pub"
                text = format_publication(what.point)
            else:
                op_id, op_kind = f"{client}#{what.seq}", what.kind
                text = format_filter(what.filter)
        return Record(
            seq=self._records,
            node=self.name,
            kind=kind,
            at_ns=round(now * 1e9),
            tx=tx,
            engine=engine,
            op_id=op_id,
            op_kind=op_kind,
            client=client,
            filter=text,
            source=source,
            dests=dests,
            version=self.versions.text(view, tx),
            outcome=outcome,
            after=after,
            trigger=trigger,
        )

    def record_publication(
        self, source: Hop, pub: Pub, now: float, hops: tuple[Hop, ...], view: View | None
    ) -> list[Effect]:
        """The records of a publication that goes to these hops."""
        effects: list[Effect] = []
        if is_client(source):
            effects.append(self.record("publish", now, pub, source))
        effects.append(self.record("match", now, pub, source, hops, view=view))
        clients = tuple(hop for hop in hops if is_client(hop))
        if clients:
            effects.append(self.record("deliver", now, pub, source, clients))
        return effects

    def record_change(
        self,
        kind: TraceKind,
        now: float,
        source: Hop,
        operation: Operation,
        outcome: Outcome,
        view: View | None,
        tx: str = "",
        engine: str = "",
        after: tuple[str, ...] = (),
        trigger: str = "",
    ) -> Record:
        """The record of an operation that was carried out."""
        changes = ["+"] if operation.store else []
        if operation.store and operation.events:
            changes.append(EVENTS)
        changes += [f"-{seq}" for seq in operation.drop]
        return self.record(
            kind,
            now,
            operation,
            source,
            tuple(hop for hop, _ in outcome.forward),
            tx=tx,
            engine=engine,
            view=view,
            outcome=" ".join(changes + moved(outcome.triggered)),
            after=after,
            trigger=trigger,
        )


def moved(triggered: list[tuple[Hop, Operation]]) -> list[str]:
    """Which entries are attracted or sent back, and to whom, for a record."""
    return [f"{sent.client}#{sent.seq}>{hop}" for hop, sent in triggered]
