"""A closed loop of segments against an ensemble, and what its workers execute meanwhile."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from partita.core.errors import InvalidInput, RequestError
from partita.embedded import prepare
from partita.engine.ensemble import Ensemble
from partita.engine.request import Buffer, Request, Shapes
from partita.planning.execution_rate import Execution, items_per_s

WARM_UP = 0.3
"""Share of the measured time that goes before it unmeasured at least: until the first segments are answered,
since a fast member is ahead of the others by all that are in flight only then."""
LONGEST_WARM_UP = 1.0
LEAST_BATCHES = 4
"""Of every member, executed in the measured time at least, however long they take."""
LEAST_SEGMENTS = 4
"""Segments in flight at least."""
LONGEST = 20.0
"""How many times the time asked for a measurement may take for that."""


class SegmentLoad:
    """As soon as one segment is answered the next is handed in. The engine's `Sink`."""

    def __init__(self, service: Ensemble, items: Any, *, in_flight: int) -> None:
        """`in_flight` segments are on their way at any time.

        Raises `InvalidInput` for items of differing lengths.
        """
        template, self._buffers = prepare(service.signature, items)
        if template.layout.is_ragged:
            raise InvalidInput("an ensemble with BYTES inputs cannot be allocated by measurement yet")
        self._service = service
        self._layout = template.layout
        self._n_items = template.n_items
        self._in_flight = in_flight
        self._is_over = False
        self._open = 0
        self._answered = 0
        self._executions: list[Execution] = []
        self._failure: RequestError | None = None
        self._idle = asyncio.Event()

    async def run(self, measure_s: float) -> float:
        """Return the items per second after a warm-up; raises what a segment failed with."""
        branches = self._service.group.branches
        for branch in branches:
            branch.statistics.heard = self._heard_by(branch.index)
        try:
            started_s = time.perf_counter()
            for _ in range(self._in_flight):
                self._submit()
            while not self._is_warm(time.perf_counter() - started_s, measure_s):
                await asyncio.sleep(measure_s / 20)
            begin_s = time.perf_counter()
            while not self._is_done(begin_s, measure_s):
                await asyncio.sleep(measure_s / 20)
            end_s = time.perf_counter()
            self._is_over = True
            if self._open:
                await self._idle.wait()
        finally:
            for branch in branches:
                branch.statistics.heard = None
        if self._failure is not None:
            raise self._failure
        return items_per_s(self._executions, members=len(branches), begin_s=begin_s, end_s=end_s)

    def _heard_by(self, member: int) -> Callable[[int, int], None]:
        executions = self._executions

        def heard(items: int, total_ns: int) -> None:
            executions.append(Execution(member, items, total_ns / 1e9, time.perf_counter()))

        return heard

    def _is_warm(self, taken_s: float, measure_s: float) -> bool:
        if self._failure is not None or taken_s >= LONGEST_WARM_UP * measure_s:
            return True
        return taken_s >= WARM_UP * measure_s and self._answered >= self._in_flight

    def _is_done(self, begin_s: float, measure_s: float) -> bool:
        now_s = time.perf_counter()
        if self._failure is not None or now_s > begin_s + LONGEST * measure_s:
            return True
        if now_s < begin_s + measure_s:
            return False
        counts = [0] * len(self._service.group.branches)
        for one in self._executions:
            counts[one.member] += one.end_s >= begin_s
        return min(counts) >= LEAST_BATCHES

    def _submit(self) -> None:
        try:
            self._service.submit(self._buffers, self._n_items, self._layout, self)
            self._open += 1
        except RequestError as error:
            self._failure = error

    def answered(self, request: Request, outputs: Sequence[Buffer], shapes: Shapes) -> None:  # noqa: ARG002
        """Hand in the next."""
        self._open -= 1
        self._answered += 1
        if not self._is_over:
            self._submit()
        if not self._open:
            self._idle.set()

    def failed(self, request: Request, error: RequestError) -> None:  # noqa: ARG002
        """The allocation cannot be measured."""
        self._open -= 1
        self._failure = self._failure or error
        if not self._open:
            self._idle.set()
