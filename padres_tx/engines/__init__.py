"""The transaction engines, one module each; `padres_tx.registry` lists this folder.

Rule: an engine imports `padres_tx.protocol`, and `padres_tx.client` for a client half of its own.
No engine imports another.
"""
