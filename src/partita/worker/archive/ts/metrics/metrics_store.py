"""What a handler measures: kept by name, the newest value or the sum."""

from collections.abc import Mapping, Sequence
from typing import Any

from partita.worker.archive.ts.metrics.dimension import Dimension
from partita.worker.archive.ts.metrics.metric_type_enum import MetricTypes

LARGEST = 1000
"""Most metrics that are kept; a handler that makes names up must not fill the memory."""


class Metric:
    """One metric: its newest value, or the sum of a counter."""

    def __init__(self, name: str, unit: str, kind: MetricTypes) -> None:
        self.name = name
        self.unit = unit
        self.metric_type = kind
        self.value = 0.0

    def add_or_update(self, value: float, *_: Any, **__: Any) -> None:
        """Add to a counter, or replace the value."""
        self.value = self.value + value if self.metric_type is MetricTypes.COUNTER else float(value)

    update = add_or_update


class MetricsStore:
    """The metrics of one worker's handler."""

    def __init__(self, request_ids: Mapping[int, str] | None, model_name: str) -> None:
        self.request_ids = request_ids
        self.model_name = model_name
        self.store: dict[str, Metric] = {}

    def _put(self, name: str, value: float, unit: str, kind: MetricTypes) -> None:
        metric = self.store.get(name)
        if metric is None:
            if len(self.store) >= LARGEST:
                return
            metric = self.store[name] = Metric(name, unit, kind)
        metric.add_or_update(value)

    def add_counter(
        self, name: str, value: float, idx: int | None = None, dimensions: Sequence[Dimension] | None = None
    ) -> None:
        """Add to a counter."""
        self._put(name, value, "count", MetricTypes.COUNTER)

    def add_time(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: Sequence[Dimension] | None = None,
    ) -> None:
        """Set a time."""
        self._put(name, value, unit, MetricTypes.GAUGE)

    def add_size(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: Sequence[Dimension] | None = None,
    ) -> None:
        """Set a size."""
        self._put(name, value, unit, MetricTypes.GAUGE)

    def add_percent(
        self, name: str, value: float, idx: int | None = None, dimensions: Sequence[Dimension] | None = None
    ) -> None:
        """Set a share."""
        self._put(name, value, "percent", MetricTypes.GAUGE)

    def add_error(self, name: str, value: Any, dimensions: Sequence[Dimension] | None = None) -> None:
        """Take note of an error, which is text and is not kept."""

    def add_metric(
        self,
        name: str,
        value: float,
        unit: str = "",
        idx: int | None = None,
        dimensions: Sequence[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        """Add to a counter, or set a metric of another kind."""
        self._put(name, value, unit, MetricTypes(metric_type))

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str = "",
        dimension_names: Sequence[str] = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> Metric:
        """Return a new metric."""
        metric = Metric(metric_name, unit, MetricTypes(metric_type))
        if len(self.store) < LARGEST:
            self.store[metric_name] = metric
        return metric

    def get_metric(self, metric_name: str, metric_type: MetricTypes = MetricTypes.COUNTER) -> Metric:
        """Return a metric that there is, else a new one."""
        return self.store.get(metric_name) or self.add_metric_to_cache(metric_name, metric_type=metric_type)
