"""Several models on one machine: the cores are divided among them while they serve (planning/division.py)."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from weakref import WeakKeyDictionary

from partita.adaptation import Adaptation
from partita.aside import Aside
from partita.core.errors import PartitaError, SwitchFailed
from partita.core.plan import Plan
from partita.core.profile import Profile
from partita.core.topology import Topology
from partita.deploy import cores_of, safe_plan
from partita.engine.engine import Deployment, Engine, EnsembleDeployment
from partita.engine.service import Service
from partita.engine.service_state import ServiceState
from partita.planners import choices_of, first_plan, largest_batch, optimizer_for, planner_of
from partita.planning.core_shares import Cores
from partita.planning.division import Cause, Divided, Division, Outcome, Party, Share
from partita.planning.ensemble_choices import EnsembleChoices
from partita.planning.head_core import worker_cores
from partita.planning.joint import Demand, Planner
from partita.planning.placement import place_beside, standing_on
from partita.settings import ServerSettings
from partita.system.clock import SystemClock
from partita.system.cpus import format_cores

log = logging.getLogger("partita")
LOOK_S = 0.5
"""How often it is looked whether a model has come, gone, or been profiled."""
MOVE_LIMIT_S = 60.0
"""The next model is moved then, whatever the one before still executes: the leases keep them apart."""


class CoreSharing:
    """Looks who is served and what is asked of each, and moves models to their cores, one after another."""

    def __init__(
        self,
        engine: Engine,
        adaptation: Adaptation,
        loop: asyncio.AbstractEventLoop,
        settings: ServerSettings,
        *,
        division: Division | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        self.division = division or Division(interval_s=adaptation.interval_s)
        self._engine = engine
        self._adaptation = adaptation
        self._loop = loop
        self._look_s = look_s
        self._now_s = SystemClock().now_s
        self._topology = adaptation.topology
        self._cores = cores_of(settings, self._topology, strict=False)
        self._seen: dict[Service, Profile | None] | None = None
        """Who was served at the last look, and what was known of each."""
        self._pending: Cause | None = None
        """Why the cores are still to be divided."""
        self._next_look_s = 0.0
        """When to look at the loads again."""
        self._begun: WeakKeyDictionary[Service, Deployment] = WeakKeyDictionary()
        """What services were started with, of those that were moved since.

        Of those whose cores are their own by somebody's word: what they had when they had to leave them.
        """
        self._planners: WeakKeyDictionary[Service, tuple[object, Planner]] = WeakKeyDictionary()
        self._aside = Aside(self._loop, "sharing")
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        adaptation.division = self.division

    def start(self) -> None:
        """Look from now on."""
        self._aside.start()
        self._look()

    async def stop(self) -> None:
        """Move nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._aside.stop()

    def cores_changed(self, cores: Cores, topology: Topology) -> None:
        """Other cores may be used now."""
        self._cores, self._topology = cores, topology
        self._adaptation.topology = topology
        self._pending = Cause.CORES

    # --- looking ----------------------------------------------------------------------------------

    def _look(self) -> None:
        self._timer = self._loop.call_later(self._look_s, self._look)
        if self._task is not None and not self._task.done():
            return
        services = [s for s in self._engine.services.values() if s.state is not ServiceState.FAILED]
        if not services or not all(s.is_ready for s in services):
            return  # it will be, or fail: nobody is moved meanwhile
        cause = self._cause(services)
        if cause is not None:
            self._task = self._loop.create_task(self._attempt(services, cause))

    def _cause(self, services: Sequence[Service]) -> Cause | None:
        """Return why the cores are to be divided now, None if they are not."""
        now_s, before = self._now_s(), self._seen
        self._seen = {service: self._engine.deployment(service).profile for service in services}
        if self._adaptation.adapts and before != self._seen:
            self._pending = self._pending or _difference(before, self._seen)
            return self._pending
        if self._pending is not None:
            return self._pending if self.division.may_try_again(now_s) else None
        if not self._adaptation.adapts or len(services) == 1 or now_s < self._next_look_s:
            return None
        self._next_look_s = now_s + self._adaptation.interval_s
        return Cause.LOAD

    def _party(self, service: Service) -> Party:
        deployment = self._engine.deployment(service)
        if not deployment.cores:
            return Party(name=service.name, cores=deployment.plan.placed_on, is_fixed=True)
        own = self._own(service)
        if own is not None:
            return Party(name=service.name, cores=_placed_on(service.plan), is_fixed=True, own=own)
        return Party(name=service.name, cores=deployment.cores, demand=self._demand(service, deployment))

    def _own(self, service: Service) -> Cores | None:
        """Return the cores that are a model's own by somebody's word; None = none, or not all are there.

        They are those that it executes on, unless it had to leave its own.
        """
        deployment, begun = self._engine.deployment(service), self._begun.get(service)
        if not deployment.cores or not deployment.is_fixed:
            return None
        own = _placed_on(begun.plan if begun is not None and begun.is_fixed else service.plan)
        return own if set(own) <= set(self._cores) else None

    def _demand(self, service: Service, deployment: Deployment) -> Demand | None:
        if not deployment.is_profiled or deployment.is_limited or not self._adaptation.adapts:
            return None
        batch, rate = self._adaptation.demand(service) or (1, 0.0)
        return Demand(
            name=service.name,
            optimizer=self._planner(service, deployment),
            batch=batch,
            max_batch=largest_batch(deployment) * len(self._cores),
            weight=deployment.weight,
            rate=rate,
        )

    def _planner(self, service: Service, deployment: Deployment) -> Planner:
        """Return what plans a model on any of the machine's cores; it remembers its answers."""
        leaves_core = self._adaptation.leaves_core
        key = (deployment.profile, self._topology, self._cores, leaves_core)
        known = self._planners.get(service)
        if known is None or known[0] != key:
            made = planner_of(deployment, self._topology, self._cores, leaves_core=leaves_core)
            known = self._planners[service] = (key, made)
        return known[1]

    # --- dividing ---------------------------------------------------------------------------------

    async def _attempt(self, services: Sequence[Service], cause: Cause) -> None:
        """Divide the cores; what goes wrong once must not end that, since nobody would notice."""
        try:
            await self._divide(services, cause)
        except PartitaError as error:
            log.warning("the cores stay divided as they are: %s", error)
        except Exception:
            log.exception("the cores stay divided as they are")

    async def _divide(self, services: Sequence[Service], cause: Cause) -> None:
        parties, cores, topology = [self._party(s) for s in services], self._cores, self._topology
        now_s = self._now_s()
        divided = await self._aside.run(
            lambda: self.division.decide(parties, cores, topology, now_s=now_s, cause=cause)
        )
        if divided.outcome is Outcome.DIVIDED:
            log.info("%s: %s", divided.cause, divided.text)
        is_done = await self._carry_out({s.name: s for s in services}, divided)
        if not is_done:
            self._pending = self._pending or (None if cause is Cause.LOAD else cause)
        elif self._pending is cause and cores == self._cores:
            self._pending = None

    async def _carry_out(self, services: dict[str, Service], divided: Divided) -> bool:
        """Move everyone whose cores change, first those that only give up some; False if one fails.

        Whatever was decided of the models, their other versions follow them if they do not yet.
        """
        moves = [s for s in divided.shares if divided.outcome is Outcome.DIVIDED and s.before != s.cores]
        done: list[bool] = []
        waits = not self.division.may_try_again(self._now_s())
        left = list(services.values())
        for share in sorted(moves, key=lambda share: not set(share.cores) <= set(share.before)):
            service = services[share.name]
            done.append(await self._tried(service, share, divided))
            if not done[-1]:
                break
            left.remove(service)
            done += [await self._tried(*behind, divided) for behind in self._behind(service)]
        for service in left:
            for behind in self._behind(service):
                done.append(not waits and await self._tried(*behind, divided))
        if done and all(done):
            self.division.succeeded()
        return all(done)

    async def _tried(self, service: Service, share: Share, divided: Divided) -> bool:
        """Move one; returns whether it could be."""
        if not service.is_ready:
            return False
        try:
            await self._move(service, share, f"{divided.cause}: {divided.text}")
        except PartitaError as error:
            log.warning("%s stays with plan %s: %s", service.name, service.plan, error)
            self.division.failed(divided, self._now_s(), f"{service.name}: {error}")
            return False
        return True

    def _behind(self, service: Service) -> list[tuple[Service, Share]]:
        """Return the other versions of a model that are not on its cores, or not on their own."""
        found, allowed = [], set(self._cores)
        cores = tuple(core for core in self._engine.deployment(service).cores if core in allowed)
        for other in self._engine.all_versions(service.name):
            if other is service or other.state is ServiceState.FAILED:
                continue
            before, own = self._engine.deployment(other).cores, self._own(other)
            target = cores
            if own is not None:
                before, target = _placed_on(other.plan), own
            if before and target and before != target:
                found.append((other, Share(name=other.name, before=before, cores=target)))
        return found

    async def _move(self, service: Service, share: Share, text: str) -> None:
        """Switch a model to the best plan on its cores, by the ordinary handover. Raises `SwitchFailed`."""
        if self._engine.versions.get((service.name, service.version)) is not service:
            raise SwitchFailed("it is not served any more")
        deployment, plan_before = self._engine.deployment(service), service.plan
        assert plan_before is not None
        begun = self._begun.get(service)
        if begun is None or (deployment.is_fixed and not begun.is_fixed):
            begun = replace(deployment, plan=plan_before) if deployment.is_fixed else deployment
            self._begun[service] = begun
        topology, cores = self._topology, share.cores
        batch, leaves_core = share.batch if share.rate else None, self._adaptation.leaves_core
        plan = await self._aside.run(
            lambda: _plan(begun, deployment, topology, cores, batch, leaves_core=leaves_core)
        )
        placed = plan
        if not isinstance(deployment, EnsembleDeployment):
            standing = standing_on(plan_before.instances, cores)
            placed = place_beside(plan, standing, topology, cores=cores)
        self._engine.planned_anew(service, cores=cores, plan=placed)
        try:
            switch = await self._adaptation.move(service, placed, text)
            if switch is not None:
                await switch.until_accepting()
                with suppress(TimeoutError):
                    await asyncio.wait_for(switch.until_finished(), MOVE_LIMIT_S)
        except PartitaError:
            if begun.plan is plan_before:  # it is where it was
                self._begun.pop(service, None)
            self._engine.planned_anew(service, cores=deployment.cores, plan=deployment.plan)
            await self._adaptation.stay(service)
            raise
        if begun.is_fixed and plan is begun.plan:  # it is back
            self._begun.pop(service, None)
        log.info("%s: has cores %s now, plan %s", service.name, format_cores(cores), service.plan)


