"""What the load looked like lately: samples in, what a decision rests on out.

A sample says what happened since the one before it. Whoever drives a controller makes them: the live engine
from its counters, the simulator from its events.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

from partita.core.plan import Plan
from partita.planning.decisions import Seen
from partita.planning.estimator import BatchSizeEstimator, EstimatorRules, Trigger

PATIENCE_INTERVALS = 2
"""A load that has not settled for this long is taken as it is, on average."""
MIN_BATCHES = 4
"""Fewer batches in an interval than this say nothing about timeouts."""
_NEVER = 1 << 62
CHANCE, NEAR = 2.0, 0.05
"""Two halves of a window are alike if they differ by no more than two standard deviations of counts that
come at random, and a twentieth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What happened since the sample before. Sums and counts, so that samples can be added."""

    now_s: float
    depth: float
    """Items queued and in flight, as arriving items found it (`DepthMeter`)."""
    arrived: int
    """Items that were admitted."""
    request_items: float = 1.0
    """Size of the requests that they came in, as an item finds it."""
    standing: int = 0
    """The fewest items that an arriving request found before it: what was there all the time."""
    batches: int = 0
    batch_items: int = 0
    """Batches that were dispatched, and the items in them."""
    timeouts: int = 0
    """Of these batches, those that were formed because the batch timeout had passed."""
    dispatched: int = 0
    queued_s: float = 0.0
    """Requests whose first item was dispatched, and the sum of their waits until then."""
    answered: int = 0
    latency_s: float = 0.0
    """Requests that were answered, and the sum of their latencies."""
    executed: int = 0
    executed_s: float = 0.0
    profiled_s: float = 0.0
    """Batches that were executed, how long that took in all, and how long it takes by the profile."""


class Found(NamedTuple):
    """What arriving items found since the meter was last read."""

    depth: float
    """Mean depth, their own request included; without arrivals, the depth now."""
    arrived: int
    request_items: float
    standing: int
    """As in `Sample`."""


class DepthMeter:
    """The depth that arriving items found: what a burst brings shows, however seldom one looks.

    A mean over time hardly sees a burst that is served sooner than the next one comes. Arrivals do, and for
    items that come singly and at random the two are the same. Costs an addition or two for each request.
    """

    __slots__ = ("_items", "_least", "_squares", "_sum")

    def __init__(self) -> None:
        self._items = self._sum = self._squares = 0
        self._least = _NEVER

    def arrived(self, items: int, depth: int) -> None:
        """A request was admitted; `depth` counts its items too."""
        self._items += items
        self._sum += items * depth
        self._squares += items * items
        if depth - items < self._least:  # noqa: PLR1730 a call would cost more than the rest of this
            self._least = depth - items

    def take(self, depth_now: int) -> Found:
        """Return what came since the last call, and what it found."""
        items, total, squares, least = self._items, self._sum, self._squares, self._least
        self._items = self._sum = self._squares = 0
        self._least = _NEVER
        if not items:
            return Found(float(depth_now), 0, 1.0, depth_now)
        return Found(total / items, items, squares / items, least)


class RecentLoad:
    """The samples of one model that still count: the estimator's window, and those since a comparison."""

    def __init__(self, rules: EstimatorRules, estimator: BatchSizeEstimator, *, now_s: float) -> None:
        self._rules = rules
        self._estimator = estimator
        self._latest_s = now_s
        self._window: deque[Sample] = deque(maxlen=max(rules.window, 2))
        self._seconds: deque[float] = deque(maxlen=self._window.maxlen)
        """How long each sample in the window lasted: a busy caller may be late."""
        self._since: deque[Sample] = deque(maxlen=PATIENCE_INTERVALS * rules.samples)

    def add(self, sample: Sample) -> None:
        """Take the newest sample."""
        self._window.append(sample)
        self._seconds.append(sample.now_s - self._latest_s)
        self._latest_s = sample.now_s
        self._since.append(sample)

    def compared(self) -> None:
        """A comparison was made of what came since the one before."""
        self._since.clear()

    @property
    def is_new(self) -> bool:
        """Whether anything was sampled since the last comparison."""
        return bool(self._since)

    @property
    def newest_rate(self) -> float:
        """Items per second in the newest sample alone."""
        return _rate(self._window[-1].arrived, self._seconds[-1]) if self._window else 0.0

    @property
    def newest_depth(self) -> float:
        """Items queued and in flight in the newest sample alone."""
        return self._window[-1].depth if self._window else 0.0

    @property
    def has_patience(self) -> bool:
        """Whether a load that is still changing may be waited for."""
        return len(self._since) < PATIENCE_INTERVALS * self._rules.samples

    def seen(self, plan: Plan) -> Seen:
        """Return what the load looks like to a server with this plan."""
        window, since = self._window, self._since or self._window
        batches = sum(s.batches for s in since)
        timeouts = sum(s.timeouts for s in since) / batches if batches >= MIN_BATCHES else 0.0
        delay_s = _mean(sum(s.queued_s for s in since), sum(s.dispatched for s in since))
        return Seen(
            batch=self._estimator.batch,
            depth=self._estimator.depth or 0.0,
            rate=_rate(sum(s.arrived for s in window), sum(self._seconds)),
            trigger=self._trigger(plan, timeouts, delay_s),
            timeout_share=timeouts,
            together=_together(plan, since),
            queue_delay_s=delay_s,
            latency_s=_mean(sum(s.latency_s for s in since), sum(s.answered for s in since)),
            settled=self._is_settled(),
        )

    def _trigger(self, plan: Plan, timeouts: float, delay_s: float | None) -> Trigger | None:
        if self._estimator.batch != plan.batch:
            return Trigger.DEPTH
        if timeouts >= self._rules.timeout_share:
            return Trigger.TIMEOUTS
        long_ms = self._rules.long_delay * (plan.expected_ms or float("inf"))
        return Trigger.DELAYS if delay_s is not None and 1000.0 * delay_s > long_ms else None

    def _is_settled(self) -> bool:
        """Whether as much came in the newer half of the window as in the older, as far as chance allows."""
        arrived = [sample.arrived for sample in self._window]
        if len(arrived) < self._rules.window:
            return False
        half = len(arrived) // 2
        older, newer = sum(arrived[:half]), sum(arrived[len(arrived) - half :])
        return abs(older - newer) <= CHANCE * sqrt(older + newer) + NEAR * (older + newer)


def _rate(items: int, seconds: float) -> float:
    return items / seconds if seconds > 0.0 else 0.0


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None


def _together(plan: Plan, samples: Iterable[Sample]) -> float:
    """Return how many items the instances got at once, one batch each: B where batches are full."""
    samples = list(samples)
    mean = _mean(sum(s.batch_items for s in samples), sum(s.batches for s in samples))
    models = len({instance.model for instance in plan.instances})  # each member gets every item
    return float(plan.batch) if mean is None else mean * len(plan.instances) / models
