"""A tiny HTTP server with a behaviour to measure against: a real socket, a thread of its own."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

METADATA = {
    "name": "m",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
}

Behaviour = Callable[[int], tuple[int, float]]
"""From the number of the request (0 is the first) to (status, seconds to wait); status 0 hangs up."""


class EchoServer:
    """Counts requests and answers each as its behaviour says."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.bodies: list[bytes] = []
        self.port = 0
        self._behaviour = behaviour

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    answer, status = json.dumps(METADATA).encode(), 200
                else:
                    length = int(head.lower().split(b"\r\ncontent-length: ")[1].split(b"\r\n")[0])
                    self.bodies.append(await reader.readexactly(length))
                    status, delay_s = self._behaviour(len(self.bodies) - 1)
                    answer = b"y" * 12
                    if delay_s:
                        await asyncio.sleep(delay_s)
                if status == 0:
                    break
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(answer)))
                # in two pieces, as a network may deliver it
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@contextmanager
def echo_server(behaviour: Behaviour = lambda _: (200, 0.0)) -> Iterator[EchoServer]:
    """Serve on a free port of loopback for the length of the block."""
    server = EchoServer(behaviour)
    started = threading.Event()
    stop: list[Callable[[], object]] = []

    async def serve() -> None:
        finished = asyncio.Event()
        loop = asyncio.get_running_loop()
        stop.append(partial(loop.call_soon_threadsafe, finished.set))
        tasks: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = loop.create_task(server.handle(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        listener = await asyncio.start_server(accept, "127.0.0.1", 0)
        server.port = listener.sockets[0].getsockname()[1]
        started.set()
        await finished.wait()
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    started.wait()
    try:
        yield server
    finally:
        stop[0]()
        thread.join()
