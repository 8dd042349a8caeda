"""Metrics by the names that TorchServe gives them, made when they are asked for."""

import os
import shutil
import socket
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from partita.engine.engine import Engine
from partita.system.memory import available_bytes, total_bytes

_MODEL = ("model_name", "model_version", "hostname")
_HOST = ("Level", "Hostname")
_MIB = 1 << 20


class TorchServeCollector:
    """Collects TorchServe's counters of models and gauges of the machine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._hostname = socket.gethostname()

    def collect(self) -> Iterable[Metric]:
        """Yield every metric family."""
        yield from self._models()
        yield from self._machine()

    def _models(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "ts_inference_requests", "Requests that were taken (TorchServe's name).", labels=_MODEL
        )
        latency = GaugeMetricFamily(
            "ts_inference_latency_microseconds",
            "Latencies of answers, summed (TorchServe's name).",
            labels=_MODEL,
        )
        queued = GaugeMetricFamily(
            "ts_queue_latency_microseconds", "Time in the queue, summed (TorchServe's name).", labels=_MODEL
        )
        for key, counts in self._engine.counts().items():
            labels = (*key, self._hostname)
            requests.add_metric(labels, counts.accepted)
            latency.add_metric(labels, counts.latencies.sum_s * 1e6)
            queued.add_metric(labels, counts.queue_ns / 1e3)
        yield from (requests, latency, queued)

    def _machine(self) -> Iterable[Metric]:
        total, available, disk = total_bytes() or 0, available_bytes() or 0, shutil.disk_usage("/")
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
        values = {
            "CPUUtilization": min(100.0, 100 * load),
            "MemoryUsed": (total - available) / _MIB,
            "MemoryAvailable": available / _MIB,
            "MemoryUtilization": 100 * (1 - available / total) if total else 0.0,
            "DiskUsage": disk.used / (1 << 30),
            "DiskAvailable": disk.free / (1 << 30),
            "DiskUtilization": 100 * disk.used / disk.total,
        }
        for name, value in values.items():
            family = GaugeMetricFamily(name, "TorchServe's: percent, MiB or GiB.", labels=_HOST)
            family.add_metric(("Host", self._hostname), value)
            yield family
