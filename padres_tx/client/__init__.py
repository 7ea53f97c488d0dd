"""The user's process: what a client knows and does, as state machines without I/O.

`session` and `transactions` are the pure part; `asyncio` and `blocking` are the shells around it.

Rule: imports the vocabulary, `wire`, `matching` and `tables` of `overlay`, and the modules at the
top of `padres_tx`; never a broker, a host, an engine's broker half or the launcher.
"""
