"""From the first instruction to the import of numeric libraries: what must be in place before them.

This module and what it imports at its top stay clear of numpy, so that the thread variables and the
affinity that `Start` asks for are set before any library reads them.
"""

import argparse
import os
import signal
import socket
import time
from collections.abc import Sequence

import msgspec

from partita.core.errors import ConnectionClosed
from partita.system.channels import Channel
from partita.system.cpus import pin, yield_to_waking
from partita.system.parent import die_with_parent
from partita.system.processes import thread_environment


def main(argv: Sequence[str] | None = None) -> int:
    """Run one worker, or one for many models, until its end or its head's; returns the exit code."""
    started_s = time.monotonic()
    parser = argparse.ArgumentParser(prog="partita.worker", description="A worker; the head starts it.")
    parser.add_argument("--channel", type=int, required=True, help="descriptor of the channel to the head")
    parser.add_argument("--many", action="store_true", help="serve many models, each over its own channel")
    given = parser.parse_args(argv)
    fd = given.channel
    os.set_inheritable(fd, False)
    channel = Channel(socket.socket(fileno=fd))
    die_with_parent(channel.peer_pid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if given.many:
        from partita.worker import hosting

        return hosting.run(channel)
    try:
        frame, fds = channel.receive()
    except ConnectionClosed:
        return 0
    pinned = _prepare(frame)

    from partita.worker.session import run  # numpy and the runtime come in here, not earlier

    return run(channel, frame, fds, pinned=pinned, started_s=started_s)


def _prepare(frame: bytes) -> bool:
    """Pin, and set the thread variables; returns whether the pinning was granted, or not asked for.

    The message is read as a plain map here: its class would bring numpy along.
    """
    start = msgspec.msgpack.decode(frame)
    os.environ.update(thread_environment(start["threads"]))
    cores = start["cores"]
    if not start.get("owns_cores", True) or len(cores) > start["threads"]:
        yield_to_waking()
    return pin(cores) if cores else True
