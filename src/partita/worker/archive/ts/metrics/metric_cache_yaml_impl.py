"""The metrics store by its newer name."""

from partita.worker.archive.ts.metrics.metrics_store import MetricsStore as MetricsCacheYamlImpl

__all__ = ["MetricsCacheYamlImpl"]
