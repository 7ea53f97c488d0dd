"""What a transaction is validated against: plain writes since it began, and its earlier losses.

Rule: imports `overlay` up to its tables, and the messages of `padres_tx`. Knows no protocol.
"""
