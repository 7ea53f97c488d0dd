"""Engines, brokers and clients with one rule broken, to show that every check can fail.

`paper_rules` and `static_paper_rules` hold the rules as the paper prints them; the others hold bugs
of our own making. The product has no switch for any of them.

Rule: may import the engines that it changes, and of `proofs.sim` the shapes of the runs that show a
bug; never `proofs.explore`.
"""
