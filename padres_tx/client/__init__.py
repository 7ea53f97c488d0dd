"""The client: its state machines without I/O, and the shells that run them.

`session` and `transactions` are pure; `asyncio` and `blocking` run them in a user's process.

Rule: imports the vocabulary, `wire`, `matching` and `tables` of `overlay`, and the modules at the
top of `padres_tx`; never a broker, a host, an engine's broker half or the launcher.
"""
