"""Plans that follow the load: one controller beside every model that has a profile, and switches by hand."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from partita.core.errors import InvalidInput, PartitaError
from partita.core.plan import Plan
from partita.deploy import optimizer_for
from partita.engine.engine import Deployment, Engine
from partita.engine.service import Service
from partita.engine.switching import Outcome, Switch
from partita.machines.dispatcher import Policy
from partita.planning.choices import Choices, ProfiledChoices
from partita.planning.controller import Controller
from partita.planning.decisions import Action, Decision
from partita.planning.estimator import EstimatorRules
from partita.planning.load import DepthMeter, Sample
from partita.planning.placement import place_beside
from partita.planning.switching import SwitchRules
from partita.system.clock import SystemClock
from partita.system.cpus import read_topology
from partita.system.memory import available_bytes

log = logging.getLogger("partita")

LOOK_S = 0.5
"""How often services are looked for that have no controller yet."""
MOST_BATCH = 256
"""Largest aggregate batch that plans are made for, for each core."""
WARM_SHARE = 1 / 8
"""Share of the free memory for workers that are loaded and asleep, where no limit is given."""


class Adapter:
    """Feeds one model's controller with samples of its load, and carries out what it decides."""

    def __init__(
        self,
        service: Service,
        controller: Controller,
        choices: Choices,
        loop: asyncio.AbstractEventLoop,
        *,
        warm_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self.controller = controller
        self._service = service
        self._choices = choices
        self._warm_bytes = warm_bytes
        self._warm_for: Plan | None = None
        """The plan that was in force when likely ones were last chosen."""
        self._warm_before: Plan | None = None
        self._warm_within = 0
        """The memory that there was for them, bytes."""
        self._loop = loop
        self._now_s = SystemClock().now_s
        self._meter = service.member.meter = DepthMeter()
        self._before = self._counters()
        self._sizes: dict[int, tuple[int, int]] = {}
        self._executed()
        self._switch: Switch | None = None
        self._timer = loop.call_later(controller.sample_s, self._sample)

    def stop(self) -> None:
        """Decide nothing any more."""
        self._timer.cancel()
        self._service.member.meter = None

    def _depth(self) -> int:
        dispatcher = self._service.member.dispatcher
        return dispatcher.queue.items + dispatcher.running_items

    def _counters(self) -> dict[str, float]:
        counts = self._service.statistics
        return {
            "timeouts": self._service.member.dispatcher.timeouts,
            "batches": counts.executions,
            "batch_items": sum(size * one.executions for size, one in counts.by_batch.items()),
            "answered": counts.answered,
            "queued_s": counts.queue_ns / 1e9,
            "latency_s": counts.latencies.sum_s,
        }

    def _executed(self) -> dict[str, Any]:
        """Return what was executed since the last call, and how long that takes by the profile."""
        executed, took_ns, profiled_ms = 0, 0, 0.0
        for size, count in self._service.statistics.by_batch.items():
            now = count.executions, count.infer_ns + count.overhead_ns
            before = self._sizes.get(size, (0, 0))
            self._sizes[size] = now
            if now[0] > before[0]:
                executed += now[0] - before[0]
                took_ns += now[1] - before[1]
                profiled_ms += (now[0] - before[0]) * self._choices.execution_ms(self.controller.plan, size)
        return {"executed": executed, "executed_s": took_ns / 1e9, "profiled_s": profiled_ms / 1e3}

    def _sample(self) -> None:
        self._timer = self._loop.call_later(self.controller.sample_s, self._sample)
        now_s, after = self._now_s(), self._counters()
        since = {name: value - self._before[name] for name, value in after.items()}
        self._before = after
        found = self._meter.take(self._depth())
        self._report(now_s)
        self.controller.observe(
            Sample(
                now_s=now_s,
                **found._asdict(),
                batches=int(since["batches"]),
                batch_items=int(since["batch_items"]),
                timeouts=int(since["timeouts"]),
                dispatched=int(since["answered"]),
                queued_s=since["queued_s"],
                answered=int(since["answered"]),
                latency_s=since["latency_s"],
                **self._executed(),
            )
        )
        if self._switch is None and not self._follows_others():
            return
        if self._switch is None:
            self._keep_warm()
        decision = self.controller.decide(now_s)
        if decision is not None and decision.target is not None:
            self._carry_out(decision, decision.target)

    def _follows_others(self) -> bool:
        """Take note of a plan that somebody else has asked for; False while that is under way."""
        switcher, plan = self._service.member.switcher, self._service.plan
        if switcher is None or plan is None or not switcher.handover.is_accepting:
            return False
        if self.controller.plan is not plan:
            self.controller.plan = plan
        return True

    def _keep_warm(self) -> None:
        """Keep loaded: this plan once it is left, the one before, for 2 B, B/2 and 1, and a thinner one.

        Chosen anew where the plan has changed, and where models came or went that share the memory.
        """
        plan, switcher, within = self.controller.plan, self._service.member.switcher, self._warm_bytes()
        if switcher is None or (plan is self._warm_for and within == self._warm_within):
            return
        if plan is not self._warm_for:
            self._warm_for, self._warm_before = plan, self._warm_for
        self._warm_within, before = within, self._warm_before
        most = self._choices.max_batch
        likely = [plan, *([] if before is None else [before])]
        likely += [self._choices.best(b) for b in (2 * plan.batch, plan.batch // 2, 1) if 1 <= b <= most]
        thinner = self._choices.thinner(plan, 2 * plan.batch)
        likely += [] if thinner is None else [thinner]
        switcher.keep_warm(likely, within)

    def _carry_out(self, decision: Decision, target: Plan) -> None:
        log.info("%s: %s (%s): %s", self._service.name, decision.action, decision.reason, decision.text)
        switch = self._service.switch(target, reason=f"{decision.reason}: {decision.text}")
        if decision.action is Action.SWITCH:
            self._switch = switch

    def _report(self, now_s: float) -> None:
        """Tell the controller what became of its switch."""
        switch = self._switch
        if switch is None or switch.outcome is Outcome.UNDER_WAY:
            return
        self._switch = None
        if switch.outcome in (Outcome.ACCEPTING, Outcome.FINISHED):
            assert switch.accepting_s is not None
            self.controller.switched(now_s, cost_s=switch.accepting_s - switch.asked_s)
        else:
            self.controller.switch_failed(now_s, switch.failure)


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
    ) -> None:
        self._estimator = estimator or EstimatorRules()
        self._switching = switching
        self._engine = engine
        self._loop = loop
        self._adapts = adapts
        self._warm_bytes = int(WARM_SHARE * (available_bytes() or 0)) if warm_bytes is None else warm_bytes
        self._is_shared = warm_bytes is None
        self.topology = read_topology()
        """The machine as it is now."""
        self._adapters: dict[Service, Adapter] = {}
        self._preparing: dict[Service, asyncio.Task[None]] = {}
        self._planner: ThreadPoolExecutor | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look after every model that is served from now on."""
        if self._adapts and self._timer is None:
            self._planner = ThreadPoolExecutor(1, thread_name_prefix="partita-planner")
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
        if self._planner is not None:
            await self._loop.run_in_executor(None, self._planner.shutdown)
            self._planner = None

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)
        served = {service for service in self._engine.services.values() if service.is_ready}
        for service in self._adapters.keys() - set(self._engine.services.values()):
            self._adapters.pop(service).stop()
        for service in served - self._adapters.keys() - self._preparing.keys():
            deployment = self._engine.deployment(service)
            follows = deployment.profile is not None and not deployment.is_limited
            if follows and service.member.switcher is not None:
                self._preparing[service] = asyncio.ensure_future(self._prepare(service, deployment))

    async def _prepare(self, service: Service, deployment: Deployment) -> None:
        """Make all plans that may be wanted, off the loop; then follow the load."""
        try:
            choices = self._choices(service, deployment)
            await self._loop.run_in_executor(self._planner, choices.prepare)
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

    def _choices(self, service: Service, deployment: Deployment) -> ProfiledChoices:
        cores = deployment.cores
        assert deployment.profile is not None
        largest = max(i.batch for i in deployment.plan.instances)
        most = min(MOST_BATCH, max(largest, *(batch for _, batch in deployment.profile.points)))
        standing = deployment.plan.instances
        return ProfiledChoices(
            optimizer_for(deployment.profile, self.topology, cores, most),
            cores=len(cores),
            max_batch=most * len(cores),
            place=lambda plan: place_beside(plan, standing, self.topology, cores=cores),
            together=service.settings.rules.policy is Policy.AGGREGATE,
        )

    def batch(self, service: Service) -> int | None:
        """Return how many items the load asks a plan for; None where it is not followed."""
        adapter = self._adapters.get(service)
        return None if adapter is None else adapter.controller.plan.batch

    def forget(self, service: Service) -> None:
        """What is known of a service has changed: follow its load anew, by that."""
        adapter = self._adapters.pop(service, None)
        if adapter is not None:
            adapter.stop()
        preparing = self._preparing.pop(service, None)
        if preparing is not None:
            preparing.cancel()

    # --- by hand ----------------------------------------------------------------------------------

    def plan(self, model: str) -> Plan:
        """Return the plan in force. Raises `ModelNotFound`."""
        plan = self._engine.service(model).plan
        assert plan is not None
        return plan

    def decisions(self, model: str) -> list[dict[str, Any]]:
        """Return the controller's log, oldest first; empty where nothing adapts."""
        adapter = self._adapters.get(self._engine.service(model))
        return [] if adapter is None else [entry.document() for entry in adapter.controller.log]

    def tuning(self, model: str) -> dict[str, Any] | None:
        """Return how far measuring the model beside its traffic has come; None where it was not begun."""
        report = self._engine.tunings.get(self._engine.service(model))
        return None if report is None else report.document()

    def switches(self, model: str) -> list[dict[str, Any]]:
        """Return the latest switches, oldest first."""
        switcher = self._engine.service(model).member.switcher
        return [] if switcher is None else [switch.document() for switch in switcher.switches]

    def switch(self, model: str, plan: Plan, reason: str) -> Switch:
        """Place a plan and switch to it. Raises `InvalidInput`, `NoFeasiblePlan` or `SwitchFailed`."""
        service = self._engine.service(model)
        deployment = self._engine.deployment(service)
        now = self.plan(model)
        cores = deployment.cores or tuple(sorted({core for i in now.instances for core in i.cores}))
        if cores:
            plan = place_beside(plan, now.instances, self.topology, cores=cores)
        elif sum(i.threads for i in plan.instances) > now.cores:
            raise InvalidInput(f"plan {plan} needs more cores than the {now.cores} that the model has")
        return service.switch(plan, reason=reason)
