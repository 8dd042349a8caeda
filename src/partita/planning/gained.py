"""What a switch gained: mean latency over an interval before it and over one after it."""

from partita.core.plan import Plan
from partita.planning.decisions import Decision, Gained
from partita.planning.load import Sample


class GainMeter:
    """Measures the gain of one switch that is done. The interval right after it does not count."""

    def __init__(self, decision: Decision, cost_s: float, *, now_s: float, interval_s: float) -> None:
        self._decision = decision
        self._cost_s = cost_s
        self._from_s = now_s + interval_s
        self._until_s = now_s + 2 * interval_s
        self._answered = 0
        self._latency_s = 0.0

    def observe(self, sample: Sample, plan: Plan, depth: float) -> Gained | None:
        """Take the newest sample; return the gain once it is known."""
        if sample.now_s <= self._from_s:
            return None
        self._answered += sample.answered
        self._latency_s += sample.latency_s
        if sample.now_s < self._until_s:
            return None
        seen = self._decision.seen
        after_s = self._latency_s / self._answered if self._answered else None
        return Gained(
            number=self._decision.number,
            now_s=sample.now_s,
            plan=plan,
            expected_gain=self._decision.expected_gain,
            gain=seen.latency_s / after_s - 1.0 if seen.latency_s and after_s else None,
            latency_before_s=seen.latency_s,
            latency_after_s=after_s,
            depth_before=seen.depth,
            depth_after=depth,
            cost_s=self._cost_s,
        )
