"""The engine: all services of one head, sharing one machine's cores under one set of leases."""

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from partita.core.clock import Clock
from partita.core.errors import InvalidInput, ModelNotFound
from partita.core.plan import InstanceSpec, Plan
from partita.core.profile import Profile
from partita.core.versions import version_order
from partita.engine.deployment import Deployment, EnsembleDeployment
from partita.engine.device_host import DeviceHosts
from partita.engine.ensemble import Ensemble
from partita.engine.instance import Instance, ModelLaunch
from partita.engine.measuring import Measuring
from partita.engine.member import InstanceFactory, Member
from partita.engine.observing import RequestObserver
from partita.engine.pacing import Pacer
from partita.engine.service import Service
from partita.engine.statistics import Statistics
from partita.engine.tuning_report import TuningReport
from partita.engine.worker_warnings import WorkerWarnings
from partita.machines.leases import CoreLeases
from partita.machines.tuning_pace import PaceRules
from partita.machines.worker_life import RestartRules
from partita.system.clock import SystemClock
from partita.system.cpus import wake_promptly
from partita.system.shared_memory import SharedMemory
from partita.system.spawner import Spawner

log = logging.getLogger("partita")

WORKER_ARGV = (sys.executable, "-P", "-m", "partita.worker")
"""How a worker is started; the engine knows no more of the worker package than this."""


