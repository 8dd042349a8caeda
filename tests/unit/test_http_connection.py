"""One connection: framing, order, limits and time, driven packet by packet."""

import pytest

from partita.protocols.http.connection import MAX_UNREAD_BYTES, WRITE_BUFFER_BYTES, Connection
from partita.protocols.http.handler import Repeat
from partita.protocols.http.heads import RequestHead, parse_head
from partita.protocols.http.responses import CONTINUE, chunked_head, response_head
from tests.fake_transport import Wire


def post(body: bytes, *fields: str, version: str = "1.1") -> bytes:
    lines = [f"POST /x HTTP/{version}", "Host: h", f"Content-Length: {len(body)}", *fields, "", ""]
    return "\r\n".join(lines).encode() + body


def chunked(*parts: bytes) -> bytes:
    head = b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
REQUESTS = {"length": post(b"hello"), "chunks": chunked(b"he", b"llo"), "no body": GET, "empty": post(b"")}

# --- framing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_request_may_be_split_anywhere(kind: str) -> None:
    request = REQUESTS[kind]
    whole = Wire()
    whole.send(request)
    assert whole.statuses == [200]
    for cut in range(1, len(request)):
        wire = Wire()
        wire.send(request[:cut])
        assert wire.statuses == []
        wire.send(request[cut:])
        assert wire.transport.written == whole.transport.written
        assert wire.handler.requests == whole.handler.requests


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_pipelined_requests_are_answered_in_order_however_they_come(size: int) -> None:
    stream = post(b"one") + GET + chunked(b"t", b"wo") + post(b"") + chunked() + post(b"three")
    wire = Wire()
    for at in range(0, len(stream), size):
        wire.send(stream[at : at + size])
    assert wire.handler.bodies == [b"one", b"", b"two", b"", b"", b"three"]
    assert wire.statuses == [200] * 6
    order = [wire.transport.written.find(word) for word in (b"one", b"two", b"three")]
    assert order == sorted(order)
    assert order[0] > 0


def test_a_request_waits_for_the_answer_of_the_one_before() -> None:
    wire = Wire()
    wire.handler.holds = True
    wire.send(post(b"one") + post(b"two"))
    wire.send(post(b"three"))
    assert wire.handler.bodies == [b"one"]
    wire.answer()
    assert wire.handler.bodies == [b"one", b"two"]
    wire.answer()
    wire.answer()
    assert wire.handler.bodies == [b"one", b"two", b"three"]
    assert wire.statuses == [200, 200, 200]


def test_a_second_answer_to_one_request_is_not_sent() -> None:
    wire = Wire()
    wire.handler.holds = True
    wire.send(post(b"one"))
    wire.answer()
    wire.answer()
    assert wire.statuses == [200]


@pytest.mark.parametrize("filler", [b"\r\n", b"\r\n\r\n", b"\r\n" * 5])
def test_empty_lines_between_requests_are_skipped(filler: bytes) -> None:
    wire = Wire()
    wire.send(filler + post(b"one") + filler + post(b"two") + filler)
    assert wire.handler.bodies == [b"one", b"two"]
    for byte in filler:
        wire.send(bytes([byte]))
    wire.send(GET)
    assert wire.statuses == [200] * 3


def test_many_pipelined_requests_do_not_recurse() -> None:
    wire = Wire()
    wire.send(GET * 5000)
    assert len(wire.handler.requests) == 5000


# --- the end of a connection ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(b"a", "Connection: close"),
        b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        post(b"a", version="1.0"),
        post(b"a", "Connection: keep-alive", version="1.0"),
        b"GET / HTTP/1.0\r\n\r\n",
    ],
)
def test_a_connection_that_is_not_kept_is_closed_after_one_answer(request_bytes: bytes) -> None:
    wire = Wire()
    wire.send(request_bytes + GET)
    assert len(wire.handler.requests) == 1
    assert wire.statuses == [200]
    assert b"\r\nconnection: close\r\n" in wire.transport.written
    assert wire.transport.is_closed()


def test_a_connection_is_kept_otherwise() -> None:
    wire = Wire()
    wire.send(GET)
    assert b"connection" not in wire.transport.written
    assert not wire.transport.is_closed()


