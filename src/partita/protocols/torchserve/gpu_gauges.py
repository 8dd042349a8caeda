"""Gauges of GPUs by the names that TorchServe gives them; none on a machine without any."""

import asyncio
import shutil
import socket
from collections.abc import Iterable
from contextlib import suppress
from threading import Thread

from prometheus_client.core import GaugeMetricFamily, Metric

from partita.core.clock import Clock
from partita.system.gpus import GpuUse, gpus_in_use

NAMES = ("GPUUtilization", "GPUMemoryUsed", "GPUMemoryUtilization")
FRESH_S = 1.0
"""The driver is asked at most so often, however many ask us."""
PATIENCE_S = 1.0
"""Longest that one who asks us waits for it; starting it and waiting for it hold up nobody else."""
_LABELS = ("DeviceId", "Level", "Hostname")
_MIB = 1 << 20


class GpuGauges:
    """Collects what was last read; whoever is about to collect has it read first."""

    def __init__(self, clock: Clock, command: str = "nvidia-smi") -> None:
        self._clock = clock
        self._command = command
        self._hostname = socket.gethostname()
        self._uses: tuple[GpuUse, ...] = ()
        self._has_driver = shutil.which(command) is not None
        self._asked_s = 0.0
        self._answer: asyncio.Future[None] | None = None
        """Done once the driver has answered what it was last asked."""

    async def read(self) -> None:
        """Have the driver asked in a thread, unless it was just asked, and wait a moment for what it says.

        Whoever comes while a driver takes longer than that gets what it said the time before.
        """
        now_s = self._clock.now_s()
        answer = self._answer
        if answer is None or (answer.done() and now_s - self._asked_s >= FRESH_S):
            if not self._has_driver:
                return
            self._asked_s = now_s
            loop = asyncio.get_running_loop()
            answer = self._answer = loop.create_future()
            Thread(target=self._ask, args=(loop, answer), name="gpu-gauges", daemon=True).start()
        if not answer.done():
            await asyncio.wait([answer], timeout=max(0.0, self._asked_s + PATIENCE_S - now_s))

    def _ask(self, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[None]) -> None:
        """Run in the thread."""
        uses = gpus_in_use(self._command)
        with suppress(RuntimeError):  # the loop may have been closed meanwhile
            loop.call_soon_threadsafe(self._told, answer, uses)

    def _told(self, answer: asyncio.Future[None], uses: tuple[GpuUse, ...]) -> None:
        self._uses = uses
        answer.set_result(None)

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges whose values the driver says."""
        for name in NAMES:
            family = GaugeMetricFamily(name, "TorchServe's: percent or MiB.", labels=_LABELS)
            for use in self._uses:
                value = _value(name, use)
                if value is not None:
                    family.add_metric((str(use.index), "Host", self._hostname), value)
            if family.samples:
                yield family


def _value(name: str, use: GpuUse) -> float | None:
    if name == "GPUUtilization":
        return use.busy_percent
    if use.used_bytes is None:
        return None
    if name == "GPUMemoryUsed":
        return use.used_bytes / _MIB
    return 100 * use.used_bytes / use.total_bytes if use.total_bytes else None
