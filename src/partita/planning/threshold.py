"""The fastest plan, by a search over the latency itself (beyond Packrat §3.3: the same optimum, sooner).

Given a latency λ, an instance of t cores can serve cap_t(λ) items, the largest b whose cost is within λ.
Whether T cores reach B items within λ is then a one-dimensional knapsack over cores. A larger λ never
serves fewer items, so the least λ is found by bisection; it is one of the finitely many costs.

Two bounds that need no knapsack leave few costs to bisect:

- some instance must serve its share, so λ ≥ min over t of cost[t, ⌈B·t/T⌉];
- equal instances alone are a plan, so λ ≤ min over t of cost[t, ⌈B/k⌉], k instances of t cores each.

Instances stay inside one socket. Sockets are separable: their capacities add, and an *allotment* says
how many of the T cores each socket gives.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from partita.planning.micro_batches import BatchCosts
from partita.planning.table import Floats, Ints

Share = tuple[int, int]
"""One instance of a solution: (row of the cost table, number of items)."""

NEVER = -(1 << 40)
"""Fewer items than any sum can make up for: there can be no such instances."""

MAX_ALLOTMENTS = 4096
"""Ways of giving T cores from several larger sockets that are looked at, the most even ones last."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The least latency at which the cores serve exactly the batch, and instances that reach it."""

    latency_ms: float
    shares: tuple[Share, ...]


def solve(
    costs: BatchCosts, sockets: tuple[int, ...], cores: int, batch: int, max_share: int | None = None
) -> Solution | None:
    """Return the fastest plan for `batch` items, None if there is none.

    Among plans of the same latency the one with the fewest instances is returned. `costs` must reach
    `batch`; `max_share` bounds the items of one instance.
    """
    search = Search(costs, sockets, cores, batch, max_share)
    latency_ms = search.least_latency()
    return None if latency_ms is None else Solution(latency_ms, search.fewest(latency_ms))


