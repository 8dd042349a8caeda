"""What a point plausibly costs: a guess where it was not measured, a second opinion where it was.

A batch m times larger costs m · ρ times as much. ρ is learnt, for each size, from the other thread counts,
the nearer the more, with a prior that batching gains a little. No latency is taken to be monotone in b or t:
where neighbours disagree, the spread says so.
"""

import numpy as np
from numpy.typing import NDArray

from partita.planning.sampling_frontier import Floats

_PRIOR_RATIO = 0.95
_PRIOR_SPREAD = 0.2
_PRIOR_WEIGHT = 0.3
_LEAST_SPREAD = 0.04
"""Of a guess: ratios of neighbours alone are never trusted further."""
_LEAST_OPINION_SPREAD = 0.02
_REACH = 2.0
"""Thread counts this far apart tell e times less about one another."""


def plausible(measured_ms: Floats, sizes: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Return a guess in ms and the spread of its logarithm, both (threads, sizes).

    Measured points (not NaN) come back as they are, with spread 0. With no point at all, all are inf.
    """
    columns = measured_ms.shape[1]
    guess = measured_ms.copy()
    spread = np.where(np.isnan(measured_ms), np.inf, 0.0)
    near = _nearness(len(measured_ms))
    _first_column(guess, spread, near)
    logarithm = np.log(measured_ms)
    mean: Floats | None = None
    for k in range(1, columns):
        growth = np.log(sizes[k] / sizes[k - 1])
        ratio = logarithm[:, k] - logarithm[:, k - 1] - growth
        mean, deviation = _pooled(ratio, near, mean)
        missing = np.isnan(measured_ms[:, k])
        guess[missing, k] = (guess[:, k - 1] * np.exp(growth + mean))[missing]
        spread[missing, k] = np.hypot(spread[:, k - 1], np.hypot(deviation, _LEAST_SPREAD))[missing]
    return guess, spread


def second_opinion(measured_ms: Floats, error: Floats, sizes: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Return the logarithm of each measured point and its spread, the neighbours' word weighed in.

    `error` is the relative standard error of each mean, (threads, sizes), NaN where not measured, as the
    results then are. Two iterations of a long batch say less than the thread counts around it together.
    """
    logarithm = np.log(measured_ms)
    near = _nearness(len(measured_ms))
    np.fill_diagonal(near, 0.0)  # a point is no witness for itself
    weight = 1.0 / np.maximum(error, 1e-4) ** 2
    total, value = weight.copy(), weight * logarithm
    mean: Floats | None = None
    for k in range(1, measured_ms.shape[1]):
        growth = np.log(sizes[k] / sizes[k - 1])
        ratio = logarithm[:, k] - logarithm[:, k - 1] - growth
        mean, deviation = _pooled(ratio, near, mean)
        known = ~np.isnan(ratio)
        spread = np.hypot(error[:, k - 1], np.hypot(deviation, _LEAST_OPINION_SPREAD))
        opinion = np.where(known, 1.0 / spread**2, 0.0)
        total[:, k] += opinion
        value[:, k] += np.where(known, opinion * (logarithm[:, k - 1] + growth + mean), 0.0)
    return value / total, np.sqrt(1.0 / total)


def _nearness(threads: int) -> Floats:
    distance = np.abs(np.arange(threads)[:, None] - np.arange(threads)[None, :])
    near: Floats = np.exp(-distance / _REACH)
    return near


def _pooled(ratio: Floats, near: Floats, below: Floats | None) -> tuple[Floats, Floats]:
    """Return mean and deviation, (threads,), of the ratios that are known (not NaN) and the prior.

    `below` is the mean of the size below: batching that has stopped to gain seldom gains much again.
    """
    known = ~np.isnan(ratio)
    value = np.where(known, ratio, 0.0)
    weight = near * known[None, :]
    prior = np.full(len(ratio), np.log(_PRIOR_RATIO))
    if below is not None:
        prior = (prior + below) / 2
    total = weight.sum(axis=1) + _PRIOR_WEIGHT
    mean = (weight @ value + _PRIOR_WEIGHT * prior) / total
    square = (weight @ value**2 + _PRIOR_WEIGHT * (prior**2 + _PRIOR_SPREAD**2)) / total
    return mean, np.sqrt(np.maximum(square - mean**2, 0.0))


def _first_column(guess: Floats, spread: Floats, near: Floats) -> None:
    """Fill the smallest size by interpolating the work t · L over the thread counts measured."""
    known: NDArray[np.bool_] = ~np.isnan(guess[:, 0])
    if not known.any():
        guess[:, 0] = np.inf
        return
    threads = np.arange(1, len(guess) + 1)
    work = np.log(guess[known, 0] * threads[known])
    weight = near[:, known] + 1e-12
    filled = np.exp((weight @ work) / weight.sum(axis=1)) / threads
    guess[~known, 0] = filled[~known]
    spread[~known, 0] = 2 * _PRIOR_SPREAD
