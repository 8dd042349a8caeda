"""Content codings: gzip and deflate, in requests and responses."""

import gzip
import zlib

from partita.core.errors import InvalidRequest, PayloadTooLarge

CODINGS = ("gzip", "deflate")
"""What is spoken, best first."""
COMPRESS_FROM_BYTES = 1024
"""Smaller responses are not worth compressing."""
MAX_MEMBERS = 16
"""A gzip body of more parts would cost more time than it has bytes."""
_LEVEL = 1
_GZIP_BITS, _ZLIB_BITS, _RAW_BITS = 31, 15, -15


def accepted_coding(value: bytes) -> str:
    """Return the coding for a response, from an ``Accept-Encoding`` header; empty = none."""
    weights: dict[bytes, bytes] = {}
    for entry in value.lower().replace(b" ", b"").split(b","):
        name, weighted, weight = entry.partition(b";q=")
        weights.setdefault(name, weight if weighted else b"1")
    for coding in CODINGS:
        if weights.get(coding.encode(), b"").strip(b"0."):  # a weight of 0 means no
            return coding
    return ""


def compressed(body: bytes, coding: str) -> bytes:
    """Return a body in one of `CODINGS`."""
    return gzip.compress(body, _LEVEL) if coding == "gzip" else zlib.compress(body, _LEVEL)


def decompressed(body: bytes, coding: str, *, max_bytes: int) -> bytes:
    """Return what a body in a content coding holds.

    Raises `InvalidRequest` for another coding or a body that is not in it, `PayloadTooLarge` as soon as more
    than `max_bytes` have come out of it.
    """
    if coding not in CODINGS:
        raise InvalidRequest(f"content encoding {coding[:40]!r} is not supported; use gzip or deflate")
    parts: list[bytes] = []
    room = max_bytes
    while body or not parts:  # a gzip file may have several members, one after another
        part, body = _member(body, coding, room)
        room -= len(part)
        if room < 0:
            raise PayloadTooLarge(f"the decompressed body is over max_body_bytes = {max_bytes}")
        parts.append(part)
        if body and (coding != "gzip" or len(parts) == MAX_MEMBERS):
            raise InvalidRequest(f"the {coding} body has {len(body)} bytes beyond its end")
    return b"".join(parts)


def _member(body: bytes, coding: str, room: int) -> tuple[bytes, bytes]:
    """Return at most one byte more than there is room for, and what follows the member."""
    unpacker = zlib.decompressobj(_bits(body, coding))
    try:
        part = unpacker.decompress(body, room + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the body is not {coding}: {error}") from None
    if not unpacker.eof and len(part) <= room:
        raise InvalidRequest(f"the {coding} body ends early")
    return part, unpacker.unused_data


def _bits(body: bytes, coding: str) -> int:
    """Which of zlib's formats: ``deflate`` has zlib's head (RFC 9110 §8.4.1.2), but some send it without."""
    if coding == "gzip":
        return _GZIP_BITS
    has_head = len(body) >= 2 and body[0] & 0x0F == 8 and int.from_bytes(body[:2], "big") % 31 == 0
    return _ZLIB_BITS if has_head else _RAW_BITS
