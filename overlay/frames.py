"""Frames on a byte stream: four bytes of length, big-endian, then that many bytes of msgpack.

It is the format of Twisted's `Int32StringReceiver`, without its class: that one calls back once a
frame and drops the prefix. Here a received chunk becomes a list of whole frames, prefix included,
so that a broker which forwards a publication writes the slice that it read. The asyncio client
uses the same code, without Twisted in the user's process.

It knows nothing of what the frames mean.
"""

from __future__ import annotations

from struct import Struct

from overlay.codec import FRAME_LIMIT, encode
from overlay.errors import OverlayError, ProtocolError
from overlay.messages import Message, Signal

_PREFIX = Struct("!I")
PREFIX_SIZE = _PREFIX.size


class FrameTooLarge(OverlayError, ValueError):
    """The caller's mistake: a message that no receiver would read."""

    code = "too-large"


def pack(value: Message | Signal) -> bytes:
    """The frame of a message or signal, as it goes on the wire; `codec.decode` takes it from
    `PREFIX_SIZE` on.

    Raises FrameTooLarge beyond `codec.FRAME_LIMIT`.
    """
    body = encode(value)
    if len(body) > FRAME_LIMIT:
        raise FrameTooLarge(
            f"a {type(value).__name__} of {len(body)} bytes is over the limit of {FRAME_LIMIT}"
        )
    return _PREFIX.pack(len(body)) + body


class Splitter:
    """Cuts what arrives on one connection into frames."""

    __slots__ = ("_have", "_need", "_parts")

    def __init__(self) -> None:
        # The beginning of a frame waits in parts, and is joined when the frame is complete: a
        # large frame that comes in crumbs is not copied once a crumb.
        self._parts: list[bytes] = []
        self._have = 0
        self._need = PREFIX_SIZE

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes, each with its prefix.

        Raises ProtocolError if a frame announces more than `codec.FRAME_LIMIT`; the connection is
        then of no more use.
        """
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data = b"".join(self._parts)
            self._parts.clear()
        frames: list[bytes] = []
        start, end = 0, len(data)
        need = PREFIX_SIZE
        unpack = _PREFIX.unpack_from
        while end - start >= PREFIX_SIZE:
            length = unpack(data, start)[0]
            if length > FRAME_LIMIT:
                raise ProtocolError(
                    f"a frame of {length} bytes is announced; the limit is {FRAME_LIMIT}"
                )
            stop = start + PREFIX_SIZE + length
            if stop > end:
                need = PREFIX_SIZE + length
                break
            frames.append(data[start:stop])
            start = stop
        if start < end:
            self._parts.append(data[start:])
        self._have = end - start
        self._need = need
        return frames
