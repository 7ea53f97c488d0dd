"""The routing tables of a broker: SRT, PRT and CRT, their entries and versions.

Rule: imports `overlay.matching` and the vocabulary. Pure data and functions: no messages are sent
from here, and there is no I/O and no clock.
"""
