"""What a service counts: latencies are noted first and sorted into buckets later."""

from bisect import bisect_left

import numpy as np

from partita.engine.statistics import FOLD_FROM, LATENCY_BOUNDS_S, Statistics


def test_every_latency_is_in_its_bucket_however_many_came() -> None:
    rng = np.random.default_rng(0)
    latencies = [*rng.lognormal(-6.0, 3.0, 2 * FOLD_FROM + 7).tolist(), *LATENCY_BOUNDS_S]
    statistics = Statistics()
    expected = [0] * (len(LATENCY_BOUNDS_S) + 1)
    for number, latency_s in enumerate(latencies):
        statistics.count_answer(3, latency_s)
        expected[bisect_left(LATENCY_BOUNDS_S, latency_s)] += 1
        if number == 100:  # looking in between changes nothing
            assert sum(statistics.latencies.counts) == 101
    assert statistics.latencies.counts == expected
    assert np.isclose(statistics.latencies.sum_s, sum(latencies))
    assert (statistics.answered, statistics.answered_items) == (len(latencies), 3 * len(latencies))


def test_before_the_first_answer_all_is_zero() -> None:
    statistics = Statistics()
    assert not any(statistics.latencies.counts)
    assert statistics.latencies.sum_s == 0.0
