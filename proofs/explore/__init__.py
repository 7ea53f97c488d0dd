"""All interleavings of small scenarios, on the real brokers, by breadth-first search.

Rule: may import `proofs.checkers`, `proofs.history`, `proofs.oracle` and `proofs.faults`, whose
engines the scenarios name; never the random runs of `proofs.sim`.
"""
