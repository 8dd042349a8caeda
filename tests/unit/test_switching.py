"""Is a change worth it? Each reason not to, and the two to do it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from partita.core.errors import InvalidInput
from partita.core.plan import InstanceSpec, Plan
from partita.planning.decisions import Action, Decision, Option, Reason, Seen
from partita.planning.switching import History, SwitchRules, Verdict, judge, same_instances

RULES = SwitchRules(gain=0.1, rebatch_gain=0.05, dwell_intervals=10, switch_s=10.0, first_backoff_s=30.0)


def plan(*instances: tuple[int, int, int]) -> Plan:
    specs = tuple(InstanceSpec(threads=t, batch=b) for n, t, b in instances for _ in range(n))
    return Plan(instances=specs, cores=16, batch=sum(s.batch for s in specs))


OLD, WIDE, NEW = plan((1, 16, 1)), plan((1, 16, 64)), plan((4, 4, 16))


def option(action: Action, of: Plan, ms: float) -> Option:
    return Option(action=action, plan=of, latency_ms=ms, items_per_s=64_000 / ms)


def judged(
    stay_ms: float,
    rebatch_ms: float | None,
    switch_ms: float,
    *,
    history: History | None = None,
    rules: SwitchRules = RULES,
    now_s: float = 100.0,
    target: Plan = NEW,
    is_strained: bool = False,
    is_warm: bool = False,
) -> Verdict:
    return judge(
        rules,
        history or History(),
        interval_s=5.0,
        now_s=now_s,
        batch=64,
        is_strained=is_strained,
        stay=option(Action.STAY, OLD, stay_ms),
        rebatch=None if rebatch_ms is None else option(Action.REBATCH, WIDE, rebatch_ms),
        switch=replace(option(Action.SWITCH, target, switch_ms), warm=is_warm),
    )


def test_a_gain_is_taken() -> None:
    verdict = judged(200.0, None, 100.0)
    assert (verdict.action, verdict.reason) == (Action.SWITCH, Reason.GAIN)
    assert verdict.gain == 1.0
    assert judged(200.0, None, 100.0, is_strained=True).reason is Reason.LOAD


def test_a_switch_must_gain_over_what_a_rebatch_does_for_nothing() -> None:
    verdict = judged(1700.0, 102.0, 100.0)
    assert (verdict.action, verdict.reason) == (Action.REBATCH, Reason.GAIN)
    assert verdict.option is not None
    assert verdict.option.plan is WIDE
    assert "2% sooner" in verdict.text
    assert "less than the 10%" in verdict.text


def test_a_small_gain_is_left() -> None:
    verdict = judged(102.0, 102.0, 100.0)
    assert (verdict.action, verdict.reason) == (Action.STAY, Reason.SMALL_GAIN)
    assert str(NEW) in verdict.text
    assert judged(102.0, 100.0, 100.0).action is Action.STAY, "nor is a rebatch made for 2 %"


def test_less_of_a_gain_is_enough_where_all_instances_are_loaded_already() -> None:
    assert judged(107.0, None, 100.0).action is Action.STAY
    assert judged(107.0, None, 100.0, is_warm=True).action is Action.SWITCH
    little = judged(103.0, None, 100.0, is_warm=True)
    assert (little.action, little.reason) == (Action.STAY, Reason.SMALL_GAIN)
    assert "less than the 5% that a warm switch has to gain" in little.text
    dear = History(cost_s=1e6)
    assert judged(107.0, None, 100.0, history=dear, is_warm=True).action is Action.SWITCH, "it loads nothing"


def test_a_warm_switch_keeps_its_distance_to_the_one_before_too() -> None:
    lately = History(last_switch_s=99.0)
    assert judged(200.0, None, 100.0, history=lately, is_warm=True).reason is Reason.DWELL


def test_a_switch_that_does_not_win_back_its_cost_while_it_lasts_is_left() -> None:
    # 1 − 100/112 of 50 s are 5.4 s
    assert judged(112.0, None, 100.0).action is Action.SWITCH
    costly = judged(112.0, None, 100.0, history=History(cost_s=6.0))
    assert (costly.action, costly.reason) == (Action.STAY, Reason.NO_PAYBACK)
    cheap = judged(112.0, None, 100.0, history=History(cost_s=0.05))
    assert cheap.action is Action.SWITCH


def test_between_two_switches_are_at_least_the_intervals_set() -> None:
    history = History(last_switch_s=60.0)
    held = judged(500.0, None, 100.0, history=history, now_s=109.9)
    assert (held.action, held.reason) == (Action.STAY, Reason.DWELL)
    assert judged(500.0, None, 100.0, history=history, now_s=110.0).action is Action.SWITCH
    free = judged(500.0, 200.0, 100.0, history=history, now_s=61.0)
    assert (free.action, free.gain) == (Action.REBATCH, 1.5), "what costs nothing is done meanwhile"


def test_after_failures_a_switch_waits_ever_longer() -> None:
    for failures, pause_s in ((1, 30.0), (2, 60.0), (3, 120.0), (50, 1800.0)):
        history = History(failures=failures, failed_s=100.0)
        early = judged(500.0, None, 100.0, history=history, now_s=100.0 + pause_s - 0.1)
        assert (early.action, early.reason) == (Action.STAY, Reason.BACKING_OFF)
        assert judged(500.0, None, 100.0, history=history, now_s=100.0 + pause_s).action is Action.SWITCH


def test_a_plan_of_the_same_instances_is_no_switch() -> None:
    assert same_instances(OLD, WIDE)
    assert not same_instances(OLD, NEW)
    verdict = judged(500.0, 100.0, 100.0, target=WIDE)
    assert (verdict.action, verdict.reason) == (Action.REBATCH, Reason.GAIN)
    assert judged(100.0, None, 100.0, target=WIDE).reason is Reason.FITS


@pytest.mark.parametrize(
    "wrong",
    [
        {"gain": -0.1},
        {"rebatch_gain": -0.1},
        {"dwell_intervals": 0},
        {"switch_s": -1.0},
        {"switch_s": float("inf")},
        {"disturbance": 1.5},
        {"max_load": 1.1},
        {"planned_load": 0.96},
        {"first_backoff_s": 10.0, "longest_backoff_s": 5.0},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match="switching"):
        SwitchRules(**wrong)  # type: ignore[arg-type]


def test_every_reason_is_explained() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "adaptation.md").read_text(encoding="utf-8")
    assert not [reason for reason in Reason if f"`{reason}`" not in page]


def test_a_decision_is_a_document() -> None:
    decision = Decision(
        number=1,
        now_s=5.0,
        seen=Seen(batch=64, depth=70.0, rate=400.0, latency_s=0.2),
        action=Action.SWITCH,
        reason=Reason.GAIN,
        text="sooner",
        batch=64,
        plan=OLD,
        target=NEW,
        considered=(option(Action.STAY, OLD, 200.0), option(Action.SWITCH, NEW, 100.0)),
        expected_gain=1.0,
        cost_s=5.0,
    )
    document = json.loads(json.dumps(decision.document(), allow_nan=False))
    assert document["action"] == "switch"
    assert document["plan"] == "⟨1,16,1⟩"
    assert document["target"] == "⟨4,4,16⟩"
    assert document["seen"]["latency_ms"] == 200.0
    assert [o["latency_ms"] for o in document["considered"]] == [200.0, 100.0]
