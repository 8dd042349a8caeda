"""Servers under test, each in processes of its own that end with the block."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from partita.system.parent import die_with_parent

READY_S = 180.0
STOP_S = 20.0


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers."""

    url: str
    plan: str
    pid: int


@contextmanager
def partita(path: Path, *options: str, tune_budget_s: float = 30.0) -> Iterator[Running]:
    """Serve one model as a user does: profiled first, planned, no setting given but the port.

    The profile goes to a folder of this run, so that it is measured on the machine as it is now.
    """
    port = free_port()
    argv = [sys.executable, "-m", "partita.cli", "serve", str(path), "--http", f"127.0.0.1:{port}"]
    argv += ["--management", "off", "--metrics", "off", "--json"]
    argv += ["--tune", "before", "--tune-budget", str(tune_budget_s)]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PARTITA_CACHE_DIR": folder}
        with started([*argv, *options], environment, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"partita did not start: status {process.wait()}")
            plan = json.loads(line)["models"][0]["plan"]
            yield Running(f"http://127.0.0.1:{port}", plan, process.pid)


@contextmanager
def mosec(path: Path, *, workers: int, wait_ms: int, max_batch: int = 32) -> Iterator[Running]:
    """Serve the model with mosec, one ONNX Runtime thread a worker."""
    port = free_port()
    argv = [sys.executable, "-m", "benchmarks.mosec_server", "--port", str(port), "--log-level", "error"]
    environment = {
        **os.environ,
        "MOSEC_MODEL": str(path),
        "MOSEC_WORKERS": str(workers),
        "MOSEC_WAIT_MS": str(wait_ms),
        "MOSEC_MAX_BATCH": str(max_batch),
    }
    # Its log complains of every stop that follows a load; an early end is told by `_until_answers`.
    with started(argv, environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _until_answers(port, process)
        yield Running(f"http://127.0.0.1:{port}", f"{workers} x 1 thread, wait {wait_ms} ms", process.pid)


@contextmanager
def bare(path: Path, kind: str) -> Iterator[Running]:
    """Run `benchmarks.bare_server`: ``echo`` or ``infer``."""
    port = free_port()
    argv = [sys.executable, "-m", "benchmarks.bare_server", str(path), str(port), kind]
    with started(argv, dict(os.environ), stdout=subprocess.DEVNULL) as process:
        _until_answers(port, process)
        yield Running(f"http://127.0.0.1:{port}", kind, process.pid)


def free_port() -> int:
    """Return a TCP port of loopback that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def started(
    argv: Sequence[str],
    environment: dict[str, str],
    *,
    stdout: int,
    stderr: int | None = None,
    cwd: str | None = None,
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a server that ends with the block, and with us."""
    process = subprocess.Popen(
        argv,
        env=environment,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 no thread of ours runs yet
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its own session: nothing but this server
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _until_answers(port: int, process: "subprocess.Popen[bytes]") -> None:
    end_s = time.monotonic() + READY_S
    while time.monotonic() < end_s:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode} before it answered")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
        try:
            connection.request("POST", "/inference", body=bytes(256))
            if connection.getresponse().status == 200:
                return
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.1)
    raise RuntimeError(f"the server did not answer within {READY_S:g} s")
