"""Is a change of plan worth it? (Packrat §3.7: "time consuming and done conservatively")

Two changes are told apart. A *rebatch* leaves every instance where it is and changes only how many items they
take: it costs nothing. A *switch* starts other instances: it has to gain something over what the instances of
today can do with other batch sizes, to win back its own cost while it lasts, and to keep its distance to the
switch before. That distance is a hard rule and makes flip-flopping impossible, whatever the load does:
between two switches there are always `dwell_intervals` reconfiguration intervals.
"""

from dataclasses import dataclass
from math import isfinite

from partita.core.errors import InvalidInput
from partita.core.plan import Plan
from partita.planning.decisions import Action, Option, Reason

Kinds = tuple[tuple[str, str, str, int], ...]

REBATCH_INTERVALS = 2
"""Batch sizes are not halved sooner than this after a rebatch: a depth about a power of two is on both sides
of it in turns."""
_ON_TIME = 1e-9
"""A dwell of which this many seconds are missing has passed: sums of times are not exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRules:
    """When a change is worth it. Raises `InvalidInput` for values that cannot be."""

    gain: float = 0.15
    """Least gain of a switch: (latency of today's instances ÷ latency of the new plan) − 1."""
    warm_gain: float = 0.05
    """Least gain of a switch to instances that are loaded and asleep: it takes effect at once."""
    rebatch_gain: float = 0.05
    """Least gain of a rebatch."""
    dwell_intervals: int = 10
    """Reconfiguration intervals between two switches, always."""
    switch_s: float = 5.0
    """How long a switch takes, until one was measured."""
    disturbance: float = 0.5
    """Share of the service that is lost while a switch is under way; with the time it takes, its cost."""
    max_load: float = 0.95
    """A plan carries a load up to this share of its capacity."""
    planned_load: float = 0.85
    """Share of a plan's capacity that it is chosen for where the load is too much for today's instances:
    the rest works off what has gathered."""
    first_backoff_s: float = 30.0
    longest_backoff_s: float = 1800.0
    """Pauses after failed switches: the first, doubling up to the longest."""

    def __post_init__(self) -> None:
        _require(min(self.gain, self.warm_gain, self.rebatch_gain) >= 0.0, "gains must be 0 or more")
        _require(self.dwell_intervals >= 1, f"dwell {self.dwell_intervals}: at least 1 interval")
        _require(isfinite(self.switch_s) and self.switch_s >= 0.0, f"switch {self.switch_s} s: 0 or more")
        _require(0.0 <= self.disturbance <= 1.0, f"disturbance {self.disturbance}: between 0 and 1")
        _require(0.0 < self.planned_load <= self.max_load <= 1.0, "need 0 < planned_load <= max_load <= 1")
        _require(
            0.0 <= self.first_backoff_s <= self.longest_backoff_s, "need first_backoff_s <= longest_backoff_s"
        )

    def backoff_s(self, failures: int) -> float:
        """Return the pause after this many failed switches in a row, seconds."""
        return min(self.longest_backoff_s, self.first_backoff_s * 2.0 ** min(failures - 1, 60))

    def expected_cost_s(self, history: "History", *, warm: bool = False) -> float:
        """Return what a switch is thought to cost: as those before, seconds of service; nothing if warm."""
        if warm:
            return 0.0
        return self.disturbance * self.switch_s if history.cost_s is None else history.cost_s


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise InvalidInput(f"switching: {text}")


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What of the past a decision depends on."""

    last_switch_s: float | None = None
    """When the last switch was decided."""
    failures: int = 0
    """Switches that failed, in a row."""
    failed_s: float = 0.0
    cost_s: float | None = None
    """Measured cost of a switch; None before the first."""
    last_rebatch_s: float | None = None
    last_trial_s: float | None = None
    """When smaller batches were last tried to see what comes of it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `judge` comes to."""

    action: Action
    reason: Reason
    text: str
    option: Option | None = None
    gain: float = 0.0


def judge(
    rules: SwitchRules,
    history: History,
    *,
    interval_s: float,
    now_s: float,
    batch: int,
    is_strained: bool,
    stay: Option,
    rebatch: Option | None,
    switch: Option,
) -> Verdict:
    """Return what to do about these options for `batch` items at once.

    `switch` is the best plan there is; `rebatch` the instances of today with the best batch sizes, None
    if there are none better; `is_strained` says that the load is too much for the instances of today.
    """
    kept = stay if rebatch is None or rebatch.latency_ms >= stay.latency_ms else rebatch
    verdict = _judge_switch(rules, history, interval_s, now_s, batch, is_strained, kept, switch)
    if verdict.action is Action.SWITCH or kept is stay:
        return verdict
    gain = stay.latency_ms / kept.latency_ms - 1.0
    if gain < rules.rebatch_gain:
        return verdict
    is_next_lower = stay.plan.batch // 4 < kept.plan.batch < stay.plan.batch
    is_soon = is_within(history.last_rebatch_s, least_s=REBATCH_INTERVALS * interval_s, now_s=now_s)
    if is_next_lower and is_soon:
        return verdict
    text = f"{kept.plan} answers {batch} items {gain:.0%} sooner than {stay.plan}, and no worker is touched"
    if verdict.reason is not Reason.FITS:
        text += f"; no switch: {verdict.text}"
    return Verdict(Action.REBATCH, Reason.LOAD if is_strained else Reason.GAIN, text, kept, gain)


def _judge_switch(
    rules: SwitchRules,
    history: History,
    interval_s: float,
    now_s: float,
    batch: int,
    is_strained: bool,
    kept: Option,
    switch: Option,
) -> Verdict:
    if same_instances(kept.plan, switch.plan):
        return Verdict(Action.STAY, Reason.FITS, f"the best plan for {batch} items has these instances")
    gain = kept.latency_ms / switch.latency_ms - 1.0
    what = f"{switch.plan} would answer {batch} items {gain:.0%} sooner than {kept.plan}"
    least = min(rules.gain, rules.warm_gain) if switch.warm else rules.gain
    if gain < least:
        text = f"{what}, less than the {least:.0%} that a {'warm ' if switch.warm else ''}switch has to gain"
        return Verdict(Action.STAY, Reason.SMALL_GAIN, text, switch, gain)
    dwell_s = rules.dwell_intervals * interval_s
    cost_s = rules.expected_cost_s(history, warm=switch.warm)
    saved_s = (1.0 - switch.latency_ms / kept.latency_ms) * dwell_s
    if saved_s < cost_s:
        text = f"{what}: that saves {saved_s:.2g} s of {dwell_s:.3g} s, and a switch costs {cost_s:.2g} s"
        return Verdict(Action.STAY, Reason.NO_PAYBACK, text, switch, gain)
    if history.failures:
        left_s = history.failed_s + rules.backoff_s(history.failures) - now_s
        if left_s > 0.0:
            text = (
                f"{what}, but the last switch failed ({history.failures} in a row): again in {left_s:.3g} s"
            )
            return Verdict(Action.STAY, Reason.BACKING_OFF, text, switch, gain)
    if is_within(history.last_switch_s, least_s=dwell_s, now_s=now_s):
        assert history.last_switch_s is not None
        text = (
            f"{what}, but the last switch was {now_s - history.last_switch_s:.3g} s ago, and between two are "
            f"at least {dwell_s:.3g} s"
        )
        return Verdict(Action.STAY, Reason.DWELL, text, switch, gain)
    reason = Reason.LOAD if is_strained else Reason.GAIN
    return Verdict(Action.SWITCH, reason, what, switch, gain)


def is_within(last_s: float | None, *, least_s: float, now_s: float) -> bool:
    """Whether less than so many seconds have passed since then."""
    return last_s is not None and now_s - last_s < least_s - _ON_TIME


def same_instances(one: Plan, other: Plan) -> bool:
    """Whether two plans differ in batch sizes alone."""
    return kinds(one) == kinds(other)


def change(plan: Plan, asked: Plan) -> Action:
    """Return what it takes to get from one plan to the other; cores count where the other one has them."""
    if not same_instances(plan, asked):
        return Action.SWITCH
    cores = [instance.cores for instance in asked.instances]
    if any(cores) and cores != [instance.cores for instance in plan.instances]:
        return Action.SWITCH
    before = [(i.batch, i.executions) for i in plan.instances]
    return Action.STAY if before == [(i.batch, i.executions) for i in asked.instances] else Action.REBATCH


def kinds(plan: Plan) -> Kinds:
    """Return what the plan's instances are, whatever they take at once: the same for the same workers."""
    return tuple(sorted((i.model, i.device, i.runtime, i.threads) for i in plan.instances))
