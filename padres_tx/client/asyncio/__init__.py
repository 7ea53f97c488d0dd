"""The asyncio client: channel, requests, callbacks, notifications, transactions and handles.

Rule: imports `padres_tx.client` and what that may import. One event loop, no threads.
"""