class Search:
    """The knapsacks of one ⟨T, B⟩ at any latency."""

    def __init__(
        self,
        costs: BatchCosts,
        sockets: tuple[int, ...],
        cores: int,
        batch: int,
        max_share: int | None = None,
    ) -> None:
        self.allotments = allotments(sockets, cores)  # (K, sockets)
        self.widest = int(self.allotments.max())
        self.costs = costs.up_to(self.widest)
        self.batch = batch
        self._threads = self.costs.table.threads
        self._share = min(batch, max_share or batch)
        self._cost: Floats = self.costs.cost_ms[:, : self._share + 1]
        self._strides = [2**k for k in range(self._share.bit_length() - 1, -1, -1)]
        self._padded = np.full(2 * self.widest + 1, NEVER)
        self._rest = np.lib.stride_tricks.sliding_window_view(self._padded, self.widest + 1)[:, ::-1]

    def least_latency(self) -> float | None:
        """Return the least λ at which the cores serve the batch, None if there is none."""
        low_ms, high_ms = self._bounds()
        candidates = np.unique(self._cost[(self._cost >= low_ms) & (self._cost <= high_ms)])
        candidates = candidates[np.isfinite(candidates)]
        first = bisect_left(candidates, True, key=self.reaches)
        return float(candidates[first]) if first < len(candidates) else None

    def _bounds(self) -> tuple[float, float]:
        """Return a latency that no plan is below and one that equal instances reach; may be infinite."""
        if not len(self._threads):
            return np.inf, np.inf
        total = int(self.allotments[0].sum())
        least = -(-self.batch * self._threads // total)
        low = self._cost_at(np.minimum(least, self.batch)).min()
        counts = (self.allotments[:, None, :] // self._threads[None, :, None]).sum(axis=2).max(axis=0)
        equal = -(-self.batch // np.maximum(counts, 1))
        high = self._cost_at(equal).min()
        return float(low), float(high)

    def _cost_at(self, items: Ints) -> Floats:
        rows = np.arange(len(self._threads))
        return np.where(items <= self._share, self._cost[rows, np.minimum(items, self._share)], np.inf)

    def capacities(self, latency_ms: float) -> Ints:
        """Return how many items an instance of t = 0..widest cores serves within the latency."""
        rows = np.arange(len(self._threads))
        served = np.zeros(len(rows), dtype=np.int64)
        for stride in self._strides:  # binary search in every row at once
            further = np.minimum(served + stride, self._share)
            served = np.where(self._cost[rows, further] <= latency_ms, further, served)
        by_threads = np.zeros(self.widest + 1, dtype=np.int64)
        by_threads[self._threads] = served
        return by_threads

    def reaches(self, latency_ms: float) -> bool:
        """Whether some instances on the cores serve the batch within the latency."""
        served = np.maximum.accumulate(self.capacities(latency_ms))
        while True:  # after k rounds: the best of up to 2^k instances
            if served[self.allotments].sum(axis=1).max() >= self.batch:
                return True
            more = self.joined(served, served)
            if np.array_equal(more, served):
                return False
            served = more

    def joined(self, some: Ints, others: Ints) -> Ints:
        """Return for each t the most items of `some` on t − s cores and `others` on s (max-plus product)."""
        self._padded[self.widest :] = some  # now _rest[t, s] is some[t − s], or NEVER
        most: Ints = (self._rest + others).max(axis=1)
        return most

    def fewest(self, latency_ms: float) -> tuple[Share, ...]:
        """Return the fewest instances that serve exactly the batch within the latency, which must do."""
        single = self.capacities(latency_ms)
        layers = [np.zeros_like(single)]  # layers[i][t]: the most items of up to i instances on t cores
        while layers[-1][self.allotments].sum(axis=1).max() < self.batch:
            layers.append(self.joined(layers[-1], single))
        low = len(layers) - 1  # so many in every socket are enough
        high = low * self.allotments.shape[1]
        while len(layers) <= high:
            layers.append(self.joined(layers[-1], single))
        counts = range(low, high + 1)
        fewest = counts[bisect_left(counts, True, key=lambda n: self._split(layers[: n + 1]) is not None)]
        return self._shares(layers[: fewest + 1], single)

    def exactly(self, instances: int) -> Solution | None:
        """Return the fastest plan of exactly so many instances, each with an item, None if there is none."""
        first = bisect_left(self._all_costs, True, key=lambda ms: self._reaches_with(ms, instances))
        if first == len(self._all_costs):
            return None
        latency_ms = float(self._all_costs[first])
        return Solution(latency_ms, self._shares(*self._exact(latency_ms, instances)))

    def _reaches_with(self, latency_ms: float, instances: int) -> bool:
        if self.allotments.shape[1] > 1:
            return self._split(self._exact(latency_ms, instances)[0]) is not None
        power, served = self._possible(latency_ms), None
        while instances:  # one socket: the layer of so many instances, by squaring
            if instances & 1:
                served = power if served is None else self.joined(served, power)
            power = self.joined(power, power)
            instances >>= 1
        return served is not None and bool(served[self.widest] >= self.batch)

    def _possible(self, latency_ms: float) -> Ints:
        single = self.capacities(latency_ms)
        return np.where(single > 0, single, NEVER)

    @cached_property
    def _all_costs(self) -> Floats:
        least = self.least_latency()
        return np.unique(self._cost[np.isfinite(self._cost) & (self._cost >= (least or np.inf))])

    def _exact(self, latency_ms: float, instances: int) -> tuple[list[Ints], Ints]:
        """Return the layers of exactly 0..instances instances: negative where there cannot be so many."""
        single = self._possible(latency_ms)
        layers = [np.zeros_like(single)]
        for _ in range(instances):
            layers.append(self.joined(layers[-1], single))
        return layers, single

    def _shares(self, layers: list[Ints], single: Ints) -> tuple[Share, ...]:
        threads: list[int] = []
        for count, cores in self._split(layers) or ():
            threads += self._unfold(layers, single, count, cores)
        return self.trimmed([(int(np.searchsorted(self._threads, t)), int(single[t])) for t in threads])

    def _split(self, layers: list[Ints]) -> list[tuple[int, int]] | None:
        """Return (instances, cores) of each socket if len(layers) - 1 instances can serve the batch."""
        total = len(layers) - 1
        most = np.array(layers)[:, self.allotments]  # (instances + 1, K, sockets)
        best = most[:, :, 0]  # (instances + 1, K): the most items on the sockets so far
        steps: list[Ints] = []
        for socket in range(1, self.allotments.shape[1]):
            joined, step = best.copy(), np.zeros_like(best)
            for i in range(1, total + 1):  # i instances in this socket
                options = best[: total + 1 - i] + most[i, :, socket]
                better = options > joined[i:]
                joined[i:][better] = options[better]
                step[i:][better] = i
            best = joined
            steps.append(step)
        chosen = int(best[total].argmax())
        if best[total, chosen] < self.batch:
            return None
        counts: list[int] = []
        left = total
        for step in reversed(steps):
            counts.append(int(step[left, chosen]))
            left -= counts[-1]
        counts.append(left)
        return list(zip(reversed(counts), (int(t) for t in self.allotments[chosen]), strict=True))

    def _unfold(self, layers: list[Ints], single: Ints, count: int, cores: int) -> list[int]:
        """Return the thread counts of up to `count` instances on these cores that serve the most items."""
        threads: list[int] = []
        for i in range(count, 0, -1):
            options = layers[i - 1][cores::-1] + single[: cores + 1]
            taken = int(options.argmax())
            if single[taken] > 0:
                threads.append(taken)
            cores -= taken
        return threads

    def trimmed(self, shares: list[Share]) -> tuple[Share, ...]:
        """Take the items beyond the batch from the instances that save the most time by it."""
        surplus = sum(items for _, items in shares) - self.batch
        while surplus > 0:
            cuts = [min(surplus, items - 1) for _, items in shares]
            saved = [
                float(self._cost[row, items] - self._cost[row, items - cut])
                for (row, items), cut in zip(shares, cuts, strict=True)
            ]
            best = max(
                range(len(shares)), key=lambda j: (cuts[j] == surplus, saved[j], cuts[j], -shares[j][0])
            )
            row, items = shares[best]
            shares[best] = (row, items - cuts[best])
            surplus -= cuts[best]
        return tuple(sorted(shares, reverse=True))


def allotments(sockets: tuple[int, ...], cores: int) -> Ints:
    """Return the ways to give `cores` cores from sockets of these sizes, (K, sockets).

    Equal sockets are interchangeable, so each way is listed once. Fuller sockets come first, and no more
    than `MAX_ALLOTMENTS` ways are listed.
    """
    sizes = tuple(sorted(sockets, reverse=True))
    ways = islice(_ways(sizes, min(cores, sum(sizes)), sizes[0]), MAX_ALLOTMENTS)
    return np.array(list(ways), dtype=np.int64)


def _ways(sizes: tuple[int, ...], cores: int, at_most: int) -> Iterator[tuple[int, ...]]:
    if not sizes:
        yield ()
        return
    rest = sum(sizes[1:])
    for first in range(min(sizes[0], cores, at_most), max(cores - rest, 0) - 1, -1):
        equal_next = len(sizes) > 1 and sizes[1] == sizes[0]
        for others in _ways(sizes[1:], cores - first, first if equal_next else sizes[0]):
            yield (first, *others)
