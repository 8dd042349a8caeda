"""What a service counts: per batch where it can, per request where it must."""

from bisect import bisect_left
from dataclasses import dataclass, field

LATENCY_BOUNDS_S = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
"""Upper bounds of the latency histogram's buckets, seconds; one more bucket is open."""


@dataclass(slots=True)
class BatchCount:
    """Executions of one batch size."""

    executions: int = 0
    infer_ns: int = 0
    overhead_ns: int = 0
    """Everything in the worker but the inference: gathering, user code, writing outputs."""


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
    latency_counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    latency_sum_s: float = 0.0
    last_answer_s: float = 0.0
    """Monotonic time of the newest answer."""
    worker_deaths: int = 0
    double_deaths: int = 0
    """Requests that failed because they were in two deaths."""

    def count_answer(self, n_items: int, latency_s: float) -> None:
        """One request was answered."""
        self.answered += 1
        self.answered_items += n_items
        self.latency_sum_s += latency_s
        self.latency_counts[bisect_left(LATENCY_BOUNDS_S, latency_s)] += 1

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
