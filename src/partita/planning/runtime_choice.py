"""Which candidate executes the model: by the plans that its measured points allow, over all batch sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, inf, isfinite, log

from partita.core.errors import InvalidInput
from partita.core.profile import Profile, ProfilePoint
from partita.planning.halving import Point
from partita.planning.optimizer import Optimizer

TIE = 0.02
"""The reference stays unless another is at least this much faster: what is measured is not that exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The winner, and how the others stand to it."""

    winner: str
    slower: Mapping[str, float] = field(default_factory=dict)
    """Weighted geometric mean of plan latencies ÷ the winner's, by candidate; infinite = has no plan."""
    by_batch: Mapping[int, str] = field(default_factory=dict)
    """The fastest candidate for each aggregate batch."""


def decide(
    latencies: Mapping[str, Mapping[Point, float]],
    *,
    reference: str,
    sockets: Sequence[int],
    max_batch: int,
    weights: Mapping[int, float] | None = None,
) -> Decision:
    """Choose among candidates by what was measured of each, milliseconds by point, alone.

    Only points that all of them have count, so that none looks better for having been measured at more.
    `weights` says how much each aggregate batch B matters: all powers of two up to `max_batch` alike.
    """
    if not latencies:
        return Decision(winner=reference)
    batches = weights or {1 << k: 1.0 for k in range(max_batch.bit_length())}
    shared = set.intersection(*(set(points) for points in latencies.values()))
    plans = {
        key: _plan_ms({p: ms for p, ms in points.items() if p in shared}, tuple(sockets), list(batches))
        for key, points in latencies.items()
    }
    means = {key: _weighted_mean(plan_ms, batches) for key, plan_ms in plans.items()}
    best = min(means, key=lambda key: (means[key], key != reference, key))
    if reference in means and means[reference] <= means[best] * (1.0 + TIE):
        best = reference
    base = means[best]
    return Decision(
        winner=best,
        slower={key: ms / base if isfinite(ms) and isfinite(base) else inf for key, ms in means.items()},
        by_batch={
            batch: min(plans, key=lambda key: (plans[key][batch], key != best, key)) for batch in batches
        },
    )


def _plan_ms(
    points: Mapping[Point, float], sockets: tuple[int, ...], batches: Sequence[int]
) -> dict[int, float]:
    """Return the latency of the best plan for each aggregate batch, infinite where there is none."""
    known = [ProfilePoint(threads=t, batch=b, mean_ms=ms) for (t, b), ms in points.items() if isfinite(ms)]
    if not known:
        return dict.fromkeys(batches, inf)
    optimizer = Optimizer(Profile(known), sockets=sockets)
    found = {}
    for batch in batches:
        try:
            found[batch] = optimizer.plan(sum(sockets), batch).expected_ms or inf
        except InvalidInput:
            found[batch] = inf
    return found


def _weighted_mean(plan_ms: Mapping[int, float], weights: Mapping[int, float]) -> float:
    """Return the weighted geometric mean, infinite if one is."""
    if not all(isfinite(ms) for ms in plan_ms.values()):
        return inf
    total = sum(weights.values())
    return exp(sum(weights[batch] * log(ms) for batch, ms in plan_ms.items()) / total)
