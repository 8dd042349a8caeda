"""Prometheus metrics, made from the engine's counters when they are asked for, off the request path."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from partita.engine.engine import Engine
from partita.engine.service import Service
from partita.engine.statistics import LATENCY_BOUNDS_S, Statistics
from partita.machines.handover import Stage
from partita.protocols.http.listener import Listener
from partita.protocols.torchserve.gpu_gauges import GpuGauges
from partita.protocols.torchserve.metrics import TorchServeCollector

_LABELS = ("model", "version")
Counts = Mapping[tuple[str, str], Statistics]
"""By name and version."""


class EngineCollector:
    """Collects the counters of all services and ports at scrape time."""

    def __init__(self, engine: Engine, listeners: Mapping[str, Listener]) -> None:
        self._engine = engine
        self._listeners = listeners

    def collect(self) -> Iterable[Metric]:
        """Yield every metric family."""
        services = list(self._engine.versions.values())
        counts = self._engine.counts()
        yield from _requests(counts)
        yield from _batches(counts)
        yield from _gauges(services)
        yield from _tuning(self._engine)
        yield _latency(counts)
        yield from _ports(self._listeners)


def _key(service: Service) -> tuple[str, str]:
    return service.name, service.version


def _requests(of: Counts) -> Iterable[Metric]:
    requests = CounterMetricFamily(
        "partita_requests",
        "Requests by outcome: ok, cancelled or an error code.",
        labels=(*_LABELS, "outcome"),
    )
    refused = CounterMetricFamily(
        "partita_refusals", "Requests that were never accepted, by error code.", labels=(*_LABELS, "code")
    )
    items = CounterMetricFamily("partita_items", "Items answered.", labels=_LABELS)
    for key, counts in of.items():
        outcomes = {"ok": counts.answered, "cancelled": counts.cancelled, **counts.failed}
        for outcome, value in outcomes.items():
            requests.add_metric((*key, outcome), value)
        for code, value in counts.refused.items():
            refused.add_metric((*key, code), value)
        items.add_metric(key, counts.answered_items)
    yield from (requests, refused, items)


def _batches(of: Counts) -> Iterable[Metric]:
    batches = CounterMetricFamily("partita_batches", "Batches executed, by size.", labels=(*_LABELS, "items"))
    queue = CounterMetricFamily("partita_queue_seconds", "Time that requests waited, summed.", labels=_LABELS)
    infer = CounterMetricFamily("partita_infer_seconds", "Time in the runtime, summed.", labels=_LABELS)
    other = CounterMetricFamily(
        "partita_worker_overhead_seconds", "Time in workers outside the runtime, summed.", labels=_LABELS
    )
    deaths = CounterMetricFamily("partita_worker_deaths", "Workers that died.", labels=_LABELS)
    double = CounterMetricFamily(
        "partita_double_deaths", "Requests that failed after being in two worker deaths.", labels=_LABELS
    )
    for key, counts in of.items():
        for size, batch in sorted(counts.by_batch.items()):
            batches.add_metric((*key, str(size)), batch.executions)
        queue.add_metric(key, counts.queue_ns / 1e9)
        infer.add_metric(key, counts.infer_ns / 1e9)
        other.add_metric(key, counts.overhead_ns / 1e9)
        deaths.add_metric(key, counts.worker_deaths)
        double.add_metric(key, counts.double_deaths)
    yield from (batches, queue, infer, other, deaths, double)


def _gauges(services: list[Service]) -> Iterable[Metric]:
    queued = GaugeMetricFamily("partita_queue_items", "Items waiting now.", labels=_LABELS)
    flight = GaugeMetricFamily(
        "partita_requests_in_flight", "Requests accepted and not ended.", labels=_LABELS
    )
    ready = GaugeMetricFamily("partita_ready", "1 where the model can answer now.", labels=_LABELS)
    plan = GaugeMetricFamily(
        "partita_plan_instances",
        "Instances of the plan by cores t, items b and micro-batch r.",
        labels=(*_LABELS, "threads", "batch", "micro_batch"),
    )
    restarts = GaugeMetricFamily("partita_worker_restarts", "Restarts of running workers.", labels=_LABELS)
    for service in services:
        key = _key(service)
        queued.add_metric(key, service.member.dispatcher.queue.items)
        flight.add_metric(key, service.statistics.in_flight())
        ready.add_metric(key, float(service.is_ready))
        restarts.add_metric(key, sum(i.life.restarts for i in service.member.instances.values()))
        if service.plan is not None:
            for spec, count in service.plan.groups():
                labels = (*key, str(spec.threads), str(spec.batch), str(spec.micro_batch))
                plan.add_metric(labels, count)
    yield from (queued, flight, ready, plan, restarts)
    yield from _switches(services)


def _switches(services: list[Service]) -> Iterable[Metric]:
    switches = CounterMetricFamily(
        "partita_plan_switches", "Changes of plan, by what became of them.", labels=(*_LABELS, "outcome")
    )
    asleep = GaugeMetricFamily("partita_warm_instances", "Instances loaded and asleep.", labels=_LABELS)
    for service in services:
        switcher = service.member.switcher
        if switcher is not None:
            counts = switcher.handover.counts
            outcomes = {"accepted": counts.accepted, "failed": counts.failed, "superseded": counts.superseded}
            for outcome, value in outcomes.items():
                switches.add_metric((*_key(service), outcome), value)
            asleep.add_metric(_key(service), len(switcher.handover.numbers(Stage.ASLEEP)))
    yield from (switches, asleep)


def _tuning(engine: Engine) -> Iterable[Metric]:
    state = GaugeMetricFamily(
        "partita_tuning", "1 for what measuring beside the traffic does now.", labels=(*_LABELS, "state")
    )
    points = GaugeMetricFamily("partita_tuning_points", "Points that it has measured.", labels=_LABELS)
    pauses = CounterMetricFamily("partita_tuning_pauses", "Pauses for the traffic's sake.", labels=_LABELS)
    for service, report in list(engine.tunings.items()):
        key = _key(service)
        state.add_metric((*key, report.state.value), 1.0)
        points.add_metric(key, report.points)
        pauses.add_metric(key, report.pauses)
    yield from (state, points, pauses)


def _latency(of: Counts) -> Metric:
    family = HistogramMetricFamily(
        "partita_request_latency_seconds", "From a complete request to its answer.", labels=_LABELS
    )
    for key, counts in of.items():
        total, buckets = 0, []
        for bound, count in zip((*LATENCY_BOUNDS_S, float("inf")), counts.latencies.counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        family.add_metric(key, buckets, sum_value=counts.latencies.sum_s)
    return family


def _ports(listeners: Mapping[str, Listener]) -> Iterable[Metric]:
    refusals = CounterMetricFamily(
        "partita_http_refusals",
        "Requests refused by their framing, size or slowness, and connections over the limit, by status.",
        labels=("port", "status"),
    )
    connections = GaugeMetricFamily("partita_http_connections", "Open connections.", labels=("port",))
    for name, listener in listeners.items():
        for status, count in sorted(listener.refusals.items()):
            refusals.add_metric((name, str(status)), count)
        connections.add_metric((name,), listener.connections)
    yield from (refusals, connections)


class _Named(CollectorRegistry):
    """The samples of some names; also those that were not there yet when the registry was made."""

    def __init__(self, registry: CollectorRegistry, names: frozenset[str]) -> None:
        super().__init__()
        self._all = registry
        self._chosen = names

    def collect(self) -> Iterable[Metric]:
        """Yield every metric family that has such a sample, with those alone."""
        for family in self._all.collect():
            family.samples = [sample for sample in family.samples if sample.name in self._chosen]
            if family.samples:
                yield family


def metrics_route(engine: Engine, listeners: Mapping[str, Listener], gpus: GpuGauges) -> Route:
    """Return ``GET /metrics`` over an engine and the HTTP ports by name; ``?name[]=`` chooses some."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(EngineCollector(engine, listeners))
    registry.register(TorchServeCollector(engine))
    registry.register(gpus)

    async def metrics(request: Request) -> Response:
        """Metrics in Prometheus' text format; `name[]` chooses some."""
        await gpus.read()
        names = request.query_params.getlist("name[]")
        chosen = _Named(registry, frozenset(names)) if names else registry
        return Response(generate_latest(chosen), media_type=CONTENT_TYPE_LATEST)

    return Route("/metrics", metrics)
