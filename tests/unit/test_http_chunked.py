"""The chunked coding: whole, byte by byte, with what comes after it, and everything that it is not."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.core.errors import InvalidRequest, PayloadTooLarge
from partita.protocols.http import chunked
from partita.protocols.http.chunked import ChunkedBody

CODED = b"5\r\nhello\r\nA;name=value\r\n, chunked \r\n00\r\nTrailer: x\r\nOther: y\r\n\r\n"
PLAIN = b"hello, chunked "


def feed(*pieces: bytes, limit: int = 1000) -> tuple[ChunkedBody, bytes]:
    body = ChunkedBody(max_bytes=limit)
    rest = b""
    for piece in pieces:
        rest = body.feed(piece)
    return body, rest


def joined(body: ChunkedBody) -> bytes:
    return b"".join(body.parts)


def test_a_body_whole() -> None:
    body, rest = feed(CODED + b"GET /next")
    assert (body.is_complete, joined(body), rest) == (True, PLAIN, b"GET /next")


def test_a_body_byte_by_byte() -> None:
    body = ChunkedBody(max_bytes=1000)
    for at in range(len(CODED)):
        assert not body.is_complete
        assert body.feed(CODED[at : at + 1]) == b""
    assert (body.is_complete, joined(body)) == (True, PLAIN)


@pytest.mark.parametrize("cut", range(1, len(CODED)))
def test_a_body_in_two(cut: int) -> None:
    body, rest = feed(CODED[:cut], CODED[cut:] + b"rest")
    assert (body.is_complete, joined(body), rest) == (True, PLAIN, b"rest")


@given(parts=st.lists(st.binary(min_size=1, max_size=40), max_size=8), data=st.data())
def test_any_body_comes_through_any_cuts(parts: list[bytes], data: st.DataObject) -> None:
    coded = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    stream = coded + b"rest"
    cuts = sorted(data.draw(st.sets(st.integers(1, len(coded) - 1), max_size=6)))
    edges = [0, *cuts, len(stream)]
    body, rest = feed(*(stream[a:b] for a, b in pairwise(edges)))
    assert (body.is_complete, joined(body), rest) == (True, b"".join(parts), b"rest")


@pytest.mark.parametrize(
    "coded",
    [
        b"\r\n",
        b"x\r\n",
        b"-1\r\n",
        b"+1\r\n",
        b"0x1\r\n",
        b"1_0\r\n",
        b"1 1\r\n",
        b";a=b\r\n",
        b"11111111111111111\r\n",
        b"1\r\nab\r\n",
        b"1\r\na0\r\n\r\n",
        b"\xd9\xa1\r\n",
        b"1\na\n0\n\n" + b"x" * chunked.MAX_LINE_BYTES,
        b"1;" + b"x" * chunked.MAX_LINE_BYTES + b"\r\n",
        b"1" * (chunked.MAX_LINE_BYTES + 1),
        b"0\r\n" + b"Trailer: x\r\n" * 1000 + b"\r\n",
        b"0\r\n" + b"x" * (chunked.MAX_TRAILER_BYTES + 1),
    ],
)
def test_what_is_not_chunked_is_refused(coded: bytes) -> None:
    with pytest.raises(InvalidRequest):
        feed(coded)
    with pytest.raises(InvalidRequest):
        feed(*(coded[at : at + 1] for at in range(len(coded))))


def test_the_limit_is_on_the_data_and_holds_before_they_come() -> None:
    assert joined(feed(b"5\r\nhello\r\n0\r\n\r\n", limit=5)[0]) == b"hello"
    for coded in (b"6\r\n", b"3\r\nabc\r\n3\r\n", b"ffffffffffffffff\r\n"):
        with pytest.raises(PayloadTooLarge, match="max_body_bytes = 5"):
            feed(coded, limit=5)


def test_the_number_of_chunks_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "MAX_CHUNKS", 4)
    assert feed(b"1\r\na\r\n" * 3 + b"0\r\n\r\n")[0].is_complete
    with pytest.raises(PayloadTooLarge, match="chunks"):
        feed(b"1\r\na\r\n" * 5)
