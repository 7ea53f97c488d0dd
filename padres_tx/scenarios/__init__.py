"""Demonstrations and measurements on a running overlay: the handover, calibration, the demo.

Rule: clients of the public API and of the launcher; nothing in `padres_tx` but `cli` imports it.
"""