def test_while_draining_an_answer_is_the_last_and_says_so() -> None:
    wire = Wire()
    wire.handler.holds = True
    wire.send(GET)
    wire.listener.is_draining = True
    wire.answer()
    assert b"\r\nconnection: close\r\n" in wire.transport.written
    assert wire.transport.is_closed()


@pytest.mark.parametrize("sent", [b"", GET[:10], post(b"abc")[:-1], GET])
def test_an_end_with_nothing_in_hand_closes(sent: bytes) -> None:
    wire = Wire()
    wire.send(sent)
    wire.send_eof()
    assert wire.transport.is_closed()


def test_a_client_that_closes_while_its_request_is_in_hand_is_gone() -> None:
    """Its end is all that is seen of a client that has given up: nothing tells it from a half-close."""
    wire = Wire()
    wire.handler.holds = True
    wire.send(post(b"one") + post(b"two"))
    assert not wire.send_eof()
    wire.connection.connection_lost(None)
    assert wire.handler.abandonments == 1
    assert wire.handler.bodies == [b"one"]


def test_a_client_that_goes_while_its_request_is_in_hand_is_abandoned_once() -> None:
    wire = Wire()
    wire.handler.holds = True
    wire.send(post(b"one") + post(b"two"))
    wire.connection.connection_lost(None)
    wire.loop.run()
    assert wire.handler.abandonments == 1
    assert wire.handler.bodies == [b"one"]
    wire.answer()  # too late
    assert wire.statuses == []
    assert wire.listener.connections == 0


@pytest.mark.parametrize("sent", [b"", GET[:10], post(b"abc")[:-1], GET])
def test_nobody_is_told_of_a_client_that_goes_with_nothing_in_hand(sent: bytes) -> None:
    wire = Wire()
    wire.send(sent)
    wire.connection.connection_lost(ConnectionResetError())
    assert wire.handler.abandonments == 0
    assert wire.listener.connections == 0


# --- Expect ---------------------------------------------------------------------------------------


def test_a_client_that_waits_is_told_to_go_on() -> None:
    wire = Wire()
    request = post(b"hello", "Expect: 100-continue")
    wire.send(request[:-5])
    assert wire.transport.written == CONTINUE
    wire.send(b"hello")
    assert wire.statuses == [100, 200]


def test_a_client_that_did_not_wait_is_not_told() -> None:
    wire = Wire()
    wire.send(post(b"hello", "Expect: 100-continue"))
    assert wire.statuses == [200]


def test_a_body_over_the_limit_is_refused_before_it_is_sent() -> None:
    wire = Wire(max_body_bytes=4)
    wire.send(post(b"hello", "Expect: 100-continue")[:-5])
    assert wire.statuses == [413]


# --- limits ---------------------------------------------------------------------------------------


def refused(wire: Wire, status: int, text: bytes) -> None:
    """The last answer is this error, and nothing is taken from the client any more."""
    requests = len(wire.handler.requests)
    assert wire.statuses[-1] == status
    assert text in wire.transport.written
    assert b"connection: close" in wire.transport.written
    assert wire.transport.has_sent_eof or wire.transport.is_closed()
    written = wire.transport.written
    wire.send(GET + b"x" * 10_000)
    assert wire.transport.written == written
    assert len(wire.handler.requests) == requests
    assert wire.listener.refusals.get(status, 0) >= (status != 503)
    assert not wire.send_eof()


@pytest.mark.parametrize("step", [1, 50, 5000])
def test_431_for_a_head_over_the_limit(step: int) -> None:
    wire = Wire(max_header_bytes=200)
    head = b"GET / HTTP/1.1\r\nX: " + b"x" * 300
    for at in range(0, len(head), step):
        if wire.statuses:
            break
        wire.send(head[at : at + step])
    refused(wire, 431, b"max_header_bytes = 200")


def test_431_for_a_whole_head_over_the_limit_and_none_for_one_at_it() -> None:
    wire = Wire(max_header_bytes=len(GET) - 4)
    wire.send(GET)
    assert wire.statuses == [200]
    wire.send(GET[:-4] + b"x\r\n\r\n")
    refused(wire, 431, b"max_header_bytes")


