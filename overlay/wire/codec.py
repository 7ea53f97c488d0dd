"""Frames to structs and back: msgpack through msgspec, typed and checked while decoding.

Decoding returns a message or signal, or raises `ProtocolError`, whatever the bytes. The length
prefix belongs to `frames`.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from overlay.errors import FilterError, ProtocolError
from overlay.filters import Filter
from overlay.messages import AnyMessage, AnySignal, Message, Signal

#: The largest frame that a client may send. A publication is an event, not a file; a larger one
#: would delay everything behind it on the link.
FRAME_LIMIT = 1 << 20

#: The largest frame that a broker writes. It has to be more than a client may write: an edge broker
#: adds to an operation what it makes obsolete (up to ENTRIES_PER_CLIENT numbers of five bytes), and
#: must not fail where the client made no mistake.
BROKER_FRAME_LIMIT = 8 * FRAME_LIMIT

#: A broker encodes anew what it passes on. Request numbers may become longer, and a float that came
#: in four bytes goes in eight. So this much has to be left of the limit when all is in its longest
#: form; what is smaller than a half of the limit need not be looked at.
RELAY_ROOM = 1024

#: What msgspec raises; RecursionError for deeply nested garbage.
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError)

T = TypeVar("T")


def _encode_filter(value: Any) -> Any:
    if isinstance(value, Filter):
        return value.to_wire()
    raise TypeError(f"no wire form for {type(value)!r}")


def _decode_filter(kind: type, value: Any) -> Any:
    assert kind is Filter, kind
    try:
        return Filter.from_wire(value)
    except FilterError as error:
        raise ValueError(str(error)) from None


class StructCodec(Generic[T]):
    """Structs of some types to msgpack and back; filters may be anywhere in them."""

    def __init__(self, types: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(
            types, dec_hook=_decode_filter
        )
        self.decode_unguarded = self._decoder.decode
        self.encode = msgspec.msgpack.Encoder(enc_hook=_encode_filter).encode

    def decode(self, data: bytes | memoryview | msgspec.Raw) -> T:
        """The struct in the data.

        Raises ProtocolError if the data is invalid, or cannot be passed on.
        """
        size = memoryview(data).nbytes
        try:
            value = self._decoder.decode(data)
        except UNDECODABLE as error:
            raise ProtocolError(f"undecodable frame of {size} bytes: {error}") from None
        self.check_room(value, size)
        return value

    def check_room(self, value: T, size: int) -> None:
        """Raises ProtocolError if a value that came in so many bytes cannot be passed on."""
        if size > BROKER_FRAME_LIMIT // 2:
            needed = len(self.encode(value)) + RELAY_ROOM
            if needed > BROKER_FRAME_LIMIT:
                raise ProtocolError(
                    f"a {type(value).__name__} of {size} bytes cannot be passed on: it needs "
                    f"{needed} bytes, the limit is {BROKER_FRAME_LIMIT}"
                )


_frames: StructCodec[AnyMessage | AnySignal] = StructCodec(AnyMessage | AnySignal)
_messages: StructCodec[AnyMessage] = StructCodec(AnyMessage)


def encode(value: Message | Signal) -> bytes:
    """The frame of a message or signal, without its length prefix."""
    return _frames.encode(value)


#: The message or signal in a frame. Raises ProtocolError if it is invalid.
decode = _frames.decode

#: The message in a frame that must not be a signal. Raises ProtocolError if it is invalid.
decode_message = _messages.decode

#: The same for frames that were decoded before, such as by the process that has logged them: raises
#: one of `UNDECODABLE`.
decode_message_again = _messages.decode_unguarded

#: As `decode`, for decoding many frames at once: raises one of `UNDECODABLE`.
decode_unguarded = _frames.decode_unguarded

#: Raises ProtocolError if a message or signal that came in so many bytes cannot be passed on.
check_room = _frames.check_room
