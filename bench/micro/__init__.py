"""Benchmarks, each beside its yardstick: `padres-tx bench`.

Holds the commands `match`, `path`, `hop`, `chain`, `clients`, `start` and `recover`, the processes
that they measure with, and `regression`, which runs most of them and compares with the committed
figures.

Rule: imports the modules at bench's top, overlay, padres_tx and topologies; no other room of bench.
"""
