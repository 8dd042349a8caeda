"""Content codings: what goes in comes out, within the limit, and nothing else does."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.core.errors import InvalidRequest, PayloadTooLarge
from partita.protocols.http.compression import CODINGS, compressed, decompressed

LIMIT = 1000


@pytest.mark.parametrize("coding", CODINGS)
@given(body=st.binary(max_size=LIMIT))
def test_there_and_back(coding: str, body: bytes) -> None:
    assert decompressed(compressed(body, coding), coding, max_bytes=LIMIT) == body


@pytest.mark.parametrize("coding", CODINGS)
def test_the_limit_is_the_last_size_that_is_taken(coding: str) -> None:
    assert len(decompressed(compressed(bytes(LIMIT), coding), coding, max_bytes=LIMIT)) == LIMIT
    for size in (LIMIT + 1, LIMIT * 1000):
        with pytest.raises(PayloadTooLarge, match="max_body_bytes = 1000"):
            decompressed(compressed(bytes(size), coding), coding, max_bytes=LIMIT)


@given(parts=st.lists(st.binary(max_size=200), min_size=1, max_size=4))
def test_gzip_in_several_members(parts: list[bytes]) -> None:
    body = b"".join(map(gzip.compress, parts))
    assert decompressed(body, "gzip", max_bytes=LIMIT) == b"".join(parts)


def test_several_members_count_together() -> None:
    with pytest.raises(PayloadTooLarge):
        decompressed(gzip.compress(bytes(600)) * 2, "gzip", max_bytes=LIMIT)


@given(body=st.binary(max_size=LIMIT))
def test_deflate_without_zlibs_head(body: bytes) -> None:
    packer = zlib.compressobj(wbits=-15)
    assert decompressed(packer.compress(body) + packer.flush(), "deflate", max_bytes=LIMIT) == body


@pytest.mark.parametrize("coding", CODINGS)
@given(body=st.binary(max_size=100), cut=st.integers(min_value=1, max_value=100))
def test_what_ends_early_is_refused(coding: str, body: bytes, cut: int) -> None:
    packed = compressed(body, coding)
    with pytest.raises(InvalidRequest):
        decompressed(packed[: max(0, len(packed) - cut)], coding, max_bytes=LIMIT)


def test_what_goes_on_beyond_its_end_or_is_none_is_refused() -> None:
    for body, coding in (
        (zlib.compress(b"x") + b"y", "deflate"),
        (gzip.compress(b"x") + b"y", "gzip"),
        (gzip.compress(b"x") * 17, "gzip"),
        (b"plain text", "gzip"),
        (b"", "gzip"),
        (b"x", "br"),
        (gzip.compress(zlib.compress(b"x")), "deflate, gzip"),
    ):
        with pytest.raises(InvalidRequest):
            decompressed(body, coding, max_bytes=LIMIT)
