"""A profile: the measured latency L[t, b] of one model in one runtime, one instance alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePoint:
    """One measured ⟨t, b⟩. Times are milliseconds for the whole batch, pre- and postprocessing included."""

    threads: int
    batch: int
    mean_ms: float
    min_ms: float | None = None
    max_ms: float | None = None
    stddev_ms: float | None = None
    infer_ms: float | None = None
    """Mean of the inference alone, without the user's pre- and postprocessing."""
    iterations: int | None = None
    resident_bytes: int | None = None
    """Resident memory of the instance's process after this point was run."""
    drift: float | None = None
    """Anchor latency near this point's measurement ÷ the anchor's first latency: 1.0 = no drift."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What a profile was measured on; two profiles mix only if all of this is equal."""

    model_hash: str
    runtime: str
    runtime_version: str
    cpu_model: str
    topology: str
    """One line, such as ``1 socket x 2 cores``."""
    dimensions: Mapping[str, int] = field(default_factory=dict)
    """Sizes that symbolic axes were measured at."""
    handler_hash: str = ""
    samples_hash: str = ""
    """Of the file of items that the user gave to measure with; "" = items made up from the signature."""


@dataclass(frozen=True, slots=True)
class Profile:
    """All points of one model in one runtime; immutable, ordered by (threads, batch)."""

    points: Mapping[tuple[int, int], ProfilePoint]
    provenance: Provenance | None = None
    load_s: float | None = None
    """Time from starting the worker process until it was ready, seconds."""
    finished: tuple[int, int] | None = None
    """Cores and largest batch that measuring came to its end for; None where it was interrupted before."""

    def __init__(
        self,
        points: Iterable[ProfilePoint],
        *,
        provenance: Provenance | None = None,
        load_s: float | None = None,
        finished: tuple[int, int] | None = None,
    ) -> None:
        keyed = {(p.threads, p.batch): p for p in points}
        ordered = MappingProxyType(dict(sorted(keyed.items())))
        object.__setattr__(self, "points", ordered)
        object.__setattr__(self, "provenance", provenance)
        object.__setattr__(self, "load_s", load_s)
        object.__setattr__(self, "finished", finished)

    def latency_ms(self, threads: int, batch: int) -> float | None:
        """Return the mean latency of one execution of ⟨threads, batch⟩, None if it was not measured."""
        point = self.points.get((threads, batch))
        return None if point is None else point.mean_ms

    @property
    def threads(self) -> tuple[int, ...]:
        """Thread counts with at least one point, ascending."""
        return tuple(sorted({t for t, _ in self.points}))

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes with at least one point, ascending."""
        return tuple(sorted({b for _, b in self.points}))

    def with_points(self, points: Iterable[ProfilePoint]) -> "Profile":
        """Return a profile with these points added; a point measured again replaces the old one."""
        together = [*self.points.values(), *points]
        return Profile(together, provenance=self.provenance, load_s=self.load_s, finished=self.finished)
