"""One model's plan follows its load: its controller is told of it, and what it decides is carried out."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from partita.core.errors import SwitchFailed
from partita.core.plan import Plan
from partita.engine.service import Service
from partita.engine.switching import Outcome, Switch
from partita.planning.choices import KnownChoices
from partita.planning.controller import Controller
from partita.planning.decisions import Action, Decision, Reason
from partita.planning.demand_meter import DemandMeter
from partita.planning.load import DepthMeter, Sample
from partita.system.clock import SystemClock

log = logging.getLogger("partita")


class Adapter:
    """Feeds one model's controller with samples of its load, and carries out what it decides."""

    def __init__(
        self,
        service: Service,
        controller: Controller,
        choices: KnownChoices,
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
        self._demand = DemandMeter(controller.estimator_rules, controller.switch_rules, now_s=self._now_s())
        self._switch: Switch | None = None
        self._moved: asyncio.Future[Switch | None] | None = None
        """Whoever waits for the plan that was asked for to be begun."""
        self._timer = loop.call_later(controller.sample_s, self._sample)

    def stop(self) -> None:
        """Decide nothing any more."""
        self._timer.cancel()
        self._service.member.meter = None
        if self._moved is not None and not self._moved.done():
            self._moved.set_exception(SwitchFailed("its plan follows the load no longer"))

    async def move(self, plan: Plan, choices: KnownChoices, text: str) -> Switch | None:
        """Go to a plan on other cores, and plan for those from now on, once a switch under way has ended.

        Returns the switch as soon as it is begun; None where nothing had to be changed.
        """
        self._moved = self._loop.create_future()
        self.controller.ask(plan, text, choices)
        self._choices, self._warm_for = choices, None
        return await self._moved

    def stay(self, choices: KnownChoices) -> None:
        """A move has failed: choose among these plans, for the cores of before."""
        self.controller.ask(self.controller.plan, "it could not be moved", choices)
        self._choices, self._warm_for = choices, None

    def demand(self) -> tuple[int, float] | None:
        """Return what the load asks of a plan, items at once and items per second; None before the first."""
        estimator = self.controller.estimator
        return None if estimator.depth is None else self._demand.demand(estimator)

    def _depth(self) -> int:
        return self._service.member.dispatcher.depth

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
        self._observe(
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
        if decision is None:
            return
        switch = None if decision.target is None else self._carry_out(decision, decision.target)
        if decision.reason is Reason.ASKED and self._moved is not None and not self._moved.done():
            self._moved.set_result(switch)

    def _observe(self, sample: Sample) -> None:
        self.controller.observe(sample)
        self._demand.observe(sample)

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

    def _carry_out(self, decision: Decision, target: Plan) -> Switch:
        log.info("%s: %s (%s): %s", self._service.name, decision.action, decision.reason, decision.text)
        switch = self._service.switch(target, reason=f"{decision.reason}: {decision.text}")
        if decision.action is Action.SWITCH:
            self._switch = switch
        return switch

    def _report(self, now_s: float) -> None:
        """Tell the controller what became of its switch."""
        switch = self._switch
        if switch is None or switch.outcome is Outcome.UNDER_WAY:
            return
        self._switch = None
        if switch.outcome in (Outcome.ACCEPTING, Outcome.FINISHED):
            assert switch.accepting_s is not None
            took_s = switch.accepting_s - switch.asked_s
            self.controller.switched(now_s, cost_s=self.controller.switch_rules.disturbance * took_s)
        else:
            self.controller.switch_failed(now_s, switch.failure)
