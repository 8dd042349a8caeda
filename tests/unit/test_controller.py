"""The controller: from depths to decisions, and what it makes of what became of them."""

import json
from itertools import pairwise

from partita.planning.choices import ProfiledChoices
from partita.planning.decisions import Action, Decision, Failed, Gained, Reason
from partita.planning.estimator import Trigger
from partita.planning.load import Sample
from partita.planning.optimizer import Optimizer
from partita.planning.switching import SwitchRules, same_instances
from tests.adaptation import CORES, Drive, choices, controller, plan_for, profile


def test_a_step_up_and_one_down_are_a_switch_each() -> None:
    drive = Drive(controller())
    drive.intervals(12, 1.0).intervals(12, 64.0).intervals(12, 1.0)
    assert [str(d.target) for d in drive.switches] == [str(plan_for(64)), str(plan_for(1))]
    up, down = drive.switches
    assert 60.0 < up.now_s <= 70.0, "within two intervals of 5 s"
    assert 120.0 < down.now_s <= 130.0
    assert (up.reason, up.seen.batch) == (Reason.GAIN, 64)
    before = drive.decisions[drive.decisions.index(up) - 1]
    assert (before.action, before.seen.trigger) == (Action.REBATCH, Trigger.DEPTH), "helps while it loads"
    assert up.expected_gain > 0.3
    assert [o.action for o in up.considered] == [Action.STAY, Action.REBATCH, Action.SWITCH]
    assert str(drive.controller.plan) == str(plan_for(1))


def test_a_load_that_alternates_around_a_power_of_two_switches_once_in_ten_intervals() -> None:
    drive = Drive(controller())
    for _ in range(30):
        drive.intervals(2, 1.0).intervals(2, 64.0)
    times = [d.now_s for d in drive.switches]
    assert len(times) > 5
    assert all(later - earlier >= 50.0 - 1e-6 for earlier, later in pairwise(times))


def test_depths_that_jump_at_every_sample_change_nothing() -> None:
    drive = Drive(controller())
    drive.show([1.0, 64.0] * 200)
    assert len(drive.switches) <= 400 // 100


def test_no_load_is_no_reason() -> None:
    drive = Drive(controller(plan_for(64))).intervals(3, 0.0, arrived=0)
    assert {d.reason for d in drive.decisions} == {Reason.NO_LOAD}
    assert len(drive.controller.log) == 1, "the same stays are one entry"
    entry = drive.controller.log[0]
    assert isinstance(entry, Decision)
    assert entry.repeated == 3


def test_silence_between_bursts_does_not_undo_the_plan_that_they_need() -> None:
    drive = Drive(controller())
    drive.intervals(12, 64.0)
    (up,) = drive.switches
    for _ in range(10):
        drive.show([0.0] * drive.controller.estimator_rules.samples, arrived=0).intervals(2, 64.0)
    assert drive.switches == [up]
    assert drive.controller.estimator.batch == 64
    drive.show([0.0] * 400, arrived=0)
    assert drive.decisions[-1].reason is Reason.NO_LOAD
    assert drive.switches == [up], "nor does a long one"


def test_a_plan_that_fits_stays() -> None:
    drive = Drive(controller(plan_for(64))).intervals(5, 70.0)
    assert not drive.switches
    assert [d.reason for d in drive.decisions] == [Reason.FITS, Reason.TRIAL, Reason.GAIN, *[Reason.FITS] * 2]
    assert str(drive.controller.plan) == str(plan_for(64))


def test_where_the_depth_only_gathered_the_batch_is_what_carries_the_load() -> None:
    drive = Drive(controller())
    arrived = int(0.8 * choices().items_per_s(plan_for(64)) * drive.controller.sample_s)
    drive.show([50.0 * k for k in range(1, 21)], arrived=arrived)
    (switch,) = drive.switches
    assert (switch.reason, switch.batch) == (Reason.LOAD, 64)
    assert switch.seen.batch > 64
    assert switch.now_s <= 10.0
    assert drive.decisions[0].action is Action.REBATCH, "at once, since it costs nothing"
    assert drive.decisions[0].now_s < 5.0


def test_a_plan_of_less_capacity_than_there_is_load_is_not_gone_to() -> None:
    plan = plan_for(64)
    drive = Drive(controller(plan))
    arrived = int(0.9 * choices().items_per_s(plan) * drive.controller.sample_s)
    drive.intervals(12, 4.0, arrived=arrived)
    assert not drive.switches
    assert all(same_instances(d.target or plan, plan) for d in drive.decisions)


def test_timeouts_that_form_most_batches_make_b_smaller() -> None:
    known = choices()
    one = controller(known.best(64))
    now_s, decisions = 0.0, []
    for _ in range(40):
        now_s += one.sample_s
        one.observe(Sample(now_s=now_s, depth=64.0, arrived=1, batches=8, batch_items=8, timeouts=8))
        if (decision := one.decide(now_s)) is not None:
            decisions.append(decision)
            if decision.action is Action.SWITCH:
                one.switched(now_s)
    assert decisions[0].seen.trigger is Trigger.TIMEOUTS
    assert decisions[0].batch == 8
    assert decisions[0].action is not Action.STAY


