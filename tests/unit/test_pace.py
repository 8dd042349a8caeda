"""The pace of executions beside the profile's: what it tells of today's instances, and of others."""

from dataclasses import replace
from functools import cache

import pytest

from partita.core.plan import Plan
from partita.core.profile import Profile, ProfilePoint
from partita.planning.choices import ProfiledChoices
from partita.planning.controller import Controller
from partita.planning.decisions import Action, Decision, Reason
from partita.planning.estimator import EstimatorRules
from partita.planning.load import Sample
from partita.planning.optimizer import Optimizer
from partita.planning.pace import MIN_EXECUTIONS, REMEMBERED_S, UNSETTLED, Pace
from tests.adaptation import Drive

CORES = 4


@cache
def choices() -> ProfiledChoices:
    """A model that scales as it should: by the profile wide and thin instances are equal for 8 items."""
    profile = Profile(
        ProfilePoint(threads=t, batch=b, mean_ms=0.1 * t + 40.0 * b / t)
        for t in (1, 2, 4)
        for b in (1, 2, 4, 8, 16, 32)
    )
    return ProfiledChoices(Optimizer(profile), cores=CORES, max_batch=32)


def wide() -> Plan:
    plan = choices().best(1)
    assert [i.threads for i in plan.instances] == [4]
    return plan


def thin() -> Plan:
    found = choices().thinner(wide(), 8)
    assert found is not None
    assert [i.threads for i in found.instances] == [2, 2]
    return found


def ran(now_s: float, pace: float, executions: int = 10) -> Sample:
    return Sample(now_s=now_s, depth=8.0, arrived=8, executed=executions, executed_s=pace, profiled_s=1.0)


def fed(pace: Pace, plan: Plan, value: float, *, now_s: float = 0.0) -> Pace:
    for _ in range(3 + UNSETTLED):
        pace.observe(plan, ran(now_s, value))
    return pace


def test_it_is_the_measured_time_by_the_profiled_one() -> None:
    assert Pace(3).now is None
    pace = Pace(3)
    pace.observe(wide(), ran(1.0, 1.5, executions=MIN_EXECUTIONS - 1))
    assert pace.now is None, "too little to say"
    assert fed(pace, wide(), 1.1).now == pytest.approx(1.1), "the newest samples alone"


def test_of_what_the_profile_does_not_know_nothing_is_said() -> None:
    pace = Pace(3)
    for _ in range(3):
        pace.observe(wide(), Sample(now_s=1.0, depth=1.0, arrived=1, executed=9, profiled_s=float("inf")))
    assert pace.now is None


def test_two_plans_are_compared_across_a_switch_and_drift_after_it_changes_nothing() -> None:
    pace = fed(Pace(3), wide(), 1.2)
    assert not pace.is_known(thin(), wide())
    pace.switched(wide(), 8)
    fed(pace, thin(), 0.9, now_s=10.0)
    assert pace.of(wide(), thin()) / pace.of(thin(), thin()) == pytest.approx(1.2 / 0.9)
    fed(pace, thin(), 2.7, now_s=100.0)
    assert pace.of(wide(), thin()) / pace.of(thin(), thin()) == pytest.approx(1.2 / 0.9)
    pace.observe(thin(), ran(11.0 + REMEMBERED_S, 0.9))
    assert not pace.is_known(wide(), thin()), "forgotten"


def test_what_the_instances_before_a_switch_still_finish_does_not_count_for_the_new_ones() -> None:
    pace = fed(Pace(3), wide(), 1.2)
    pace.switched(wide(), 8)
    pace.observe(thin(), ran(1.0, 9.0))
    assert pace.now is None
    assert fed(pace, thin(), 1.0).now == pytest.approx(1.0)


def test_a_switch_under_no_load_compares_nothing() -> None:
    pace = Pace(3)
    pace.switched(wide(), 8)
    fed(pace, thin(), 1.3)
    assert not pace.is_known(wide(), thin())


def controller(*, warm: bool = True) -> Controller:
    return Controller(
        choices(),
        wide(),
        now_s=0.0,
        estimator=EstimatorRules(max_batch=32),
        is_warm=lambda _: warm,
    )


def threads(plan: Plan | None) -> list[int]:
    return [] if plan is None else [i.threads for i in plan.instances]


def test_wide_instances_that_lag_are_left_for_thinner_ones_that_sleep() -> None:
    drive = Drive(controller(), pace=lambda plan: 1.12 if threads(plan) == [4] else 1.0).intervals(40, 8.0)
    (switch,) = drive.switches
    assert switch.reason is Reason.PACE
    assert "12% longer than in the profile" in switch.text
    assert threads(switch.target) == [2, 2]
    assert switch.document()["seen"]["pace"] == 1.12


def test_a_machine_that_is_slow_for_all_of_them_is_found_out_once() -> None:
    drive = Drive(controller(), pace=lambda _: 1.3).intervals(100, 8.0)
    assert [threads(d.target) for d in drive.switches] == [[2, 2]], "no better, but no worse: it stays"


