"""Adaptation of one model (DESIGN §4, Packrat §3.7, §3.8): from what the load looks like to a change of plan.

Pure and driven by events: the live engine and the simulator tell it samples and what became of a switch, and
ask it for decisions. It lives beside the estimator and the search because it needs both, and needs nothing of
the machines: how a plan is carried out is the caller's affair. What it wants is compared with what is there
anew in every interval, so that a change of the load during a switch waits, but is never lost.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from partita.core.errors import NoFeasiblePlan
from partita.core.plan import Plan
from partita.planning.backlog import Backlog
from partita.planning.carrying import is_alone, is_strained, narrowed, wanted_batch, widened
from partita.planning.choices import KnownChoices
from partita.planning.decisions import Action, Decision, Entry, Failed, Option, Reason, Seen
from partita.planning.estimator import BatchSizeEstimator, EstimatorRules
from partita.planning.gained import GainMeter
from partita.planning.load import RecentLoad, Sample
from partita.planning.pace import Pace
from partita.planning.paced_choices import PacedChoices
from partita.planning.switching import (
    REBATCH_INTERVALS,
    History,
    SwitchRules,
    Verdict,
    change,
    is_within,
    judge,
)

LOG_ENTRIES = 256
DEEP = 4
"""A depth of this many times B is more than a plan was made for."""


@dataclass(slots=True)
class _Asked:
    plan: Plan
    text: str


class Controller:
    """Decides for one model. `observe` every `sample_s`, then `decide`; carry out what it says.

    `is_warm` tells whether all instances of a plan are loaded already.
    """

    def __init__(
        self,
        choices: KnownChoices,
        plan: Plan,
        *,
        now_s: float,
        estimator: EstimatorRules | None = None,
        switching: SwitchRules | None = None,
        is_warm: Callable[[Plan], bool] = lambda _: False,
        log_entries: int = LOG_ENTRIES,
    ) -> None:
        self.plan = plan
        """The plan that serves; during a switch still the old one."""
        self.estimator_rules = estimator or EstimatorRules(max_batch=choices.max_batch)
        self.switch_rules = switching or SwitchRules()
        self.estimator = BatchSizeEstimator(self.estimator_rules, batch=plan.batch, now_s=now_s)
        self.history = History(last_rebatch_s=now_s)
        self.log: deque[Entry] = deque(maxlen=log_entries)
        self.switches = self.rebatches = self.failures = 0
        self._pace = Pace(self.estimator_rules.samples)
        self._choices = PacedChoices(choices, self._pace, lambda: self.plan, is_warm)
        self._is_warm = is_warm
        self._load = RecentLoad(self.estimator_rules, self.estimator, now_s=now_s)
        self._backlog = Backlog(self.switch_rules, now_s=now_s, after_s=self.estimator_rules.interval_s)
        self._switching: Decision | None = None
        self._asked: _Asked | None = None
        self._looks_again = self._works_off = False
        self._measuring: GainMeter | None = None
        self._next_number = 1

    @property
    def sample_s(self) -> float:
        """How often to call `observe` and `decide`, seconds."""
        return self.estimator_rules.sample_s

    @property
    def switching(self) -> Decision | None:
        """The switch that is under way; None where there is none."""
        return self._switching

    # --- events -----------------------------------------------------------------------------------

    def observe(self, sample: Sample) -> None:
        """Take what happened since the last sample.

        Silence says nothing of how many items come together: B̃ stays what it was while there were some.
        What gathers because the plan cannot carry the load says nothing of it either.
        """
        carried = self._backlog.cut(sample, self._choices, self.plan)
        if sample.arrived or sample.depth > 0.0:
            self.estimator.observe(sample.depth, carried)
        self._load.add(sample)
        if self._switching is None:
            self._pace.observe(self.plan, sample)
        if self._measuring is None:
            return
        gained = self._measuring.observe(sample, self.plan, self.estimator.depth or 0.0)
        if gained is not None:
            self._measuring = None
            self.log.append(gained)

    def ask(self, plan: Plan, text: str, choices: KnownChoices | None = None) -> None:
        """Change to this plan whatever it gains, as when the cores changed; with `choices`, plan by them now.

        During a switch it waits until that has ended; of several that wait, the last one counts.
        """
        self._asked = _Asked(plan, text)
        if choices is not None:
            self._choices.profiled = choices

    def switched(self, now_s: float, *, cost_s: float | None = None) -> None:
        """The switch is done: the new plan serves.

        `cost_s` is what it cost, seconds of service; by default a share of the time that it took.
        """
        decision = self._end_switch()
        assert decision.target is not None
        if cost_s is None:
            cost_s = self.switch_rules.disturbance * (now_s - decision.now_s)
        known = self.history.cost_s
        if decision.cost_s > 0.0:  # one that was warm says nothing of what a load costs
            known = cost_s if known is None else (known + cost_s) / 2.0
        self.history = replace(self.history, failures=0, cost_s=known)
        self._pace.switched(self.plan, decision.batch)
        self._choices.left = self.plan if self.plan.cores == decision.target.cores else None
        self.plan = decision.target
        interval_s = self.estimator_rules.interval_s
        self._looks_again = True  # what is wanted now may not be what was wanted when it began
        self._measuring = GainMeter(decision, cost_s, now_s=now_s, interval_s=interval_s)

    def switch_failed(self, now_s: float, reason: str) -> None:
        """The switch failed and the old plan serves on. It is tried again after a pause, if still wanted."""
        decision = self._end_switch()
        assert decision.target is not None
        self.failures += 1
        failures = self.history.failures + 1
        self.history = replace(self.history, failures=failures, failed_s=now_s)
        again_s = now_s + self.switch_rules.backoff_s(failures)
        self.log.append(
            Failed(
                number=decision.number,
                now_s=now_s,
                plan=self.plan,
                target=decision.target,
                text=reason,
                failures=failures,
                again_s=again_s,
            )
        )

    def _end_switch(self) -> Decision:
        assert self._switching is not None, "no switch is under way"
        decision, self._switching = self._switching, None
        return decision

    # --- decisions --------------------------------------------------------------------------------

    def decide(self, now_s: float) -> Decision | None:
        """Return a decision if it is time for one. A rebatch counts as done; a switch has to be reported."""
        if self._asked is not None:
            return self._do_asked(now_s) if self._switching is None else None
        is_due = self.estimator.is_due(now_s) or (self._looks_again and self._switching is None)
        decision = self._compare(now_s) if is_due and self._load.is_new else None
        if decision is not None or self._switching is not None:
            return decision
        return self._widen(now_s) if self._backlog.items or not self._works_off else self._narrow(now_s)

    def _do_asked(self, now_s: float) -> Decision:
        assert self._asked is not None
        asked, self._asked = self._asked, None
        self.estimator.compared(now_s)
        action = change(self.plan, asked.plan)
        verdict = Verdict(action, Reason.ASKED, asked.text)
        decision = self._decision(now_s, self._load.seen(self.plan), asked.plan.batch, verdict)
        return self._note(decision) if action is Action.STAY else self._enact(decision, asked.plan)

    def _compare(self, now_s: float) -> Decision | None:
        seen = replace(self._load.seen(self.plan), pace=self._pace.now)
        is_silent = seen.rate == 0.0 and self._load.newest_depth < 1.0
        if not is_silent and self._load.has_patience and not self._is_settled(seen):
            return None  # looked at again with the next sample
        self.estimator.compared(now_s)
        self._load.compared()
        self._looks_again = self._switching is not None
        if self._switching is not None:
            text = f"a switch to {self._switching.target} is under way; looked at again when it has ended"
            return self._stay(now_s, seen, Reason.SWITCHING, text)
        if is_silent:
            return self._stay(now_s, seen, Reason.NO_LOAD, "nothing came")
        try:
            return self._choose(now_s, seen)
        except NoFeasiblePlan as error:
            return self._stay(now_s, seen, Reason.NO_PLAN, str(error))

    def _is_settled(self, seen: Seen) -> bool:
        """Whether the load looks as if it stayed; a depth that gathers under too much load never does."""
        return seen.settled and (
            self.estimator.agrees or is_strained(self._choices, self.switch_rules, self.plan, seen.rate)
        )

    def _fill_sooner(self, seen: Seen, verdict: Verdict, rebatch: Option) -> Verdict:
        """Return a rebatch to smaller batches where today's only fill when their timeout passes."""
        if 2 * rebatch.plan.batch > self.plan.batch:
            return verdict
        text = (
            f"the batch timeout formed {seen.timeout_share:.0%} of the batches, with about "
            f"{seen.together:.0f} items together: {rebatch.plan} waits for fewer"
        )
        return Verdict(Action.REBATCH, Reason.TIMEOUTS, text, rebatch)

    def _stay(self, now_s: float, seen: Seen, reason: Reason, text: str) -> Decision:
        return self._note(self._decision(now_s, seen, seen.batch, Verdict(Action.STAY, reason, text)))

    def _choose(self, now_s: float, seen: Seen) -> Decision:
        choices = self._choices
        strained = not is_alone(seen) and is_strained(choices, self.switch_rules, self.plan, seen.rate)
        is_timed_out = seen.timeout_share >= self.estimator_rules.timeout_share
        batch = wanted_batch(choices, self.switch_rules, seen, strained=strained, timed_out=is_timed_out)
        stay = self._option(Action.STAY, self.plan, batch)
        same = choices.rebatched(self.plan, batch)
        rebatch = None if same is None else self._option(Action.REBATCH, same, batch)
        switch = self._option(Action.SWITCH, choices.best(batch), batch)
        verdict = judge(
            self.switch_rules,
            self.history,
            interval_s=self.estimator_rules.interval_s,
            now_s=now_s,
            batch=batch,
            is_strained=strained,
            stay=stay,
            rebatch=rebatch,
            switch=switch,
        )
        if verdict.action is Action.SWITCH and switch.plan is not choices.profiled.best(batch):
            text = (
                f"executions take {(seen.pace or 1.0) - 1.0:.0%} longer than in the profile; {verdict.text}"
            )
            verdict = replace(verdict, reason=Reason.PACE, text=text)
        considered = tuple(option for option in (stay, rebatch, switch) if option is not None)
        if verdict.action is Action.SWITCH and rebatch is not None:
            verdict = self._while_it_loads(verdict, stay, rebatch)
        elif verdict.action is Action.STAY and rebatch is not None and is_timed_out:
            verdict = self._fill_sooner(seen, verdict, rebatch)
        elif verdict.action is Action.STAY and not strained:
            verdict = self._try_less(now_s, seen, verdict)
        decision = self._decision(now_s, seen, batch, verdict, considered)
        if verdict.action is Action.STAY:
            return self._note(decision)
        assert verdict.option is not None
        return self._enact(decision, verdict.option.plan)

    def _while_it_loads(self, verdict: Verdict, stay: Option, rebatch: Option) -> Verdict:
        """Return what to do before a switch: rebatch where that helps now, switch with the next sample."""
        gain = stay.latency_ms / rebatch.latency_ms - 1.0
        if gain < self.switch_rules.rebatch_gain:
            return verdict
        self._looks_again = True
        text = f"{verdict.text}; until then {rebatch.plan} is {gain:.0%} faster than {stay.plan}"
        return Verdict(Action.REBATCH, verdict.reason, text, rebatch, gain)

    def _try_less(self, now_s: float, seen: Seen, verdict: Verdict) -> Verdict:
        """Return a rebatch to half of B, now and then, where that carries the load as well.

        Large batches take long, and while they run as many items come again: a depth can be of the batches'
        own making. Where it is not, B̃ stays as it is, and so does B in the end.
        """
        rules, choices, half = self.switch_rules, self._choices, self.plan.batch // 2
        interval_s, history = self.estimator_rules.interval_s, self.history
        if (
            half < len(self.plan.instances)
            or is_within(history.last_rebatch_s, least_s=REBATCH_INTERVALS * interval_s, now_s=now_s)
            or is_within(history.last_trial_s, least_s=rules.dwell_intervals * interval_s, now_s=now_s)
        ):
            return verdict
        less = choices.rebatched(self.plan, half)
        if less is None or choices.items_per_s(less) * rules.planned_load < seen.rate:
            return verdict
        self.history = replace(history, last_trial_s=now_s)
        option = self._option(Action.REBATCH, less, half)
        text = (
            f"{less} carries {seen.rate:.3g} items/s as well; a depth of {seen.depth:.3g} may be its own work"
        )
        return Verdict(Action.REBATCH, Reason.TRIAL, text, option)

    def _widen(self, now_s: float) -> Decision | None:
        """Let the instances take more items at once as soon as their batch sizes alone cannot carry the load.

        It costs nothing, so it waits neither for the end of an interval nor for the load to settle.
        """
        plan, depth, came = self.plan, self.estimator.depth, self._load.newest_rate
        if depth is None or depth < DEEP * plan.batch:
            return None
        interval_s = self.estimator_rules.interval_s
        found = widened(self._choices, self.switch_rules, plan, came, self._backlog.items, interval_s)
        if found is None:
            return None
        self._works_off = True
        wider, verdict = found
        return self._rebatch(now_s, replace(self._load.seen(plan), rate=came), wider.batch, wider, verdict)

    def _narrow(self, now_s: float) -> Decision | None:
        """Let the instances take fewer items at once again: what had gathered has been worked off."""
        self._works_off = False
        seen = self._load.seen(self.plan)
        found = narrowed(self._choices, self.switch_rules, self.plan, seen)
        return None if found is None else self._rebatch(now_s, seen, seen.batch, *found)

    def _rebatch(self, now_s: float, seen: Seen, batch: int, target: Plan, verdict: Verdict) -> Decision:
        options = (self._option(Action.STAY, self.plan, batch), self._option(Action.REBATCH, target, batch))
        return self._enact(self._decision(now_s, seen, batch, verdict, options), target)

    def _option(self, action: Action, plan: Plan, batch: int) -> Option:
        choices = self._choices
        return Option(
            action=action,
            plan=plan,
            latency_ms=choices.latency_ms(plan, batch),
            items_per_s=choices.items_per_s(plan),
            warm=action is Action.SWITCH and self._is_warm(plan),
        )

    def _enact(self, decision: Decision, target: Plan) -> Decision:
        """Note a change of plan as decided."""
        decision = replace(decision, target=target)
        if decision.action is Action.SWITCH:
            self.switches += 1
            self._switching = decision
            self._measuring = None
            self.history = replace(self.history, last_switch_s=decision.now_s)
        else:
            self.rebatches += 1
            self.history = replace(self.history, last_rebatch_s=decision.now_s)
            self.plan = target
        return self._note(decision)

    def _note(self, decision: Decision) -> Decision:
        """Log a decision; one to stay that was made just before for the same reason is counted instead."""
        before = self.log[-1] if self.log else None
        if (
            isinstance(before, Decision)
            and decision.action is before.action is Action.STAY
            and (before.reason, before.batch, before.plan) == (decision.reason, decision.batch, decision.plan)
        ):
            decision = replace(decision, number=before.number, repeated=before.repeated + 1)
            self.log[-1] = decision
            return decision
        self._next_number += 1
        self.log.append(decision)
        return decision

    def _decision(
        self, now_s: float, seen: Seen, batch: int, verdict: Verdict, considered: tuple[Option, ...] = ()
    ) -> Decision:
        warm = verdict.option is not None and verdict.option.warm
        cost_s = self.switch_rules.expected_cost_s(self.history, warm=warm)
        return Decision(
            number=self._next_number,
            now_s=now_s,
            seen=seen,
            action=verdict.action,
            reason=verdict.reason,
            text=verdict.text,
            batch=batch,
            plan=self.plan,
            considered=considered,
            expected_gain=verdict.gain,
            cost_s=cost_s if verdict.action is Action.SWITCH else 0.0,
        )
