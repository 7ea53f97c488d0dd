"""Environment variables that clients and commands read.

This is a module of its own so that `padres-tx broker` need not import a client for the names.
"""

from __future__ import annotations

import os

#: The overlay's secret, for clients without a `secret` argument and for all commands; brokers
#: started by a command inherit it.
SECRET_ENV = "PADRES_TX_SECRET"


def secret_or_environment(secret: str | None) -> str:
    """Return the given secret, or the one in the environment if it is None; "" means no secret."""
    return os.environ.get(SECRET_ENV, "") if secret is None else secret
