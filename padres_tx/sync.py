"""The client for blocking code, under its public name.

    with padres_tx.sync.connect("127.0.0.1:7001", name="A1") as a1:
        a1.subscribe("[class,eq,'p1']")
        for notification in a1.notifications(timeout_s=10):
            print(notification["x"])

It is written in `padres_tx.client.blocking`.
"""

from padres_tx.client.blocking.client import BlockingClient as Client
from padres_tx.client.blocking.client import Callback, OnClose, connect
from padres_tx.client.blocking.handles import BlockingTransaction as Transaction
from padres_tx.client.blocking.handles import Part

__all__ = ["Callback", "Client", "OnClose", "Part", "Transaction", "connect"]
