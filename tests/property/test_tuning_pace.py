"""Measuring beside traffic keeps its promise whatever the traffic does, and goes on where it may."""

from hypothesis import given, settings
from hypothesis import strategies as st

from partita.machines.tuning_pace import (
    SLOW_SHARE,
    Mode,
    PaceRules,
    Phase,
    TuningPace,
    percentile_99,
    steady_99,
)

STEP_S = 0.1
USUAL_S = 0.010
"""What every answer takes here without measuring."""

steps = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 30)), min_size=1, max_size=600
)
"""For each sample: answers, how many of them would be slow beside measuring, items waiting."""


def mode(pace: TuningPace, now_s: float, **more: object) -> Mode:
    given_: dict[str, object] = {"expected_s": None, "spoiled": False, "waited_s": 0.0, "ran_s": 0.0, **more}
    return pace.mode(now_s, **given_)  # type: ignore[arg-type]


def phase(pace: TuningPace) -> Phase:
    """What it does now; a type checker takes an attribute for what it was."""
    return pace.phase


def calm(pace: TuningPace, now_s: float, seconds: float, latency_s: float = USUAL_S) -> float:
    """Show it so much of an even load without slow answers; returns the time then."""
    for _ in range(round(seconds / STEP_S)):
        now_s += STEP_S
        pace.observe(now_s, [latency_s] * 10, queued=0, depth=1)
    return now_s


@settings(max_examples=100, deadline=None)
@given(steps)
def test_no_more_than_one_answer_in_a_hundred_is_made_slow(load: list[tuple[int, int, int]]) -> None:
    rules = PaceRules()
    pace = TuningPace(rules, now_s=0.0, batch=8)
    now_s, answers, slow, last = 0.0, 0, 0, 0
    for count, would_be_slow, queued in load:
        now_s += STEP_S
        is_running = phase(pace) is Phase.RUNNING
        made_slow = min(count, would_be_slow) if is_running else 0
        latencies_s = [10 * USUAL_S] * made_slow + [USUAL_S] * (count - made_slow)
        pace.observe(now_s, latencies_s, queued=queued, depth=queued + count)
        answers += count
        slow += made_slow
        last = made_slow or last
        assert slow <= rules.credit + SLOW_SHARE * answers + last, "what it noticed only afterwards aside"
        assert pace.slow == slow
        assert pace.answers == answers
        if phase(pace) is Phase.RESTING:
            assert mode(pace, now_s, spoiled=True, expected_s=0.0, waited_s=1e9) is Mode.WAIT


@settings(max_examples=60, deadline=None)
@given(steps)
def test_cores_are_held_no_longer_than_the_share_of_time_allows(load: list[tuple[int, int, int]]) -> None:
    rules = PaceRules()
    pace = TuningPace(rules, now_s=0.0)
    now_s = calm(pace, 0.0, 4.0)
    began_s, held_s = now_s, 0.0
    for count, milliseconds, _ in load:
        expected_s = milliseconds / 1e4
        if mode(pace, now_s, expected_s=expected_s, spoiled=True) is Mode.HOLD:
            now_s += expected_s
            held_s += expected_s
            pace.held(now_s, expected_s)
        now_s += 0.001
        pace.observe(now_s, [USUAL_S] * count, queued=0, depth=1)
    assert held_s <= rules.duty * (now_s - began_s) + 0.004


def test_it_rests_first_then_runs_and_rests_again() -> None:
    rules = PaceRules()
    pace = TuningPace(rules, now_s=0.0)
    now_s = calm(pace, 0.0, 1.9)
    assert (phase(pace), pace.p99_s) == (Phase.RESTING, None)
    now_s = calm(pace, now_s, 0.3)
    assert (phase(pace), pace.p99_s) == (Phase.RUNNING, USUAL_S)
    assert mode(pace, now_s) is Mode.YIELD
    now_s = calm(pace, now_s, rules.rest_every_s)
    assert phase(pace) is Phase.RESTING
    now_s = calm(pace, now_s, 4.0, latency_s=2 * USUAL_S)
    assert (phase(pace), pace.p99_s, pace.pauses) == (Phase.RUNNING, 2 * USUAL_S, 0)


def test_without_traffic_it_runs_freely_and_looks_first_when_some_comes() -> None:
    pace = TuningPace(PaceRules(), now_s=0.0)
    pace.observe(0.1, [], queued=0, depth=0)
    assert phase(pace) is Phase.IDLE
    assert mode(pace, 0.1, spoiled=True, expected_s=0.0, waited_s=1e9) is Mode.YIELD
    pace.observe(0.2, [USUAL_S], queued=0, depth=0)
    assert phase(pace) is Phase.RESTING
    now_s = calm(pace, 0.2, 4.0)
    assert phase(pace) is Phase.RUNNING
    for _ in range(20):
        now_s += STEP_S
        pace.observe(now_s, [], queued=0, depth=0)
    assert phase(pace) is Phase.IDLE
    pace.observe(now_s + STEP_S, [USUAL_S], queued=0, depth=1)
    assert phase(pace) is Phase.RUNNING, "what it knows is not old"


