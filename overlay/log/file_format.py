"""The bytes of a log's files. Pure: bytes in, bytes out.

    segment   = preface of a SegmentHeader, then batches
    snapshot  = preface of a SnapshotHeader, then the state
    preface   = magic (8 bytes) | format (u32) | length (u32) | checksum (u32) | header (JSON)
    batch     = mark (4 bytes) | checksum (u32) | length (u32) | position (u64) | chain (u32) | body

Numbers are little-endian; checksums are CRC-32. The layout of the preface stays the same in all
formats, so that a newer one is told from damage. A batch's checksum covers its length, position,
chain and body. Its *chain* is the checksum of the batch before, also across segments. The first
checksum of all is computed from the log's birth token, which nobody outside knows: neither a batch
of another log nor the content of a message can pass for a batch of this one.

What follows the last intact batch is a *torn tail*, if no intact batch is behind it: the last
append did not reach the disk as a whole. If there is one, something that was committed is damaged.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeVar
from zlib import crc32

import msgspec

from overlay.errors import LogDamaged, LogError, WrongLog

#: Increased when an older version would misread a newer file.
FORMAT: Final = 1

SEGMENT_MAGIC: Final = b"\x89txlog\r\n"
SNAPSHOT_MAGIC: Final = b"\x89txsnp\r\n"

#: Each batch begins with it, so that an intact batch is found behind a damaged one.
MARK: Final = b"\xb7tx\n"

#: A batch is written and read in one piece: no owner collects as much as this.
BATCH_LIMIT_BYTES: Final = 256 << 20

#: A header has some names in it.
HEADER_LIMIT_BYTES: Final = 1 << 16

SEGMENT_NAME: Final = re.compile(r"log-(\d{20})")
SNAPSHOT_NAME: Final = re.compile(r"snap-(\d{20})")

#: A file that is being made has this at the end of its name, until it is complete.
UNFINISHED: Final = ".tmp"

_PREFACE: Final = struct.Struct("<8sIII")
_FIELDS: Final = struct.Struct("<IQI")
_BATCH: Final = struct.Struct("<4sIIQI")

H = TypeVar("H", bound=msgspec.Struct)


class SegmentHeader(msgspec.Struct, frozen=True):
    """What a segment says of itself."""

    broker: str
    #: The log's birth token.
    birth: str
    #: The code that has written the batches.
    version: str
    #: The position of the first batch, and the checksum of the batch before it.
    first: int
    chain: int


class SnapshotHeader(msgspec.Struct, frozen=True):
    """What a snapshot says of itself."""

    broker: str
    birth: str
    version: str
    position: int
    #: Size and checksum of the state.
    size: int
    checksum: int


class FoundBatch(NamedTuple):
    """An intact batch in the bytes of a segment: its position, checksum, and where its body is."""

    position: int
    checksum: int
    begin: int
    end: int


class Tail(NamedTuple):
    """Where the intact batches of a segment end."""

    #: The last position, and the checksum of that batch.
    last: int
    chain: int
    #: The offset behind it, and how many bytes follow.
    end: int
    beyond: int
    #: The offset of an intact batch among these; 0 if there is none.
    intact_behind: int


def segment_name(first: int) -> str:
    return f"log-{first:020}"


def snapshot_name(position: int) -> str:
    return f"snap-{position:020}"


def seed_of(birth: str) -> int:
    """What the checksums of a log's batches begin with, and the chain of its first batch."""
    return crc32(birth.encode())


# --- prefaces ---


def seal_segment(header: SegmentHeader) -> bytes:
    """The first bytes of a segment."""
    return _seal(SEGMENT_MAGIC, header)


def seal_snapshot(header: SnapshotHeader) -> bytes:
    """The first bytes of a snapshot."""
    return _seal(SNAPSHOT_MAGIC, header)


def open_segment(data: bytes, name: str) -> tuple[SegmentHeader, int]:
    """Return a segment's header, and the offset of its first batch.

    Raises LogDamaged, WrongLog; `name` is the file's name, for the reason.
    """
    return _open(SEGMENT_MAGIC, SegmentHeader, data, name)


def open_snapshot(data: bytes, name: str) -> tuple[SnapshotHeader, int]:
    """Return a snapshot's header, and the offset of its state. Raises as `open_segment`."""
    return _open(SNAPSHOT_MAGIC, SnapshotHeader, data, name)


