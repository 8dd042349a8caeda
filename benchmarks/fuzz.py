"""10,000 damaged requests over all routes of both ports: no crash, no undocumented status, flat memory.

What is sent is the same in every run: requests that are right, with bytes, lines and pieces of each other put
wrong. With ``--schemathesis FOLDER``, an environment that has it, the OpenAPI documents are tried as well.

    python -m benchmarks.fuzz --quick
"""

import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests import archives, models
from tests.e2e.test_fuzz import damaged, exchange
from tests.e2e.test_fuzz import seeds as oip_seeds
from tests.e2e.test_fuzz_doors import JSON_TYPE, inference_seeds, management_seeds
from tests.e2e.test_torchserve import TEXT, multipart
from tests.raw_client import request

from benchmarks.figures import Figure, options, report
from benchmarks.servers import free_port, started
from partita.system.memory import resident_bytes

REQUESTS = 10_000
WARM = 0.2
"""Share of the requests after which memory is first looked at: caches are full then."""
MAX_GROWTH_BYTES = 8 << 20
STATUSES = {
    "http": {100, 200, 400, 404, 405, 413, 431, 503},
    "management": {100, 200, 202, 400, 403, 404, 405, 409, 413, 431},
}
"""503 is what an archive's handler gets that raises at nonsense."""


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
        request("/openapi.json", method="GET"),
    ]


@contextmanager
def serving(folder: Path) -> Iterator[tuple[dict[str, str], int]]:
    """Serve a network, a class and an archive; yields the ports' URLs and the head's process."""
    models.linear(folder / "linear.onnx")
    models.sequence_sum(folder / "sum.onnx")
    (folder / "upper").mkdir()
    (folder / "upper" / "handler.py").write_text("\n".join(line[4:] for line in TEXT.split("\n")))
    archives.function_archive(folder)
    ports = {name: free_port() for name in ("http", "management")}
    argv = [sys.executable, "-m", "partita.cli", "serve", str(folder), "--metrics", "off", "--json"]
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


def fuzz(urls: dict[str, str], pid: int, count: int) -> list[Figure]:
    """Send damaged requests, and return what was seen."""
    rng = random.Random(5)
    seeds = {"http": [*oip_seeds(), *inference_seeds(), *archive_seeds()], "management": management_seeds()}
    seen: Counter[int] = Counter()
    odd: list[str] = []
    first = 0
    for number in range(count):
        if number == int(count * WARM):
            first = resident_bytes(pid) or 0
        port = "management" if number % 5 == 4 else "http"
        data = damaged(rng, seeds[port])
        statuses = exchange(urls[port], data, rng.randint(0, len(data)))
        seen.update(statuses)
        if unknown := set(statuses) - STATUSES[port]:
            odd.append(f"{unknown}: {data[:300]!r}")
    growth = (resident_bytes(pid) or 0) - first
    counts = ", ".join(f"{status}: {times}" for status, times in sorted(seen.items()))
    return [
        Figure(
            name=f"{count:,} damaged requests, statuses that are not documented",
            figure=f"{len(odd)} ({counts})",
            bar="0",
            passed=not odd and seen[200] > count / 50,
            details={"odd": odd[:20]},
        ),
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
    for name, url in urls.items():
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
