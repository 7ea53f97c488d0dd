"""What an engine at a broker answers an operator who looks after transactions.

`padres-tx tx` reads these answers, so all engines give them alike. What a transaction waits for and
how it is aborted is the engine's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from overlay.effects import Effect
from padres_tx.wire import TxID, tx_text


class Known(Protocol):
    """A transaction as a broker knows it."""

    id: TxID
    status: str
    began_at: float

    @property
    def at_edge(self) -> bool: ...

    @property
    def open(self) -> bool: ...


T = TypeVar("T", bound=Known)


def answer(
    argument: str,
    txs: Iterable[T],
    *,
    broker: str,
    describe: Callable[[T], dict[str, Any]],
    abort: Callable[[T, str, str], list[Effect]],
) -> tuple[Any, list[Effect]]:
    """List the transactions, or "abort CLIENT:NUMBER", which is for its edge broker.

    `abort` gets a code and a reason.
    """
    verb, _, name = argument.partition(" ")
    if verb != "abort":
        return [describe(tx) for tx in txs], []
    for tx in txs:
        if tx_text(tx.id) == name and tx.open and tx.at_edge:
            return {"aborted": name}, abort(tx, "operator", "an operator aborted it")
    return {"error": f"{name} is not open, or {broker} does not decide it"}, []


def description(
    tx: Known, *, engine: str, waits_for: str, clients: Iterable[str], now: float
) -> dict[str, Any]:
    """One transaction, for the list; `clients` are those that this broker knows to take part."""
    return {
        "tx": tx_text(tx.id),
        "engine": engine,
        "coordinator": tx.id[0],
        "edge": tx.at_edge,
        "status": tx.status,
        "since_s": round(now - tx.began_at, 3),
        "waits_for": waits_for,
        "clients": sorted(clients),
    }
