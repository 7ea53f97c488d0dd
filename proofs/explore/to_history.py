"""A run that was explored, as a history: so that the checkers of any run can judge it too.

The judge of explorations (`end_state_checks`) knows the script and tries all serial orders; the
checkers know nothing but records and what clients were told. That both come
to the same is worth seeing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from overlay.messages import EngineMessage
from overlay.trace import Record
from overlay.wire.codec import decode_message
from padres_tx.client_messages import Begin, Submit, from_client
from proofs.explore.network import NetworkMove, State
from proofs.explore.nodes import GONE, ClientNode
from proofs.explore.scenario import PreparedScenario
from proofs.history import Clients, History


def history(stage: PreparedScenario, path: Iterable[tuple[State, NetworkMove]]) -> History:
    """The history of a run from its beginning to where nothing moves."""
    network = stage.network
    records = list(stage.records)
    clients = Clients()
    for node in network.nodes:
        if isinstance(node, ClientNode):
            for said in node.opening:
                _asks(clients, said)
    for state, move in path:
        frame, step = network.look(state, move)
        node = network.nodes[move.node]
        records += step.records
        if isinstance(node, ClientNode):
            if frame is not None and node.is_here(state[move.node]):
                clients.saw(node.hop[1:], decode_message(frame))
            for _, sent in step.sent:
                _asks(clients, sent)
    return History(_numbered(records), clients=clients)


def _asks(clients: Clients, frame: bytes) -> None:
    message = decode_message(frame) if frame != GONE else None
    if isinstance(message, EngineMessage):
        said = from_client.decode(message.body)
        if isinstance(said, Begin | Submit):
            clients.asks(message.engine, said.tx)


def _numbered(records: Iterable[Record]) -> list[Record]:
    """The records with their nodes' numbers: a step that was looked up has those of another run."""
    numbers: Counter[str] = Counter()
    found: list[Record] = []
    for record in records:
        numbers[record.node] += 1
        found.append(msgspec.structs.replace(record, seq=numbers[record.node]))
    return found
