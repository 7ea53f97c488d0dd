"""What can go wrong with a topology, as one tree.

TopologyError    a topology, a file of one, or a picture of one that cannot be had

There is one class because there is one answer: somebody has to correct what they wrote. The
message is a single line that names the culprit (file, field, broker, edge or client) and why.
"""

from __future__ import annotations


class TopologyError(Exception):
    """A topology that is none; nothing has been started or written.

    Not a ValueError on purpose: pydantic lets any other exception pass through its validators as
    it is, so the same class arrives whether a model is built in Python or read from a file.
    """
