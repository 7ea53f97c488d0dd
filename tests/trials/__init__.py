"""Programs as a user would write them, run over real processes under bad luck.

A trial uses the public interface only, writes down what its own clients have seen, and judges that.
`python -m tests.trials.NAME` runs one at full size and `make trials` all of them; a test beside it
runs it small. Trials import `padres_tx` and `topologies`, and nothing from inside them.
"""
