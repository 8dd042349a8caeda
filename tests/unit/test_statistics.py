"""What a service counts: latencies are noted first and sorted into buckets later."""

from bisect import bisect_left

import numpy as np
import pytest

from partita.engine.statistics import _SUMMED, FOLD_FROM, LATENCY_BOUNDS_S, MOST_MEASURED, Statistics
from partita.wire.messages import Measured


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


def counted(*latencies: float, code: str = "queue_full") -> Statistics:
    made = Statistics()
    for latency in latencies:
        made.accepted += 1
        made.count_answer(2, latency)
        made.count_batch(2, 10, 30, 5)
    made.accepted += 1
    made.count_failure("worker_died", 0.5)
    made.count_refusal(code)
    return made


def test_counters_of_two_services_add_up_and_the_other_stays_as_it_was() -> None:
    total, other = counted(0.001, 0.3), counted(0.02, code="shutting_down")
    total.add(other)
    assert (total.accepted, total.answered, total.answered_items) == (5, 3, 6)
    assert total.in_flight() == 0
    assert total.failed == {"worker_died": 2}
    assert total.refused == {"queue_full": 1, "shutting_down": 1}
    assert (total.executions, total.by_batch[2].infer_ns, total.by_batch[2].overhead_ns) == (3, 30, 60)
    assert (total.double_deaths, total.queue_ns) == (2, 15)
    assert sum(total.latencies.counts) == 3
    assert total.latencies.sum_s == pytest.approx(0.321)
    assert (other.accepted, other.executions, sum(other.latencies.counts)) == (2, 1, 1)
    assert set(Statistics.__slots__) == {
        *_SUMMED,
        "failed",
        "refused",
        "by_batch",
        "last_answer_s",
        "latencies",
        "measured",
    }


def test_metrics_of_handlers_are_summed_or_replaced() -> None:
    total, other = Statistics(), Statistics()
    for counts, seen in ((total, 2.0), (total, 3.0), (other, 10.0)):
        counts.take_measured(
            [Measured("seen", (), seen, True), Measured("share", (("a", "b"),), seen, False)]
        )
    total.add(other)
    assert {(one.name, one.value) for one in total.measured.values()} == {("seen", 15.0), ("share", 10.0)}
    total.take_measured(Measured(f"made up {k}", (), 1.0, True) for k in range(MOST_MEASURED))
    assert len(total.measured) == MOST_MEASURED
