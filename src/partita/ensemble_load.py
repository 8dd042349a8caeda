"""A closed loop of pieces of segments against an ensemble, and what its workers execute meanwhile."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from partita.core.errors import InvalidInput, RequestError
from partita.embedded import prepare
from partita.engine.ensemble import Ensemble
from partita.engine.request import Buffer, Layout, Request, Shapes
from partita.planning.execution_rate import Execution, items_per_s
from partita.profiling.inputs import Items, rows

WARM_UP = 0.3
"""Share of the measured time that goes before it unmeasured at least."""
PASSES = 2
"""How often all that is in flight is answered before anything is measured. A fast member is ahead of the
others by all of it only then; until then it is busy with what the others have yet to do, and the ensemble
would seem as fast as if all devices were at work for it."""
SWIFT = 0.5
"""Share of the measured time in which `LEAST_SEGMENTS` have to be answered to be in flight."""
LEAST_BATCHES = 4
"""Of every member, executed in the measured time at least, however long they take."""
LEAST_SEGMENTS = 4
"""Segments in flight at least, of an ensemble that answers them so fast that pieces would cost it time."""
LONGEST = 20.0
"""How many times the time asked for a measurement may take for that, and what goes before it as well."""


class Piece(NamedTuple):
    """What is handed in at once, and how many of that are on their way at any time."""

    buffers: list[Buffer]
    items: int
    layout: Layout
    in_flight: int

    @property
    def items_in_flight(self) -> int:
        """Items on their way at any time."""
        return self.items * self.in_flight


class SegmentLoad:
    """As soon as one piece of a segment is answered the next is handed in. The engine's `Sink`."""

    def __init__(self, service: Ensemble, items: Items, *, segment: int, batch: int, seats: int) -> None:
        """`batch` is the largest of any worker, `seats` what the member with most can execute at once.

        Whoever is slowest has everything before it: one batch executes and one waits for each of its workers.
        That much is in flight, in pieces of `batch` items; of a swift ensemble segments. Raises
        `InvalidInput` for items of differing lengths.
        """

        def piece(size: int, least: int) -> Piece:
            template, buffers = prepare(service.signature, rows(items, size))
            if template.layout.is_ragged:
                raise InvalidInput("an ensemble with BYTES inputs cannot be allocated by measurement yet")
            return Piece(buffers, size, template.layout, max(least, 1 - (-2 * seats // size)))

        self._service = service
        self._piece = piece(min(batch, segment), 1)
        self._segment = piece(segment, LEAST_SEGMENTS)
        self._is_over = False
        self._open = 0
        self._answered = 0
        self._awaited = 0
        self._passed = asyncio.Event()
        self._executions: list[Execution] = []
        self._failure: RequestError | None = None
        self._idle = asyncio.Event()

    async def run(self, measure_s: float) -> float:
        """Return the items per second after a warm-up; raises what a segment failed with."""
        branches = self._service.group.branches
        for branch in branches:
            branch.statistics.heard = self._heard_by(branch.index)
        try:
            await self._warm_up(measure_s)
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

    async def _warm_up(self, measure_s: float) -> None:
        """Hand in as much as is to be in flight, and wait until all work at the pace of the slowest."""
        started_s = time.perf_counter()
        until_s = started_s + LONGEST * measure_s
        await self._pass(until_s)
        first_s = time.perf_counter()
        for _ in range(PASSES - 1):
            await self._pass(until_s)
        per_item_s = (time.perf_counter() - first_s) / (PASSES - 1) / self._piece.items_in_flight
        if per_item_s * self._segment.items_in_flight <= SWIFT * measure_s:
            self._piece = self._segment
            for _ in range(PASSES):
                await self._pass(until_s)
        while self._failure is None and time.perf_counter() < started_s + WARM_UP * measure_s:
            await asyncio.sleep(measure_s / 20)

    async def _pass(self, until_s: float) -> None:
        """Wait until as much is answered as is in flight."""
        while self._open < self._piece.in_flight and self._failure is None:
            self._submit()
        self._awaited = self._answered + self._piece.in_flight
        self._passed.clear()
        if self._failure is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._passed.wait(), until_s - time.perf_counter())

    def _heard_by(self, member: int) -> Callable[[int, int], None]:
        executions = self._executions

        def heard(items: int, total_ns: int) -> None:
            executions.append(Execution(member, items, total_ns / 1e9, time.perf_counter()))

        return heard

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
            piece = self._piece
            self._service.submit(piece.buffers, piece.items, piece.layout, self)
            self._open += 1
        except RequestError as error:
            self._failure = error

    def answered(self, request: Request, outputs: Sequence[Buffer], shapes: Shapes) -> None:  # noqa: ARG002
        """Hand in the next."""
        self._open -= 1
        self._answered += 1
        if self._answered == self._awaited:
            self._passed.set()
        if not self._is_over:
            self._submit()
        if not self._open:
            self._idle.set()

    def failed(self, request: Request, error: RequestError) -> None:  # noqa: ARG002
        """The allocation cannot be measured."""
        self._open -= 1
        self._failure = self._failure or error
        self._passed.set()
        if not self._open:
            self._idle.set()
