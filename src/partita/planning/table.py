"""The profile as arrays: what every search in this package reads.

A `LatencyTable` is L[t, b] of Packrat §3.2 for any set of thread counts and any set of batch sizes, not
only powers of two, and with any points missing: those are infinite, so no search ever chooses them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partita.core.errors import InvalidInput
from partita.core.profile import Profile
from partita.planning.noise import learnt

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class LatencyTable:
    """Latency of one execution by one instance alone, and the memory that the instance then holds."""

    threads: Ints  # (n,) ascending
    batches: Ints  # (m,) ascending
    latency_ms: Floats  # (n, m), inf where not profiled
    memory_bytes: Floats | None = None  # (n, m), finite wherever latency_ms is; None = unknown

    @classmethod
    def of(cls, profile: Profile) -> "LatencyTable":
        """Return the table of a profile's latencies: means, one standard error added where it is known.

        Of many plans that are nearly as fast, the least mean would name one that rests on few, lucky
        iterations. A point whose memory was not recorded is taken to need as much as the largest that was.

        Raises `InvalidInput` for an empty profile, or for a point that is not positive and finite.
        """
        latency_ms = cautious_ms(profile)
        resident = {k: p.resident_bytes for k, p in profile.points.items() if p.resident_bytes is not None}
        return cls.from_points(latency_ms, resident or None)

    @classmethod
    def from_points(
        cls,
        latency_ms: Mapping[tuple[int, int], float],
        memory_bytes: Mapping[tuple[int, int], int] | None = None,
    ) -> "LatencyTable":
        """Return the table of these ⟨threads, batch⟩ points; errors as for `of`."""
        _check(latency_ms.items())
        threads = np.array(sorted({t for t, _ in latency_ms}), dtype=np.int64)
        batches = np.array(sorted({b for _, b in latency_ms}), dtype=np.int64)
        keys = np.array(list(latency_ms), dtype=np.int64)
        at = (np.searchsorted(threads, keys[:, 0]), np.searchsorted(batches, keys[:, 1]))
        latency = np.full((len(threads), len(batches)), np.inf)
        latency[at] = list(latency_ms.values())
        memory = None
        if memory_bytes:
            most = max(memory_bytes.values())
            memory = np.full(latency.shape, np.inf)
            memory[at] = [memory_bytes.get(key, most) for key in latency_ms]
        return cls(threads, batches, latency, memory)

    def up_to(self, max_threads: int) -> "LatencyTable":
        """Return the rows with at most `max_threads` threads; there may be none."""
        n = int(np.searchsorted(self.threads, max_threads, side="right"))
        memory = None if self.memory_bytes is None else self.memory_bytes[:n]
        return LatencyTable(self.threads[:n], self.batches, self.latency_ms[:n], memory)

    def only(self, row: int, columns: int) -> "LatencyTable":
        """Return one row and its first `columns` batch sizes."""
        memory = None if self.memory_bytes is None else self.memory_bytes[row : row + 1, :columns]
        latency = self.latency_ms[row : row + 1, :columns]
        return LatencyTable(self.threads[row : row + 1], self.batches[:columns], latency, memory)

    def prefix(self, columns: int) -> "LatencyTable":
        """Return the first `columns` batch sizes."""
        memory = None if self.memory_bytes is None else self.memory_bytes[:, :columns]
        return LatencyTable(self.threads, self.batches[:columns], self.latency_ms[:, :columns], memory)

    def row(self, threads: int) -> int | None:
        """Return the row of a thread count, None if it was not profiled."""
        at = int(np.searchsorted(self.threads, threads))
        return at if at < len(self.threads) and self.threads[at] == threads else None

    def column(self, batch: int) -> int | None:
        """Return the column of a batch size, None if it was not profiled."""
        at = int(np.searchsorted(self.batches, batch))
        return at if at < len(self.batches) and self.batches[at] == batch else None

    def at_ms(self, threads: int, batch: int) -> float | None:
        """Return the latency of one execution of ⟨threads, batch⟩, None if it was not profiled."""
        row, column = self.row(threads), self.column(batch)
        if row is None or column is None or np.isinf(self.latency_ms[row, column]):
            return None
        return float(self.latency_ms[row, column])

    def memory_of(self, row: int, executions: Iterable[int]) -> float:
        """Return the bytes that an instance of this row holds to run these sizes; 0 where unknown."""
        if self.memory_bytes is None:
            return 0.0
        return max(float(self.memory_bytes[row, np.searchsorted(self.batches, size)]) for size in executions)


def cautious_ms(profile: Profile) -> dict[tuple[int, int], float]:
    """Return what a plan should expect of each point: its mean, plus one standard error where that is known.

    How much single iterations differ is learnt from all points together (`planning.noise`).
    """
    latency_ms = {key: point.mean_ms for key, point in profile.points.items()}
    known = {k: p for k, p in profile.points.items() if (p.iterations or 0) > 0 < p.mean_ms}
    iterations = np.array([float(p.iterations or 1) for p in known.values()])
    variance = np.array([((p.stddev_ms or 0.0) / p.mean_ms) ** 2 for p in known.values()])
    error = learnt(iterations, variance).error(iterations, variance)
    for (key, point), off in zip(known.items(), error, strict=True):
        latency_ms[key] = point.mean_ms * (1.0 + float(off))
    return latency_ms


def _check(points: Iterable[tuple[tuple[int, int], float]]) -> None:
    empty = True
    for (threads, batch), latency in points:
        empty = False
        if threads < 1 or batch < 1:
            raise InvalidInput(f"profile point {threads} threads, batch {batch}: both must be 1 or more")
        if not (np.isfinite(latency) and latency > 0):
            raise InvalidInput(
                f"profile point {threads} threads, batch {batch}: latency {latency} ms must be positive"
            )
    if empty:
        raise InvalidInput("the profile has no points; profile at least one thread count and batch size")
