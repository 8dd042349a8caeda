"""A server in a process of its own, for the length of a run."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from partita.core.errors import PartitaError
from partita.loadgen.target import Target, Unreachable
from partita.system.parent import die_with_parent

_READY_WITHIN_S = 300.0
_STOP_WITHIN_S = 40.0


class ServerFailed(PartitaError):
    """The server that was started for a run ended before it was ready."""

    code = "server_failed"


@contextmanager
def child_server(path: Path, *, cores: str | None = None, options: tuple[str, ...] = ()) -> Iterator[str]:
    """Serve `path` on a free port of loopback and yield the URL once it is ready; ends it afterwards.

    Its standard output and error go to our standard error. Raises `ServerFailed` if it does not come up.
    """
    port = _free_port()
    argv = [sys.executable, "-m", "partita.cli", "serve", str(path), "--http", f"127.0.0.1:{port}"]
    argv += ["--management", "off", "--metrics", "off", "--tune", "before", *options]
    argv += [] if cores is None else ["--cores", cores]
    # Its own session: Ctrl-C reaches us alone, and we end it in order.
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=2,
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 no thread of ours runs yet
    )
    target = Target.parse(f"127.0.0.1:{port}")
    try:
        _wait_ready(process, target)
        yield str(target)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(process: "subprocess.Popen[bytes]", target: Target) -> None:
    for _ in range(int(_READY_WITHIN_S)):
        try:
            target.wait_ready(1.0)
            return
        except Unreachable:
            if process.poll() is not None:
                raise ServerFailed(
                    f"the server ended with code {process.returncode} before it was ready"
                ) from None
    raise ServerFailed(f"the server was not ready after {_READY_WITHIN_S:g} s")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
