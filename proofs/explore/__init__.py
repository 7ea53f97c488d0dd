"""All interleavings of small scenarios, on the real brokers, by breadth-first search.

Rule: may import `proofs.checkers`, `proofs.history`, `proofs.oracle` and `proofs.faults`, whose
engines the scenarios name, and the processes, connections and clients of `proofs.sim`; never its
random runs.
"""
