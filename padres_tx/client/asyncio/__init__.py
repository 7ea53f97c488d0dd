"""The asyncio client: connections, requests, transactions and their handles.

Rule: imports `padres_tx.client` and what that may import. One event loop, no threads.
"""