def test_413_for_a_length_over_the_limit_and_none_for_one_at_it() -> None:
    wire = Wire(max_body_bytes=5)
    wire.send(post(b"hello"))
    assert wire.statuses == [200]
    wire.send(post(b"hello!"))
    refused(wire, 413, b"max_body_bytes = 5")


def test_413_for_chunks_over_the_limit() -> None:
    wire = Wire(max_body_bytes=5)
    wire.send(chunked(b"he", b"llo"))
    assert wire.statuses == [200]
    wire.send(chunked(b"hel", b"lo!"))
    refused(wire, 413, b"max_body_bytes = 5")


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\r\n\r\n",
        b"GET http://[x/ HTTP/1.1\r\n\r\n",
        b"CONNECT host:443 HTTP/1.1\r\nHost: host\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_400_for_what_is_no_request(data: bytes) -> None:
    wire = Wire()
    wire.send(post(b"one") + data)
    assert wire.handler.bodies == [b"one"]
    refused(wire, 400, b'{"error":')


def test_503_for_one_connection_too_many() -> None:
    first = Wire(max_connections=1)
    second = Wire(first.listener)
    refused(second, 503, b"max_connections = 1")
    second.connection.connection_lost(None)
    first.connection.connection_lost(None)
    third = Wire(first.listener)
    assert third.transport.written == b""


def test_after_a_refusal_the_rest_is_read_and_thrown_away_for_a_while_only() -> None:
    """Closing with bytes unread resets the connection, and the client would lose the answer."""
    wire = Wire(max_body_bytes=5, body_timeout_s=3)
    wire.send(post(bytes(1000)))
    assert not wire.transport.is_closed()
    assert wire.transport.is_reading()
    for _ in range(3):
        wire.send(bytes(1000))
        wire.ticks(1)
    assert not wire.transport.is_closed()
    wire.send(bytes(1000))
    wire.ticks(1)
    assert wire.transport.is_aborted()


# --- time -----------------------------------------------------------------------------------------


def test_408_for_a_head_that_does_not_come() -> None:
    wire = Wire(header_timeout_s=3)
    wire.send(GET[:10])
    wire.ticks(3)
    assert wire.statuses == []
    wire.ticks(1)
    refused(wire, 408, b"header_timeout_s = 3")


def test_408_for_a_head_that_comes_a_byte_at_a_time() -> None:
    wire = Wire(header_timeout_s=3, idle_timeout_s=100)
    for byte in GET[:10]:
        if wire.statuses:
            break
        wire.send(bytes([byte]))
        wire.ticks(1)
    refused(wire, 408, b"header_timeout_s = 3")


def test_408_for_a_body_that_stops_but_not_for_a_slow_one_where_any_rate_is_allowed() -> None:
    wire = Wire(body_timeout_s=3, min_body_bytes_per_s=0, header_timeout_s=1)
    request = post(b"x" * 8)
    wire.send(request[:-8])
    for _ in range(7):
        wire.ticks(3)
        wire.send(b"x")
    assert wire.statuses == []
    wire.ticks(4)
    refused(wire, 408, b"body_timeout_s = 3")


@pytest.mark.parametrize("way", ["length", "chunks"])
def test_408_for_a_body_that_comes_in_drops(way: str) -> None:
    """Each is progress, but at a byte every other second ten thousand would keep the connection for hours."""
    wire = Wire(body_timeout_s=4, min_body_bytes_per_s=10)
    request = post(bytes(10_000)) if way == "length" else chunked(bytes(10_000))
    start = request.index(b"\r\n\r\n") + 4
    wire.send(request[:start])
    for k in range(3):
        wire.ticks(2)
        assert wire.statuses == ([] if k < 2 else [408])
        if k < 2:
            wire.send(request[start + k : start + k + 1])
    refused(wire, 408, b"2 bytes of a body in 5 s; min_body_bytes_per_s = 10")


