"""An explored run as a history, so that the checkers of any run can check it too.

`end_state_checks` knows the scripts and tries all serial orders; `proofs.checkers` knows only
records and what clients received. It is worth seeing that both find the same.
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
from proofs.history import ClientObservations, History


def history(prepared: PreparedScenario, path: Iterable[tuple[State, NetworkMove]]) -> History:
    """The history of a run from its first state to where nothing moves."""
    network = prepared.network
    records = list(prepared.records)
    clients = ClientObservations()
    for node in network.nodes:
        if isinstance(node, ClientNode):
            for frame in node.opening:
                _note_begin(clients, frame)
    for state, move in path:
        delivered, step = network.look(state, move)
        node = network.nodes[move.node]
        records += step.records
        if isinstance(node, ClientNode):
            if delivered is not None and node.is_here(state[move.node]):
                clients.observe(node.hop[1:], decode_message(delivered))
            for _, sent in step.sent:
                _note_begin(clients, sent)
    return History(_numbered(records), clients=clients)


def _note_begin(clients: ClientObservations, frame: bytes) -> None:
    message = decode_message(frame) if frame != GONE else None
    if isinstance(message, EngineMessage):
        request = from_client.decode(message.body)
        if isinstance(request, Begin | Submit):
            clients.note_begin(message.engine, request.tx)


def _numbered(records: Iterable[Record]) -> list[Record]:
    """The records, numbered anew per node: a step that was looked up has numbers of another run."""
    numbers: Counter[str] = Counter()
    found: list[Record] = []
    for record in records:
        numbers[record.node] += 1
        found.append(msgspec.structs.replace(record, seq=numbers[record.node]))
    return found
