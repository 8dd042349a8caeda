"""The deadlines of one service's requests: a heap and one timer."""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from partita.core.clock import Clock
from partita.engine.request import Request

SWEEP_FROM = 1024
"""Entries from which on the heap is searched for ended requests as it grows."""


class Deadlines:
    """Tells which requests are late. Those that have ended are dropped when they come up."""

    def __init__(
        self, late: Callable[[Request], None], *, loop: asyncio.AbstractEventLoop, clock: Clock
    ) -> None:
        self._late = late
        self._loop = loop
        self._now_s = clock.now_s
        self._heap: list[tuple[float, int, Request]] = []
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None
        self._sweep_at = SWEEP_FROM

    def set(self, request: Request, at_s: float) -> None:
        """Call `late` with the request at this time, unless it has ended."""
        request.deadline_s = at_s
        if len(self._heap) >= self._sweep_at:
            self._sweep()
        heapq.heappush(self._heap, (at_s, next(self._order), request))
        if self._timer is None or at_s < self._timer.when():
            self.cancel()
            self._timer = self._loop.call_at(at_s, self._passed)

    def _sweep(self) -> None:
        """Drop ended requests, so that a long deadline does not keep every answered one."""
        self._heap = [entry for entry in self._heap if not entry[2].ended]
        heapq.heapify(self._heap)
        self._sweep_at = max(SWEEP_FROM, 2 * len(self._heap))

    def _passed(self) -> None:
        self._timer = None
        now_s = self._now_s()
        while self._heap and (self._heap[0][2].ended or self._heap[0][0] <= now_s):
            _, _, request = heapq.heappop(self._heap)
            self._late(request)
        if self._heap:
            self._timer = self._loop.call_at(self._heap[0][0], self._passed)

    def cancel(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