def _placed_on(plan: Plan | None) -> Cores:
    return () if plan is None else plan.placed_on


def _difference(before: dict[Service, Profile | None] | None, now: dict[Service, Profile | None]) -> Cause:
    if before is None:
        return Cause.STARTED
    if now.keys() - before.keys():
        return Cause.CAME
    return Cause.WENT if before.keys() - now.keys() else Cause.PROFILED


def _plan(
    begun: Deployment,
    now: Deployment,
    topology: Topology,
    cores: Sequence[int],
    batch: int | None,
    *,
    leaves_core: bool,
) -> Plan:
    """Return the plan for these cores: from the profile, else as begun where that fits, else the safe one.

    `batch` is what the load asks for; None = not known.
    """
    most = max(i.batch for i in begun.plan.instances)
    if isinstance(now, EnsembleDeployment):
        choices = choices_of(replace(now, cores=tuple(cores)), topology, leaves_core=leaves_core)
        assert isinstance(choices, EnsembleChoices)
        return first_plan(choices, batch)
    if now.profile is not None and not now.is_limited:
        if now.variants and batch is not None:  # else all workers of one in another runtime would load anew
            varied = choices_of(replace(now, cores=tuple(cores)), topology, leaves_core=leaves_core)
            return varied.best(max(1, min(batch, varied.max_batch)))
        most = largest_batch(now)
        optimizer = optimizer_for(now.profile, topology, tuple(cores), most)
        used = worker_cores(now.profile, len(cores), leaves_core=leaves_core)
        if batch is not None:
            return optimizer.plan(used, max(1, min(batch, most * used)), early_answers=True)
        return optimizer.robust(used, most)
    is_safe = [i.threads for i in begun.plan.instances] == [len(begun.cores)]
    if (begun.is_fixed or not is_safe) and all(set(i.cores) <= set(cores) for i in begun.plan.instances):
        return begun.plan
    return safe_plan(len(cores), most)


__all__ = ["CoreSharing"]