def test_a_body_at_the_least_rate_is_taken_and_what_comes_with_the_head_counts() -> None:
    wire = Wire(body_timeout_s=3, min_body_bytes_per_s=10)
    request = post(bytes(200))
    wire.send(request[:-170])
    for _ in range(17):
        wire.ticks(1)
        assert wire.statuses == []
        wire.send(bytes(10))
    assert wire.statuses == [200]
    wire.send(request[:-170])
    for _ in range(2):
        wire.ticks(3)
        wire.send(b"x")
    assert wire.statuses == [200]
    wire.ticks(1)
    assert wire.statuses == [200, 408]


def test_time_in_which_nothing_is_taken_does_not_count_for_the_rate() -> None:
    wire = Wire(body_timeout_s=3, min_body_bytes_per_s=100)
    wire.send(post(bytes(8))[:-8])
    wire.connection.pause_writing()  # an answer before, whose bytes filled the client's side only now
    for unsent in range(20, 10, -1):
        wire.transport.unsent = unsent
        wire.ticks(1)
    wire.send(b"abcd")  # was on its way
    assert not wire.transport.is_reading()
    wire.connection.resume_writing()
    wire.loop.run()
    assert wire.transport.is_reading()
    wire.ticks(3)
    wire.send(b"efgh")
    assert wire.handler.bodies == [b"abcdefgh"]
    assert wire.statuses == [200]


def test_the_body_has_its_own_time_after_a_slow_head() -> None:
    wire = Wire(body_timeout_s=3, header_timeout_s=10)
    request = post(b"x" * 8)
    wire.send(request[:10])
    wire.ticks(9)
    wire.send(request[10:-8])
    wire.ticks(3)
    assert wire.statuses == []
    wire.send(b"x" * 8)
    assert wire.statuses == [200]


def test_an_idle_connection_is_closed_without_a_word() -> None:
    wire = Wire(idle_timeout_s=5)
    wire.ticks(4)
    wire.send(GET)
    wire.ticks(5)
    assert not wire.transport.is_closed()
    wire.ticks(1)
    assert wire.transport.is_closed()
    assert wire.statuses == [200]


def test_a_request_in_hand_takes_as_long_as_it_takes() -> None:
    wire = Wire(idle_timeout_s=1, header_timeout_s=1, body_timeout_s=1)
    wire.handler.holds = True
    wire.send(post(b"one") + GET[:10])
    wire.ticks(1000)
    assert wire.statuses == []
    wire.answer()
    assert wire.statuses == [200]
    wire.ticks(1)
    assert wire.statuses == [200]
    wire.ticks(1)
    refused(wire, 408, b"header_timeout_s")


# --- clients that read slowly ---------------------------------------------------------------------


def test_nothing_is_taken_from_a_client_that_does_not_read_its_answers() -> None:
    wire = Wire()
    wire.connection.pause_writing()
    assert not wire.transport.is_reading()
    wire.send(post(b"one"))  # was on its way
    assert wire.handler.bodies == []
    wire.connection.resume_writing()
    wire.loop.run()
    assert wire.transport.is_reading()
    assert wire.handler.bodies == [b"one"]


def test_an_answer_that_fills_the_buffer_stops_the_next_request() -> None:
    wire = Wire()
    wire.handler.holds = True
    wire.send(post(b"one") + post(b"two"))
    wire.handler.answer(wire.connection)
    wire.connection.pause_writing()
    wire.loop.run()
    assert wire.handler.bodies == [b"one"]
    wire.connection.resume_writing()
    wire.loop.run()
    assert wire.handler.bodies == [b"one", b"two"]


def test_a_client_that_reads_nothing_is_cut_and_one_that_reads_slowly_is_not() -> None:
    wire = Wire(body_timeout_s=2, idle_timeout_s=100)
    wire.send(GET)
    wire.transport.unsent = 1000
    wire.connection.pause_writing()
    for left in range(999, 990, -1):
        wire.ticks(2)
        wire.transport.unsent = left
    assert not wire.transport.is_closed()
    wire.ticks(1)
    wire.ticks(3)
    assert wire.transport.is_aborted()


