"""The node: core, links and timers as one deterministic machine, and the way of inputs into it.

Rule: imports `overlay.{broker,wire,log,snapshots}` and the vocabulary.
No I/O, no clock, no threads, no randomness: what a node is follows from the inputs that it was
given, in their order.
"""
