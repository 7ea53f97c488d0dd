"""What is left of transactions in a simulated overlay at rest, and what is wrong with that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import networkx as nx

from overlay.notation import parse_filter
from padres_tx.client_messages import TxID, tx_text
from proofs.oracle import Oracle, broker_rows, oracle_rows
from proofs.sim.simulated_overlay import SimulatedOverlay


def leftovers(world: SimulatedOverlay, tree: nx.Graph[str], clients: Iterable[str]) -> list[str]:
    """What should not be there any more, and tables that are not as they have to be."""
    found = []
    for name, broker in world.sim.brokers.items():
        if not broker.at_rest:
            found.append(f"{name} is not at rest")
        if not broker.routing.is_plain or broker.versions.open or broker.versions.committed:
            found.append(f"marks are left at {name}")
        for engine in broker.engines.values():
            found += [f"{name} knows {tx}" for tx in engine.transactions()]
            found += [f"{name} reserves {tx}" for tx in getattr(engine, "reserved", ())]
            if len(getattr(engine, "questions", ())):
                found.append(f"questions are open at {name}")
    return found + list(_disagreements(world, tree, clients))


def _disagreements(
    world: SimulatedOverlay, tree: nx.Graph[str], clients: Iterable[str]
) -> Iterator[str]:
    """Where tables are not what they have to be for what each client holds at its edge."""
    brokers, oracle = world.sim.brokers, Oracle(tree)
    for name, broker in sorted(brokers.items()):
        tables = broker.routing.as_data()
        for client in clients:
            if any(at["client"] == client and at["edge"] == name for at in tables["clients"]):
                oracle.join(client, name)
                said = [*tables["srt"], *tables["prt"]]
                for word in sorted(said, key=lambda word: int(word["seq"])):
                    if word["client"] == client:
                        oracle.operate(client, word["kind"], parse_filter(word["filter"]))
    for name, broker in sorted(brokers.items()):
        tables = broker.routing.as_data()
        for table, wanted in (("srt", oracle.srt(name)), ("prt", oracle.prt(name))):
            if broker_rows(tables[table]) != oracle_rows(wanted):
                yield f"{table} of {name}: {broker_rows(tables[table])}, not {oracle_rows(wanted)}"


def known(world: SimulatedOverlay, engine: str, tx: TxID) -> dict[str, bool]:
    """How a transaction has ended according to each broker that remembers it."""
    found: dict[str, bool] = {}
    for name, broker in world.sim.brokers.items():
        body: Any = broker.engines[engine].inspect(f"ended {tx_text(tx)}", world.sim.now)[0]
        for ended in body:
            found[f"{name} remembers"] = ended["status"] == "committed"
    return found
