"""The rate of an ensemble from its workers' executions, on made-up schedules whose rate is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.planning.execution_rate import Execution, items_per_s


def turns(costs_s: list[float], batch: int, seconds: float, begin_s: float = 0.0) -> list[Execution]:
    """Members take turns on one core: each executes one batch, again and again."""
    found, now_s = [], begin_s
    while now_s < begin_s + seconds:
        for member, cost_s in enumerate(costs_s):
            now_s += cost_s * batch
            found.append(Execution(member, batch, cost_s * batch, now_s))
    return found


@given(
    st.lists(st.floats(1e-4, 1e-2), min_size=1, max_size=5),
    st.sampled_from([1, 8, 128]),
    st.floats(0.1, 2.0),
    st.floats(0.0, 1.0),
)
@settings(max_examples=100, deadline=None)
def test_a_core_in_turns_answers_as_many_as_its_members_cost_whatever_part_is_seen(
    costs_s: list[float], batch: int, seconds: float, begin_s: float
) -> None:
    everything = turns(costs_s, batch, 4.0)
    rate = items_per_s(everything, members=len(costs_s), begin_s=begin_s, end_s=begin_s + seconds)
    assert rate == pytest.approx(1 / sum(costs_s), rel=1e-6)


def test_two_devices_of_which_one_waits_answer_as_fast_as_the_busier_one() -> None:
    slow = [Execution(0, 10, 0.1, 0.1 * k) for k in range(1, 101)]
    fast = [Execution(1, 10, 0.02, 0.1 * k) for k in range(1, 101)]
    assert items_per_s([*slow, *fast], members=2, begin_s=2.03, end_s=7.03) == pytest.approx(100, rel=0.01)


def test_a_member_on_two_devices_of_different_speed() -> None:
    quick = [Execution(0, 8, 0.1, 0.1 * k) for k in range(1, 101)]
    slow = [Execution(0, 8, 0.4, 0.4 * k) for k in range(1, 26)]
    assert items_per_s([*quick, *slow], members=1, begin_s=1.0, end_s=9.0) == pytest.approx(100)


def test_it_differs_less_than_counted_answers_do() -> None:
    rng = np.random.default_rng(0)
    costs_s, batch = [0.0003, 0.0003, 0.00004, 0.0003], 128
    everything = turns(costs_s, batch, 60.0)
    last = [one.end_s for one in everything if one.member == 3]  # when segments are answered
    ours, counted = [], []
    for begin_s in rng.uniform(0, 50, 200):
        ours.append(items_per_s(everything, members=4, begin_s=begin_s, end_s=begin_s + 0.5))
        counted.append(batch * sum(begin_s <= at < begin_s + 0.5 for at in last) / 0.5)
    assert np.std(ours) / np.mean(ours) < 0.001
    assert np.std(counted) / np.mean(counted) > 0.01


def test_without_executions_of_every_member_there_is_no_rate() -> None:
    assert items_per_s([], members=1, begin_s=0, end_s=1) == 0.0
    assert items_per_s([Execution(0, 8, 0.1, 0.5)], members=2, begin_s=0, end_s=1) == 0.0
