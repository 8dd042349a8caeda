"""The load that allocations are measured under, on made-up members that really take their time."""

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from partita.core.tensors import DataType, Signature, TensorSpec
from partita.engine.ensemble import Ensemble
from partita.ensemble_load import SegmentLoad

ITEM = TensorSpec("x", DataType.FP32, (1,))


class Sleeping:
    """A member on a device of its own: executes one batch after the other, for as long as its items take."""

    def __init__(self, index: int, cost_s: float, batch: int, told: Callable[[Any], None]) -> None:
        self.index = index
        self.statistics = SimpleNamespace(heard=None)
        self.most_waiting = 0
        self._cost_s, self._batch, self._told = cost_s, batch, told
        self._queue: list[list[Any]] = []  # [request, items left]
        self._is_busy = False
        self._free_s = 0.0

    def submit(self, request: Any, items: int) -> None:
        self._queue.append([request, items])
        self.most_waiting = max(self.most_waiting, sum(left for _, left in self._queue))
        if not self._is_busy:
            self._free_s = time.perf_counter()
            self._begin()

    def _begin(self) -> None:
        taken, done = 0, []
        while self._queue and taken < self._batch:
            first = self._queue[0]
            count = min(first[1], self._batch - taken)
            taken, first[1] = taken + count, first[1] - count
            if not first[1]:
                done.append(self._queue.pop(0)[0])
        self._is_busy = True
        self._free_s += taken * self._cost_s  # so that no lateness adds up
        delay_s = self._free_s - time.perf_counter()
        asyncio.get_running_loop().call_later(max(0.0, delay_s), self._end, taken, done)

    def _end(self, taken: int, done: list[Any]) -> None:
        if self.statistics.heard is not None:
            self.statistics.heard(taken, round(taken * self._cost_s * 1e9))
        self._is_busy = False
        if self._queue:
            self._begin()
        for request in done:
            self._told(request)


class Pair:
    """An ensemble of such members, as far as the load asks."""

    signature = Signature(inputs=(ITEM,), outputs=(ITEM,))

    def __init__(self, costs_s: list[float], batch: int) -> None:
        self.members = [Sleeping(m, cost_s, batch, self._told) for m, cost_s in enumerate(costs_s)]
        self.group = SimpleNamespace(branches=self.members)
        self._open: dict[object, tuple[int, Any]] = {}

    def submit(self, buffers: Any, n_items: int, layout: object, sink: Any) -> None:
        request = object()
        self._open[request] = (len(self.members), sink)
        for member in self.members:
            member.submit(request, n_items)

    def _told(self, request: object) -> None:
        left, sink = self._open.pop(request)
        if left > 1:
            self._open[request] = (left - 1, sink)
        else:
            sink.answered(request, (), ())


def measured(pair: Pair, batch: int, measure_s: float) -> float:
    async def run() -> float:
        items = {"x": np.zeros((4, 1), np.float32)}
        load = SegmentLoad(cast(Ensemble, pair), items, segment=128, batch=batch, seats=batch)
        return await load.run(measure_s)

    return asyncio.run(run())


@pytest.mark.parametrize("costs_s", [[0.01, 0.002], [0.002, 0.01], [0.01, 0.01]])
def test_an_ensemble_is_as_fast_as_the_slowest_of_its_members_however_slow(costs_s: list[float]) -> None:
    """The fast member is not to pass for busy with what the slow one has yet to do."""
    rate = measured(Pair(costs_s, 8), 8, measure_s=0.1)
    assert rate == pytest.approx(1 / max(costs_s), rel=0.1)


def test_of_a_swift_ensemble_whole_segments_are_in_flight_and_of_a_slow_one_little() -> None:
    swift, slow = Pair([0.00001, 0.00002], 8), Pair([0.01, 0.002], 8)
    measured(swift, 8, measure_s=0.1)
    measured(slow, 8, measure_s=0.1)
    assert max(member.most_waiting for member in swift.members) > 2 * 128
    assert max(member.most_waiting for member in slow.members) <= 3 * 8
