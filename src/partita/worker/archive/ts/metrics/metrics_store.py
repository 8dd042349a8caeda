"""What a handler measures: kept by name and labels, the newest value or the sum."""

from collections.abc import Mapping, Sequence
from typing import Any

from partita.wire.messages import Measured
from partita.worker.archive.ts.metrics.dimension import Dimension
from partita.worker.archive.ts.metrics.metric_type_enum import MetricTypes

LARGEST = 1000
"""Most metrics that are kept; a handler that makes names up must not fill the memory."""
Labels = tuple[tuple[str, str], ...]


class Metric:
    """One metric: of each set of labels its newest value, or the sum of a counter."""

    def __init__(self, name: str, unit: str, kind: MetricTypes, dimension_names: Sequence[str] = ()) -> None:
        self.name = name
        self.unit = unit
        self.metric_type = kind
        self.value = 0.0
        """The newest value, or the sum, over all labels."""
        self._names = tuple(dimension_names)
        self._values: dict[Labels, float] = {}
        self._changed: set[Labels] = set()

    def add_or_update(self, value: float, dimension_values: Sequence[Any] = (), *_: Any, **__: Any) -> None:
        """Add to a counter, or replace the value; the dimensions' values come in their order."""
        given = zip(self._names, dimension_values, strict=False)
        self.put(value, tuple((name, str(one)) for name, one in given))

    update = add_or_update

    def put(self, value: float, labels: Labels) -> None:
        """Add to a counter, or replace the value, under these labels."""
        if labels not in self._values and len(self._values) >= LARGEST:
            return
        is_sum = self.metric_type is MetricTypes.COUNTER
        self.value = self.value + value if is_sum else float(value)
        self._values[labels] = self._values.get(labels, 0.0) + value if is_sum else float(value)
        self._changed.add(labels)

    def take(self) -> list[Measured]:
        """Return what has changed since the last time: a counter's growth, or the newest value."""
        is_sum = self.metric_type is MetricTypes.COUNTER
        taken = [Measured(self.name, labels, self._values[labels], is_sum) for labels in self._changed]
        self._changed.clear()
        if is_sum:
            for one in taken:
                self._values[one.labels] = 0.0
        return taken


class MetricsStore:
    """The metrics of one worker's handler."""

    def __init__(self, request_ids: Mapping[int, str] | None, model_name: str) -> None:
        self.request_ids = request_ids
        self.model_name = model_name
        self.store: dict[str, Metric] = {}

    def take(self) -> tuple[Measured, ...]:
        """Return what has changed since the last time."""
        return tuple(one for metric in self.store.values() for one in metric.take())

    def _put(
        self,
        name: str,
        value: float,
        unit: str,
        kind: MetricTypes,
        dimensions: Sequence[Dimension] | None,
    ) -> None:
        metric = self.store.get(name)
        if metric is None:
            if len(self.store) >= LARGEST:
                return
            metric = self.store[name] = Metric(name, unit, kind)
        metric.put(value, tuple((str(one.name), str(one.value)) for one in dimensions or ()))

    def add_counter(
        self, name: str, value: float, idx: int | None = None, dimensions: Sequence[Dimension] | None = None
    ) -> None:
        """Add to a counter."""
        self._put(name, value, "count", MetricTypes.COUNTER, dimensions)

    def add_time(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: Sequence[Dimension] | None = None,
    ) -> None:
        """Set a time."""
        self._put(name, value, unit, MetricTypes.GAUGE, dimensions)

    def add_size(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: Sequence[Dimension] | None = None,
    ) -> None:
        """Set a size."""
        self._put(name, value, unit, MetricTypes.GAUGE, dimensions)

    def add_percent(
        self, name: str, value: float, idx: int | None = None, dimensions: Sequence[Dimension] | None = None
    ) -> None:
        """Set a share."""
        self._put(name, value, "percent", MetricTypes.GAUGE, dimensions)

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
        self._put(name, value, unit, MetricTypes(metric_type), dimensions)

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str = "",
        dimension_names: Sequence[str] = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> Metric:
        """Return a new metric."""
        metric = Metric(metric_name, unit, MetricTypes(metric_type), dimension_names)
        if len(self.store) < LARGEST:
            self.store[metric_name] = metric
        return metric

    def get_metric(self, metric_name: str, metric_type: MetricTypes = MetricTypes.COUNTER) -> Metric:
        """Return a metric that there is, else a new one."""
        return self.store.get(metric_name) or self.add_metric_to_cache(metric_name, metric_type=metric_type)
