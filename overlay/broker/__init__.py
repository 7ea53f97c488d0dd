"""The broker as a pure function: a message in, effects out; and the contract of engines.

Begin with `core`: it has the inputs, what engines may call, and a table of the parts that do the
work, each in a module of its own.

Rule: imports `overlay.tables`, `overlay.matching` and the vocabulary. No I/O, no clock, no threads,
no randomness: time is an argument and a timer is an effect.
"""
