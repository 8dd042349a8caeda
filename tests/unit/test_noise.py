"""What all points together tell of the noise, and how far each is believed by itself."""

import numpy as np
import pytest

from partita.core.profile import Profile, ProfilePoint
from partita.planning.noise import PRIOR, Floats, learnt
from partita.planning.table import LatencyTable


def drawn(spreads: Floats, iterations: Floats, seed: int = 0) -> Floats:
    """Return sample variances of normal noise with these standard deviations, (points,)."""
    rng = np.random.default_rng(seed)
    runs = [rng.normal(1, spread, int(n)) for spread, n in zip(spreads, iterations, strict=True)]
    return np.array([np.var(run, ddof=1) for run in runs])


@pytest.mark.parametrize("spread", [0.005, 0.05, 0.2])
def test_a_common_spread_is_found_and_trusted(spread: float) -> None:
    iterations = np.tile([2.0, 3.0, 10.0], 50)
    noise = learnt(iterations, drawn(np.full(150, spread), iterations))
    assert noise.spread == pytest.approx(spread, rel=0.15)
    assert noise.weight > 15


def test_points_that_differ_are_believed_by_themselves() -> None:
    iterations = np.full(100, 12.0)
    spreads = np.tile([0.01, 0.1], 50)
    variance = drawn(spreads, iterations)
    noise = learnt(iterations, variance)
    assert noise.weight < 8
    error = noise.error(iterations, variance)
    assert np.median(error[spreads == 0.1]) > 2 * np.median(error[spreads == 0.01])


def test_a_wild_point_does_not_spoil_the_others() -> None:
    iterations = np.full(60, 4.0)
    variance = drawn(np.full(60, 0.02), iterations)
    variance[7] = 25.0  # one iteration took many times as long
    noise = learnt(iterations, variance)
    assert noise.spread < 0.04
    error = noise.error(iterations, variance)
    assert error[7] > 5 * np.delete(error, 7).max()


def test_nothing_is_learnt_from_single_iterations() -> None:
    assert learnt(np.ones(5), np.zeros(5)) == PRIOR
    assert learnt(np.array([]), np.array([])) == PRIOR


def test_more_iterations_make_a_mean_surer() -> None:
    iterations = np.array([1.0, 2.0, 10.0, 100.0])
    error = PRIOR.error(iterations, np.full(4, 0.0025))
    assert (np.diff(error) < 0).all()
    assert error[3] == pytest.approx(0.005)


def test_a_table_is_cautious_by_what_all_its_points_show() -> None:
    """Two iterations that happened to agree are taken to spread as the others do."""
    steady = [
        ProfilePoint(threads=t, batch=1, mean_ms=10.0, stddev_ms=1.0, iterations=20) for t in range(1, 9)
    ]
    lucky = ProfilePoint(threads=9, batch=1, mean_ms=10.0, stddev_ms=0.0, iterations=2)
    told = ProfilePoint(threads=10, batch=1, mean_ms=10.0)
    table = LatencyTable.of(Profile([*steady, lucky, told]))
    assert table.latency_ms[0, 0] == pytest.approx(10.0 + 1.0 / np.sqrt(20), rel=0.02)
    assert table.latency_ms[8, 0] > 10.5
    assert table.latency_ms[9, 0] == 10.0
