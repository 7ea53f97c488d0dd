"""Frames on a byte stream: four bytes of length, big-endian, then that many bytes of msgpack.

The format is that of Twisted's `Int32StringReceiver`, whose class calls back once a frame and drops
the prefix. Here a received chunk becomes a list of whole frames, prefix included, so that a broker
that forwards a publication writes the slice that it read. The asyncio client
uses the same code, without Twisted in the user's process.

This module does not know what the frames mean.
"""

from __future__ import annotations

from struct import Struct

from overlay.errors import FrameTooLarge, ProtocolError
from overlay.messages import Message, Pub, Signal
from overlay.wire.codec import BROKER_FRAME_LIMIT, FRAME_LIMIT, decode, encode

__all__ = [
    "BROKER_FRAME_LIMIT",
    "HELLO_LIMIT",
    "PREFIX_SIZE",
    "FirstFrame",
    "FrameTooLarge",
    "Splitter",
    "is_publication",
    "pack",
]

_PREFIX = Struct("!I")
PREFIX_SIZE = _PREFIX.size

#: How msgpack begins an array of up to 15 elements, and a number up to 127: what nearly all
#: messages begin with, the number being their kind.
_SHORT_ARRAYS = range(0x90, 0xA0)
_LAST_SHORT_NUMBER = 0x7F
_PUBLICATION = Pub.__struct_config__.tag

#: The largest first frame: a hello, of names, a secret and a number, or a goodbye with its reason.
#: Anyone who can connect may send one, so it is far smaller than what a known peer may send.
HELLO_LIMIT = 4 << 10


def pack(value: Message | Signal, limit: int = FRAME_LIMIT) -> bytes:
    """The frame of a message or signal, as it goes on the wire; `codec.decode` takes it from
    `PREFIX_SIZE` on.

    Raises FrameTooLarge beyond the limit, which by default is a client's.
    """
    body = encode(value)
    if len(body) > limit:
        raise FrameTooLarge(f"{type(value).__name__} of {len(body)} bytes: at most {limit}")
    return _PREFIX.pack(len(body)) + body


def is_publication(frame: bytes) -> bool:
    """Whether the frame of a message is a publication's.

    A broker forwards a publication as it came, so an unusual encoding is possible: then it is
    decoded.
    """
    if len(frame) > PREFIX_SIZE + 1 and frame[PREFIX_SIZE] in _SHORT_ARRAYS:
        kind = frame[PREFIX_SIZE + 1]
        if kind <= _LAST_SHORT_NUMBER:
            return kind == _PUBLICATION
    return isinstance(decode(frame[PREFIX_SIZE:]), Pub)


class FirstFrame:
    """Cuts the first frame off the stream of one connection; the rest is left as it is."""

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
                raise ProtocolError(f"first frame of {length} bytes: at most {HELLO_LIMIT}")
            end = PREFIX_SIZE + length
            if len(data) >= end:
                self._data = b""
                return data[:end], data[end:]
        self._data = data
        return None


class Splitter:
    """Cuts the stream of one connection into frames; `limit` is the largest that is accepted."""

    __slots__ = ("_have", "_need", "_parts", "limit")

    def __init__(self, limit: int = BROKER_FRAME_LIMIT) -> None:
        self.limit = limit
        # The beginning of a frame waits in parts, and is joined when the frame is complete: a
        # large frame that arrives in small pieces is not copied once per piece.
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
                raise ProtocolError(f"frame of {length} bytes: at most {limit}")
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