def test_more_than_a_buffer_of_pipelined_bytes_is_left_in_the_kernel() -> None:
    wire = Wire()
    wire.handler.holds = True
    wire.send(post(b"one") + post(bytes(WRITE_BUFFER_BYTES)))
    wire.send(b"")
    assert not wire.transport.is_reading()
    wire.answer()
    assert wire.transport.is_reading()
    assert len(wire.handler.requests) == 2
    wire.answer()
    assert wire.statuses == [200, 200]


# --- shutting down --------------------------------------------------------------------------------


def test_shut_down_closes_what_is_idle_and_leaves_what_is_in_hand() -> None:
    idle, busy, partial = Wire(), Wire(), Wire()
    busy.handler.holds = True
    busy.send(GET)
    partial.send(GET[:10])
    for wire in (idle, busy, partial):
        wire.connection.shut_down()
    assert (idle.transport.is_closed(), busy.transport.is_closed(), partial.transport.is_closed()) == (
        True, False, False,
    )  # fmt: skip


# --- requests that come again ---------------------------------------------------------------------


class Again(Repeat):
    """Keeps the bodies of the requests that came straight on, and answers with them."""

    def __init__(self, head: RequestHead, prefix: bytes, nbytes: int) -> None:
        super().__init__(head, prefix, nbytes)
        self.bodies: list[bytes] = []

    def handle(self, connection: Connection, data: bytes) -> None:
        self.bodies.append(data[len(self.prefix) :])
        connection.respond(response_head(200, [], len(self.bodies[-1])) + self.bodies[-1])


@pytest.fixture
def again() -> tuple[Wire, Again]:
    """A connection on which a request of five bytes was answered, and is remembered."""
    wire, prefix = Wire(), post(b"first").removesuffix(b"first")
    wire.connection.repeat = repeat = Again(parse_head(prefix), prefix, len(prefix) + 5)
    wire.send(post(b"first"))
    return wire, repeat


def test_a_request_that_begins_as_the_one_before_goes_straight_on(again: tuple[Wire, Again]) -> None:
    wire, repeat = again
    for body in (b"abcde", b"fghij"):
        wire.send(post(body))
    assert repeat.bodies == [b"abcde", b"fghij"]
    assert wire.handler.bodies == [b"first"]
    assert wire.transport.written.endswith(b"fghij")
    assert wire.statuses == [200] * 3


@pytest.mark.parametrize("cut", [1, 10, len(post(b"")), len(post(b"abcde")) - 1])
def test_one_that_comes_in_parts_is_framed_as_ever(again: tuple[Wire, Again], cut: int) -> None:
    wire, repeat = again
    data = post(b"abcde")
    wire.send(data[:cut])
    wire.send(data[cut:])
    assert wire.handler.bodies == [b"first", b"abcde"]
    wire.send(post(b"fghij"))
    assert (repeat.bodies, wire.statuses) == ([b"fghij"], [200] * 3)


@pytest.mark.parametrize("other", [post(b"sixsix"), post(b"abcde", "X: y"), GET, post(b"abcde") + GET])
def test_another_request_in_between_is_taken_for_what_it_is(again: tuple[Wire, Again], other: bytes) -> None:
    wire, repeat = again
    wire.send(other)
    assert repeat.bodies == []
    wire.send(post(b"fghij"))
    assert repeat.bodies == [b"fghij"]
    assert wire.statuses == [200] * (4 if other.endswith(b"abcde" + GET) else 3)


def test_while_a_request_is_at_hand_or_the_server_drains_nothing_goes_straight_on(
    again: tuple[Wire, Again],
) -> None:
    wire, repeat = again
    wire.handler.holds = True
    wire.send(post(b"sixsix"))
    wire.send(post(b"abcde"))
    assert repeat.bodies == []
    wire.handler.holds = False
    wire.answer()
    assert wire.handler.bodies == [b"first", b"sixsix", b"abcde"]
    wire.connection.shut_down()
    wire.send(post(b"fghij"))
    assert repeat.bodies == []
    assert wire.transport.closed


# --- answers in chunks ----------------------------------------------------------------------------


def chunked_answer(wire: Wire) -> Connection:
    """Begin an answer in chunks to the request that its handler holds."""
    wire.connection.begin(chunked_head(200, []))
    return wire.connection


