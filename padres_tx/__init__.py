"""Transactions over publications, subscriptions and un-subscriptions of several clients.

    async with padres_tx.connect("127.0.0.1:7001", name="A1") as a1: ...     # asyncio
    with padres_tx.sync.connect("127.0.0.1:7001", name="A1") as a1: ...      # blocking

    async with a1.transaction("d-tx") as tx: ...

Names are loaded when they are first used: a program that needs one of them, or pytest, which loads
our plugin in every run, does not pay for all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overlay.errors import (
        BrokerAway,
        FilterError,
        LimitReached,
        NameAway,
        NameTaken,
        NotAdvertised,
        NotHeld,
        OperationError,
        OverlayError,
        ProtocolError,
        SlowReader,
        Unauthorized,
    )
    from overlay.filters import Filter, between, ge, gt, le, lt, prefix, present
    from overlay.messages import Gap
    from overlay.wire.frames import FrameTooLarge
    from padres_tx import static, sync
    from padres_tx.client.asyncio.client import Client, connect
    from padres_tx.client.asyncio.handles import Part, Transaction
    from padres_tx.client.asyncio.operator import Operator, operator
    from padres_tx.client.session import Notification
    from padres_tx.client.transactions import Doubt, Result
    from padres_tx.errors import (
        BadAddress,
        BadName,
        BadTransaction,
        CallTimeout,
        ClientClosed,
        ClientError,
        ConnectionLost,
        InvalidEngine,
        NotCoordinator,
        TooManyRequests,
        TransactionAborted,
        TransactionError,
        TransactionFinished,
        UnknownEngine,
        UnknownTransaction,
        Unreachable,
    )

__all__ = [
    "BadAddress",
    "BadName",
    "BadTransaction",
    "BrokerAway",
    "CallTimeout",
    "Client",
    "ClientClosed",
    "ClientError",
    "ConnectionLost",
    "Doubt",
    "Filter",
    "FilterError",
    "FrameTooLarge",
    "Gap",
    "InvalidEngine",
    "LimitReached",
    "NameAway",
    "NameTaken",
    "NotAdvertised",
    "NotCoordinator",
    "NotHeld",
    "Notification",
    "OperationError",
    "Operator",
    "OverlayError",
    "Part",
    "ProtocolError",
    "Result",
    "SlowReader",
    "TooManyRequests",
    "Transaction",
    "TransactionAborted",
    "TransactionError",
    "TransactionFinished",
    "Unauthorized",
    "UnknownEngine",
    "UnknownTransaction",
    "Unreachable",
    "between",
    "connect",
    "ge",
    "gt",
    "le",
    "lt",
    "operator",
    "prefix",
    "present",
    "static",
    "sync",
]

#: Public modules of this package, and where each other public name is at home.
_MODULES = ("static", "sync")
_HOMES = {
    "overlay.errors": (
        "BrokerAway FilterError LimitReached NameAway NameTaken NotAdvertised NotHeld "
        "OperationError OverlayError ProtocolError SlowReader Unauthorized"
    ),
    "overlay.filters": "Filter between ge gt le lt prefix present",
    "overlay.messages": "Gap",
    "overlay.wire.frames": "FrameTooLarge",
    "padres_tx.client.asyncio.client": "Client connect",
    "padres_tx.client.asyncio.operator": "Operator operator",
    "padres_tx.errors": (
        "BadAddress BadName BadTransaction CallTimeout ClientClosed ClientError ConnectionLost "
        "InvalidEngine NotCoordinator TooManyRequests TransactionAborted TransactionError "
        "TransactionFinished UnknownEngine UnknownTransaction Unreachable"
    ),
    "padres_tx.client.asyncio.handles": "Part Transaction",
    "padres_tx.client.session": "Notification",
    "padres_tx.client.transactions": "Doubt Result",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"padres_tx.{name}")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'padres_tx' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
