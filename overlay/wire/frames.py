"""Frames on a byte stream: four bytes of length, big-endian, then that many bytes of msgpack.

It is the format of Twisted's `Int32StringReceiver`, without its class: that one calls back once a
frame and drops the prefix. Here a received chunk becomes a list of whole frames, prefix included,
so that a broker which forwards a publication writes the slice that it read. The asyncio client
uses the same code, without Twisted in the user's process.

It knows nothing of what the frames mean.
"""

from __future__ import annotations

from struct import Struct

from overlay.errors import FrameTooLarge, ProtocolError
from overlay.messages import Message, Signal
from overlay.wire.codec import FRAME_LIMIT, encode

__all__ = [
    "BROKER_FRAME_LIMIT",
    "HELLO_LIMIT",
    "PREFIX_SIZE",
    "FirstFrame",
    "FrameTooLarge",
    "Splitter",
    "pack",
]

_PREFIX = Struct("!I")
PREFIX_SIZE = _PREFIX.size

#: The largest frame that a broker writes. It has to be more than a client may write: an edge broker
#: adds to an operation what it makes obsolete (up to ENTRIES_PER_CLIENT numbers of five bytes), and
#: must not fail where the client was right.
BROKER_FRAME_LIMIT = 8 * FRAME_LIMIT

#: The largest first frame: a hello, of names, a secret and a number, or a goodbye with its reason.
#: Everybody who can connect may send one, so it is far smaller than what a known peer may send.
HELLO_LIMIT = 4 << 10


def pack(value: Message | Signal, limit: int = FRAME_LIMIT) -> bytes:
    """The frame of a message or signal, as it goes on the wire; `codec.decode` takes it from
    `PREFIX_SIZE` on.

    Raises FrameTooLarge beyond the limit, which by default is a client's.
    """
    body = encode(value)
    if len(body) > limit:
        raise FrameTooLarge(
            f"a {type(value).__name__} of {len(body)} bytes is over the limit of {limit}"
        )
    return _PREFIX.pack(len(body)) + body


class FirstFrame:
    """Cuts the first frame off what arrives on one connection; what follows it is left whole."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> tuple[bytes, bytes] | None:
        """The first frame, with its prefix, and what came behind it; None if more has to come.

        Raises ProtocolError if the frame announces more than HELLO_LIMIT, so that no more than
        this is ever kept.
        """
        data = self._data + data
        if len(data) >= PREFIX_SIZE:
            length = _PREFIX.unpack_from(data)[0]
            if length > HELLO_LIMIT:
                raise ProtocolError(
                    f"a first frame of {length} bytes is announced; the limit is {HELLO_LIMIT}"
                )
            end = PREFIX_SIZE + length
            if len(data) >= end:
                self._data = b""
                return data[:end], data[end:]
        self._data = data
        return None


class Splitter:
    """Cuts what arrives on one connection into frames; `limit` is for what a peer may send."""

    __slots__ = ("_have", "_need", "_parts", "limit")

    def __init__(self, limit: int = BROKER_FRAME_LIMIT) -> None:
        self.limit = limit
        # The beginning of a frame waits in parts, and is joined when the frame is complete: a
        # large frame that comes in crumbs is not copied once a crumb.
        self._parts: list[bytes] = []
        self._have = 0
        self._need = PREFIX_SIZE

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes, each with its prefix.

        Raises ProtocolError if a frame announces more than the limit; the connection is then of
        no more use.
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
        unpack, limit = _PREFIX.unpack_from, self.limit
        while end - start >= PREFIX_SIZE:
            length = unpack(data, start)[0]
            if length > limit:
                raise ProtocolError(f"a frame of {length} bytes is announced; the limit is {limit}")
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
