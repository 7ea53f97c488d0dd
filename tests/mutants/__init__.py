"""Mutants: small changes of the code, one at a time, that some test should notice.

`make mutants` draws a sample of them with a fixed seed, runs for each the tests that cover the
changed module, in a copy of the tree, and prints the share that was caught and those that survived.
A survivor is a missing test, or a change without consequence; the latter are listed with their
reasons in `reviewed.yaml`. `tests/mutants` imports nothing of ours but the standard library's view
of the source: a fault of the product cannot hide itself.

Why not mutmut or cosmic-ray? Both are good at changing operators and constants. What slips through
here are left out clauses, calls and assignments, which neither offers; neither draws a sample, and
a run over everything takes days, since many tests are random runs of whole overlays; cosmic-ray
changes the working tree in place; mutmut chooses tests by what runs in one process, and brokers
here run in others. What is needed on top of them would be longer than this.
"""
