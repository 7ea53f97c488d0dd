"""TLA+ specifications checked by TLC, traces of the real engines compared with them, lemmas by Z3.

Rule: may import `proofs.sim`, which makes the traces; no other folder of `proofs` imports it.
"""
