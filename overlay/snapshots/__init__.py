"""A broker's whole state as bytes, and back: one explicit, versioned format.

Rule: imports `overlay.broker` and below. No I/O, no clock: who keeps snapshots is the host's
business.
"""

from overlay.snapshots.image import check_stored, freeze, thaw

__all__ = ["check_stored", "freeze", "thaw"]
