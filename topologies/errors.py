"""The error of this package.

TopologyError    an invalid topology, or a topology file or picture that cannot be read or written

There is one class because there is one remedy: a person has to correct the input. The message is a
single line that names the file, field, broker, edge or client, and the reason.
"""

from __future__ import annotations


class TopologyError(Exception):
    """An invalid topology; nothing has been started or written.

    It is not a ValueError, because pydantic passes other exceptions through its validators
    unchanged: so the class is the same whether a model is built in Python or read from a file.
    """
