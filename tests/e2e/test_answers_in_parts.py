"""Answers that an archive's handler tells in parts: in chunks over HTTP, streamed over gRPC, else whole."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from partita.embedded import Server
from tests import archives
from tests.e2e.test_grpc_torchserve import INFERENCE, only_field, predictions
from tests.e2e.test_torchserve import LOCAL, ask, serving
from tests.raw_client import RawClient, request

grpc = pytest.importorskip("grpc")
pytestmark = pytest.mark.e2e

TELLER = """
    import os
    import socket

    from ts.handler_utils.utils import send_intermediate_predict_response

    def wait_for(port):
        with socket.create_connection(("127.0.0.1", port), 20) as gate:
            gate.recv(1)

    def tell(parts, context):
        send_intermediate_predict_response(parts, context.request_ids, "next", 200, context)

    def handle(data, context):
        if data is None:
            return
        bodies = [row.get("body") or row.get("data") for row in data]
        texts = [body if isinstance(body, str) else bytes(body).decode() for body in bodies]
        if texts[0] == "raises":
            tell([b"one "] * len(texts), context)
            raise ValueError("in the middle")
        if texts[0] == "dies":
            tell([b"one "] * len(texts), context)
            os._exit(3)
        if texts[0] == "large":
            tell([b"x" * 200_000] * len(texts), context)
            return [b"end"] * len(texts)
        if texts[0] == "pid":
            return [str(os.getpid())] * len(texts)
        for index in range(len(texts)):
            context.set_response_header(index, "X-Told", "yes")
            context.set_response_content_type(index, "text/event-stream")
        if texts[0].startswith("gate "):
            tell(["first "] * len(texts), context)
            wait_for(int(texts[0].split()[1]))
        tell([text + " " for text in texts], context)
        return ["last"] * len(texts)
"""
PATHS = (
    "/predictions/teller",
    "/predictions/teller/1.0/x",
    "/models/teller/invoke",
    "/v1/models/teller:predict",
    "/explanations/teller",
)


@pytest.fixture(scope="module")
def teller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("parts")
    return archives.archive(made, "teller", "--handler", "teller.py", teller__py=TELLER)


@pytest.fixture(scope="module")
def server(teller: Path) -> Iterator[Server]:
    with serving(teller, grpc=LOCAL) as running:
        yield running


@pytest.fixture
def gate() -> Iterator[socket.socket]:
    """What a handler waits at for a byte."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(20)
        yield made


def opened(gate: socket.socket) -> None:
    with gate.accept()[0] as handler:
        handler.sendall(b"!")


def wait_until(condition: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.005)


def port_of(gate: socket.socket) -> bytes:
    return b"gate %d" % gate.getsockname()[1]


@pytest.mark.parametrize("path", PATHS)
def test_a_part_is_there_before_the_handler_has_the_next(
    server: Server, gate: socket.socket, path: str
) -> None:
    with RawClient(server.url()) as client:
        client.send(request(path, port_of(gate), "X-Request-Id: mine"))
        status, headers = client.head()
        chunks = client.chunks()
        assert next(chunks) == b"first "  # the handler waits for us
        opened(gate)
        assert b"".join(chunks) == port_of(gate) + b" last"
        assert (status, headers["transfer-encoding"]) == (200, "chunked")
        assert headers["content-type"].startswith("text/event-stream")
        assert (headers["x-told"], headers["x-request-id"]) == ("yes", "mine")
        assert headers["pragma"] == "no-cache"
        client.send(request("/predictions/teller", b"again"))  # the connection goes on
        assert client.answer()[2] == b"again last"


def test_who_cannot_read_chunks_gets_all_of_it(server: Server) -> None:
    for path in ("/predictions/teller", "/models/teller/invoke"):
        with RawClient(server.url()) as client:
            client.send(request(path, b"whole").replace(b"HTTP/1.1", b"HTTP/1.0"))
            status, headers, body = client.answer()
            assert (status, headers["content-length"], body) == (200, "10", b"whole last")
    with grpc.insecure_channel(str(server.head.ports["grpc"])) as channel:
        predict = channel.unary_unary(INFERENCE + "Predictions")
        assert only_field(predict(predictions("teller", data=b"whole"), timeout=20)) == b"whole last"


def test_a_stream_over_grpc(server: Server, gate: socket.socket) -> None:
    with grpc.insecure_channel(str(server.head.ports["grpc"])) as channel:
        stream = channel.unary_stream(INFERENCE + "StreamPredictions")
        parts = stream(predictions("teller", data=port_of(gate)), timeout=20)
        assert only_field(next(parts)) == b"first "
        opened(gate)
        assert [only_field(part) for part in parts] == [port_of(gate) + b" ", b"last"]
        with pytest.raises(grpc.RpcError) as caught:
            list(stream(predictions("none", data=b"x"), timeout=20))
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.RpcError) as caught:
            list(stream(predictions("teller", data=b"raises"), timeout=20))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def ends_in_its_middle(server: Server, path: str, what: bytes) -> None:
    with RawClient(server.url()) as client:
        client.send(request(path, what))
        assert client.head()[0] == 200
        chunks = client.chunks()
        assert next(chunks) == b"one "
        with pytest.raises(EOFError):
            next(chunks)
    assert ask(server, "POST", "/predictions/teller", b"next")[2] == b"next last"


@pytest.mark.parametrize("path", PATHS[1:3])
def test_an_answer_whose_handler_raises_is_not_whole_and_not_tried_again(server: Server, path: str) -> None:
    ends_in_its_middle(server, path, b"raises")


def test_nor_is_one_whose_worker_dies(teller: Path) -> None:
    with serving(teller) as server:  # of its own, whose processes end with it
        ends_in_its_middle(server, PATHS[0], b"dies")
        assert server.head.engine.services["teller"].statistics.failed == {"worker_died": 1}


def test_a_large_part_goes_in_several(server: Server) -> None:
    with RawClient(server.url()) as client:
        client.send(request("/predictions/teller", b"large"))
        client.head()
        assert [len(chunk) for chunk in client.chunks()] == [65536, 65536, 65536, 3392, 3]


@pytest.mark.parametrize("path", PATHS[1:3])
def test_who_leaves_in_the_middle_has_cancelled(server: Server, gate: socket.socket, path: str) -> None:
    counts = server.head.engine.services["teller"].statistics
    before = counts.cancelled
    with RawClient(server.url()) as client:
        client.send(request(path, port_of(gate)))
        client.head()
        assert next(client.chunks()) == b"first "
    wait_until(lambda: counts.cancelled > before)
    opened(gate)
    assert ask(server, "POST", "/predictions/teller", b"next")[2] == b"next last"
    assert counts.cancelled == before + 1


def test_several_at_once_get_each_their_own(server: Server) -> None:
    def told(number: int) -> bytes:
        return ask(server, "POST", "/predictions/teller", b"%d" % number)[2]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(told, range(32))) == [b"%d last" % number for number in range(32)]
