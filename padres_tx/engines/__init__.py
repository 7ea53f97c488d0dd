"""The transaction engines, one module or package each; `padres_tx.registry` lists this folder.

An engine's own module is its declaration. It names the half at brokers by its place, `broker.py` in
the engine's package, so that a client which uses the engine does not load it.

Rule: an engine imports `padres_tx.protocol`, and `padres_tx.client` for a client half of its own.
No engine imports another.
"""
