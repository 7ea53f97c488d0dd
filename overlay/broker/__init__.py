"""The broker as a pure function: a message in, effects out (`core`), and the engine contract.

Rule: imports `overlay.tables`, `overlay.matching` and the vocabulary. No I/O, no clock, no threads,
no randomness: time is an argument and a timer is an effect.
"""
