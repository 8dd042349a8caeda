"""The kinds of metrics."""

from enum import Enum


class MetricTypes(str, Enum):  # noqa: UP042 handlers compare it with plain strings and print it
    """What a metric's values mean."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
