"""Demonstrations and measurements on a running overlay: the handover, the calibration, the demo.

Rule: uses the public API and the launcher, as a user's program would; in `padres_tx`, only `cli`
may import it.
"""
