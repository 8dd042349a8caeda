"""Gauges of GPUs by the names that TorchServe gives them; none on a machine without any."""

import socket
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric

from partita.core.clock import Clock
from partita.system.gpus import GpuUse, gpus_in_use

NAMES = ("GPUUtilization", "GPUMemoryUsed", "GPUMemoryUtilization")
FRESH_S = 1.0
"""The driver is asked at most so often, however many ask us."""
_LABELS = ("DeviceId", "Level", "Hostname")
_MIB = 1 << 20


class GpuGauges:
    """Collects what was last read; whoever is about to collect has it read first."""

    def __init__(self, clock: Clock, command: str = "nvidia-smi") -> None:
        self._clock = clock
        self._command = command
        self._hostname = socket.gethostname()
        self._uses: tuple[GpuUse, ...] = ()
        self._read_s: float | None = None

    async def read(self) -> None:
        """Ask the driver, unless it was just asked."""
        now_s = self._clock.now_s()
        if self._read_s is None or now_s - self._read_s >= FRESH_S:
            self._read_s = now_s
            self._uses = await gpus_in_use(self._command)

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
