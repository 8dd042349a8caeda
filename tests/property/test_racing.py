"""A race of candidates on a machine that is noisy and drifts: who wins, who drops out, how long it takes."""

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.planning.racing import RaceRules, race


def machine(true: dict[str, float], seed: int, *, noise: float, drift: float = 0.0) -> Callable[[str], float]:
    """Return a bench: the machine gets slower with every measurement, and each is off by some noise."""
    rng = np.random.default_rng(seed)
    speed = 1.0

    def bench(name: str) -> float:
        nonlocal speed
        speed *= 1 - drift
        return float(true[name] * speed * rng.lognormal(0, noise))

    return bench


@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=9, unique=True),
    st.integers(1, 4),
    st.integers(0, 6),
)
@settings(max_examples=100, deadline=None)
def test_without_noise_the_fastest_wins_after_the_fewest_rounds(
    rates: list[int], least: int, more: int
) -> None:
    true = {str(rate): float(rate) for rate in rates}
    found = race(list(true), true.__getitem__, RaceRules(least_rounds=least, most_rounds=least + more))
    assert found.winner == str(max(rates))
    assert {len(seen) for seen in found.rates.values()} == {least}


def test_the_luckiest_of_one_measurement_is_seldom_the_fastest_and_the_winner_of_a_race_nearly_is() -> None:
    true = {str(k): 100.0 + 3 * k for k in range(8)}
    raced, luckiest = [], []
    for seed in range(300):
        found = race(list(true), machine(true, seed, noise=0.1, drift=0.002))
        raced.append(true[found.winner])
        luckiest.append(true[max(true, key=lambda name: found.rates[name][0])])
    assert np.mean(raced) > np.mean(luckiest) + 3
    assert np.mean(raced) >= 0.97 * max(true.values())


def test_a_drift_that_is_larger_than_what_they_differ_by_favours_nobody() -> None:
    true = {"first": 100.0, "second": 101.0, "third": 100.0}
    found = race(list(true), machine(true, 0, noise=0.0, drift=0.02), RaceRules(least_rounds=4))
    assert found.winner == "second"


def test_who_is_kept_is_measured_in_every_round_and_who_is_beaten_in_all_is_not() -> None:
    true = {"start": 10.0, "slow": 20.0, "near": 99.0, "best": 100.0}
    found = race(list(true), machine(true, 1, noise=0.05), RaceRules(most_rounds=12), kept=["start"])
    assert len(found.rates["slow"]) == 3
    assert len(found.rates["start"]) == len(found.rates[found.winner]) >= 3


def test_one_that_is_kept_can_win() -> None:
    true = {"start": 100.0, "other": 50.0}
    assert race(list(true), true.__getitem__, kept=["start"]).winner == "start"


def test_it_is_bounded_by_rounds_and_by_time_after_the_fewest() -> None:
    true = dict.fromkeys("abcd", 1.0)
    count = 0

    def bench(_: str) -> float:
        nonlocal count
        count += 1
        return 1.0

    found = race(list(true), bench, RaceRules(least_rounds=3, most_rounds=5))
    assert max(map(len, found.rates.values())) == 5
    assert found.winner == "a", "the first of equal ones"
    assert count < 4 * 5, "half of them are out sooner"
    found = race(list(true), bench, RaceRules(least_rounds=3), is_over=lambda: True)
    assert {len(seen) for seen in found.rates.values()} == {3}
