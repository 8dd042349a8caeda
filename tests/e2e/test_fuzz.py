"""Damaged requests of every kind: each gets an error that is documented, or ends its connection, and the
server answers the next client as before. What is sent is the same in every run."""

import gzip
import json
import logging
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from partita.embedded import Server
from partita.settings import Settings
from partita.system.addresses import Address
from tests import models
from tests.raw_client import RawClient, infer, request

pytestmark = pytest.mark.e2e

ROUNDS = 2500
SHAPES = (["error"], ["code", "type", "message"], ["code", "type", "message", "error"])
"""Keys of an error's body: the Open Inference Protocol's, TorchServe's, and both for who asked neither."""
ALLOWED = {100, 200, 400, 404, 405, 413, 431}
X = np.arange(12, dtype=np.float32).reshape(3, 4)


def tensor(name: str, datatype: str, shape: list[int], **more: object) -> dict[str, object]:
    return {"name": name, "datatype": datatype, "shape": shape, **more}


def seeds() -> list[bytes]:
    """Requests that are right."""
    binary = json.dumps(
        {"inputs": [tensor("x", "FP32", [3, 4], parameters={"binary_data_size": 48})]}
    ).encode()
    wanted = [{"name": "y", "parameters": {"classification": 2, "binary_data": True}}]
    plain = json.dumps(
        {
            "id": "a",
            "inputs": [tensor("x", "FP32", [1, 4], data=[1, 2, 3, 4])],
            "outputs": wanted,
            "parameters": {"timeout": 10_000_000, "binary_data_output": True},
        }
    ).encode()
    any_length = json.dumps({"inputs": [tensor("x", "FP32", [1, 3, 4], data=[0.5] * 12)]}).encode()
    chunks = (
        b"POST /v2/models/linear/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n"
        b"Inference-Header-Content-Length: 0\r\nExpect: 100-continue\r\n\r\n10\r\n"
        + bytes(16)
        + b"\r\n0\r\n\r\n"
    )
    return [
        infer("linear", binary + X.tobytes(), header=len(binary)),
        infer("linear", X.tobytes(), header=0),
        infer("linear", plain),
        infer("linear", gzip.compress(plain), "Content-Encoding: gzip", "Accept-Encoding: gzip"),
        infer("sum", any_length),
        chunks,
        request("/v2/models/linear/versions/1/ready", method="GET"),
        request("/v2/models/stats", method="GET"),
        request("/v2/repository/index", b'{"ready":true}'),
    ]


SEEDS = seeds()
TOKENS = [
    *(
        b"\r\n",
        b"\r\n\r\n",
        b"\0",
        b"\xff",
        b"-1",
        b"9" * 20,
        b"1e999",
        b"null",
        b"[]",
        b"{}",
        b"[[",
        b'"',
        b"0",
    ),
    *(b"true", b"FP64", b"BYTES", b"%00", b"/../", b"?", b"[-1,4]", b"[1000000,0]", b"\\ud800", b"HTTP/1.0"),
    *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"Host: [\r\n"),
    *(b"Accept-Encoding: gzip\r\n", b"Content-Encoding: gzip\r\n", b"Expect: 100-continue\r\n"),
    *(b"Inference-Header-Content-Length: 0\r\n", b"Upgrade: h2c\r\nConnection: Upgrade\r\n"),
]


def damaged(rng: random.Random, seeds: Sequence[bytes] = SEEDS) -> bytes:
    """Return a request with one to six changes in it, in half the cases with its length put right."""
    data = bytearray(rng.choice(seeds))
    body = data.find(b"\r\n\r\n") + 4
    lowest = body if rng.random() < 0.5 else 0
    for _ in range(rng.choice([1, 1, 1, 2, 3, 6])):
        at = rng.randint(min(lowest, len(data)), len(data))
        match rng.randrange(5):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                data[at:at] = rng.choice(TOKENS)
            case 2:
                del data[at : at + rng.choice([1, 1, 2, 8, 100])]
            case 3:
                data[at : at + rng.randint(1, 6)] = rng.choice(TOKENS)
            case _:
                other = rng.choice(seeds)
                start = rng.randrange(len(other))
                data[at:at] = other[start : start + rng.randint(1, 60)]
    if rng.random() < 0.5:
        return bytes(data)
    head, end, rest = bytes(data).partition(b"\r\n\r\n")
    return (
        re.sub(rb"Content-Length: \d+(?=\r\n)", b"Content-Length: %d" % len(rest), head, count=1) + end + rest
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    paths = [models.linear(tmp_path / "linear.onnx"), models.sequence_sum(tmp_path / "sum.onnx")]
    base, local = Settings(), Address("127.0.0.1", 0)
    limits = msgspec.structs.replace(base.server, http=local, metrics=None, max_body_bytes=1 << 16)
    settings = msgspec.structs.replace(base, server=limits)
    with Server(paths, cores=1, tune="never", settings=settings, ports=True) as running:
        yield running


def exchange(url: str, data: bytes, cut: int) -> list[int]:
    """Send in two packets and a last whole request; return the statuses of what comes back."""
    statuses = []
    with RawClient(url) as client:
        client.socket.settimeout(0.1)  # where the last request was taken for a part of the damaged one
        try:
            client.send(data[:cut])
            client.send(data[cut:])
            client.send(b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            while True:
                status, _, body = client.answer()
                statuses.append(status)
                assert status < 400 or list(json.loads(body)) in SHAPES, body
        except (OSError, EOFError):
            return statuses


def test_nothing_that_a_client_sends_is_too_much(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(20240)
    seen: Counter[int] = Counter()
    for _ in range(ROUNDS):
        data = b"".join(damaged(rng) for _ in range(rng.choice([1, 1, 1, 3])))
        statuses = exchange(server.url(), data, rng.randint(0, len(data)))
        assert set(statuses) <= ALLOWED, (statuses, data)
        seen.update(statuses)
    assert seen[200] > ROUNDS / 50
    assert seen[400] > ROUNDS / 4
    with RawClient(server.url()) as client:
        client.send(infer("linear", X.tobytes(), header=0))
        assert client.answer()[0] == 200
    for service in server.head.engine.services.values():
        counts = service.statistics
        assert counts.accepted == counts.answered + counts.failures + counts.cancelled + counts.in_flight()
        assert counts.worker_deaths == 0
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []
