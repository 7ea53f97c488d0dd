"""The client for blocking code: the asyncio client on one background thread.

Rule: imports `padres_tx.client` and `padres_tx.client.asyncio`. `padres_tx.sync` is its public
name.
"""
