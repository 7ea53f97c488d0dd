"""What transactions read and write at a broker, and when two of them conflict.

Rule: imports `overlay` up to its tables, and the messages of `padres_tx`. Knows no protocol.
"""
