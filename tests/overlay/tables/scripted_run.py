"""One simulated run with much going on, named by the digest of its messages and records."""

from __future__ import annotations

import hashlib

import msgspec

from overlay.broker.core import Broker
from overlay.filters import Filter
from overlay.hosts.simulator import Simulator, Tape
from overlay.messages import AnyMessage, Join, Operation, Pub

TREE = {"B1": ["B2", "B3"], "B2": ["B1", "B4"], "B3": ["B1"], "B4": ["B2"]}
CLIENTS = {"E": "B1", "D": "B3", "A1": "B4", "A2": "B4", "F": "B2"}


def digest(seed: int) -> str:
    """Everything that was delivered and recorded, as one hash."""
    tape = Tape(seed=seed)
    sim = Simulator(TREE, tape.choose, broker=lambda n, o: Broker(n, o, trace=True))

    def deaf(message: AnyMessage, now: float) -> list[AnyMessage]:
        return []

    for client, edge in CLIENTS.items():
        sim.connect(client, edge, deaf)
        sim.send(client, Join(1, client, ""))
    sim.run()
    for seq in range(2, 60):
        client = sorted(CLIENTS)[tape.choose(len(CLIENTS))]
        filter = Filter({"class": f"p{tape.choose(3)}", "x": (0, 1 + tape.choose(4))})
        kind = ("adv", "sub", "uadv", "usub")[tape.choose(4)]
        sim.send(client, Operation(seq, kind, client, seq, filter))  # type: ignore[arg-type]
        sim.send(client, Pub(client, seq, {"class": f"p{tape.choose(3)}", "x": tape.choose(4)}))
    sim.run()
    assert any(record.kind == "deliver" for record in sim.records)
    records = b"\n".join(msgspec.json.encode(record) for record in sim.records)
    return hashlib.sha256(sim.digest.encode() + records).hexdigest()
