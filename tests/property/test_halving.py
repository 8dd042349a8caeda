"""Successive halving: what can win is not dropped, and the time is kept."""

from math import inf, isinf

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partita.planning.halving import Halving, HalvingRules, Point, Trial

POINTS: list[Point] = [(2, 1), (2, 8), (1, 1), (1, 8), (2, 32), (1, 32)]
UNHURRIED = settings(suppress_health_check=[HealthCheck.too_slow])
MS = st.floats(0.05, 500.0)
TABLES = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d", "e", "f"]),
    st.lists(st.one_of(MS, st.just(inf)), min_size=len(POINTS), max_size=len(POINTS)),
    min_size=1,
    max_size=6,
)


def run(table: dict[str, list[float]], budget_s: float) -> tuple[Halving, list[Trial], float]:
    """Play the machine with these times; returns it, its trials, and the time that they took."""
    halving = Halving(list(table), POINTS)
    trials: list[Trial] = []
    passed_s = 0.0
    while (trial := halving.next(budget_s - passed_s)) is not None:
        trials.append(trial)
        assert trial.candidate in halving.standing
        ms = table[trial.candidate][POINTS.index((trial.threads, trial.batch))]
        if isinf(ms):
            halving.fail(trial)
        else:
            passed_s += halving.rules.trial_s(ms)
            halving.record(trial, ms)
    return halving, trials, passed_s


@UNHURRIED
@given(TABLES)
def test_with_time_enough_the_best_at_any_point_stands_to_the_end(table: dict[str, list[float]]) -> None:
    halving, trials, _ = run(table, 1e9)
    assert halving.standing
    assert set(halving.standing) | set(halving.dropped) == set(table)
    assert not set(halving.standing) & set(halving.dropped)
    assert len(trials) <= len(table) * len(POINTS)
    assert len(set(trials)) == len(trials)
    for point in POINTS[: halving.rounds]:
        seen = {key: ms for key in table if (ms := halving.latencies(key).get(point, inf)) < inf}
        if seen:
            assert min(seen, key=lambda key: seen[key]) in halving.standing


@UNHURRIED
@given(TABLES)
def test_who_is_dropped_was_slower_at_every_point_that_was_measured(table: dict[str, list[float]]) -> None:
    halving, _, _ = run(table, 1e9)
    least = 1.0 + min(HalvingRules().spreads)
    for key in halving.dropped:
        for point, ms in halving.latencies(key).items():
            best = min(table[other][POINTS.index(point)] for other in halving.standing)
            assert ms >= min(best * least, ms)
            assert ms > best or isinf(ms)


@UNHURRIED
@given(TABLES, st.floats(0.1, 60.0))
def test_the_time_is_kept_from_the_second_round_on(table: dict[str, list[float]], budget_s: float) -> None:
    halving, trials, passed_s = run(table, budget_s)
    assert halving.standing
    first_s = sum(halving.rules.trial_s(ms) for ms in (rows[0] for rows in table.values()) if not isinf(ms))
    assert trials[: len(table)] == [Trial(key, *POINTS[0]) for key in list(table)[: len(trials)]]
    assert passed_s <= max(budget_s, first_s) + 1e-6 or _grew(table, trials)


def _grew(table: dict[str, list[float]], trials: list[Trial]) -> bool:
    """Whether some point took longer than its items had led to expect: nobody can plan for that."""
    at = {(t.candidate, (t.threads, t.batch)) for t in trials}
    for key in table:
        seen = [p for p in POINTS if (key, p) in at]
        times = [table[key][POINTS.index(p)] for p in seen]
        for k in range(1, len(times)):
            known = [(p, ms) for p, ms in zip(seen[:k], times[:k], strict=True) if not isinf(ms)]
            expected = max((ms * max(1.0, seen[k][1] / p[1]) for p, ms in known), default=0.0)
            least = min((ms * max(1.0, seen[k][1] / p[1]) for p, ms in known), default=0.0)
            if not isinf(times[k]) and times[k] > min(expected, least):
                return True
    return False


def test_short_time_halves_the_field() -> None:
    table = {key: [1.0 + k * 0.01] * len(POINTS) for k, key in enumerate("abcdefgh")}
    halving, trials, passed_s = run(table, 8 * 0.3 + 1.3)
    assert passed_s <= 8 * 0.3 + 1.3
    assert "a" in halving.standing
    assert len(halving.standing) < 8
    assert "time was short" in halving.dropped["h"]
    assert len(trials) > 8


def test_one_candidate_is_measured_once_so_that_there_is_a_figure() -> None:
    _, trials, _ = run({"a": [1.0] * len(POINTS)}, 100.0)
    assert trials == [Trial("a", 2, 1)]


def test_what_cannot_be_run_at_one_point_may_win_at_others() -> None:
    table = {"a": [1.0, 1.0, 2.0, 2.0, inf, inf], "b": [5.0, 5.0, 9.0, 9.0, 1.0, 1.0]}
    halving, _, _ = run(table, 1e9)
    assert halving.standing == ("a",)  # b was five times slower before it could show what it is good at
    late = {"a": [1.0, 1.0, 2.0, 2.0, inf, inf], "b": [1.2, 1.3, 2.3, 2.5, 1.0, 1.0]}
    halving, _, _ = run(late, 1e9)
    assert set(halving.standing) == {"a", "b"}


def test_dropping_the_last_one_is_refused() -> None:
    halving = Halving(["a", "b"], POINTS)
    halving.drop("a", "it hung")
    halving.drop("b", "it hung")
    assert halving.standing == ("b",)
