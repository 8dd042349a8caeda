"""What has gathered: cut out of the depth where the load is not carried, and only there."""

from collections.abc import Iterable

import pytest

from partita.planning.backlog import Backlog
from partita.planning.load import Sample
from partita.planning.switching import SwitchRules
from tests.adaptation import choices, plan_for

SAMPLE_S = 0.5
AFTER_S = 5.0
PLAN = plan_for(8)
CAPACITY = choices().items_per_s(PLAN)


def cuts(samples: Iterable[tuple[float, float, int]], *, items: float = 1.0) -> tuple[list[float], Backlog]:
    """Show a backlog (depth, items/s, standing) for each sample; returns what it left of the depths."""
    one = Backlog(SwitchRules(), now_s=0.0, after_s=AFTER_S)
    left, now_s = [], 0.0
    for depth, rate, standing in samples:
        now_s += SAMPLE_S
        sample = Sample(
            now_s=now_s,
            depth=depth,
            arrived=round(rate * SAMPLE_S),
            request_items=items,
            standing=standing,
        )
        left.append(one.cut(sample, choices(), PLAN))
        assert 0.0 <= one.items <= depth
        assert 0.0 <= left[-1] <= depth
    return left, one


def test_a_depth_that_the_plan_carries_is_left_as_it_is() -> None:
    left, one = cuts([(64.0, 0.5 * CAPACITY, 30)] * 20)
    assert left == [64.0] * 20
    assert one.items == 0.0


def test_what_gathers_is_cut_however_long_it_goes_on() -> None:
    rate = 1.2 * CAPACITY
    depths = [100.0 * k for k in range(1, 20)]
    left, one = cuts((d, rate, round(d)) for d in depths)
    best = choices().best(64)
    assert choices().items_per_s(best) * SwitchRules().planned_load > rate, "64 at once carry it"
    assert max(left) <= 64.0
    assert one.items > 50.0


def test_it_is_cut_for_an_interval_longer_and_then_believed() -> None:
    """A depth that stays although all was worked off on paper is one that the load brings about."""
    over, under = 1.5 * CAPACITY, 0.1 * CAPACITY
    left, _ = cuts([(200.0, over, 100)] * 2 + [(200.0, under, 100)] * 30)
    assert max(left[:4]) < 200.0
    assert left[-1] == 200.0
    assert left.count(200.0) == pytest.approx(30 - AFTER_S / SAMPLE_S, abs=4)


def test_items_that_come_together_are_no_backlog() -> None:
    """At half of the capacity some samples have more of such requests than the plan can do in their time."""
    left, one = cuts([(64.0, 1.5 * CAPACITY, 0), (64.0, 0.0, 0), (64.0, 0.0, 0)] * 10)
    assert set(left) == {64.0}
    assert one.items == 0.0
    left, _ = cuts([(500.0, 1.5 * CAPACITY, 400)] * 5, items=64.0)
    assert min(left) >= 64.0, "what comes in one request is there at once, whoever carries it"
