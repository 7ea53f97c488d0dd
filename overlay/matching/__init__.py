"""Which filters match a point: the index, its search tree, and tests compiled from filters.

Rule: imports the vocabulary of `overlay` (filters, messages, errors) and nothing else. No tables,
no clients, no I/O.
"""
