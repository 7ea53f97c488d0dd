"""Bytes: the codec, frames on a stream, and the reliable link. No I/O: bytes in, bytes out.

Rule: imports the vocabulary of `overlay` only. Brokers and clients share this room.
"""
