"""10,000 damaged requests at every port: no crash, no undocumented status, flat memory.

What is sent is the same in every run: requests that are right, with bytes, lines and pieces of each other
put wrong. Over gRPC the messages are damaged, and below it the bytes of HTTP/2. With
``--schemathesis FOLDER``, an environment that has it, the OpenAPI documents are tried as well.

    python -m benchmarks.fuzz --quick
"""

import gzip
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import grpc
from tests import archives, http2, models
from tests.e2e.test_fuzz import damaged, exchange
from tests.e2e.test_fuzz import seeds as oip_seeds
from tests.e2e.test_fuzz_doors import (
    JSON_TYPE,
    damaged_message,
    grpc_seeds,
    inference_seeds,
    management_seeds,
)
from tests.e2e.test_grpc_torchserve import INFERENCE, predictions
from tests.e2e.test_torchserve import TEXT, multipart
from tests.raw_client import request

from benchmarks.figures import Figure, options, report
from benchmarks.servers import free_port, started
from partita.system.memory import resident_bytes

REQUESTS = 10_000
WARM = 0.2
"""Share of the requests after which memory is first looked at: caches are full then."""
MAX_GROWTH_BYTES = 8 << 20
STATUSES: dict[str, set[Any]] = {
    "http": {100, 200, 400, 404, 405, 413, 431, 503},
    "management": {100, 200, 202, 400, 403, 404, 405, 409, 413, 431},
    "metrics": {100, 200, 400, 404, 405, 413, 431},
    "grpc": {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "DEADLINE_EXCEEDED", "UNAVAILABLE"},
    "http2": {"answered", "ended"},
}
"""503 and UNAVAILABLE are what an archive's handler gets that raises at nonsense. Below gRPC the server may
end the connection, or wait for more."""
OPEN_TRIES = 100
"""How often, 50 ms apart, a port is tried that is being opened again."""
TURNS = ("http",) * 12 + ("management",) * 3 + ("metrics",) + ("grpc",) * 2 + ("http2",) * 2
"""Which door so many requests in turn are for."""
TELLER = """
    from ts.handler_utils.utils import send_intermediate_predict_response

    def handle(data, context):
        if data is None:
            return
        texts = [bytes(row.get("body") or row.get("data")) for row in data]
        for part in (b"one ", b"x" * 100_000):
            send_intermediate_predict_response([part] * len(texts), context.request_ids, "next", 200, context)
        return [text.decode() for text in texts]
"""
"""Answers in parts, and fails in the middle at what is no text."""


def metrics_seeds() -> list[bytes]:
    """Requests of the metrics port that are right."""
    paths = ("/metrics", "/metrics?name[]=Requests2XX&name[]=none", "/openapi.json")
    return [request(path, method="GET") for path in paths]


def message_seeds() -> dict[str, list[bytes]]:
    """Messages that are right, by method; an archive's among them, whole and in parts."""
    texts = [predictions(model, data=b"some text") for model in ("shout", "teller")]
    methods = ("Predictions", "StreamPredictions")
    return {**grpc_seeds(), **{INFERENCE.strip("/") + "/" + method: texts for method in methods}}


def archive_seeds() -> list[bytes]:
    """Requests to an archive that are right."""
    return [
        request("/predictions/shout", b"some text", "Content-Type: text/plain"),
        request("/predictions/shout/1.0/some/where", b'"text"', JSON_TYPE),
        request("/predictions/shout", *multipart(data=b"some text")),
        request("/v1/models/shout:predict", b'{"instances": ["a"]}', JSON_TYPE),
        request("/explanations/shout", b"text"),
        request("/shout/predict?data=abc"),
        request("/invocations?model_name=shout&data=abc", method="GET"),
        request("/predictions/shout", gzip.compress(b"text"), "Content-Encoding: gzip"),
        b"PUT /predictions/shout HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"4\r\ntext\r\n0\r\n\r\n",
        request("/predictions/teller", b"some text"),
        request("/teller/predict", b"some text", "Content-Type: application/octet-stream"),
        request("/openapi.json", method="GET"),
    ]