def test_slow_answers_and_a_growing_queue_make_it_pause_for_ever_longer() -> None:
    rules = PaceRules(earned=1e9)
    pace = TuningPace(rules, now_s=0.0, batch=4)
    now_s = calm(pace, 0.0, 4.0)
    lengths: list[int] = []
    for queued, slow in ((0, 30), (0, 30), (9, 0), (0, 30)):
        assert phase(pace) is Phase.RUNNING
        for _ in range(1 if slow else 2):
            now_s += STEP_S
            pace.observe(now_s, [2 * USUAL_S] * slow + [USUAL_S], queued=queued, depth=1)
        assert phase(pace) is Phase.RESTING, "it pauses"
        began_s = now_s
        while phase(pace) is Phase.RESTING:
            now_s = calm(pace, now_s, STEP_S)
        lengths.append(round(now_s - began_s))
    assert pace.pauses == 4
    doubled = [rules.first_pause_s * 2**k for k in range(4)]
    assert all(length >= least for length, least in zip(lengths, doubled, strict=True)), lengths


def test_a_pause_for_slow_answers_ends_when_traffic_has_paid_for_them_twice_over() -> None:
    """A thousand answers a second settle the account in a moment; that a queue grew is not so paid for."""
    rules = PaceRules()
    pace = TuningPace(rules, now_s=0.0, batch=4)
    now_s = calm(pace, 0.0, 4.0)
    lengths: list[float] = []
    for queued, slow in ((0, 30), (0, 30), (0, 30), (9, 0)):
        for _ in range(1 if slow else 2):
            now_s += STEP_S
            pace.observe(now_s, [2 * USUAL_S] * slow + [USUAL_S], queued=queued, depth=1)
        assert phase(pace) is Phase.RESTING, "it pauses"
        began_s = now_s
        while phase(pace) is Phase.RESTING:
            now_s += STEP_S
            pace.observe(now_s, [USUAL_S] * 100, queued=0, depth=1)
        lengths.append(now_s - began_s)
    assert max(lengths[:3]) <= rules.first_pause_s + 2 * STEP_S, lengths
    assert lengths[3] >= 8 * rules.first_pause_s


def test_only_what_could_not_be_measured_otherwise_holds_the_cores() -> None:
    rules = PaceRules()
    pace = TuningPace(rules, now_s=0.0)
    now_s = calm(pace, 0.0, 4.0)
    short_s = rules.slice_share * (rules.max_slowdown - 1.0) * USUAL_S
    assert mode(pace, now_s, expected_s=short_s) is Mode.YIELD, "first it is tried so"
    assert mode(pace, now_s, expected_s=short_s, spoiled=True) is Mode.HOLD
    assert mode(pace, now_s, expected_s=2 * short_s, spoiled=True) is Mode.YIELD
    assert mode(pace, now_s, spoiled=True) is Mode.YIELD, "nobody knows how long it takes"
    pace.held(now_s, 1.0)
    assert mode(pace, now_s + 1.0, expected_s=short_s, spoiled=True) is Mode.YIELD
    assert mode(pace, now_s + 4.1, expected_s=short_s, spoiled=True) is Mode.HOLD
    assert mode(pace, now_s, expected_s=9.0, waited_s=9.0, ran_s=0.0) is Mode.YIELD
    assert mode(pace, now_s, expected_s=9.0, waited_s=10.0, ran_s=0.0) is Mode.HOLD, "it starves"
    assert mode(pace, now_s, expected_s=9.0, waited_s=10.0, ran_s=1.0) is Mode.YIELD


@given(st.lists(st.floats(0, 10), min_size=1, max_size=500))
def test_the_percentile_is_exceeded_by_no_more_than_one_in_a_hundred(latencies_s: list[float]) -> None:
    p99_s = percentile_99(latencies_s)
    assert sum(one > p99_s for one in latencies_s) <= 0.01 * len(latencies_s)
    assert p99_s in latencies_s


def test_one_bad_moment_is_not_what_the_percentile_is_without_measuring() -> None:
    usual = [USUAL_S] * 1000
    assert steady_99([*usual[:400], *[5 * USUAL_S] * 20, *usual[400:]]) == USUAL_S
    assert percentile_99([*usual, *[5 * USUAL_S] * 20]) == 5 * USUAL_S
    often = [5 * USUAL_S if at % 50 == 0 else USUAL_S for at in range(1000)]
    assert steady_99(often) == 5 * USUAL_S
    assert steady_99([USUAL_S, 5 * USUAL_S]) == 5 * USUAL_S