def test_a_failed_switch_changes_nothing_and_is_tried_again_later() -> None:
    rules = SwitchRules(switch_s=2.0, dwell_intervals=2, first_backoff_s=30.0)
    drive = Drive(controller(rules=rules), takes_s=1.0, fails=True).intervals(30, 64.0)
    assert str(drive.controller.plan.groups()[0][0].threads) == "8"
    failures = [e for e in drive.controller.log if isinstance(e, Failed)]
    assert [f.failures for f in failures] == [1, 2, 3]
    assert failures[0].text == "no memory"
    first, second, third = drive.switches
    assert second.now_s - first.now_s >= 30.0
    assert third.now_s - second.now_s >= 60.0
    drive.fails = False
    drive.intervals(30, 64.0)
    assert same_instances(drive.controller.plan, plan_for(64))
    assert drive.controller.history.failures == 0


def test_a_change_during_a_switch_is_looked_at_when_it_has_ended() -> None:
    rules = SwitchRules(switch_s=2.0, dwell_intervals=1)
    drive = Drive(controller(rules=rules), takes_s=42.0)
    drive.intervals(2, 64.0)
    assert len(drive.switches) == 1
    drive.intervals(7, 1.0)
    assert len(drive.switches) == 1
    assert drive.decisions[-1].reason is Reason.SWITCHING
    drive.intervals(1, 1.0)
    assert str(drive.switches[1].target) == str(plan_for(1))
    assert drive.switches[1].now_s <= drive.switches[0].now_s + 42.0 + 2 * drive.controller.sample_s


def test_what_is_asked_for_is_done_whatever_it_gains_and_waits_for_a_switch_under_way() -> None:
    drive = Drive(controller(), takes_s=10.0).intervals(2, 64.0)
    assert len(drive.switches) == 1
    smaller = ProfiledChoices(Optimizer(profile()), cores=4, max_batch=128)
    drive.controller.ask(plan_for(32), "by hand")
    drive.controller.ask(smaller.best(64), "the quota is 4 cores now", smaller)
    drive.intervals(4, 64.0)
    first, second = drive.switches
    assert (second.reason, second.text) == (Reason.ASKED, "the quota is 4 cores now")
    assert second.now_s - first.now_s < 12.0
    assert drive.controller.plan.cores == 4
    drive.controller.ask(drive.controller.plan, "again")
    drive.show([64.0])
    assert drive.decisions[-1].action is Action.STAY, "it is there already"
    drive.intervals(20, 64.0)
    assert all(d.considered[-1].plan.cores == 4 for d in drive.decisions if d.considered and d.now_s > 40)


def test_what_a_switch_gained_is_measured() -> None:
    one = controller()
    now_s = 0.0
    for _ in range(120):
        now_s += one.sample_s
        latency_s = 0.2 if one.switches == 0 else 0.1
        one.observe(Sample(now_s=now_s, depth=64.0, arrived=1, answered=4, latency_s=4 * latency_s))
        decision = one.decide(now_s)
        if decision is not None and decision.action is Action.SWITCH:
            one.switched(now_s + 0.25)
    (gained,) = [e for e in one.log if isinstance(e, Gained)]
    assert gained.gain is not None
    assert abs(gained.gain - 1.0) < 1e-9
    assert gained.expected_gain > 0.3
    assert abs(gained.cost_s - 0.125) < 1e-9
    assert one.history.cost_s == gained.cost_s


def test_a_warm_switch_says_nothing_of_what_a_cold_one_costs() -> None:
    drive = Drive(controller(warm=True))
    drive.intervals(12, 1.0).intervals(12, 64.0)
    (switch,) = drive.switches
    assert switch.cost_s == 0.0
    assert drive.controller.history.cost_s is None
    assert switch.considered[-1].warm
    assert not switch.considered[0].warm


def test_the_log_is_bounded_and_every_entry_is_a_document() -> None:
    drive = Drive(controller(), takes_s=2.0)
    for k in range(40):
        drive.intervals(3, float(1 << (k * 3) % 8))
    log = drive.controller.log
    assert log.maxlen is not None
    assert len(log) <= log.maxlen
    documents = [json.loads(json.dumps(entry.document(), allow_nan=False)) for entry in log]
    assert {"switch", "stay", "gained"} <= {d["action"] for d in documents}


def test_rates_are_by_the_time_that_passed_however_late_a_sample_is() -> None:
    one = controller(plan_for(64))
    now_s = 0.0
    for k in range(40):
        lasted_s = one.sample_s * (1 + k % 3)
        now_s += lasted_s
        one.observe(Sample(now_s=now_s, depth=64.0, arrived=round(40 * lasted_s)))
        if (decision := one.decide(now_s)) is not None:
            assert abs(decision.seen.rate - 40.0) < 1e-6


def test_the_plans_are_for_the_cores_that_there_are() -> None:
    assert all(sum(i.threads for i in plan_for(b).instances) <= CORES for b in (1, 8, 64))
