"""Decisions of the controller as values: what was seen, considered and done, and what came of it.

They are made to be logged and shown: each has a `document()` of JSON values.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from partita.core.plan import Plan
from partita.planning.estimator import Trigger


class Action(StrEnum):
    """What is done."""

    STAY = "stay"
    REBATCH = "rebatch"
    """The same instances, other batch sizes: only the dispatcher changes."""
    SWITCH = "switch"
    """Other instances: a handover."""


class Reason(StrEnum):
    """Why, as a word to count and search by; the decision's text says it in full."""

    NO_LOAD = "no_load"
    FITS = "fits"
    """The plan is the one that is wanted, or was made for this batch."""
    SMALL_GAIN = "small_gain"
    NO_PAYBACK = "no_payback"
    DWELL = "dwell"
    BACKING_OFF = "backing_off"
    """A switch failed a short while ago."""
    SWITCHING = "switching"
    """A switch is under way; what is wanted then is looked at when it has ended."""
    NO_PLAN = "no_plan"
    GAIN = "gain"
    LOAD = "load"
    """Today's instances cannot carry the load, or only with batches larger than it takes."""
    TIMEOUTS = "timeouts"
    """Batches fill only when their timeout passes."""
    PACE = "pace"
    """Executions take longer than in the profile, and thinner instances wait less for each other."""
    TRIAL = "trial"
    """To see whether the depth comes from the size of the batches themselves."""
    ASKED = "asked"
    """Somebody asked for it: other cores, another profile, an operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the load looked like when a decision was made."""

    batch: int
    """B̃."""
    depth: float
    """Q̃, items queued and in flight."""
    rate: float
    """Items per second that came."""
    trigger: Trigger | None = None
    timeout_share: float = 0.0
    """Share of the batches that the batch timeout formed."""
    together: float = 0.0
    """Items that the instances got at once, one batch each."""
    queue_delay_s: float | None = None
    latency_s: float | None = None
    """Means over the interval; None where nothing was dispatched or answered."""
    settled: bool = True
    pace: float | None = None
    """Measured ÷ profiled time of what was executed; None where that was too little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A plan that was considered, with what the profile and its pace say of it for the batch in question."""

    action: Action
    plan: Plan
    latency_ms: float
    """For `Decision.batch` items at once, at the pace of today."""
    items_per_s: float
    """Capacity, each instance at its own pace with full batches."""
    warm: bool = False
    """Whether all its instances are loaded already, if asleep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was seen, what was considered, what is done, what it should gain, and why."""

    number: int
    now_s: float
    seen: Seen
    action: Action
    reason: Reason
    text: str
    batch: int
    """The batch size that the options were compared for: B̃, more where the rate asks for it."""
    plan: Plan
    """The plan of today."""
    target: Plan | None = None
    """The new plan; None = stay."""
    considered: tuple[Option, ...] = ()
    expected_gain: float = 0.0
    """(Latency without the change ÷ latency with it) − 1."""
    cost_s: float = 0.0
    """What the change is thought to cost, seconds of service."""
    repeated: int = field(default=1, compare=False)
    """How many comparisons in a row came to this."""

    def document(self) -> dict[str, Any]:
        """Return the decision as JSON values."""
        seen = self.seen
        return {
            "number": self.number,
            "time_s": round(self.now_s, 6),
            "action": str(self.action),
            "reason": str(self.reason),
            "text": self.text,
            "repeated": self.repeated,
            "plan": str(self.plan),
            "target": None if self.target is None else str(self.target),
            "batch": self.batch,
            "expected_gain": round(self.expected_gain, 4),
            "cost_s": round(self.cost_s, 4),
            "seen": {
                "batch": seen.batch,
                "depth": round(seen.depth, 3),
                "items_per_s": round(seen.rate, 3),
                "trigger": None if seen.trigger is None else str(seen.trigger),
                "timeout_share": round(seen.timeout_share, 4),
                "together": round(seen.together, 2),
                "queue_delay_ms": _ms(seen.queue_delay_s),
                "latency_ms": _ms(seen.latency_s),
                "settled": seen.settled,
                "pace": None if seen.pace is None else round(seen.pace, 3),
            },
            "considered": [
                {
                    "action": str(option.action),
                    "plan": str(option.plan),
                    "latency_ms": round(option.latency_ms, 3),
                    "items_per_s": round(option.items_per_s, 2),
                    "warm": option.warm,
                }
                for option in self.considered
            ],
        }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000.0, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gained:
    """What a switch gained, measured over an interval before it and one after it."""

    number: int
    """The decision's."""
    now_s: float
    plan: Plan
    expected_gain: float
    gain: float | None
    """(Mean latency before ÷ mean latency after) − 1; None where nothing was answered in one of the two."""
    latency_before_s: float | None
    latency_after_s: float | None
    depth_before: float
    depth_after: float
    """Q̃: latencies compare where the depths do."""
    cost_s: float
    """Seconds of service that the switch cost."""

    def document(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        return {
            "number": self.number,
            "time_s": round(self.now_s, 6),
            "action": "gained",
            "plan": str(self.plan),
            "expected_gain": round(self.expected_gain, 4),
            "gain": None if self.gain is None else round(self.gain, 4),
            "latency_before_ms": _ms(self.latency_before_s),
            "latency_after_ms": _ms(self.latency_after_s),
            "depth_before": round(self.depth_before, 3),
            "depth_after": round(self.depth_after, 3),
            "cost_s": round(self.cost_s, 4),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A switch that failed: nothing changed but the counter."""

    number: int
    """The decision's."""
    now_s: float
    plan: Plan
    """Which goes on."""
    target: Plan
    text: str
    failures: int
    """In a row."""
    again_s: float
    """When a switch is tried again at the earliest."""

    def document(self) -> dict[str, Any]:
        """Return the failure as JSON values."""
        return {
            "number": self.number,
            "time_s": round(self.now_s, 6),
            "action": "failed",
            "plan": str(self.plan),
            "target": str(self.target),
            "text": self.text,
            "failures": self.failures,
            "again_s": round(self.again_s, 6),
        }


Entry = Decision | Gained | Failed
