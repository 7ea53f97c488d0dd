"""Environment variables that clients and commands read.

A module of its own, since clients and commands need the names, and `padres-tx broker` should not
load a client for them.
"""

from __future__ import annotations

import os

#: Where the overlay's secret is, for clients that are given none and for all commands; brokers
#: that a command starts inherit it.
SECRET_ENV = "PADRES_TX_SECRET"


def secret_or_environment(secret: str | None) -> str:
    """The secret that was given, or the environment's if none was; "" is no secret."""
    return os.environ.get(SECRET_ENV, "") if secret is None else secret
