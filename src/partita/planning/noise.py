"""How much single iterations differ: one spread learnt from all points, each point's own weighed against it.

Two or three iterations say next to nothing of their own spread, and a mean that luck made look certain is the
one that a search for the least picks. Where all points spread alike, as on a quiet machine, each is taken to
spread as they do together; where they differ, each is believed by itself once it has a few iterations. It is
the usual empirical Bayes estimate of many variances: a scaled inverse χ² whose centre and weight are learnt.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_WILD = 10.0
"""A point whose variance is so many times that of the others tells nothing of theirs."""
_MOST_WEIGHT = 50.0
_PROOF = 4.0
"""Degrees of freedom seen, for each iteration's worth of trust in their spread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What is known of a point's spread before it was run: as much as from `weight` iterations."""

    spread: float = 0.05
    """Standard deviation of single iterations ÷ mean."""
    weight: float = 2.0

    def error(self, iterations: Floats, variance: Floats) -> Floats:
        """Return standard errors of means ÷ mean; `variance` is (standard deviation ÷ mean)².

        All are float64 of one shape; NaN where there are no iterations.
        """
        freedom = iterations - 1.0
        single = (self.weight * self.spread**2 + freedom * variance) / (self.weight + freedom)
        error: Floats = np.sqrt(single / iterations)
        return error


PRIOR = Noise()
"""Before anything was measured."""


def learnt(iterations: Floats, variance: Floats) -> Noise:
    """Return the noise that points with these iterations and variances, as in `Noise.error`, have in common.

    Both are (points,) float64; points of fewer than two iterations say nothing.
    """
    told = iterations > 1.0
    if not told.any():
        return PRIOR
    freedom, variance = iterations[told] - 1.0, variance[told]
    variance = np.minimum(variance, _WILD * _middle(freedom, variance))
    total = float(freedom.sum())
    centre = (PRIOR.weight * PRIOR.spread**2 + float(freedom @ variance)) / (PRIOR.weight + total)
    ratio = variance / centre
    differ = float(freedom @ (ratio - 1.0) ** 2 - 2.0 * len(freedom)) / total  # beyond what chance explains
    alike = _MOST_WEIGHT if differ <= 0.0 else min(_MOST_WEIGHT, 4.0 + 2.0 / differ)
    return Noise(spread=centre**0.5, weight=min(alike, PRIOR.weight + total / _PROOF))


def _middle(freedom: Floats, variance: Floats) -> float:
    """Return the median variance over all iterations, the prior's among them."""
    values = np.append(variance, PRIOR.spread**2)
    weights = np.append(freedom, PRIOR.weight)
    order = values.argsort()
    reached = weights[order].cumsum()
    return float(values[order][np.searchsorted(reached, reached[-1] / 2.0)])
