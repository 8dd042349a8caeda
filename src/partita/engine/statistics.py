"""What a service counts: per batch where it can, per request where it must."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from partita.wire.messages import Measured

LATENCY_BOUNDS_S = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
"""Upper bounds of the latency histogram's buckets, seconds; one more bucket is open."""

MOST_MEASURED = 2000
"""Most metrics of one service's handlers that are kept."""
FOLD_FROM = 4096
"""Latencies noted before they are sorted into buckets."""


@dataclass(slots=True)
class BatchCount:
    """Executions of one batch size."""

    executions: int = 0
    infer_ns: int = 0
    overhead_ns: int = 0
    """Everything in the worker but the inference: gathering, user code, writing outputs."""


class Latencies:
    """A histogram of latencies. New ones are only noted, and sorted into buckets by the thousand."""

    __slots__ = ("_counts", "_sum_s", "recent_s", "tap_s")

    def __init__(self) -> None:
        self.recent_s: list[float] = []
        self.tap_s: list[float] | None = None
        """Gets every latency that is sorted, for whoever looks at single ones and empties it."""
        self._counts = np.zeros(len(LATENCY_BOUNDS_S) + 1, np.int64)
        self._sum_s = 0.0

    def fold(self) -> None:
        """Sort what was noted into its buckets; a latency equal to a bound lies below it."""
        noted = np.array(self.recent_s)
        if self.tap_s is not None:
            self.tap_s += self.recent_s
        self.recent_s.clear()
        self._sum_s += float(noted.sum())
        self._counts += np.bincount(np.searchsorted(LATENCY_BOUNDS_S, noted), minlength=len(self._counts))

    def add(self, other: "Latencies") -> None:
        """Count what another histogram has counted."""
        other.fold()
        self.fold()
        self._counts += other._counts
        self._sum_s += other._sum_s

    @property
    def counts(self) -> list[int]:
        """Answers in each bucket."""
        self.fold()
        return [int(count) for count in self._counts]

    @property
    def sum_s(self) -> float:
        """All latencies together, seconds."""
        self.fold()
        return self._sum_s


_SUMMED = (
    *(
        "accepted",
        "answered",
        "answered_items",
        "cancelled",
        "fail_ns",
        "queue_ns",
        "infer_ns",
        "overhead_ns",
    ),
    *("worker_deaths", "double_deaths"),
)
"""Counters of `Statistics` that are numbers."""


@dataclass(slots=True)
class Statistics:
    """Counters of one service since it was started. Times are nanoseconds, summed."""

    accepted: int = 0
    answered: int = 0
    answered_items: int = 0
    cancelled: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    """Accepted requests that failed, by error code."""
    refused: dict[str, int] = field(default_factory=dict)
    """Requests that were never accepted, by error code."""
    fail_ns: int = 0
    queue_ns: int = 0
    infer_ns: int = 0
    overhead_ns: int = 0
    by_batch: dict[int, BatchCount] = field(default_factory=dict)
    last_answer_s: float = 0.0
    """Monotonic time of the newest answer."""
    worker_deaths: int = 0
    double_deaths: int = 0
    """Requests that failed because they were in two deaths."""
    latencies: Latencies = field(default_factory=Latencies)
    measured: dict[tuple[str, tuple[tuple[str, str], ...]], Measured] = field(default_factory=dict)
    """Metrics of the user's handler, by name and labels: sums, or newest values."""

    def take_measured(self, measured: Iterable[Measured]) -> None:
        """A handler's metrics have come to this since the last batch."""
        for one in measured:
            key = one.name, one.labels
            before = self.measured.get(key)
            if before is not None and one.is_sum:
                one = Measured(one.name, one.labels, one.value + before.value, True)  # noqa: PLW2901
            elif before is None and len(self.measured) >= MOST_MEASURED:
                continue
            self.measured[key] = one

    def count_answer(self, n_items: int, latency_s: float) -> None:
        """One request was answered."""
        self.answered += 1
        self.answered_items += n_items
        recent = self.latencies.recent_s
        recent.append(latency_s)
        if len(recent) >= FOLD_FROM:
            self.latencies.fold()

    def count_failure(self, code: str, latency_s: float) -> None:
        """One accepted request failed."""
        self.failed[code] = self.failed.get(code, 0) + 1
        self.fail_ns += int(latency_s * 1e9)
        if code == "worker_died":
            self.double_deaths += 1

    def count_refusal(self, code: str) -> None:
        """One request was refused at the door."""
        self.refused[code] = self.refused.get(code, 0) + 1

    def count_batch(self, items: int, infer_ns: int, total_ns: int, queued_ns: int) -> None:
        """One batch was executed; `queued_ns` is the sum over its items' requests."""
        count = self.by_batch.get(items)
        if count is None:
            count = self.by_batch[items] = BatchCount()
        count.executions += 1
        count.infer_ns += infer_ns
        count.overhead_ns += total_ns - infer_ns
        self.infer_ns += infer_ns
        self.overhead_ns += total_ns - infer_ns
        self.queue_ns += queued_ns

    def add(self, other: "Statistics") -> None:
        """Count what another service has counted, as where one is served in place of another."""
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in ((self.failed, other.failed), (self.refused, other.refused)):
            for code, number in theirs.items():
                mine[code] = mine.get(code, 0) + number
        for size, batch in other.by_batch.items():
            count = self.by_batch.setdefault(size, BatchCount())
            count.executions += batch.executions
            count.infer_ns += batch.infer_ns
            count.overhead_ns += batch.overhead_ns
        self.take_measured(other.measured.values())
        self.last_answer_s = max(self.last_answer_s, other.last_answer_s)
        self.latencies.add(other.latencies)

    @property
    def executions(self) -> int:
        """Batches executed."""
        return sum(count.executions for count in self.by_batch.values())

    @property
    def failures(self) -> int:
        """Accepted requests that failed."""
        return sum(self.failed.values())

    def in_flight(self) -> int:
        """Accepted and not ended: the conservation law as a subtraction."""
        return self.accepted - self.answered - self.failures - self.cancelled