def test_an_answer_in_chunks_and_then_the_next_request() -> None:
    wire = Wire()
    wire.handler.holds = True
    wire.send(post(b"one") + post(b"two"))
    answer = chunked_answer(wire)
    answer.more(b"first")
    answer.more(b"")  # would be the last chunk
    assert wire.transport.written.endswith(b"transfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
    assert wire.handler.bodies == [b"one"]
    answer.end(b"last")
    wire.loop.run()
    assert wire.transport.written.endswith(b"4\r\nlast\r\n0\r\n\r\n")
    assert wire.handler.bodies == [b"one", b"two"]
    answer.more(b"too late")
    answer.end()
    assert wire.transport.written.endswith(b"0\r\n\r\n")
    wire.answer()
    assert wire.transport.written.endswith(b"content-length: 3\r\n\r\ntwo")


def test_an_answer_in_chunks_to_who_wants_to_close() -> None:
    wire = Wire()
    wire.handler.holds = True
    wire.send(post(b"one", "Connection: close"))
    chunked_answer(wire).end(b"all")
    assert b"connection: close" in wire.transport.written
    assert wire.transport.written.endswith(b"3\r\nall\r\n0\r\n\r\n")
    assert wire.transport.is_closed()


def test_an_answer_that_breaks_off_has_no_last_chunk() -> None:
    wire = Wire()
    wire.handler.holds = True
    wire.send(post(b"one"))
    answer = chunked_answer(wire)
    answer.more(b"first")
    answer.break_off()
    assert wire.transport.is_closed()
    assert wire.transport.written.endswith(b"5\r\nfirst\r\n")
    wire.connection.connection_lost(None)
    assert wire.handler.abandonments == 0


def test_who_does_not_read_the_chunks_is_cut_off() -> None:
    wire = Wire()
    wire.handler.holds = True
    wire.send(post(b"one"))
    answer = chunked_answer(wire)
    wire.transport.unsent = MAX_UNREAD_BYTES
    answer.more(b"more")
    assert not wire.transport.is_closed()
    wire.transport.unsent += 1
    answer.more(b"more")
    assert wire.transport.is_aborted()
    wire.connection.connection_lost(None)
    assert wire.handler.abandonments == 1


def test_who_reads_them_slowly_may_take_its_time() -> None:
    wire = Wire(body_timeout_s=5.0)
    wire.handler.holds = True
    wire.send(post(b"one"))
    answer = chunked_answer(wire)
    wire.ticks(20)
    answer.more(b"more")  # all that was before is read
    wire.connection.pause_writing()
    wire.transport.unsent = 100
    wire.ticks(4)
    assert not wire.transport.is_closed()
    wire.transport.unsent = 90
    wire.ticks(5)
    assert not wire.transport.is_closed()
    wire.ticks(5)
    assert wire.transport.is_aborted()


def test_nor_is_who_reads_them_steadily_but_more_slowly_than_they_come() -> None:
    wire = Wire(body_timeout_s=5.0)
    wire.handler.holds = True
    wire.send(post(b"one"))
    answer = chunked_answer(wire)
    wire.ticks(20)
    wire.transport.unsent = WRITE_BUFFER_BYTES
    wire.connection.pause_writing()
    for _ in range(20):
        answer.more(bytes(1000))
        wire.transport.unsent += 900  # of which it reads a tenth
        wire.ticks(1)
    assert not wire.transport.is_closed()
    for _ in range(6):
        answer.more(bytes(1000))
        wire.transport.unsent += 1007  # and now nothing: with the lengths of the chunks
        wire.ticks(1)
    assert wire.transport.is_aborted()


def test_who_has_not_read_them_all_when_the_answer_ends_has_time_from_then_on() -> None:
    wire = Wire(body_timeout_s=5.0)
    wire.handler.holds = True
    wire.send(post(b"one", "Connection: close"))
    answer = chunked_answer(wire)
    wire.ticks(20)
    wire.transport.unsent = 100
    answer.end(b"all")
    wire.ticks(5)
    assert not wire.transport.is_aborted()
    wire.ticks(1)
    assert wire.transport.is_aborted()
