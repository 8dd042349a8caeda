"""The benchmark of an allocation: the running system on calibration items, items per second.

Two matrices in a row mostly differ in one element, so all workers that any matrix may want are loaded once,
where memory allows, and sleep on their channels; a matrix then only decides which of them are given work.
Otherwise each matrix is started anew, as in the paper.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import uvloop

from partita.allocation_file import Allocation
from partita.core.allocation import AllocationMatrix, Worker
from partita.core.devices import Device
from partita.core.errors import InvalidInput, PartitaError, RequestError
from partita.core.footprint import Footprint
from partita.embedded import prepare
from partita.engine.engine import Engine
from partita.engine.ensemble import Ensemble
from partita.engine.request import Buffer, Request, Shapes
from partita.engine.service import ServiceSettings
from partita.ensemble_deploy import deployment_of
from partita.machines.dispatcher import BatchingRules
from partita.profiling.inputs import calibration, load_samples, rows
from partita.sources import ModelSource

WARM_UP = 0.3
"""Share of the measured time that goes before it unmeasured."""
LEAST_ANSWERS = 4
"""Segments that are measured at least, however long they take."""
LONGEST = 20.0
"""How many times the time asked for a measurement may take for that."""
_ROOM_ITEMS = 1 << 20


class EnsembleBench:
    """Runs allocations of one ensemble on its own event loop. Use it in a with statement.

    `memory` [device][model] is what workers hold: as given, or else too little to matter, until they are
    loaded here and it is measured.
    """

    def __init__(
        self,
        source: ModelSource,
        devices: Sequence[Device],
        memory: Sequence[Sequence[Footprint]] | None = None,
        *,
        measure_s: float = 0.5,
    ) -> None:
        assert source.ensemble is not None
        known = memory or ((Footprint.estimated(0),) * len(source.ensemble.members),) * len(devices)
        self.memory = [list(row) for row in known]
        self.constructions_s: list[float] = []
        """What it took to get from one matrix to the next, seconds."""
        self._source = source
        self._ensemble = source.ensemble
        self._devices = tuple(devices)
        self._models = tuple(member.name for member in source.ensemble.members)
        self._measure_s = measure_s
        self._settings = ServiceSettings(
            rules=BatchingRules(
                max_queue_items=_ROOM_ITEMS, execution_limit_s=source.settings.execution_limit_s
            )
        )
        self._loop = uvloop.new_event_loop()
        self._engine = Engine(self._loop)
        self._service: Ensemble | None = None
        self._workers: dict[tuple[int, int], int] = {}
        """Numbers of the instances that are loaded, by (device, model); empty = matrices are started anew."""
        self._seated: dict[tuple[int, int], int] = {}
        """Batch sizes of those that get work."""

    def __enter__(self) -> "EnsembleBench":
        asyncio.set_event_loop(self._loop)
        sizes = self._ensemble.batch_sizes
        everything = AllocationMatrix(((max(sizes),) * len(self._models),) * len(self._devices))
        if self.fits(everything):
            try:
                self._service = self._start(everything, tuple(sorted({min(sizes), max(sizes)})))
            except BaseException:
                self.close()
                raise
            self._learn()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers."""
        for (device, model), number in self._workers.items():
            if (device, model) not in self._seated:  # whose cores are given back with the others'
                self._engine.leases.register(number, self._devices[device].cores)  # a GPU's slots are its own
        self._loop.run_until_complete(self._engine.stop(0.0))
        self._loop.close()
        asyncio.set_event_loop(None)

    def fits(self, matrix: AllocationMatrix) -> bool:
        """Whether the workers of every device fit in its memory together, as far as is known."""
        held = [0] * len(self._devices)
        for worker in matrix.workers():
            held[worker.device] += self.memory[worker.device][worker.model].at(worker.batch)
        return all(
            d.memory_bytes is None or h <= d.memory_bytes for d, h in zip(self._devices, held, strict=True)
        )

    def __call__(self, matrix: AllocationMatrix) -> float:
        """Return the items per second of the running system; 0 if something does not fit or load."""
        if not self.fits(matrix):
            return 0.0
        started_s = time.perf_counter()
        if self._workers:
            assert self._service is not None
            self._seat(matrix)
            self.constructions_s.append(time.perf_counter() - started_s)
            return self._measure(self._service)
        try:
            service = self._start(matrix)
        except PartitaError:
            return 0.0
        try:
            self.constructions_s.append(time.perf_counter() - started_s)
            return self._measure(service)
        finally:
            self._loop.run_until_complete(self._engine.remove(service.name, 0.0))

    # --- construction -----------------------------------------------------------------------------

    def _start(self, matrix: AllocationMatrix, memory_at: tuple[int, ...] = ()) -> Ensemble:
        allocation = Allocation(devices=self._devices, models=self._models, matrix=matrix)
        deployment = deployment_of(self._source, self._settings, allocation)
        members = tuple(
            replace(one, launch=replace(one.launch, memory_at=memory_at)) for one in deployment.members
        )
        service = self._engine.add(replace(deployment, members=members))
        assert isinstance(service, Ensemble)
        try:
            self._loop.run_until_complete(service.until_ready())
        except PartitaError:
            self._loop.run_until_complete(self._engine.remove(service.name, 0.0))
            raise
        return service

    def _learn(self) -> None:
        """Take down which instance is which, and what each really holds."""
        assert self._service is not None
        place = {device.name: d for d, device in enumerate(self._devices)}
        for m, branch in enumerate(self._service.group.branches):
            for number, instance in branch.member.instances.items():
                key = (place[instance.spec.device], m)
                self._workers[key] = number
                self._seated[key] = instance.spec.batch
                if instance.ready is not None and instance.ready.memory:
                    held = ((one.batch, one.nbytes) for one in instance.ready.memory)
                    self.memory[key[0]][m] = Footprint.measured(held)

    def _seat(self, matrix: AllocationMatrix) -> None:
        """Give work to the workers of this matrix and no others; none has anything in hand now."""
        assert self._service is not None
        leases = self._engine.leases
        for (device, model), number in self._workers.items():
            batch = matrix.rows[device][model]
            if batch == self._seated.get((device, model), 0):
                continue
            member = self._service.group.branches[model].member
            if self._seated.pop((device, model), 0):
                member.dispatcher.remove_instance(number)
                leases.forget(number)
            if batch:
                instance = member.instances[number]
                instance.spec = replace(instance.spec, batch=batch, executions=(batch,))
                leases.register(number, instance.spec.cores, member.schedule, instance.spec.pool)
                member.dispatcher.add_instance(number, instance.spec.threads, batch, (batch,))
                self._seated[device, model] = batch

    # --- measuring --------------------------------------------------------------------------------

    def _measure(self, service: Ensemble) -> float:
        return self._loop.run_until_complete(self._load(service).run(self._measure_s))

    def _load(self, service: Ensemble) -> "_Load":
        signature = service.signature
        source = self._ensemble.calibration
        samples = None if source is None else load_samples(source, signature)
        dimensions = self._ensemble.members[0].source.settings.dimensions
        items = rows(
            calibration(signature, samples=samples, dimensions=dimensions).items, self._ensemble.segment
        )
        seats = (
            sum(batch for batch in self._seated.values())
            if self._workers
            else max(self._ensemble.batch_sizes)
        )
        return _Load(service, items, in_flight=max(LEAST_ANSWERS, -(-2 * seats // self._ensemble.segment)))

    def latencies_ms(self) -> dict[tuple[int, int, int], float]:
        """Return how long every worker takes for every batch size with no other on its device, ms.

        Each class of devices that are alike is measured once, and each batch size with all members
        in turns on them. Empty where workers are not kept loaded.
        """
        known: dict[tuple[int, int, int], float] = {}
        if not self._workers:
            return known
        assert self._service is not None
        kinds = [
            (device.is_gpu, len(device.cores), device.is_gpu and device.memory_bytes)
            for device in self._devices
        ]
        for kind in dict.fromkeys(kinds):
            alike = [d for d, other in enumerate(kinds) if other == kind]
            for batch in self._ensemble.batch_sizes:
                row, none = (batch,) * len(self._models), (0,) * len(self._models)
                matrix = AllocationMatrix(
                    tuple(row if d in alike else none for d in range(len(self._devices)))
                )
                for branch in self._service.group.branches:
                    branch.statistics.by_batch.clear()
                if not self(matrix):
                    continue
                for m, branch in enumerate(self._service.group.branches):
                    mean_ms = branch.statistics.mean_batch_ms(batch)
                    if mean_ms is not None:
                        known.update({Worker(d, m, batch): mean_ms for d in alike})
        return known


class _Load:
    """A closed loop of segments: as soon as one is answered the next is handed in. The engine's `Sink`."""

    def __init__(self, service: Ensemble, items: Any, *, in_flight: int) -> None:
        template, self._buffers = prepare(service.signature, items)
        if template.layout.is_ragged:
            raise InvalidInput("an ensemble with BYTES inputs cannot be allocated by measurement yet")
        self._service = service
        self._layout = template.layout
        self._n_items = template.n_items
        self._in_flight = in_flight
        self._is_over = False
        self._open = 0
        self._answered_s: list[float] = []
        self._failure: RequestError | None = None
        self._idle = asyncio.Event()

    async def run(self, measure_s: float) -> float:
        """Return the items per second from the end of the warm-up on."""
        started_s = time.perf_counter()
        begin_s = started_s + WARM_UP * measure_s
        for _ in range(self._in_flight):
            self._submit()
        while not self._is_done(begin_s, measure_s):
            await asyncio.sleep(measure_s / 20)
        self._is_over = True
        if self._open:
            await self._idle.wait()
        if self._failure is not None:
            raise self._failure
        return self._rate(begin_s)

    def _is_done(self, begin_s: float, measure_s: float) -> bool:
        now_s = time.perf_counter()
        if self._failure is not None or now_s > begin_s + LONGEST * measure_s:
            return True
        measured = sum(at_s >= begin_s for at_s in self._answered_s)
        return now_s >= begin_s + measure_s and measured >= LEAST_ANSWERS

    def _rate(self, begin_s: float) -> float:
        """Segments between the first and the last answer of the measured time, ÷ that time."""
        times = np.array([at_s for at_s in self._answered_s if at_s >= begin_s])
        if len(times) < 2 or times[-1] <= times[0]:
            return self._n_items * len(self._answered_s) / (time.perf_counter() - begin_s)
        return float(self._n_items * (len(times) - 1) / (times[-1] - times[0]))

    def _submit(self) -> None:
        try:
            self._service.submit(self._buffers, self._n_items, self._layout, self)
            self._open += 1
        except RequestError as error:
            self._failure = error

    def answered(self, request: Request, outputs: Sequence[Buffer], shapes: Shapes) -> None:  # noqa: ARG002
        """Hand in the next."""
        self._open -= 1
        if not self._is_over:
            self._answered_s.append(time.perf_counter())
            self._submit()
        if not self._open:
            self._idle.set()

    def failed(self, request: Request, error: RequestError) -> None:  # noqa: ARG002
        """The allocation cannot be measured."""
        self._open -= 1
        self._failure = self._failure or error
        if not self._open:
            self._idle.set()
