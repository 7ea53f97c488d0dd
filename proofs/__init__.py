"""The guarantees of the overlay and its engines, and the programs that check them.

    checkers    find anomalies in the trace records of any run
    sim         random runs in a simulated overlay, checked and made smaller
    faults      engines with one rule broken or replaced by the paper's, for the checks to find
    explore     all interleavings of small scenarios
    solvers     TLA+ specifications and lemmas, checked by TLC and Z3

`history` (a run as the checkers read it) and `oracle` (the expected routing tables) are the
vocabulary that these folders share. README.md states what is guaranteed and how it is argued;
errata.md lists the mistakes of the paper, each with its shortest counterexample.
"""
