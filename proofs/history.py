"""What happened in one run, as the checkers see it: records, and what clients and tables say.

Records alone are enough for most checks; they are the same in the simulator and in the trace files
of broker processes. What they cannot carry is added if somebody knows it: what each client was
told (`Clients`), the tables at the end, and whether everything had come to rest.

This module tells nothing right from wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from overlay.messages import AnyMessage, EngineMessage, Pub
from overlay.simulator import Simulator
from overlay.trace import Record
from padres_tx.wire import Ended, to_client, tx_text


class Clients:
    """What clients were told: hand `saw` every message that a client gets."""

    def __init__(self) -> None:
        #: The publications that each client got, by "publisher:number", in their order.
        self.received: dict[str, list[str]] = {}
        #: The outcome of each transaction according to each client that was told one.
        self.outcomes: dict[str, dict[str, bool]] = {}
        #: The transactions that coordinators have asked for, with their engines.
        self.asked: dict[str, str] = {}

    def saw(self, client: str, message: AnyMessage) -> None:
        if isinstance(message, Pub):
            self.received.setdefault(client, []).append(f"{message.client}:{message.seq}")
        elif isinstance(message, EngineMessage):
            told = to_client.decode(message.body)
            if isinstance(told, Ended):
                self.outcomes.setdefault(tx_text(told.tx), {})[client] = told.committed

    def asks(self, engine: str, tx: tuple[str, int]) -> None:
        """A coordinator has begun a transaction, or submitted one."""
        self.asked[tx_text(tx)] = engine


class History:
    """One run. `check` in `proofs.checkers` judges it."""

    def __init__(
        self,
        records: Iterable[Record],
        *,
        clients: Clients | None = None,
        tables: Mapping[str, Any] | None = None,
        unrest: Mapping[str, str] | None = None,
        complete: bool = True,
    ) -> None:
        self.records = list(records)
        self.clients = clients
        #: Each broker's tables at the end, as `Routing.as_data` gives them.
        self.tables = tables
        #: By broker, what still waits there although nothing is on its way; empty if nothing does.
        self.unrest = unrest
        #: Whether the records are all there, to a point where everything had come to rest.
        self.complete = complete

    @classmethod
    def from_simulator(
        cls, sim: Simulator, clients: Clients | None = None, *, complete: bool = True
    ) -> History:
        """The run of a simulator whose brokers trace; `complete` if it has come to rest."""
        tables = {name: broker.routing.as_data() for name, broker in sim.brokers.items()}
        return cls(sim.records, clients=clients, tables=tables, complete=complete)
