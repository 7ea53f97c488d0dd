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

        Raises ProtocolError if the data is invalid.
        """
        try:
            return self._decoder.decode(data)
        except UNDECODABLE as error:
            size = memoryview(data).nbytes
            raise ProtocolError(f"undecodable frame of {size} bytes: {error}") from None


_frames: StructCodec[AnyMessage | AnySignal] = StructCodec(AnyMessage | AnySignal)


def encode(value: Message | Signal) -> bytes:
    """The frame of a message or signal, without its length prefix."""
    return _frames.encode(value)


#: The message or signal in a frame. Raises ProtocolError if it is invalid.
decode = _frames.decode

#: The message in a frame that must not be a signal. Raises ProtocolError if it is invalid.
decode_message = StructCodec[AnyMessage](AnyMessage).decode

#: As `decode`, for decoding many frames at once: raises one of `UNDECODABLE`.
decode_unguarded = _frames.decode_unguarded
