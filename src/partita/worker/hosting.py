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
from collections.abc import Iterator
from contextlib import contextmanager

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


class _Turns:
    """Models are loaded one after another, in the order in which they came.

    So what each takes of the GPU can be told, and the head knows whose load limit runs.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: list[int] = []

    def queue(self, instance: int) -> None:
        with self._changed:
            self._queue.append(instance)

    @contextmanager
    def of(self, instance: int) -> Iterator[None]:
        """Wait for an instance's turn, and give it back."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue[0] == instance)
        try:
            yield
        finally:
            self.leave(instance)

    def leave(self, instance: int) -> None:
        """It has had its turn, or needs none."""
        with self._changed:
            if instance in self._queue:
                self._queue.remove(instance)
                self._changed.notify_all()


class _Host:
    def __init__(self, control: Channel) -> None:
        self._control = control
        self._telling = threading.Lock()
        self._turns = _Turns()
        self._threads: list[threading.Thread] = []

    def adopt(self, instance: int, fd: int) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._turns.queue(instance)
        thread = threading.Thread(target=self._serve, args=(instance, fd), name=f"model-{instance}")
        self._threads.append(thread)
        thread.start()

    def _serve(self, instance: int, fd: int) -> None:
        code = 1
        channel = Channel(socket.socket(fileno=fd))
        started_s = time.monotonic()
        try:
            frame, fds = channel.receive()
            code = serve(
                channel, frame, fds, pinned=True, started_s=started_s, loading=self._turns.of(instance)
            )
        except ConnectionClosed:
            code = 0
        except BaseException:
            traceback.print_exc()
        self._turns.leave(instance)
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
