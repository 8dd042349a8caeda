"""One process for each GPU, with all models that are on it: started for the first, ended after the last.

An instance on a GPU has a channel of its own, as every instance has. What it has not is a process: the host
tells when its part there is over, and when the process ends, so have all of its instances.
"""

import asyncio
import os
from collections.abc import Callable
from socket import socket

from partita.core.devices import Device
from partita.core.errors import ConnectionClosed
from partita.core.process_settings import ProcessSettings
from partita.system.channels import channel_pair
from partita.system.processes import WorkerProcess, gpu_environment, worker_environment
from partita.system.spawner import Spawner
from partita.wire.codec import MalformedMessage, decode_from_host, encode
from partita.wire.messages import Adopt, Gpu

_THREADS = 1
"""Of numeric libraries in such a process: what they compute is computed on the GPU."""


def gpu_message(gpu: Device) -> Gpu:
    """Return a GPU as its process sees it: one of CUDA's is the only one there."""
    index = 0 if not gpu.driver else gpu.index or 0
    return Gpu(name=gpu.name, driver=gpu.driver, index=index, memory_bytes=gpu.memory_bytes)


class HostedWorker:
    """An instance's part of a host process, as an instance sees a process of its own.

    `pidfd` becomes readable when it is over. Being moved to other cores, or stopped while it loads, means
    nothing here, since the others of the process would be too.
    """

    is_stepped_back = False

    def __init__(self, host: "DeviceHost") -> None:
        self.pid = host.process.pid
        self.pidfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._host = host
        self._code: int | None = None
        self._on_turn: Callable[[], None] | None = None
        self._is_its_turn = False

    def when_its_turn(self, begin: Callable[[], None]) -> None:
        """Call this once nothing that came earlier still loads: until then it waits for those."""
        if self._is_its_turn:
            begin()
        else:
            self._on_turn = begin

    def is_loaded(self) -> None:
        """The instance is ready: the next begins to load."""
        self._host.is_loaded(self)

    def has_turn(self) -> None:
        """The host says that it loads from now on."""
        self._is_its_turn = True
        begin, self._on_turn = self._on_turn, None
        if begin is not None:
            begin()

    def ended(self, code: int | None) -> None:
        """The host says that it is over."""
        self._code = code
        os.eventfd_write(self.pidfd, 1)

    def reap(self) -> int | None:
        """Return how it ended."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        return self._code

    @property
    def dies_with_us(self) -> bool:
        """Whether it ends when its head does: its host sees to that."""
        return True

    def kill(self) -> None:
        """End it at once, and the process with it, since a thread cannot be: its other models start anew."""
        self._host.process.kill()

    def step_back(self) -> bool:
        """Nothing that concerns one model alone."""
        return True

    def step_forward(self) -> bool:
        """Nothing that concerns one model alone."""
        return True

    def pause(self) -> None:
        """It computes elsewhere."""

    def resume(self) -> None:
        """It computes elsewhere."""

    def confine(self, cpus: object) -> None:
        """It computes elsewhere."""


class DeviceHost:
    """The process of one GPU."""

    def __init__(
        self,
        device: Device,
        argv: tuple[str, ...],
        spawner: Spawner,
        loop: asyncio.AbstractEventLoop,
        gone: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._gone = gone
        self._workers: dict[int, HostedWorker] = {}
        self._loading: list[HostedWorker] = []
        """Those that are not ready yet, in the order in which they came: the process loads the first."""
        self._code: int | None = None
        self._last: HostedWorker | None = None
        """The last that left, which is told so once the process is gone."""
        self._control, theirs = channel_pair()
        self.process: WorkerProcess = spawner.spawn(
            (*argv, "--many"),
            theirs,
            env={**worker_environment(_THREADS, ProcessSettings()), **gpu_environment(device)},
            name=device.name,
        )
        loop.add_reader(self._control.fileno(), self._readable)
        loop.add_reader(self.process.pidfd, self._ended)

    @property
    def takes(self) -> bool:
        """Whether another model can come: not once the last has left."""
        return self._last is None

    def adopt(self, number: int, channel_end: socket) -> HostedWorker:
        """Have it serve one more instance, over this end of its channel, which is closed here."""
        worker = self._workers[number] = HostedWorker(self)
        self._loading.append(worker)
        if len(self._loading) == 1:
            worker.has_turn()
        try:
            self._control.send(encode(Adopt(number)), [channel_end.fileno()])
        except ConnectionClosed:
            pass  # its end is reported by the process descriptor
        finally:
            channel_end.close()
        return worker

    def is_loaded(self, worker: HostedWorker) -> None:
        """One has loaded, or ended before it had: the next one's turn begins."""
        if worker not in self._loading:
            return
        was_first = self._loading[0] is worker
        self._loading.remove(worker)
        if was_first and self._loading:
            self._loading[0].has_turn()

    def _readable(self) -> None:
        try:
            received = self._control.receive_nowait()
            if received is not None:
                left = decode_from_host(received[0])
                self._left(left.instance, left.code)
        except ConnectionClosed:
            self._loop.remove_reader(self._control.fileno())
        except MalformedMessage:
            self._loop.remove_reader(self._control.fileno())
            self.process.kill()

    def _left(self, number: int, code: int) -> None:
        worker = self._workers.pop(number, None)
        if worker is None:
            return
        self.is_loaded(worker)
        if self._workers:
            worker.ended(code)
            return
        self._last = worker
        self._code = code
        self._close_control()

    def _close_control(self) -> None:
        """Without it the process goes."""
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()

    def _ended(self) -> None:
        self._loop.remove_reader(self.process.pidfd)
        code = self.process.reap()
        self._close_control()
        self._gone()
        self._loading.clear()
        if self._last is not None:
            self._last.ended(self._code)
        for worker in self._workers.values():
            worker.ended(code)
        self._workers.clear()


class DeviceHosts:
    """The host of each GPU, by the GPU's name."""

    def __init__(self, argv: tuple[str, ...], spawner: Spawner, loop: asyncio.AbstractEventLoop) -> None:
        self._argv = argv
        self._spawner = spawner
        self._loop = loop
        self._hosts: dict[str, DeviceHost] = {}

    def adopt(self, device: Device, number: int, channel_end: socket) -> HostedWorker:
        """Serve an instance on a GPU, in the process that is there or in a new one."""
        host = self._hosts.get(device.name)
        if host is None or not host.takes:
            host = self._hosts[device.name] = DeviceHost(
                device, self._argv, self._spawner, self._loop, lambda: self._forget(device.name, host)
            )
        return host.adopt(number, channel_end)

    def _forget(self, name: str, host: DeviceHost | None) -> None:
        if self._hosts.get(name) is host:
            del self._hosts[name]
