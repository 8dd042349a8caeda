"""Plans in several runtimes: each batch gets the fastest, and a plan is judged by its own profile."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.core.plan import Plan
from partita.core.profile import Profile, ProfilePoint
from partita.planning.choices import ProfiledChoices
from partita.planning.optimizer import Optimizer
from partita.planning.varied_choices import VariedChoices, comparable, executed_by

CORES, BATCHES = 2, (1, 2, 4, 8)


def choices(fixed_ms: float, item_ms: float, threads: tuple[int, ...] = (1, 2)) -> ProfiledChoices:
    points = [
        ProfilePoint(threads=t, batch=b, mean_ms=fixed_ms + b * item_ms / t) for t in threads for b in BATCHES
    ]
    return ProfiledChoices(Optimizer(Profile(points)), cores=CORES, max_batch=16)


STEADY = choices(10.0, 1.0)
"""Costs much to begin with, and little for each item."""
EAGER = choices(1.0, 6.0)
VARIED = VariedChoices(STEADY, {"eager": EAGER})


def runtimes(plan: Plan) -> set[str]:
    return {instance.runtime for instance in plan.instances}


def test_each_batch_gets_the_runtime_that_is_fastest_for_it() -> None:
    assert runtimes(VARIED.best(1)) == {"eager"}
    assert VARIED.best(1) == executed_by(EAGER.best(1), "eager")
    assert runtimes(VARIED.best(16)) == {""}
    assert VARIED.best(16) == STEADY.best(16)
    assert VARIED.max_batch == STEADY.max_batch


def test_a_plan_is_judged_by_the_profile_of_its_own_runtime() -> None:
    for batch in (1, 3, 16):
        for runtime, known in (("", STEADY), ("eager", EAGER)):
            plan = executed_by(known.best(batch), runtime)
            assert VARIED.latency_ms(plan, batch) == known.latency_ms(plan, batch)
            assert VARIED.items_per_s(plan) == known.items_per_s(plan)
            assert VARIED.execution_ms(plan, 1) == known.execution_ms(plan, 1)
    same = replace(STEADY.best(1), expected_ms=None)
    assert VARIED.latency_ms(same, 1) > VARIED.latency_ms(executed_by(same, "eager"), 1)


def test_what_is_made_of_a_plan_keeps_its_runtime() -> None:
    for runtime, known in (("", STEADY), ("eager", EAGER)):
        plan = executed_by(known.best(1), runtime)
        assert [i.threads for i in plan.instances] == [2]
        more, thinner = VARIED.rebatched(plan, 8), VARIED.thinner(plan, 8)
        assert more is not None
        assert thinner is not None
        assert runtimes(more) == runtimes(thinner) == {runtime}
        assert [i.threads for i in thinner.instances] == [1, 1]


def test_a_runtime_that_can_serve_no_such_plan_is_left_out() -> None:
    nothing = choices(0.1, 0.1, threads=(4,))
    assert VariedChoices(STEADY, {"wide": nothing}).best(4) == STEADY.best(4)


def test_another_runtime_must_be_clearly_faster() -> None:
    nearly, clearly = choices(9.8, 0.98), choices(9.0, 0.9)
    assert runtimes(VariedChoices(STEADY, {"nearly": nearly}).best(4)) == {""}
    found = VariedChoices(STEADY, {"nearly": nearly, "clearly": clearly})
    assert runtimes(found.best(4)) == {"clearly"}


@given(
    costs=st.lists(st.tuples(st.floats(0.1, 50), st.floats(0.1, 50)), min_size=1, max_size=4),
    batch=st.integers(1, 16),
)
def test_the_best_is_no_slower_than_any_runtimes_best_but_for_what_counts_as_equal(
    costs: list[tuple[float, float]], batch: int
) -> None:
    known = {str(k): choices(*cost) for k, cost in enumerate(costs)}
    varied = VariedChoices(STEADY, known)
    best = varied.latency_ms(varied.best(batch), batch)
    least = min(one.latency_ms(one.best(batch), batch) for one in [STEADY, *known.values()])
    assert best * 0.95 <= least * (1 + 1e-9)


@pytest.mark.parametrize("own", [[(1, 1), (2, 8)], [(2, 1)], []])
def test_only_points_that_both_have_are_compared(own: list[tuple[int, int]]) -> None:
    def known(points: list[tuple[int, int]]) -> Profile:
        return Profile([ProfilePoint(threads=t, batch=b, mean_ms=1.0) for t, b in points])

    assert set(comparable(known([(1, 1), (2, 1), (2, 4)]), known(own)).points) == {(1, 1), (2, 1)} & set(own)
