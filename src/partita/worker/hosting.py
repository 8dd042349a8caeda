"""One process, many models: each is served by a thread of its own, over a channel of its own.

So it is on a GPU: its context is shared, and threads that wait for it let go of Python's lock. A model that
ends leaves the others alone; one that ends the process takes them
along, and the head starts all of them again.
"""

import os
import socket
import threading
import time
import traceback

from partita.core.errors import ConnectionClosed
from partita.system.channels import Channel
from partita.wire.codec import decode_to_host, encode
from partita.wire.messages import Adopt, Left
from partita.worker.session import serve


def run(control: Channel) -> int:
    """Adopt models until the channel ends, and wait for those at work; returns the exit code."""
    host = _Host(control)
    try:
        while True:
            frame, fds = control.receive()
            message = decode_to_host(frame)
            if not isinstance(message, Adopt) or len(fds) != 1:
                break
            host.adopt(message.instance, fds[0])
    except ConnectionClosed:
        pass
    host.join()
    return 0


class _Host:
    def __init__(self, control: Channel) -> None:
        self._control = control
        self._telling = threading.Lock()
        self._loading = threading.Lock()
        """Models are loaded one after another, so that what each takes of the GPU can be told."""
        self._threads: list[threading.Thread] = []

    def adopt(self, instance: int, fd: int) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._serve, args=(instance, fd), name=f"model-{instance}")
        self._threads.append(thread)
        thread.start()

    def _serve(self, instance: int, fd: int) -> None:
        code = 1
        channel = Channel(socket.socket(fileno=fd))
        started_s = time.monotonic()
        try:
            frame, fds = channel.receive()
            code = serve(channel, frame, fds, pinned=True, started_s=started_s, loading=self._loading)
        except ConnectionClosed:
            code = 0
        except BaseException:
            traceback.print_exc()
        channel.close()
        self._tell(Left(instance, code))

    def _tell(self, left: Left) -> None:
        try:
            with self._telling:
                self._control.send(encode(left))
        except (ConnectionClosed, OSError):
            os._exit(0)  # the head is gone, or has had enough of us

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
