"""Tuning beside traffic: a model without a profile serves at once, and is measured meanwhile (DESIGN §4)."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

from msgspec import structs

from partita.adaptation import Adaptation
from partita.aside import Aside
from partita.choosing import adopted
from partita.core.errors import PartitaError, SwitchFailed
from partita.core.plan import Plan
from partita.core.profile import Profile
from partita.core.topology import Topology
from partita.deploy import plan_for, suited, within
from partita.engine.call_sample import CallSample
from partita.engine.engine import Engine
from partita.engine.measuring import MeasuringFailed
from partita.engine.service import Service
from partita.engine.switching import Outcome
from partita.engine.tuning_report import TuningReport, TuningState
from partita.machines.tuning_pace import PaceRules
from partita.profiles import assignment, is_complete, is_telling
from partita.profiling.beside import encode_assignment
from partita.profiling.runner import fullest_socket
from partita.profiling.store import decode
from partita.sources import ModelSource
from partita.system.clock import SystemClock
from partita.system.shared_memory import SharedMemory
from partita.wire.archive_call import pack_calls

log = logging.getLogger("partita")
LOOK_S = 0.2
"""How often services are looked for that are still to be measured."""


class Tuning:
    """Measures one model after the other, and has each served by the plan that its profile asks for."""

    def __init__(
        self,
        engine: Engine,
        adaptation: Adaptation,
        loop: asyncio.AbstractEventLoop,
        *,
        budget_s: float,
        rules: PaceRules,
        sample_bytes: int = 0,
    ) -> None:
        self._engine = engine
        self._adaptation = adaptation
        self._loop = loop
        self._budget_s = budget_s
        self._rules = rules
        self._sample_bytes = sample_bytes
        self._clock = SystemClock()
        self._sources: dict[tuple[str, str], ModelSource] = {}
        self._seen: WeakKeyDictionary[Service, tuple[int, ...]] = WeakKeyDictionary()
        """Services that need no measuring, or had their turn, on these cores."""
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._tuned: Service | None = None
        self._is_measured = False
        """Whether that has its profile already, so that being moved does not stop anything."""
        self._aside = Aside(self._loop, "tuning")

    def know(self, source: ModelSource) -> None:
        """Take where a model comes from that is served, or soon will be."""
        for version in source.served_versions:
            self._sources[version.name, version.version] = version

    def start(self) -> None:
        """Look after every model that is served from now on."""
        self._aside.start()
        self._look()

    async def stop(self) -> None:
        """Measure no more; what was found is kept, and the next start goes on from there."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._cancel(self._task)
            await asyncio.gather(self._task, return_exceptions=True)
        await self._aside.stop()

    def _cancel(self, task: asyncio.Task[None]) -> None:
        """Have it end what it began; a second time would have it leave that unfinished."""
        if not task.cancelling():
            task.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)
        served = self._engine.versions
        if self._task is not None and not self._task.done():
            assert self._tuned is not None
            cores = self._engine.deployment(self._tuned).cores
            if served.get((self._tuned.name, self._tuned.version)) is not self._tuned or (
                self._seen[self._tuned] != cores and not self._is_measured
            ):
                self._cancel(self._task)  # it was unloaded, replaced, or moved
            return
        for service in served.values():
            cores = self._engine.deployment(service).cores
            if not service.is_ready or self._seen.get(service) == cores:
                continue
            source = self._to_measure(service)
            if source is not None and not self._has_items(service, source):
                continue
            self._seen[service] = cores
            if source is not None:
                self._tuned, self._is_measured = service, False
                self._task = self._loop.create_task(self._tune(service, source))
                return

    def _to_measure(self, service: Service) -> ModelSource | None:
        """Return where a service's model comes from, None if it is planned by hand or knows enough."""
        source = self._sources.get((service.name, service.version))
        deployment = self._engine.deployment(service)
        if source is None or source.ensemble is not None or deployment.by_hand or not deployment.cores:
            return None
        if source.is_archive and source.samples is None and not self._sample_bytes:
            return None  # nobody knows what requests its handler takes
        topology = self._adaptation.topology
        return None if is_complete(deployment.profile, source, deployment.cores, topology) else source

    def _has_items(self, service: Service, source: ModelSource) -> bool:
        """Whether there is something to measure a model with; an archive's calls are collected till then."""
        if not source.is_archive or source.samples is not None:
            return True
        if service.sample is None:
            service.sample = CallSample(self._sample_bytes, self._clock)
            report = TuningReport(budget_s=self._budget_s, left_s=self._budget_s)
            report.state, report.reason = TuningState.COLLECTING, "it waits for calls to measure with"
            self._engine.tunings[service] = report
        return service.sample.is_ripe

    async def _tune(self, service: Service, source: ModelSource) -> None:
        report = TuningReport(budget_s=self._budget_s, left_s=self._budget_s)
        cores = self._engine.deployment(service).cores
        calls: SharedMemory | None = None
        log.info("%s: measured while it serves, for at most %g s", service.name, self._budget_s)
        try:
            calls = await self._calls(service)
            source = await self._aside.run(lambda: _as_served(source, service, self._adaptation.topology))
            encoded = await self._aside.run(
                lambda: encode_assignment(
                    assignment(source, cores, self._adaptation.topology, self._budget_s)
                )
            )
            measured = await self._engine.measure(service, encoded, self._rules, report, calls)
            profile = decode(measured, Path("the measured profile"))
            if profile.finished is None and not self._is_telling(profile, source, cores):
                raise MeasuringFailed("its time was up before enough was known to choose a plan by")
            await self._serve_by(service, source, profile)
            report.state, report.left_s = TuningState.FINISHED, 0.0
        except asyncio.CancelledError:
            report.state = TuningState.STOPPED
            raise
        except (PartitaError, OSError) as error:
            report.state, report.reason = TuningState.FAILED, str(error)
            log.warning("%s stays with plan %s: %s", service.name, service.plan, error)
        finally:
            if calls is not None:
                calls.close()

    def _is_telling(self, profile: Profile, source: ModelSource, cores: tuple[int, ...]) -> bool:
        widest = fullest_socket(self._adaptation.topology, cores)
        return is_telling(profile, len(widest), source.max_batch)

    async def _calls(self, service: Service) -> SharedMemory | None:
        """Return the calls that were kept of an archive, in memory of their own; nobody else keeps them."""
        sample, service.sample = service.sample, None
        if sample is None:
            return None

        def written() -> SharedMemory:
            packed = pack_calls(sample.take())
            memory = SharedMemory.create(len(packed), "calls")
            memory.view[:] = packed
            return memory

        return await self._aside.run(written)

    async def _serve_by(self, service: Service, source: ModelSource, profile: Profile) -> None:
        """Switch to the plan that the profile asks for, by the ordinary handover."""
        deployment, known = self._engine.deployment(service), within(profile, source)
        least, most = deployment.workers
        limited = structs.replace(source.settings, min_workers=least, max_workers=most)

        def planned() -> Plan:
            allowed = replace(source, settings=limited)
            topology = self._adaptation.topology
            return plan_for(allowed, topology, deployment.cores, known, leaves_core=leaves_core)

        leaves_core = self._adaptation.leaves_core
        plan, before = await self._aside.run(planned), service.plan
        service.member.launch = suited(service.member.launch, plan)
        self._engine.planned_anew(service, plan=plan, profile=known)
        self._is_measured = True
        self._adaptation.forget(service)
        switch = self._adaptation.switch(service.name, plan, "profiled beside its traffic", service.version)
        try:
            await switch.until_accepting()
        except SwitchFailed:
            if switch.outcome is not Outcome.SUPERSEDED:
                raise
            # by a plan that follows from the same profile: the cores are divided anew as soon as it is known
        points = len(profile.points)
        log.info("%s: profiled beside its traffic, %d points: %s → %s", service.name, points, before, plan)


def _as_served(source: ModelSource, service: Service, topology: Topology) -> ModelSource:
    """Return a model as it was launched: in the runtime that was chosen, from where it was unpacked."""
    if not source.is_archive:
        return adopted(source, topology)
    launch = service.member.launch
    settings = structs.replace(source.settings, options=dict(launch.options))
    return replace(source, path=Path(launch.path), settings=settings)
