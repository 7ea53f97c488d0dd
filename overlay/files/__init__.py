"""Files that a broker process appends to: logs and traces.

Rule: imports the vocabulary of `overlay` only. A full disk never ends the broker.
"""
