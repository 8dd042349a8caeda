"""Follows the cores that the process may use: affinity and control groups may change while it serves."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from weakref import WeakKeyDictionary

from partita.adaptation import Adaptation
from partita.core.errors import PartitaError
from partita.core.plan import Plan
from partita.core.topology import Topology
from partita.deploy import cores_of, divide, optimizer_for, safe_plan
from partita.engine.engine import Deployment, Engine
from partita.engine.service import Service
from partita.planning.placement import place_beside
from partita.settings import ServerSettings
from partita.system.cpus import format_cores, read_topology

log = logging.getLogger("partita")

LOOK_S = 10.0
"""How often the system is asked."""


class CoreWatch:
    """Asks the system now and then, and has every model planned anew when the answer has changed."""

    def __init__(
        self,
        engine: Engine,
        adaptation: Adaptation,
        loop: asyncio.AbstractEventLoop,
        settings: ServerSettings,
        *,
        read: Callable[[], Topology] = read_topology,
        look_s: float = LOOK_S,
    ) -> None:
        self._engine = engine
        self._adaptation = adaptation
        self._loop = loop
        self._settings = settings
        self._read = read
        self._look_s = look_s
        self._first = self._topology = read()
        self._cores = cores_of(settings, self._topology)
        self._begun: WeakKeyDictionary[Service, Deployment] = WeakKeyDictionary()
        """What services were started with, of those that were moved since."""
        self._aside: ThreadPoolExecutor | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on."""
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="partita-cores")
        self._task = self._loop.create_task(self._watch())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._aside is not None:
            await self._loop.run_in_executor(None, self._aside.shutdown)
            self._aside = None

    async def _watch(self) -> None:
        """Look for ever: what goes wrong once must not end it, since nobody would notice."""
        while True:
            try:
                await self._look()
            except PartitaError as error:
                log.warning("the cores could not be looked at: %s", error)
            except Exception:
                log.exception("the cores could not be looked at; again in %g s", self._look_s)
            await asyncio.sleep(self._look_s)

    async def _look(self) -> None:
        assert self._aside is not None
        topology = self._ours(await self._loop.run_in_executor(self._aside, self._read))
        cores = cores_of(self._settings, topology, strict=False)
        if cores and cores != self._cores:
            log.info("cores %s may be used now, not %s", format_cores(cores), format_cores(self._cores))
            self._cores = cores
            self._topology = self._adaptation.topology = topology
            await self._plan_anew()

    def _ours(self, topology: Topology) -> Topology:
        """Return it without what we did to ourselves: a head on its own cores sees only those."""
        return topology if not self._settings.head_cores else replace(topology, cpus=self._first.cpus)

    async def _plan_anew(self) -> None:
        services = [s for s in self._engine.services.values() if self._can_move(s)]
        for service, cores in zip(services, divide(self._cores, len(services)), strict=True):
            try:
                await self._move(service, cores)
            except PartitaError as error:
                log.warning("%s stays with plan %s: %s", service.name, service.plan, error)
            except Exception:  # the other models are planned anew all the same
                log.exception("%s stays with plan %s", service.name, service.plan)

    def _can_move(self, service: Service) -> bool:
        deployment = self._engine.deployment(service)
        return service.is_ready and service.member.switcher is not None and bool(deployment.cores)

    async def _move(self, service: Service, cores: tuple[int, ...]) -> None:
        """Switch a model to the best plan on these cores, by the ordinary handover."""
        deployment = self._engine.deployment(service)
        begun = self._begun.setdefault(service, deployment)
        if deployment.cores == cores or service.plan is None:
            return
        topology = self._topology
        batch = self._adaptation.batch(service)
        assert self._aside is not None
        plan = await self._loop.run_in_executor(
            self._aside, lambda: _plan(begun, deployment, topology, cores, batch)
        )
        standing = [i for i in service.plan.instances if set(i.cores) <= set(cores)]
        placed = place_beside(plan, standing, topology, cores=cores)
        self._engine.planned_anew(service, cores=cores, plan=placed)
        self._adaptation.forget(service)
        service.switch(placed, reason=f"it may use cores {format_cores(cores)} now")


def _plan(
    begun: Deployment, now: Deployment, topology: Topology, cores: Sequence[int], batch: int | None
) -> Plan:
    """Return the plan for these cores: from the profile, else as begun where that fits, else the safe one."""
    most = max(i.batch for i in begun.plan.instances)
    if now.profile is not None and not now.is_limited:
        optimizer = optimizer_for(now.profile, topology, tuple(cores), most)
        if batch is not None:
            return optimizer.plan(len(cores), max(1, min(batch, most * len(cores))))
        return optimizer.robust(len(cores), most)
    is_safe = [i.threads for i in begun.plan.instances] == [len(begun.cores)]
    if not is_safe and all(set(i.cores) <= set(cores) for i in begun.plan.instances):
        return begun.plan
    return safe_plan(len(cores), most)
