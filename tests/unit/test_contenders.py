"""Plans to run before one is taken, what a plan expects of a point, and who drops out of a contest."""

import pytest

from partita.core.profile import Profile, ProfilePoint
from partita.planning.contenders import contenders
from partita.planning.optimizer import Optimizer
from partita.planning.table import LatencyTable
from partita.profiling.verify import _ordered, _still_standing


def profile(latency_ms: dict[tuple[int, int], float], **known: float) -> Profile:
    return Profile(
        ProfilePoint(
            threads=t,
            batch=b,
            mean_ms=ms,
            iterations=int(known["iterations"]) if "iterations" in known else None,
            stddev_ms=known.get("stddev_ms"),
        )
        for (t, b), ms in latency_ms.items()
    )


NEAR = {(1, 1): 1.0, (1, 2): 2.1, (1, 4): 4.3, (2, 1): 0.6, (2, 2): 1.1, (2, 4): 2.2, (2, 8): 4.4}


def test_contenders_differ_in_instances_and_in_executions() -> None:
    plans = contenders(Optimizer(profile(NEAR)), 2, 8, 8)
    assert len({plan.instances for plan in plans}) == len(plans)
    assert {len(plan.instances) for plan in plans} == {1, 2}
    assert (8,) in {plan.instances[0].executions for plan in plans}
    assert (4, 4) in {plan.instances[0].executions for plan in plans}
    assert plans == sorted(plans, key=lambda plan: plan.expected_ms or 0.0)
    assert all(sum(one.batch for one in plan.instances) == 8 for plan in plans)


def test_as_many_contenders_as_asked_for_the_best_first() -> None:
    optimizer = Optimizer(profile(NEAR))
    plans = contenders(optimizer, 2, 8, 2)
    assert len(plans) == 2
    assert plans[0].expected_ms == optimizer.plan(2, 8).expected_ms


def test_a_kind_that_looks_slow_alone_is_run_all_the_same() -> None:
    """Alone, two thin instances promise 3 times as much as the fat one; together they may keep none of it."""
    thin = {(1, 1): 1.0, (1, 2): 2.0, (1, 4): 4.0, (2, 1): 3.0, (2, 2): 6.0, (2, 4): 12.0, (2, 8): 24.0}
    plans = contenders(Optimizer(profile(thin)), 2, 8, 2)
    assert [len(plan.instances) for plan in plans] == [2, 1]


def test_all_cores_and_whole_executions_are_tried_whatever_the_profile_says_of_them() -> None:
    odd = {(1, 1): 1.0, (1, 2): 2.0, (1, 4): 9.0, (2, 1): 3.0, (2, 2): 6.0, (2, 4): 50.0}
    (alone, fat) = contenders(Optimizer(profile(odd)), 2, 1, 8)
    assert [plan.instances[0].threads for plan in (alone, fat)] == [1, 2]
    plans = contenders(Optimizer(profile(odd)), 2, 4, 8)
    ran = {tuple((i.threads, i.executions) for i in plan.instances) for plan in plans}
    assert ((2, (4,)),) in ran
    assert ((1, (2,)), (1, (2,))) in ran


def test_equal_shares_keep_within_their_sockets() -> None:
    rows = {(t, b): 10.0 * b for t in range(1, 9) for b in (1, 2, 4)}
    plans = Optimizer(profile(rows), sockets=(4, 4)).candidates(8, 4, 100)
    assert max(i.threads for plan in plans for i in plan.instances) <= 4
    assert [4, 4] in [[i.threads for i in plan.instances] for plan in plans]


def test_without_micro_batches_every_contender_runs_one_execution_per_instance() -> None:
    plans = contenders(Optimizer(profile(NEAR), micro_batches=False), 2, 8, 8)
    assert all(len(instance.executions) == 1 for plan in plans for instance in plan.instances)


def test_a_point_of_few_iterations_counts_for_slower_than_its_mean() -> None:
    few = LatencyTable.of(profile({(1, 1): 100.0}, iterations=1)).latency_ms[0, 0]
    many = LatencyTable.of(profile({(1, 1): 100.0}, iterations=100, stddev_ms=5.0)).latency_ms[0, 0]
    assert few == pytest.approx(105.0)
    assert many == pytest.approx(100.5)
    assert LatencyTable.of(profile({(1, 1): 100.0})).latency_ms[0, 0] == 100.0


def test_a_plan_is_not_chosen_for_one_lucky_iteration() -> None:
    lucky = ProfilePoint(threads=2, batch=2, mean_ms=9.9, iterations=1)
    known = ProfilePoint(threads=1, batch=1, mean_ms=10.0, iterations=100, stddev_ms=0.5)
    assert str(Optimizer(Profile([lucky, known])).plan(2, 2)) == "⟨2,1,1⟩"


def test_a_plan_that_is_slower_in_nearly_all_turns_drops_out() -> None:
    best = [[1.0, 1.2], [1.1, 1.0], [1.0, 1.0], [1.3, 1.1], [1.0, 1.0], [1.0, 1.4], [1.0, 1.0]]
    slower = [[1.1 * ms for ms in turn] for turn in best]
    near = [turn if k % 2 else [1.01 * ms for ms in turn] for k, turn in enumerate(best)]
    turns = [slower, best, near]
    assert _still_standing([0, 1, 2], [turn[:5] for turn in turns]) == [0, 1, 2], "five turns prove nothing"
    assert _still_standing([0, 1, 2], turns) == [1, 2]
    assert _ordered([0, 1, 2], turns)[0] == 1
    assert _ordered([0, 1, 2], turns)[-1] == 0
