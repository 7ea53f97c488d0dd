"""What an engine at a broker answers an operator who looks after transactions.

`padres-tx tx` reads these answers, so all engines give them alike. What a transaction waits for and
how it is aborted is the engine's own. Ended transactions are listed apart, as long as they are
remembered (`padres_tx.protocol.outcomes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from overlay.broker.reach import Reach
from overlay.effects import Effect
from overlay.messages import Hop
from padres_tx.client_messages import TxID, parse_tx, tx_text
from padres_tx.protocol.outcomes import Outcomes


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
    ended: Outcomes,
    *,
    engine: str,
    broker: str,
    now: float,
    describe: Callable[[T], dict[str, Any]],
    abort: Callable[[T, str, str], list[Effect]],
) -> tuple[Any, list[Effect]]:
    """List the transactions that are not over; or what the argument asks for.

    "ended" lists those that have ended, the last one first, and "ended ID" shows one of them.
    "abort ID" is for the edge broker of its coordinator; `abort` gets a code and a reason.
    """
    verb, _, name = argument.partition(" ")
    if verb == "ended":
        tx_id = parse_tx(name)
        one = ended.get(tx_id, now) if tx_id is not None else None
        shown = ended.newest(now) if not name else [one] if one is not None else []
        return [tx.as_data(engine=engine, now=now) for tx in shown], []
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


def missing(reach: Reach, hops: Iterable[Hop]) -> str:
    """The brokers behind these neighbours that cannot be reached, in words; "" if there are none.

    The neighbours themselves count.
    """
    found = [str(missing) for hop in sorted(hops) for missing in reach.behind(hop)]
    return f"unreachable: {', '.join(found)}" if found else ""


def awaited(reach: Reach, hops: Iterable[Hop]) -> str:
    """The neighbours whose answers are awaited, in words: those that cannot be reached, or behind
    which a broker cannot, by the name of the missing broker."""
    waits = sorted(hops)
    here = [hop for hop in waits if not reach.behind(hop)]
    texts = [missing(reach, waits), f"brokers {', '.join(here)}" if here else ""]
    return "; ".join(filter(None, texts))
