"""What is known of one point while it is being measured."""

from dataclasses import dataclass, replace
from math import sqrt

from partita.core.profile import ProfilePoint
from partita.planning.sampling_iterations import Sample

_NOTHING = Sample(iterations=1, mean_ms=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRecord:
    """All timed iterations of a point, over several visits."""

    sample: Sample = _NOTHING
    count: int = 0
    """Iterations; 0 = none yet, and `sample` means nothing."""
    min_ms: float | None = None
    max_ms: float | None = None
    infer_ms: float = 0.0
    infer_count: int = 0
    resident: int | None = None
    drift: float | None = None

    @classmethod
    def of(cls, point: ProfilePoint) -> "PointRecord":
        """Return the record of a point that was measured before."""
        iterations = point.iterations or 1
        deviation = point.stddev_ms or 0.0
        return cls(
            sample=Sample(iterations=iterations, mean_ms=point.mean_ms, variance=deviation**2),
            count=iterations,
            min_ms=point.min_ms,
            max_ms=point.max_ms,
            infer_ms=point.infer_ms or 0.0,
            infer_count=0 if point.infer_ms is None else iterations,
            resident=point.resident_bytes,
            drift=point.drift,
        )

    def with_iteration(self, total_ms: float, infer_ms: float) -> "PointRecord":
        """Return the record with one more timed iteration; `finished` brings its sample up to date."""
        count = self.infer_count + 1
        return replace(
            self,
            min_ms=total_ms if self.min_ms is None else min(self.min_ms, total_ms),
            max_ms=total_ms if self.max_ms is None else max(self.max_ms, total_ms),
            infer_ms=self.infer_ms + (infer_ms - self.infer_ms) / count,
            infer_count=count,
        )

    def finished(self, sample: Sample, *, resident: int | None, drift: float | None) -> "PointRecord":
        """Return the record after a visit."""
        return replace(self, sample=sample, count=sample.iterations, resident=resident, drift=drift)

    def point(self, threads: int, batch: int) -> ProfilePoint:
        """Return it as a point of a profile."""
        return ProfilePoint(
            threads=threads,
            batch=batch,
            mean_ms=self.sample.mean_ms,
            min_ms=self.min_ms,
            max_ms=self.max_ms,
            stddev_ms=sqrt(self.sample.variance) if self.count > 1 else None,
            infer_ms=self.infer_ms if self.infer_count else None,
            iterations=self.count,
            resident_bytes=self.resident,
            drift=self.drift,
        )
