"""Closed-loop load with `wrk`, which is not ours and costs little itself."""

import http.client
import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

_REPORT = """
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('\\nRESULT {"requests":%d,"duration_us":%d,"p50_us":%g,"p99_us":%g,"errors":%d}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
"""


class NoWrk(RuntimeError):
    """`wrk` is not installed."""


class NothingAnswered(RuntimeError):
    """No request failed, and none was answered within the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a run of a few seconds came to."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """The one request that all clients send."""

    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def require() -> str:
    """Return where `wrk` is. Raises `NoWrk`."""
    found = shutil.which("wrk")
    if found is None:
        raise NoWrk("wrk is not on PATH; it is the Debian and Ubuntu package `wrk`")
    return found


def infer(model: str, shape: Sequence[int], data: bytes) -> Post:
    """Return an Open Inference Protocol request of one FP32 input `x`, tensors in binary both ways."""
    tensor = {
        "name": "x",
        "shape": list(shape),
        "datatype": "FP32",
        "parameters": {"binary_data_size": len(data)},
    }
    document = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    head = json.dumps(document, separators=(",", ":")).encode()
    headers = (
        ("Content-Type", "application/octet-stream"),
        ("Inference-Header-Content-Length", str(len(head))),
    )
    return Post(path=f"/v2/models/{model}/infer", body=head + data, headers=headers)


def ask(url: str, post: Post, *, timeout_s: float = 60.0) -> None:
    """Send the request once and wait for its answer. Raises `RuntimeError` if it failed."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.netloc, timeout=timeout_s)) as connection:
        connection.request("POST", post.path, body=post.body, headers=dict(post.headers))
        answer = connection.getresponse()
        answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{url}{post.path} answered {answer.status}")


def run(url: str, post: Post, *, clients: int, seconds: float, timeout_s: int = 30) -> Load:
    """Have so many clients send the request again and again, for whole seconds.

    Raises `RuntimeError` if a request failed, `NothingAnswered` if none was answered in time.
    """
    wrk = require()
    with tempfile.TemporaryDirectory() as folder:
        body = Path(folder, "body")
        body.write_bytes(post.body)
        script = Path(folder, "load.lua")
        lines = [
            'wrk.method = "POST"',
            f'local file = io.open("{body}", "rb")',
            'wrk.body = file:read("*a")',
            "file:close()",
            *(f'wrk.headers["{name}"] = "{value}"' for name, value in post.headers),
        ]
        script.write_text("\n".join(lines) + _REPORT, encoding="utf-8")
        argv = [
            wrk,
            "-t1",
            f"-c{clients}",
            f"-d{max(1, round(seconds))}s",
            f"--timeout={timeout_s}s",
            "-s",
            str(script),
        ]
        done = subprocess.run([*argv, url + post.path], capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    found = json.loads(line.removeprefix("RESULT "))
    if not found["errors"] and not found["requests"]:
        raise NothingAnswered(f"no request to {url}{post.path} was answered within {seconds:g} s")
    if found["errors"]:
        raise RuntimeError(f"{found['errors']} of {found['requests']} requests to {url}{post.path} failed")
    return Load(
        requests_per_s=found["requests"] / found["duration_us"] * 1e6,
        p50_ms=found["p50_us"] / 1e3,
        p99_ms=found["p99_us"] / 1e3,
    )