@contextmanager
def serving(folder: Path) -> Iterator[tuple[dict[str, str], int]]:
    """Serve a network, a class and archives; yields the ports' URLs and the head's process."""
    models.linear(folder / "linear.onnx")
    models.sequence_sum(folder / "sum.onnx")
    (folder / "upper").mkdir()
    (folder / "upper" / "handler.py").write_text("\n".join(line[4:] for line in TEXT.split("\n")))
    archives.function_archive(folder)
    archives.archive(folder, "teller", "--handler", "teller.py", teller__py=dedent(TELLER))
    ports = {name: free_port() for name in ("http", "management", "metrics", "grpc")}
    argv = [sys.executable, "-m", "partita.cli", "serve", str(folder), "--json"]
    argv += [option for name, port in ports.items() for option in (f"--{name}", f"127.0.0.1:{port}")]
    argv += [
        "--disable-token-auth",
        "--enable-model-api",
        "--tune",
        "never",
        "--config",
        str(folder / "p.toml"),
    ]
    (folder / "p.toml").write_text("[server]\nmax_body_bytes = 65536\n")
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PARTITA_CACHE_DIR": cache}
        with started(argv, environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError(f"partita did not start: status {process.wait()}")
            yield {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}, process.pid


class Doors:
    """What is sent to each door, and what came back."""

    def __init__(self, urls: dict[str, str], rng: random.Random) -> None:
        self.urls = urls
        self.rng = rng
        self.seen: dict[str, Counter[Any]] = {door: Counter() for door in STATUSES}
        self.odd: list[str] = []
        self._requests = {
            "http": [*oip_seeds(), *inference_seeds(), *archive_seeds()],
            "management": management_seeds(),
            "metrics": metrics_seeds(),
        }
        self._messages = message_seeds()
        self._calls = [http2.call(method, data[0]) for method, data in self._messages.items()]
        self._grpc = self.urls["grpc"].removeprefix("http://")
        self._channel = grpc.insecure_channel(self._grpc)

    def send(self, door: str) -> None:
        """Send one damaged request, and look at its answer."""
        if door == "grpc":
            method = self.rng.choice(list(self._messages))
            data = damaged_message(self.rng, self._messages[method])
            told: list[Any] = [self._status(method, data)]
        elif door == "http2":
            data = damaged(self.rng, self._calls)
            told = [self._below(data)]
        else:
            data = damaged(self.rng, self._requests[door])
            told = list(exchange(self.urls[door], data, self.rng.randint(0, len(data))))
        self.seen[door].update(told)
        if unknown := set(told) - STATUSES[door]:
            self.odd.append(f"{door}, {unknown}: {data[:300]!r}")

    def _below(self, data: bytes) -> str:
        for _ in range(OPEN_TRIES):
            try:
                return "answered" if http2.exchange(self._grpc, data) else "ended"
            except ConnectionRefusedError:
                time.sleep(0.05)
        return "closed"

    def _status(self, method: str, data: bytes) -> str:
        call = self._channel.unary_stream if "Stream" in method else self._channel.unary_unary
        try:
            answer = call("/" + method)(data, timeout=20)
            if "Stream" in method:
                list(answer)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"

    def counts(self) -> str:
        """Return what came back, by door."""
        doors = (
            f"{door} {', '.join(f'{status}: {times}' for status, times in sorted(seen.items()))}"
            for door, seen in self.seen.items()
        )
        return "; ".join(doors)

    def deaths(self) -> int:
        """Return how many workers have ended by themselves."""
        with urllib.request.urlopen(f"{self.urls['metrics']}/metrics", timeout=20) as answer:
            lines = re.findall(
                r"^partita_worker_deaths_total\{.*\} (\S+)$", answer.read().decode(), re.MULTILINE
            )
        return int(sum(map(float, lines)))


def fuzz(urls: dict[str, str], pid: int, count: int) -> list[Figure]:
    """Send damaged requests, and return what was seen."""
    doors = Doors(urls, random.Random(5))
    first = 0
    for number in range(count):
        if number == int(count * WARM):
            first = resident_bytes(pid) or 0
        doors.send(TURNS[number % len(TURNS)])
    deaths = doors.deaths()
    growth = (resident_bytes(pid) or 0) - first
    return [
        Figure(
            name=f"{count:,} damaged requests, statuses that are not documented",
            figure=f"{len(doors.odd)} ({doors.counts()})",
            bar="0",
            passed=not doors.odd
            and doors.seen["http"][200] > count / 50
            and doors.seen["grpc"]["OK"] > count / 500,
            details={"odd": doors.odd[:20]},
        ),
        Figure(name="workers that ended by it", figure=f"{deaths}", bar="0", passed=not deaths),
        Figure(
            name="growth of the head's memory after the first fifth",
            figure=f"{growth / (1 << 20):.1f} MiB",
            bar=f"<= {MAX_GROWTH_BYTES >> 20} MiB",
            passed=first > 0 and growth <= MAX_GROWTH_BYTES,
        ),
    ]


def schemathesis(folder: Path, urls: dict[str, str]) -> Iterator[Figure]:
    """Try what the OpenAPI documents say."""
    checks = "status_code_conformance,content_type_conformance,response_schema_conformance"
    for name in ("http", "management", "metrics"):
        url = urls[name]
        argv = [str(folder / "bin" / "schemathesis"), "run", f"{url}/openapi.json", "--checks", checks]
        argv += ["--max-examples", "10", "--phases", "fuzzing", "--seed", "1", "--no-color"]
        with tempfile.TemporaryDirectory() as place:
            done = subprocess.run(argv, cwd=place, capture_output=True, text=True, check=False)
        lines = [line.strip() for line in done.stdout.splitlines() if "generated" in line]
        said = lines[-1] if lines else f"status {done.returncode}"
        if done.returncode:
            print(done.stdout, flush=True)
        yield Figure(name=f"schemathesis, {name} port", figure=said, bar="all", passed=not done.returncode)


def main(argv: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "fuzz")
    parser.add_argument("--schemathesis", type=Path, metavar="FOLDER", help="environment that has it")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as (urls, pid):
        began_s = time.monotonic()
        figures = fuzz(urls, pid, 1000 if given.quick else REQUESTS)
        print(json.dumps({"seconds": round(time.monotonic() - began_s)}), flush=True)
        if given.schemathesis is not None:
            figures += schemathesis(given.schemathesis, urls)
    return report("fuzz", figures, given.json)


if __name__ == "__main__":
    sys.exit(main())
