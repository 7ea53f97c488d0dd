"""Random runs of a simulated overlay: drawn from a seed, checked at rest, replayed, shrunk.

Rule: may import `proofs.checkers`, `proofs.history` and `proofs.oracle`; knows no injected bug. A
run takes its engines as an argument.
"""
