"""The benchmark of an allocation: the running system on calibration items, items per second.

Two matrices in a row mostly differ in one element, so all workers that any matrix may want are loaded once,
where memory allows, and sleep on their channels; a matrix then only decides which of them are given work.
Otherwise the workers that differ are started and ended, and the others keep running; what even that has no
room for is started anew, as in the paper.
"""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import uvloop

from partita.allocation_file import Allocation
from partita.core.allocation import AllocationMatrix, Worker
from partita.core.devices import Device
from partita.core.errors import PartitaError, SwitchFailed
from partita.core.footprint import Footprint
from partita.engine.engine import Engine
from partita.engine.ensemble import Ensemble
from partita.engine.service import ServiceSettings
from partita.ensemble_deploy import deployment_of, plan_for_allocation
from partita.ensemble_load import SegmentLoad
from partita.machines.dispatcher import BatchingRules
from partita.profiling.inputs import calibration, load_samples
from partita.sources import ModelSource

T = TypeVar("T")
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
        """Numbers of the instances that are loaded for good, by (device, model); empty = there is no room."""
        self._running: AllocationMatrix | None = None
        """The matrix whose workers are loaded, where not all are."""
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

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the loop until the coroutine has ended; interrupted, it is ended before the workers are."""
        task = self._loop.create_task(coroutine)
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError, PartitaError):
                    self._loop.run_until_complete(task)
            raise

    def __call__(self, matrix: AllocationMatrix) -> float:
        """Return the items per second of the running system; 0 if something does not fit or load."""
        if not self.fits(matrix):
            return 0.0
        started_s = time.perf_counter()
        try:
            service = self._construct(matrix)
        except PartitaError:
            return 0.0
        self.constructions_s.append(time.perf_counter() - started_s)
        return self._measure(service)

    # --- construction -----------------------------------------------------------------------------

    def _construct(self, matrix: AllocationMatrix) -> Ensemble:
        """Give work to the workers of this matrix; those that run already keep running, where they can."""
        if self._workers:
            assert self._service is not None
            self._seat(matrix)
            return self._service
        if self._service is not None and not self._switch(self._service, matrix):
            self._run(self._engine.remove(self._service.name, 0.0))
            self._service = None
        if self._service is None:
            self._service = self._start(matrix)
        self._running = matrix
        return self._service

    def _switch(self, service: Ensemble, matrix: AllocationMatrix) -> bool:
        """Start and end only the workers that differ; False where that cannot be.

        New ones are loaded before old ones go, so that all of them have to fit. The models of a GPU are in
        one process, which is started anew.
        """
        assert self._running is not None
        pairs = [list(zip(*rows, strict=True)) for rows in zip(self._running.rows, matrix.rows, strict=True)]
        if not self.fits(AllocationMatrix.of([[max(pair) for pair in row] for row in pairs])):
            return False
        differs = [any(bool(before) != bool(after) for before, after in row) for row in pairs]
        if any(d.is_gpu and differ for d, differ in zip(self._devices, differs, strict=True)):
            return False

        async def switched() -> None:
            allocation = Allocation(devices=self._devices, models=self._models, matrix=matrix)
            switch = service.switch(plan_for_allocation(allocation), reason="the next allocation")
            await switch.until_accepting()
            await switch.until_finished()

        try:
            self._run(switched())
        except SwitchFailed:
            return False
        return True

    def _start(self, matrix: AllocationMatrix, memory_at: tuple[int, ...] = ()) -> Ensemble:
        allocation = Allocation(devices=self._devices, models=self._models, matrix=matrix)
        deployment = deployment_of(self._source, self._settings, allocation)
        members = tuple(
            replace(one, launch=replace(one.launch, memory_at=memory_at)) for one in deployment.members
        )
        service = self._engine.add(replace(deployment, members=members))
        assert isinstance(service, Ensemble)
        try:
            self._run(service.until_ready())
        except PartitaError:
            self._run(self._engine.remove(service.name, 0.0))
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
        return self._run(self._load(service).run(self._measure_s))

    def _load(self, service: Ensemble) -> SegmentLoad:
        signature = service.signature
        source = self._ensemble.calibration
        samples = None if source is None else load_samples(source, signature)
        dimensions = self._ensemble.members[0].source.settings.dimensions
        items = calibration(signature, samples=samples, dimensions=dimensions).items
        largest = max(self._ensemble.batch_sizes)
        batches = self._batches(service)
        return SegmentLoad(
            service,
            items,
            segment=self._ensemble.segment,
            batch=max((batch for one in batches for batch in one), default=largest),
            seats=max(map(sum, batches), default=largest),
        )

    def _batches(self, service: Ensemble) -> list[list[int]]:
        """Return the batch sizes of each member's workers."""
        if self._workers:
            models = range(len(self._models))
            return [[batch for (_, m), batch in self._seated.items() if m == model] for model in models]
        branches = service.group.branches
        return [[one.spec.batch for one in branch.member.instances.values()] for branch in branches]

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