def test_thinner_ones_that_lag_more_are_left_again_and_not_tried_twice() -> None:
    drive = Drive(controller(), pace=lambda plan: 1.1 if threads(plan) == [4] else 1.4).intervals(100, 8.0)
    assert [threads(d.target) for d in drive.switches] == [[2, 2], [4]]
    there, back = drive.switches
    assert back.now_s - there.now_s >= drive.controller.switch_rules.dwell_intervals * 5.0


def test_what_is_not_loaded_is_not_tried() -> None:
    drive = Drive(controller(warm=False), pace=lambda _: 1.4).intervals(20, 8.0)
    assert not drive.switches


def test_executions_as_the_profile_says_change_nothing() -> None:
    drive = Drive(controller(), pace=lambda _: 1.0).intervals(20, 8.0)
    assert not drive.switches
    decisions = [e for e in drive.controller.log if isinstance(e, Decision)]
    assert Action.SWITCH not in {d.action for d in decisions}


def test_clients_that_wait_for_answers_are_no_reason_to_leave_a_plan_that_does_as_much() -> None:
    """Their rate is what the plan does, which looks like too much for it."""
    profile = Profile(
        ProfilePoint(threads=t, batch=b, mean_ms=40.0 * b / t * (1.0 - 0.005 * t))
        for t in (1, 2, 4)
        for b in (1, 2, 4, 8, 16, 32)
    )
    known = ProfiledChoices(Optimizer(profile), cores=CORES, max_batch=32)
    start = known.thinner(known.best(1), 32)
    assert start is not None
    rules = EstimatorRules(max_batch=32)
    one = Controller(known, start, now_s=0.0, estimator=rules, is_warm=lambda _: True)
    arrived = 0.855 * known.items_per_s(start) * one.sample_s
    assert known.items_per_s(known.best(1)) > arrived / one.sample_s / one.switch_rules.planned_load
    drive = Drive(one, pace=lambda _: 1.0).intervals(30, 32.0, arrived=round(arrived))
    assert not drive.switches


def test_batches_do_not_grow_where_larger_ones_do_no_more() -> None:
    one = controller()
    arrived = round(1.1 * choices().items_per_s(thin()) * one.sample_s)
    drive = Drive(one, pace=lambda _: 1.0).intervals(6, 8.0, arrived=arrived)
    assert {decision.batch for decision in drive.decisions[2:]} == {8}


def test_an_item_that_is_alone_gets_the_wide_instances_whatever_they_lose_under_load() -> None:
    drive = Drive(controller(), pace=lambda plan: 1.6 if threads(plan) == [4] else 1.0)
    drive.intervals(15, 8.0).intervals(15, 1.0).intervals(15, 8.0)
    assert [threads(d.target) for d in drive.switches] == [[2, 2], [4], [2, 2]]


def test_what_is_seen_between_single_items_compares_nothing() -> None:
    pace = fed(Pace(3), wide(), 1.2)
    pace.switched(wide(), 1)
    fed(pace, thin(), 0.9)
    assert not pace.is_known(wide(), thin())


def test_a_plan_that_was_not_compared_is_placed_beside_those_that_were() -> None:
    (four,) = [choices().thinner(thin(), 8)]
    assert four is not None
    pace = fed(Pace(3), wide(), 1.0)
    pace.switched(wide(), 8)
    fed(pace, thin(), 0.8)
    pace.switched(thin(), 1)
    fed(pace, four, 1.6)
    pace.switched(four, 8)
    fed(pace, thin(), 0.8)
    assert pace.of(wide(), thin()) / pace.of(thin(), thin()) == pytest.approx(1.25)
    assert pace.of(four, thin()) / pace.of(thin(), thin()) == pytest.approx(2.0)


def test_one_client_that_waits_strains_nothing_and_gets_the_plan_for_one_item() -> None:
    """Thin instances do more items a second, and what a lone client sends is all that wide ones can do."""
    profile = Profile(
        ProfilePoint(threads=t, batch=b, mean_ms=b * (2.0 + 8.0 / t)) for t in (1, 2, 4) for b in (1, 2, 4, 8)
    )
    known = ProfiledChoices(Optimizer(profile), cores=CORES, max_batch=8)
    start = known.best(8)
    assert threads(start) == [1, 1, 1, 1]
    rules = EstimatorRules(max_batch=8)
    one = Controller(known, start, now_s=0.0, estimator=rules, is_warm=lambda _: True)
    rate = known.items_per_s(known.best(1))
    drive = Drive(one, pace=lambda _: 1.0).intervals(30, 1.0, arrived=round(rate * one.sample_s))
    assert [threads(d.target) for d in drive.switches] == [[4]]


def test_a_plan_of_more_threads_than_are_planned_for_gets_other_batches_all_the_same() -> None:
    known = ProfiledChoices(choices()._optimizer, cores=CORES - 1, max_batch=32)
    found = known.rebatched(thin(), 8)
    assert found is not None
    assert threads(found) == [2, 2]


def test_other_batches_leave_an_instance_where_it_may_run() -> None:
    roaming = replace(thin(), instances=tuple(i.placed(range(2), range(4)) for i in thin().instances))
    found = choices().rebatched(roaming, 16)
    assert found is not None
    assert {i.affinity for i in found.instances} == {(0, 1, 2, 3)}
