"""The engine: all services of one head, sharing one machine's cores under one set of leases."""

import asyncio
import contextlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from partita.core.clock import Clock
from partita.core.errors import InvalidInput, ModelNotFound
from partita.core.plan import InstanceSpec, Plan
from partita.engine.instance import Instance, ModelLaunch
from partita.engine.member import Member
from partita.engine.service import Service, ServiceSettings
from partita.machines.leases import CoreLeases
from partita.machines.worker_life import RestartRules
from partita.system.clock import SystemClock

WORKER_ARGV = (sys.executable, "-P", "-m", "partita.worker")
"""How a worker is started; the engine knows no more of the worker package than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One model to serve, with the plan that it is served by."""

    name: str
    version: str
    launch: ModelLaunch
    settings: ServiceSettings
    plan: Plan


class Engine:
    """Owns the services. Everything happens on the loop that it was made for."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Clock | None = None,
        restart_rules: RestartRules | None = None,
        worker_argv: tuple[str, ...] = WORKER_ARGV,
    ) -> None:
        self.leases = CoreLeases()
        self.services: dict[str, Service] = {}
        self._loop = loop
        self._clock = clock or SystemClock()
        self._rules = restart_rules or RestartRules()
        self._argv = worker_argv
        self._numbers = count(1)

    def add(self, deployment: Deployment) -> Service:
        """Start serving a model (`Service.until_ready` waits for it); `InvalidInput` for a name in use."""
        if deployment.name in self.services:
            raise InvalidInput(f"two models are named {deployment.name!r}; give one of them another name")
        plan = deployment.plan
        largest = max(instance.batch for instance in plan.instances)
        service = Service(
            deployment.name,
            deployment.version,
            deployment.launch,
            deployment.settings,
            leases=self.leases,
            make_instance=self._make_instance,
            rows_hint=2 * largest,
            loop=self._loop,
            clock=self._clock,
        )
        self.services[deployment.name] = service
        service.start(plan, [next(self._numbers) for _ in plan.instances])
        return service

    def _make_instance(
        self, number: int, spec: InstanceSpec, launch: ModelLaunch, member: Member
    ) -> Instance:
        return Instance(
            number,
            spec,
            launch,
            argv=self._argv,
            inputs=self.services[launch.name].arena.memory,
            owner=member,
            owns_cores=not self.leases.has_rivals(number),
            rules=self._rules,
            loop=self._loop,
            clock=self._clock,
        )

    def service(self, name: str, version: str = "") -> Service:
        """Return the service of this name; raises `ModelNotFound`, also for a version that is not served."""
        service = self.services.get(name)
        if service is None:
            known = ", ".join(sorted(self.services)) or "none"
            raise ModelNotFound(f"model {name!r} is not served here; served: {known}")
        if version and version != service.version:
            raise ModelNotFound(
                f"version {version!r} of model {name!r} is not served; served: {service.version}"
            )
        return service

    @property
    def is_ready(self) -> bool:
        """Whether every service can answer."""
        return all(service.is_ready for service in self.services.values())

    async def until_ready(self) -> None:
        """Wait for every service; raises `ModelUnavailable` for the first that fails."""
        await asyncio.gather(*(service.until_ready() for service in self.services.values()))

    async def stop(self, grace_s: float) -> None:
        """Drain every service and end all workers."""
        await asyncio.gather(*(service.drain(grace_s) for service in self.services.values()))

    async def remove(self, name: str, grace_s: float) -> None:
        """Drain one service and forget it."""
        service = self.service(name)
        await service.drain(grace_s)
        with contextlib.suppress(KeyError):
            del self.services[name]

    def check(self, services: Iterable[Service] | None = None) -> None:
        """Assert every conservation law."""
        self.leases.check()
        for service in services or self.services.values():
            service.check()