def state_in(data: bytes, name: str) -> bytes:
    """Return the state in the bytes of a snapshot. Raises LogDamaged, WrongLog."""
    header, begin = open_snapshot(data, name)
    state = data[begin:]
    if len(state) != header.size:
        raise LogDamaged(f"{name}: expected {header.size} bytes of state, found {len(state)}")
    if crc32(state) != header.checksum:
        raise LogDamaged(f"{name}: wrong checksum of the state, at offset {begin}")
    return state


def _seal(magic: bytes, header: msgspec.Struct) -> bytes:
    body = msgspec.json.encode(header)
    assert len(body) <= HEADER_LIMIT_BYTES, "the names in a header are too long"
    start = _PREFACE.pack(magic, FORMAT, len(body), 0)[:-4]
    return start + crc32(start + body).to_bytes(4, "little") + body


def _open(magic: bytes, kind: type[H], data: bytes, name: str) -> tuple[H, int]:
    if len(data) < _PREFACE.size:
        raise LogDamaged(f"{name}: the header is cut off, at offset {len(data)}")
    found, format_number, length, checksum = _PREFACE.unpack_from(data)
    if found != magic:
        raise _not_of_a_log(found, magic, name)
    end = _PREFACE.size + length
    body = data[_PREFACE.size : end]
    if crc32(data[: _PREFACE.size - 4] + body) != checksum:
        raise LogDamaged(f"{name}: wrong checksum of the header, at offset 0")
    if format_number != FORMAT:
        raise WrongLog(f"{name}: format {format_number}; this version reads format {FORMAT}")
    try:
        return msgspec.json.decode(body, type=kind), end
    except msgspec.MsgspecError as error:
        raise LogDamaged(f"{name}: invalid header, at offset {_PREFACE.size}: {error}") from None


def _not_of_a_log(found: bytes, magic: bytes, name: str) -> LogError:
    same = sum(a == b for a, b in zip(found, magic, strict=True))
    if same >= len(magic) // 2:
        return LogDamaged(f"{name}: wrong first bytes, at offset 0")
    return WrongLog(f"{name}: not a file of a log")


# --- batches ---


def seal_batch(position: int, chain: int, seed: int, body: bytes) -> tuple[bytes, int]:
    """Return the bytes of a batch, and its checksum."""
    assert 0 < len(body) <= BATCH_LIMIT_BYTES, len(body)
    fields = _FIELDS.pack(len(body), position, chain)
    checksum = crc32(body, crc32(fields, seed))
    return MARK + checksum.to_bytes(4, "little") + fields + body, checksum


def batches_in(data: bytes, begin: int, header: SegmentHeader) -> Iterator[FoundBatch]:
    """Return the intact batches of a segment, in order, up to the first that is not.

    `begin` is the offset of the first batch.
    """
    view = memoryview(data)
    seed = seed_of(header.birth)
    position, chain = header.first, header.chain
    while (found := _batch_at(data, view, begin, seed)) is not None:
        batch, chain_found = found
        if batch.position != position or chain_found != chain:
            return
        yield batch
        position, chain, begin = position + 1, batch.checksum, batch.end


def tail_of(data: bytes, begin: int, header: SegmentHeader) -> Tail:
    """Return where the intact batches of a segment end, and whether one is behind that."""
    last, chain, end = header.first - 1, header.chain, begin
    for batch in batches_in(data, begin, header):
        last, chain, end = batch.position, batch.checksum, batch.end
    intact_behind = 0
    view = memoryview(data)
    seed = seed_of(header.birth)
    at = data.find(MARK, end)
    while at >= 0:
        found = _batch_at(data, view, at, seed)
        # An older position is not behind: a part of this segment was written over.
        if found is not None and found[0].position > last:
            intact_behind = at
            break
        at = data.find(MARK, at + 1)
    return Tail(last, chain, end, len(data) - end, intact_behind)


def _batch_at(data: bytes, view: memoryview, at: int, seed: int) -> tuple[FoundBatch, int] | None:
    """The batch at an offset, if it is intact, and its chain."""
    if len(data) - at < _BATCH.size:
        return None
    mark, checksum, length, position, chain = _BATCH.unpack_from(data, at)
    begin = at + _BATCH.size
    end = begin + length
    # An empty batch is never written.
    if mark != MARK or not length or end > len(data):
        return None
    if crc32(view[begin - _FIELDS.size : end], seed) != checksum:
        return None
    return FoundBatch(position, checksum, begin, end), chain