class Engine:
    """Owns the services. Everything happens on the loop that it was made for."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Clock | None = None,
        restart_rules: RestartRules | None = None,
        worker_argv: tuple[str, ...] = WORKER_ARGV,
        observer: RequestObserver | None = None,
    ) -> None:
        self.leases = CoreLeases()
        self.services: dict[str, Service] = {}
        """Who answers requests that name no version, by name."""
        self.versions: dict[tuple[str, str], Service] = {}
        """Everything that is served, by name and version."""
        self._unpublished: set[Service] = set()
        """Services that are being started, or finish what they have taken before they were replaced."""
        self._ended: dict[tuple[str, str], Statistics] = {}
        """What services have counted that are gone, by name and version."""
        self._deployments: WeakKeyDictionary[Service, Deployment] = WeakKeyDictionary()
        self.tunings: WeakKeyDictionary[Service, TuningReport] = WeakKeyDictionary()
        """How far measuring services beside their traffic has come, where it was begun."""
        self._loop = loop
        self._clock = clock or SystemClock()
        self._rules = restart_rules or RestartRules()
        self._argv = worker_argv
        self._observer = observer
        self._numbers = count(1)
        self._spawner = Spawner(loop)
        self._hosts = DeviceHosts(worker_argv, self._spawner, loop)
        self._warnings = WorkerWarnings(log.warning)
        self._has_started = False

    def add(self, deployment: Deployment) -> Service:
        """Start serving a model (`Service.until_ready` waits for it).

        The first version of a name answers who names none. Raises `InvalidInput` for a version in use.
        """
        if (deployment.name, deployment.version) in self.versions:
            raise InvalidInput(f"two models are named {deployment.name!r}; give one of them another name")
        service = self.prepare(deployment)
        self.publish([service], beside=True)
        return service

    def prepare(self, deployment: Deployment) -> Service:
        """Start a model's workers; until it is published, nobody's requests reach it."""
        plan = deployment.plan
        largest = max(instance.batch for instance in plan.instances)
        service = self._service_for(
            deployment,
            leases=self.leases,
            make_instance=self._instances_over(lambda: service.arena.memory),
            rows_hint=2 * largest,
            loop=self._loop,
            clock=self._clock,
        )
        service.observer = service.member.observer = self._observer
        self._unpublished.add(service)
        self._deployments[service] = deployment
        if not self._has_started:
            self._has_started = True
            wake_promptly()  # a worker that loads where the loop runs held up answers for milliseconds
        service.start(plan, self._numbers)
        self._spawner.start()  # for those to come: nobody is served yet whom the first ones could hold up
        return service

    def _service_for(self, deployment: Deployment, **parts: Any) -> Service:
        if isinstance(deployment, EnsembleDeployment):
            next_number = self._numbers.__next__
            return Ensemble(deployment, next_number=next_number, instances_over=self._instances_over, **parts)
        return Service(deployment.name, deployment.version, deployment.launch, deployment.settings, **parts)

    @contextmanager
    def loading_beside(self, service: Service) -> Iterator[None]:
        """Keep the workers of a service that was just prepared off the cores that others execute on.

        Leave it before the service is published.
        """
        pacers = [
            Pacer(instance, self.leases, loop=self._loop, clock=self._clock)
            for instance in service.member.instances.values()
        ]
        for pacer in pacers:
            pacer.start()
        try:
            yield
        finally:
            for pacer in pacers:
                pacer.stop()

    def publish(self, services: Sequence[Service], *, beside: bool = False) -> list[Service]:
        """Send requests for a name to these versions of it from now on; the first answers who names none.

        Returns those that were replaced: all other versions, or with `beside` those that have the same ones;
        they take no new requests any more, `discard` them. With `beside` whoever answered who names no
        version goes on doing so.
        """
        name = services[0].name
        new = {service.version: service for service in services}
        replaced = [s for s in self.all_versions(name) if not beside or s.version in new]
        default = self.services.get(name)
        for old in replaced:
            del self.versions[name, old.version]
            self._unpublished.add(old)
        for service in services:
            self._unpublished.discard(service)
            self.versions[name, service.version] = service
        if default is None or not beside:
            self.services[name] = services[0]
        elif default in replaced:
            self.services[name] = new[default.version]
        return replaced

    def all_versions(self, name: str) -> list[Service]:
        """Return the versions of a model that are served, the lowest first."""
        found = [service for (of, _), service in self.versions.items() if of == name]
        return sorted(found, key=lambda service: version_order(service.version))

    def set_default(self, name: str, version: str) -> None:
        """Let a version that is served answer who names none. Raises `ModelNotFound`."""
        self.services[name] = self.service(name, version)

    def withdraw(self, name: str, version: str = "") -> list[Service]:
        """Serve a name, or one version of it, no longer; `discard` the services that are returned.

        Where others are left, the highest of them answers who names no version. Raises `ModelNotFound`.
        """
        service = self.service(name, version)
        gone = [service] if version else self.all_versions(name)
        for one in gone:
            del self.versions[name, one.version]
            self._unpublished.add(one)
        left = self.all_versions(name)
        if not left:
            del self.services[name]
        elif self.services[name] in gone:
            self.services[name] = left[-1]
        return gone

    async def discard(self, service: Service, grace_s: float) -> None:
        """Let a service that is not published finish what it has taken, and end its workers."""
        await service.drain(grace_s)
        if service in self._unpublished:
            self._unpublished.discard(service)
            if _was_asked(service):
                self._ended.setdefault((service.name, service.version), Statistics()).add(service.statistics)

    def deployment(self, service: Service) -> Deployment:
        """Return what a service was started with."""
        return self._deployments[service]

    def planned_anew(
        self,
        service: Service,
        *,
        plan: Plan,
        profile: Profile | None = None,
        cores: tuple[int, ...] | None = None,
    ) -> None:
        """A service gets another plan than it was started with, as from a new profile or on other cores."""
        deployment = self._deployments[service]
        self._deployments[service] = replace(
            deployment,
            plan=plan,
            profile=deployment.profile if profile is None else profile,
            cores=deployment.cores if cores is None else cores,
        )

    def limit(self, service: Service, least: int | None, most: int | None) -> None:
        """Let a service have no fewer and no more instances than these, as it has now."""
        self._deployments[service] = replace(self._deployments[service], workers=(least, most))

    async def measure(
        self,
        service: Service,
        assignment: bytes,
        rules: PaceRules,
        report: TuningReport,
        calls: SharedMemory | None = None,
    ) -> bytes:
        """Measure a model beside its traffic, an archive with these calls; returns its profile, encoded.

        Raises `MeasuringFailed`.
        """
        number = next(self._numbers)
        self.tunings[service] = report
        measuring = Measuring(
            service,
            number,
            self.leases,
            rules,
            report,
            loop=self._loop,
            clock=self._clock,
            spawner=self._spawner,
        )
        return await measuring.run(assignment, calls)

    async def remove(self, name: str, grace_s: float) -> None:
        """Serve a name no longer, and wait until its service has ended. Raises `ModelNotFound`."""
        await asyncio.gather(*(self.discard(service, grace_s) for service in self.withdraw(name)))

    def _instances_over(self, inputs: Callable[[], SharedMemory]) -> InstanceFactory:
        """Return what makes instances that read their items in this memory, which is asked for by then."""

        def make_instance(number: int, spec: InstanceSpec, launch: ModelLaunch, member: Member) -> Instance:
            return self._make_instance(number, spec, launch, member, inputs())

        return make_instance

    def _make_instance(
        self, number: int, spec: InstanceSpec, launch: ModelLaunch, member: Member, inputs: SharedMemory
    ) -> Instance:
        return Instance(
            number,
            spec,
            launch,
            argv=self._argv,
            inputs=inputs,
            owner=member,
            owns_cores=not self._rivals(number, spec, member),
            rules=self._rules,
            loop=self._loop,
            clock=self._clock,
            spawner=self._spawner,
            is_aside=any(service.is_ready for service in self.services.values()),
            warnings=self._warnings,
            hosts=self._hosts,
        )

    def _rivals(self, number: int, spec: InstanceSpec, member: Member) -> bool:
        if self.leases.knows(number):
            return self.leases.has_rivals(number)
        return bool(self.leases.sharing(spec.cores) - member.instances.keys())  # its own will make way

    def service(self, name: str, version: str = "") -> Service:
        """Return the service of this name; raises `ModelNotFound`, also for a version that is not served."""
        service = self.services.get(name)
        if service is None:
            known = ", ".join(sorted(self.services)) or "none"
            raise ModelNotFound(f"model {name!r} is not served here; served: {known}")
        if not version or version == service.version:
            return service
        other = self.versions.get((name, version))
        if other is None:
            known = ", ".join(one.version for one in self.all_versions(name))
            raise ModelNotFound(f"version {version!r} of model {name!r} is not served; served: {known}")
        return other

    def counts(self) -> dict[tuple[str, str], Statistics]:
        """Return what was counted under each name and version since the start; it never falls.

        Services that were replaced or unloaded are part of it.
        """
        parts: dict[tuple[str, str], list[Statistics]] = {key: [ended] for key, ended in self._ended.items()}
        for service in [*self.versions.values(), *filter(_was_asked, self._unpublished)]:
            parts.setdefault((service.name, service.version), []).append(service.statistics)
        return {key: found[0] if len(found) == 1 else _sum(found) for key, found in parts.items()}

    @property
    def is_ready(self) -> bool:
        """Whether every service can answer."""
        return all(service.is_ready for service in self.versions.values())

    async def until_ready(self) -> None:
        """Wait for every service; raises `ModelUnavailable` for the first that fails."""
        await asyncio.gather(*(service.until_ready() for service in self.versions.values()))

    async def stop(self, grace_s: float) -> None:
        """Drain every service and end all workers."""
        try:
            await asyncio.gather(*(service.drain(grace_s) for service in self.everything))
        finally:
            self._spawner.close()

    @property
    def everything(self) -> list[Service]:
        """Every service that has workers, published or not."""
        return [*self.versions.values(), *self._unpublished]

    def check(self, services: Iterable[Service] | None = None) -> None:
        """Assert every conservation law."""
        self.leases.check()
        for service in services or self.everything:
            service.check()


__all__ = ["WORKER_ARGV", "Deployment", "Engine", "EnsembleDeployment"]


def _was_asked(service: Service) -> bool:
    return bool(service.statistics.accepted or service.statistics.refused)


def _sum(parts: list[Statistics]) -> Statistics:
    total = Statistics()
    for part in parts:
        total.add(part)
    return total
