"""Traces for OpenTelemetry: a span for each request, and in it its wait, its executions, their combination.

Needs the extra ``partita[tracing]``. Spans are made when a request has ended, from the times that were noted,
and are sent by a thread of the exporter's.
"""

from collections.abc import Iterator
from importlib.metadata import version as package_version
from importlib.util import find_spec
from typing import Any

from partita.core.clock import Clock
from partita.core.errors import MissingExtra
from partita.engine.observing import CANCELLED, OK, Trail
from partita.settings import TRACING_EXTRA

SEND_LIMIT_S = 3.0
"""Longest that spans may take to be sent, all tries together; so long the end of the server may wait."""
_PATH = "/v1/traces"


def check_tracing() -> None:
    """Raise `MissingExtra` where spans could not be made or sent."""
    for module in ("opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        try:
            found = find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise MissingExtra(TRACING_EXTRA)


def sending_provider(endpoint: str, sampling: float) -> Any:
    """Return a tracer provider that sends spans over HTTP to an OTLP receiver.

    A caller's decision whether its trace is sampled is kept; of those that begin here `sampling` is a share.
    """
    check_tracing()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(sampling)),
        resource=Resource.create({"service.name": "partita", "service.version": package_version("partita")}),
        shutdown_on_exit=False,
    )
    address = endpoint.rstrip("/")
    url = address if address.endswith(_PATH) else address + _PATH
    exporter = OTLPSpanExporter(endpoint=url, timeout=SEND_LIMIT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


class Tracer:
    """Reports sampled requests as spans."""

    def __init__(self, provider: Any, clock: Clock) -> None:
        """Take a tracer provider of the SDK's, which decides what is sampled and where spans go."""
        from opentelemetry import trace
        from opentelemetry.context import Context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("partita", package_version("partita"))
        self._extract = TraceContextTextMapPropagator().extract
        self._no_parent = Context()
        self._trace = trace
        self._clock = clock

    def begin(self, trail: Trail) -> Any:
        """Return the request's span, whose parent is the caller's; None for one that is not sampled."""
        incoming = trail.incoming
        headers = {"traceparent": incoming.traceparent, "tracestate": incoming.tracestate}
        parent = self._extract(headers, self._no_parent) if incoming.traceparent else self._no_parent
        offset_s = self._clock.wall_s() - self._clock.now_s()
        span = self._tracer.start_span(
            "request",
            parent,
            self._trace.SpanKind.SERVER,
            start_time=_ns(trail.arrived_s + offset_s),
        )
        return (span, offset_s) if span.is_recording() else None

    def report(self, begun: Any, trail: Trail) -> None:
        """End the request's span, with those of its parts."""
        span, offset_s = begun
        span.set_attributes(_attributes(trail))
        if trail.outcome not in (OK, CANCELLED):
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, trail.error))
        within = self._trace.set_span_in_context(span, self._no_parent)
        for name, start_s, end_s, attributes in parts(trail):
            start = _ns(start_s + offset_s)
            part = self._tracer.start_span(name, within, start_time=start, attributes=attributes)
            part.end(_ns(end_s + offset_s))
        span.end(_ns(trail.ended_s + offset_s))

    def close(self) -> None:
        """Send what is left, within `SEND_LIMIT_S`; it waits, so call it off the loop."""
        self._provider.force_flush(int(SEND_LIMIT_S * 1000))
        self._provider.shutdown()


Part = tuple[str, float, float, dict[str, str | int | float]]
"""Name, start and end (monotonic, seconds), and attributes."""


def parts(trail: Trail) -> Iterator[Part]:
    """Yield the parts of a request's time: its wait, its executions, and combining what members predicted."""
    yet = min((one.dispatched_s for one in trail.executions), default=trail.ended_s)
    named = {"request.id": trail.request_id}
    yield "queue", trail.arrived_s, yet, {**named}
    for one in trail.executions:
        attributes: dict[str, str | int | float] = {
            **named,
            "partita.model": one.model,
            "partita.instance": one.instance,
            "partita.items": one.items,
            "partita.batch.items": one.batch_items,
            "partita.infer_s": one.infer_s,
        }
        yield "compute", one.dispatched_s, one.done_s, attributes
    if trail.is_combined and trail.executions and trail.outcome == OK:
        yield "combine", max(one.done_s for one in trail.executions), trail.ended_s, {**named}


def _attributes(trail: Trail) -> dict[str, str | int]:
    return {
        "request.id": trail.request_id,
        "rpc.system": trail.incoming.protocol,
        "partita.model": trail.model,
        "partita.version": trail.version,
        "partita.items": trail.n_items,
        "partita.outcome": trail.outcome,
    }


def _ns(wall_s: float) -> int:
    return int(wall_s * 1e9)
