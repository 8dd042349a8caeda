"""The whole path of the small model with nothing on it that could be left out: a ceiling, not a server.

    python -m benchmarks.bare_server MODEL PORT echo|infer

One loop takes bodies of one size, joins what waits into consecutive rows of shared memory, tells a worker
how many there are in one byte, and answers from the rows of the worker. Nothing is parsed, checked, limited
or counted, no request can be cancelled, and a worker that dies takes all with it. `echo` answers without one.
"""

import asyncio
import collections
import mmap
import os
import socket
import sys
from typing import cast

import numpy as np
import uvloop

from partita.system.parent import die_with_parent

WIDTH_IN, WIDTH_OUT, MAX_BATCH = 64, 10, 32
ROW_IN, ROW_OUT = 4 * WIDTH_IN, 4 * WIDTH_OUT
OUTPUTS = MAX_BATCH * ROW_IN
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % ROW_OUT
END_OF_HEAD = b"\r\n\r\n"


def work(channel: socket.socket, memory: mmap.mmap, model: str) -> None:
    """Run batches of as many rows as each message says, until the channel closes."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = ort.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    channel.send(b"\0")
    while message := channel.recv(1):
        rows = message[0]
        batch = np.frombuffer(memory, np.float32, rows * WIDTH_IN).reshape(rows, WIDTH_IN)
        (outputs,) = session.run(None, {name: batch})
        memory[OUTPUTS : OUTPUTS + rows * ROW_OUT] = outputs.tobytes()
        channel.send(message)


class Bare:
    """The head of one worker."""

    def __init__(self, channel: socket.socket, memory: mmap.mmap, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiting: collections.deque[tuple[asyncio.Transport, bytes]] = collections.deque()
        self._channel = channel
        self._memory = memory
        self._running: list[tuple[asyncio.Transport, bytes]] = []
        loop.add_reader(channel.fileno(), self._done)

    def dispatch(self) -> None:
        """Hand what waits to the worker, if it is idle."""
        if self._running or not self.waiting:
            return
        rows = min(len(self.waiting), MAX_BATCH)
        self._running = [self.waiting.popleft() for _ in range(rows)]
        self._memory[: rows * ROW_IN] = b"".join([body for _, body in self._running])
        self._channel.send(bytes((rows,)))

    def _done(self) -> None:
        self._channel.recv(1)
        outputs = self._memory[OUTPUTS : OUTPUTS + len(self._running) * ROW_OUT]
        for row, (transport, _) in enumerate(self._running):
            if not transport.is_closing():
                transport.write(HEAD + outputs[row * ROW_OUT : (row + 1) * ROW_OUT])
        self._running = []
        self.dispatch()


class Connection(asyncio.Protocol):
    """Takes every read for a whole request."""

    def __init__(self, bare: Bare | None) -> None:
        self._bare = bare

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Queue the body, or answer with its beginning."""
        start = data.find(END_OF_HEAD) + len(END_OF_HEAD)
        bare = self._bare
        if bare is None:
            self._transport.write(HEAD + data[start : start + ROW_OUT])
            return
        bare.waiting.append((self._transport, data[start : start + ROW_IN]))
        if len(bare.waiting) == 1:
            bare.loop.call_soon(bare.dispatch)


async def serve(port: int, channel: socket.socket | None, memory: mmap.mmap) -> None:
    """Serve until killed."""
    loop = asyncio.get_running_loop()
    bare = None if channel is None else Bare(channel, memory, loop)
    server = await loop.create_server(lambda: Connection(bare), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


def main(model: str, port: str, kind: str) -> None:
    memory = mmap.mmap(-1, OUTPUTS + MAX_BATCH * ROW_OUT)  # shared with the child
    ours = None
    if kind == "infer":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        head = os.getpid()
        if os.fork() == 0:
            ours.close()
            die_with_parent(head)
            work(theirs, memory, model)
            os._exit(0)
        theirs.close()
        ours.recv(1)
    uvloop.run(serve(int(port), ours, memory))


if __name__ == "__main__":
    main(*sys.argv[1:])
