"""Plans that follow the load: one controller beside every model that has a profile, and switches by hand."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

from partita.adapter import Adapter
from partita.aside import Aside
from partita.core.errors import InvalidInput, PartitaError, SwitchFailed
from partita.core.plan import Plan
from partita.core.topology import Topology
from partita.engine.engine import Engine, EnsembleDeployment
from partita.engine.service import Service
from partita.engine.switching import Switch
from partita.planners import choices_of
from partita.planning.choices import ProfiledChoices, plan_ahead
from partita.planning.controller import Controller
from partita.planning.division import Division
from partita.planning.ensemble_choices import EnsembleChoices
from partita.planning.estimator import EstimatorRules
from partita.planning.placement import place_beside
from partita.planning.switching import SwitchRules
from partita.planning.varied_choices import VariedChoices, executed_by
from partita.system.clock import SystemClock
from partita.system.cpus import read_topology
from partita.system.memory import available_bytes

log = logging.getLogger("partita")

LOOK_S = 0.5
"""How often services are looked for that have no controller yet."""
WARM_SHARE = 1 / 8
"""Share of the free memory for workers that are loaded and asleep, where no limit is given."""


class Adaptation:
    """All adapters of one head, and the door for whoever changes a plan by hand."""

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        *,
        adapts: bool,
        warm_bytes: int | None = None,
        estimator: EstimatorRules | None = None,
        switching: SwitchRules | None = None,
        topology: Topology | None = None,
        has_head_cores: bool = False,
    ) -> None:
        self._estimator = estimator or EstimatorRules()
        self._switching = switching
        self._engine = engine
        self._loop = loop
        self._adapts = adapts
        self._warm_bytes = int(WARM_SHARE * (available_bytes() or 0)) if warm_bytes is None else warm_bytes
        self._is_shared = warm_bytes is None
        self._has_head_cores = has_head_cores
        self.topology = topology or read_topology()
        """The machine as it is now."""
        self.division: Division | None = None
        """How the cores are divided among the models, where somebody sees to that."""
        self._adapters: dict[Service, Adapter] = {}
        self._preparing: dict[Service, asyncio.Task[None]] = {}
        self._planner = Aside(loop, "planner")
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look after every model that is served from now on."""
        if self._adapts and self._timer is None:
            self._planner.start()
            self._look()

    async def stop(self) -> None:
        """Leave all plans as they are."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for adapter in self._adapters.values():
            adapter.stop()
        self._adapters.clear()
        for task in self._preparing.values():
            task.cancel()
        await asyncio.gather(*self._preparing.values(), return_exceptions=True)
        await self._planner.stop()

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)
        versions = set(self._engine.versions.values())
        served = {service for service in versions if service.is_ready}
        for service in list(self._adapters):
            if service not in versions or self._engine.deployment(service).is_limited:
                self._adapters.pop(service).stop()
        for service in served - self._adapters.keys() - self._preparing.keys():
            deployment = self._engine.deployment(service)
            follows = deployment.is_profiled and not deployment.is_fixed
            if follows and service.member.switcher is not None:
                self._preparing[service] = asyncio.ensure_future(self._prepare(service))

    async def _prepare(self, service: Service) -> None:
        """Make all plans that may be wanted, off the loop; then follow the load."""
        try:
            choices = await self._prepared(service)
            switcher = service.member.switcher
            assert service.plan is not None
            assert switcher is not None
            controller = Controller(
                choices,
                service.plan,
                now_s=SystemClock().now_s(),
                estimator=replace(self._estimator, max_batch=choices.max_batch),
                switching=self._switching,
                is_warm=switcher.is_loaded,
            )
            self._adapters[service] = Adapter(
                service, controller, choices, self._loop, warm_bytes=self._warm_bytes_each
            )
        except PartitaError as error:
            log.warning("%s: its plan does not follow the load: %s", service.name, error)
            return
        del self._preparing[service]

    def _warm_bytes_each(self) -> int:
        """Memory for the sleeping workers of one model, bytes."""
        return self._warm_bytes // max(1, len(self._adapters)) if self._is_shared else self._warm_bytes

    @property
    def leaves_core(self) -> bool:
        """Whether a model's plan may leave the head a core: where it is alone, and the head has none."""
        return not self._has_head_cores and len(self._engine.services) == 1

    # --- the division of the cores ----------------------------------------------------------------

    @property
    def adapts(self) -> bool:
        """Whether plans follow the load."""
        return self._adapts

    @property
    def interval_s(self) -> float:
        """The reconfiguration interval, seconds."""
        return self._estimator.interval_s

    def demand(self, service: Service) -> tuple[int, float] | None:
        """Return what the load asks of a plan, items at once and items per second; None = not known."""
        adapter = self._adapters.get(service)
        return None if adapter is None else adapter.demand()

    async def move(self, service: Service, plan: Plan, text: str) -> Switch | None:
        """Switch to a plan on the cores that the engine was told of, and follow the load with those.

        What has been decided before is remembered. Raises `SwitchFailed` or another `PartitaError`.
        """
        adapter = self._adapters.get(service)
        if adapter is None:
            self.forget(service)
            return service.switch(plan, reason=text)
        return await adapter.move(plan, await self._prepared(service), text)

    async def stay(self, service: Service) -> None:
        """A move has failed: choose among the plans for the cores that the engine was told of again."""
        adapter = self._adapters.get(service)
        if adapter is not None:
            adapter.stay(await self._prepared(service))

    async def _prepared(self, service: Service) -> ProfiledChoices | VariedChoices | EnsembleChoices:
        choices = choices_of(self._engine.deployment(service), self.topology, leaves_core=self.leaves_core)
        await self._planner.run(lambda: plan_ahead(choices))
        return choices

    def forget(self, service: Service) -> None:
        """What is known of a service has changed: follow its load anew, by that."""
        adapter = self._adapters.pop(service, None)
        if adapter is not None:
            adapter.stop()
        preparing = self._preparing.pop(service, None)
        if preparing is not None:
            preparing.cancel()

    # --- by hand ----------------------------------------------------------------------------------

    def plan(self, model: str, version: str = "") -> Plan:
        """Return the plan in force, with what its lower precision costs. Raises `ModelNotFound`."""
        service = self._engine.service(model, version)
        assert service.plan is not None
        lowered = self._engine.deployment(service).lowered.get(service.plan.instances[0].runtime)
        return service.plan if lowered is None else replace(service.plan, lowered=lowered)

    def decisions(self, model: str, version: str = "") -> list[dict[str, Any]]:
        """Return the controller's log, oldest first; empty where nothing adapts."""
        adapter = self._adapters.get(self._engine.service(model, version))
        return [] if adapter is None else [entry.document() for entry in adapter.controller.log]

    def divisions(self) -> list[dict[str, Any]]:
        """Return how the cores were divided among all models, and why, oldest first."""
        return [] if self.division is None else [divided.document() for divided in list(self.division.log)]

    def plans(self) -> dict[str, Plan]:
        """Return the plan in force of every model."""
        return {name: s.plan for name, s in self._engine.services.items() if s.plan is not None}

    def tuning(self, model: str, version: str = "") -> dict[str, Any] | None:
        """Return how far measuring the model beside its traffic has come; None where it was not begun."""
        report = self._engine.tunings.get(self._engine.service(model, version))
        return None if report is None else report.document()

    def switches(self, model: str, version: str = "") -> list[dict[str, Any]]:
        """Return the latest switches, oldest first."""
        switcher = self._engine.service(model, version).member.switcher
        return [] if switcher is None else [switch.document() for switch in switcher.switches]

    def switch(self, model: str, plan: Plan, reason: str, version: str = "") -> Switch:
        """Place a plan and switch to it, in the runtime that serves now unless the plan names one.

        Raises `InvalidInput`, `NoFeasiblePlan` or `SwitchFailed`.
        """
        service = self._engine.service(model, version)
        deployment = self._engine.deployment(service)
        if isinstance(deployment, EnsembleDeployment):
            raise SwitchFailed(f"model {model!r} is an ensemble: say which plan it has by `partita allocate`")
        now = self.plan(model, version)
        if not any(one.runtime for one in plan.instances):
            plan = executed_by(plan, now.instances[0].runtime)
        cores = deployment.cores or now.placed_on
        if cores:
            plan = place_beside(plan, now.instances, self.topology, cores=cores)
        elif sum(i.threads for i in plan.instances) > now.cores:
            raise InvalidInput(f"plan {plan} needs more cores than the {now.cores} that the model has")
        return service.switch(plan, reason=reason)
