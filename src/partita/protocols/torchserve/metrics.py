"""Metrics by the names that TorchServe gives them, made when they are asked for."""

import os
import re
import shutil
import socket
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from partita.engine.engine import Engine
from partita.engine.statistics import Statistics
from partita.protocols.torchserve.gpu_gauges import NAMES as GPU_NAMES
from partita.protocols.torchserve.replies import ERRORS
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
        yield from self._requests()
        yield from self._workers()
        yield from self._machine()
        yield from self._handlers()

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

    def _requests(self) -> Iterable[Metric]:
        """Yield answers to requests of models by the class of their status, and their mean times."""
        totals = list(self._engine.counts().values())
        for digit in (2, 4, 5):
            family = Metric(f"Requests{digit}XX", "Answers of such a status (TorchServe's).", "unknown")
            answers = sum(_answers(counts, digit) for counts in totals)
            family.add_sample(family.name, self._host(), answers)
            yield family
        answered = sum(counts.answered for counts in totals) or 1
        executed = sum(counts.executions for counts in totals) or 1
        times = {
            "QueueTime": sum(counts.queue_ns for counts in totals) / answered / 1e6,
            "WorkerThreadTime": sum(counts.overhead_ns for counts in totals) / executed / 1e6,
        }
        for name, value in times.items():
            yield self._gauge(name, "Mean since the start, ms (TorchServe's name).", value)

    def _workers(self) -> Iterable[Metric]:
        loads = GaugeMetricFamily("WorkerLoadTime", "TorchServe's name: ms.", labels=("WorkerName", *_HOST))
        for service in list(self._engine.versions.values()):
            for instance in service.member.instances.values():
                if instance.ready is not None:
                    name = f"W-{instance.number}-{service.name}_{service.version}"
                    loads.add_metric((name, "Host", self._hostname), instance.ready.load_s * 1000)
        yield loads

    def _handlers(self) -> Iterator[Metric]:
        """Yield what archives' handlers have measured, under their own names."""
        families: dict[str, Metric] = {}
        for (model, version), counts in self._engine.counts().items():
            for one in list(counts.measured.values()):
                name = _UNFIT.sub("_", one.name)
                if _is_ours(name):
                    continue
                labels = {_UNFIT.sub("_", key): value for key, value in one.labels}
                labels |= {"ModelName": model, "ModelVersion": version, "Level": "Model"}
                text = "What a handler has counted." if one.is_sum else "The newest value of a handler."
                family = families.setdefault(name, Metric(name, text, "unknown" if one.is_sum else "gauge"))
                family.add_sample(name, {**labels, "Hostname": self._hostname}, one.value)
        yield from families.values()

    def _host(self) -> dict[str, str]:
        return {"Level": "Host", "Hostname": self._hostname}

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=_HOST)
        family.add_metric(("Host", self._hostname), value)
        return family

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
            yield self._gauge(name, "TorchServe's: percent, MiB or GiB.", value)


_UNFIT = re.compile(r"[^A-Za-z0-9_]|^(?=[0-9])")
_RESERVED = frozenset(
    (
        *("Requests2XX", "Requests4XX", "Requests5XX", "QueueTime", "WorkerThreadTime", "WorkerLoadTime"),
        *("CPUUtilization", "MemoryUsed", "MemoryAvailable", "MemoryUtilization"),
        *("DiskUsage", "DiskAvailable", "DiskUtilization", *GPU_NAMES),
    )
)


def _is_ours(name: str) -> bool:
    """Whether a handler's name for a metric is the server's already."""
    return name in _RESERVED or name.startswith(("partita_", "ts_"))


def _answers(counts: Statistics, digit: int) -> int:
    """Return how many requests were answered with a status of this first digit."""
    if digit == 2:
        return counts.answered
    ended = [*counts.failed.items(), *counts.refused.items()]
    return sum(count for code, count in ended if ERRORS.get(code, (500, ""))[0] // 100 == digit)
