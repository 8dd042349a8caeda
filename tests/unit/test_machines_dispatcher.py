"""The dispatcher step by step, with a clock that is a number."""

from functools import partial

import pytest

from partita.machines.dispatcher import Batch, BatchingRules, Dispatcher, Job, Policy
from partita.machines.leases import CoreLeases


def dispatcher(*seats: tuple[int, int], leases: CoreLeases | None = None, **rules: object) -> Dispatcher:
    """Return a dispatcher with seats (b, r) numbered from 0, each on a core of its own."""
    leases = leases or CoreLeases()
    made = Dispatcher(BatchingRules(**rules), leases)  # type: ignore[arg-type]
    for number, (batch, micro) in enumerate(seats):
        leases.register(number, (number,))
        made.add_instance(number, 1, batch, (micro,) * (batch // micro))
    return made


def admit(made: Dispatcher, *sizes: int, lane: object = None, at_s: float = 0.0) -> list[Job]:
    jobs = [Job(f"job{n}", size, lane, at_s) for n, size in enumerate(sizes)]
    for job in jobs:
        assert made.can_admit(job.n_items)
        made.admit(job)
    return jobs


def shown(batches: list[Batch]) -> list[tuple[int, int, tuple[int, ...]]]:
    return [(b.instance, b.items, b.executions) for b in batches]


def test_whoever_ends_a_job_that_waits_is_told_to_ask_where_a_fuller_lane_comes_first_then() -> None:
    made = dispatcher((4, 2))
    (running,) = admit(made, 1, lane="a")
    made.take(0.0)
    (single,) = admit(made, 1, lane="a", at_s=0.1)
    (pair,) = admit(made, 2, lane="b", at_s=0.2)
    assert made.take(0.2) == [], "ahead of a busy instance only full batches are formed"
    assert made.end(single)
    assert shown(made.take(0.2)) == [(0, 2, ())]
    assert not made.end(pair), "nothing waits any more"
    assert not made.end(pair)
    assert not made.end(running)


# --- eager ----------------------------------------------------------------------------------------


def test_eager_takes_what_is_there_at_once() -> None:
    made = dispatcher((8, 8))
    admit(made, 1, 2)
    assert shown(made.take(0.0)) == [(0, 3, ())]
    assert made.take(0.0) == []
    made.check()


def test_a_large_request_is_split_over_the_instances_in_order() -> None:
    made = dispatcher((8, 8), (8, 8))
    (job,) = admit(made, 20)
    batches = made.take(0.0)
    assert [(b.instance, b.pieces[0][1], b.items) for b in batches] == [(0, 0, 8), (1, 8, 8)]
    made.finish(1, batches[1].batch_id, 1.0)
    (last,) = made.take(1.0)
    assert (last.instance, last.pieces) == (1, [(job, 16, 4)])


def test_a_seat_that_was_passed_over_gets_the_lane_that_comes_to_the_head_after_it() -> None:
    made = dispatcher((8, 8), (6, 6), batch_timeout_s=10.0)
    admit(made, 6, lane="short")
    admit(made, 8, lane="long", at_s=0.1)
    assert shown(made.take(0.1)) == [(1, 6, ()), (0, 8, ())]


def test_a_batch_ahead_for_a_seat_whose_lane_came_to_the_head_after_it() -> None:
    made = dispatcher((8, 8), (4, 2))
    admit(made, 12, lane="first")
    admit(made, 8, lane="second", at_s=0.1)
    assert shown(made.take(0.1)) == [(0, 8, ()), (1, 2, ()), (1, 2, ()), (0, 8, ())]
    assert made.take(0.1) == []


def test_one_full_batch_waits_ahead_but_never_one_that_can_grow() -> None:
    made = dispatcher((4, 4))
    admit(made, 4, 4, 3)
    assert [b.items for b in made.take(0.0)] == [4, 4]
    assert made.queue.items == 3
    made.check()


def test_eager_waits_for_a_fuller_batch_no_longer_than_the_timeout() -> None:
    made = dispatcher((4, 4), batch_timeout_s=0.5)
    admit(made, 1, at_s=10.0)
    assert made.take(10.0) == []
    assert made.next_wake_s(10.0) == 10.5
    admit(made, 1, at_s=10.4)
    assert made.take(10.4) == []
    assert [b.items for b in made.take(10.5)] == [2]
    admit(made, 4, at_s=10.6)
    made.finish(0, 1, 10.6)
    assert [b.items for b in made.take(10.6)] == [4], "a full batch does not wait"


def test_a_batch_timeout_that_has_passed_is_no_reason_to_wake() -> None:
    """Otherwise the head would spin while another model holds the cores."""
    leases = CoreLeases()
    leases.register(99, (0,))
    leases.lease(99)
    made = dispatcher((4, 4), leases=leases, batch_timeout_s=0.5)
    admit(made, 1)
    assert made.take(1.0) == []
    assert made.next_wake_s(1.0) is None
    leases.release(99)
    assert [b.items for b in made.take(1.0)] == [1]


def test_micro_batches_limit_an_eager_batch() -> None:
    made = dispatcher((8, 2))
    admit(made, 7)
    assert shown(made.take(0.0)) == [(0, 2, ()), (0, 2, ())]


def test_batches_are_of_one_lane_and_the_oldest_lane_goes_first() -> None:
    made = dispatcher((8, 8))
    admit(made, 1, lane="a", at_s=1.0)
    admit(made, 2, lane="b", at_s=0.5)
    admit(made, 3, lane="a", at_s=2.0)
    (first,) = made.take(2.0)
    assert {p[0].lane for p in first.pieces} == {"b"}
    made.finish(0, first.batch_id, 3.0)
    (second,) = made.take(3.0)
    assert {p[0].lane for p in second.pieces} == {"a"}
    assert second.items == 4


# --- aggregate ------------------------------------------------------------------------------------


def test_aggregate_collects_b_items_and_partitions_them_by_b() -> None:
    made = dispatcher((8, 2), (4, 4), (4, 4), policy=Policy.AGGREGATE, batch_timeout_s=1.0)
    admit(made, *[1] * 15)
    assert made.take(0.5) == []
    assert made.next_wake_s(0.5) == 1.0
    admit(made, 1, at_s=0.5)
    assert shown(made.take(0.5)) == [(0, 8, (2, 2, 2, 2)), (1, 4, (4,)), (2, 4, (4,))]
    made.check()


@pytest.mark.parametrize(
    ("items", "shares"), [(1, [1]), (2, [1, 1]), (4, [2, 1, 1]), (7, [3, 2, 2]), (15, [7, 4, 4])]
)
def test_after_the_timeout_every_instance_gets_its_proportion(items: int, shares: list[int]) -> None:
    made = dispatcher((8, 8), (4, 4), (4, 4), policy=Policy.AGGREGATE, batch_timeout_s=1.0)
    admit(made, *[1] * items)
    assert sorted((b.items for b in made.take(1.0)), reverse=True) == shares
    assert made.queue.items == 0


def test_an_aggregate_batch_waits_until_all_instances_are_idle() -> None:
    made = dispatcher((2, 2), (2, 2), policy=Policy.AGGREGATE, batch_timeout_s=0.0)
    admit(made, 8)
    batches = made.take(0.0)
    made.finish(0, batches[0].batch_id, 1.0)
    assert made.take(1.0) == []
    made.finish(1, batches[1].batch_id, 2.0)
    assert [b.items for b in made.take(2.0)] == [2, 2]


def test_a_smaller_share_of_an_instance_with_micro_batches_is_split_into_them() -> None:
    made = dispatcher((8, 4), policy=Policy.AGGREGATE, batch_timeout_s=0.0)
    admit(made, 7)
    assert shown(made.take(0.0)) == [(0, 7, (4, 3))]


# --- failures -------------------------------------------------------------------------------------


def test_what_raised_is_retried_alone_and_alone_it_fails() -> None:
    made = dispatcher((8, 8))
    jobs = admit(made, 1, 1, 2)
    (batch,) = made.take(0.0)
    _, failed = made.fail(0, batch.batch_id, 0.1)
    assert failed == []
    for job in jobs:
        batches = made.take(0.2)
        assert [b.pieces for b in batches] == [[(job, 0, job.n_items)]]
        if job is jobs[1]:
            _, failed = made.fail(0, batches[0].batch_id, 0.3)
            assert failed == [job]
            made.end(job)
        else:
            made.finish(0, batches[0].batch_id, 0.3)
        made.check()
    assert [job.settled for job in jobs] == [1, 0, 2]
    assert made.queue.items == made.running_items == 0


def test_two_deaths_fail_a_job_and_what_waited_in_the_channel_is_unmarked() -> None:
    made = dispatcher((2, 2))
    first, second = admit(made, 2, 2)
    assert len(made.take(0.0)) == 2
    lost = made.lose_instance(0)
    assert lost.failed == []
    assert (first.deaths, second.deaths) == (1, 0)
    made.check()
    made.add_instance(0, 1, 2, (2,))
    (batch,) = [b for b in made.take(1.0) if b.pieces[0][0] is first]
    assert made.lose_instance(0).failed == [first]
    assert first.deaths == 2
    made.end(first)
    assert batch.items == 2
    made.check()
    assert made.queue.items == 2


def test_what_a_lost_instance_had_ahead_keeps_its_order() -> None:
    made = dispatcher((3, 3))
    admit(made, 3)
    jobs = admit(made, 1, 1, 1)
    made.take(0.0)
    made.lose_instance(0)
    made.add_instance(0, 1, 3, (3,))
    alone, ahead = made.take(1.0)
    assert alone.items == 3
    assert [p[0] for p in ahead.pieces] == jobs


def test_a_quarantined_piece_never_exceeds_a_smaller_instance() -> None:
    leases = CoreLeases()
    made = dispatcher((8, 8), (2, 2), leases=leases)
    (job,) = admit(made, 8)
    assert shown(made.take(0.0)) == [(0, 8, ())]
    made.lose_instance(0)
    parts = []
    while job.settled < 8:
        (batch, *ahead) = made.take(1.0)
        assert batch.items <= 2
        for b in (batch, *ahead):
            parts.append(b.pieces[0][1:])
            made.finish(1, b.batch_id, 1.0)
    assert parts == [(0, 2), (2, 2), (4, 2), (6, 2)]


def test_cancelling_what_waits_frees_the_queue_at_once() -> None:
    made = dispatcher((2, 2), max_queue_items=6)
    jobs = admit(made, 2, 2, 2)
    assert not made.can_admit(1)
    made.end(jobs[1])
    assert made.can_admit(2)
    made.end(jobs[1])
    made.check()
    assert [p[0] for b in made.take(0.0) for p in b.pieces] == [jobs[0], jobs[2]]


def test_many_cancelled_jobs_are_swept() -> None:
    made = dispatcher((1, 1), max_queue_items=10_000)
    jobs = admit(made, *[1] * 1000)
    for job in jobs[1:]:
        made.end(job)
    assert len(made.queue._lanes[None]) < 200
    made.check()
    assert made.unfinished_jobs() == [jobs[0]]


def test_an_answer_to_another_batch_than_the_oldest_changes_nothing() -> None:
    made = dispatcher((1, 1))
    admit(made, 1, 1)
    first, second = made.take(0.0)
    with pytest.raises(AssertionError):
        made.finish(0, second.batch_id, 0.0)
    assert made.finish(0, first.batch_id, 0.0) is first
    assert made.finish(0, second.batch_id, 0.0) is second
    with pytest.raises(AssertionError):
        made.finish(0, second.batch_id, 0.0)
    made.check()


# --- instances ------------------------------------------------------------------------------------


def test_a_retiring_instance_finishes_and_takes_nothing_new() -> None:
    made = dispatcher((1, 1))
    admit(made, 1, 1, 1)
    batches = made.take(0.0)
    made.retire_instance(0)
    assert not made.is_idle(0)
    for batch in batches:
        made.finish(0, batch.batch_id, 0.0)
    assert made.take(0.0) == []
    assert made.is_idle(0)
    made.remove_instance(0)
    assert not made.has_instance(0)


def test_a_retiring_instance_that_is_wanted_again_takes_batches_of_its_new_size() -> None:
    made = dispatcher((1, 1))
    made.retire_instance(0)
    admit(made, 1, 1, 1)
    assert made.take(0.0) == []
    made.reseat_instance(0, 3, (3,))
    (batch,) = made.take(0.0)
    assert batch.items == 3
    made.check()


def test_the_instance_with_most_cores_is_served_first() -> None:
    leases = CoreLeases()
    made = Dispatcher(BatchingRules(), leases)
    for number, threads in ((0, 1), (1, 4), (2, 2)):
        leases.register(number, (number,))
        made.add_instance(number, threads, 1, (1,))
    admit(made, 1, 1, 1)
    assert [b.instance for b in made.take(0.0)] == [1, 2, 0]


# --- time -----------------------------------------------------------------------------------------


def test_the_execution_limit_runs_from_when_a_batch_begins_to_execute() -> None:
    made = dispatcher((1, 1), execution_limit_s=5.0)
    admit(made, 1, 1)
    first, second = made.take(0.0)
    assert made.next_wake_s(0.0) == 5.0
    made.finish(0, first.batch_id, 4.0)
    assert made.next_wake_s(4.0) == 9.0
    assert made.hung_instances(8.9) == []
    assert made.hung_instances(9.0) == [0]
    assert made.next_wake_s(9.0) == 14.0, "told again later, not at once"
    assert made.lose_instance(0).executing is second


def test_the_queue_timeout_ends_only_what_was_never_started() -> None:
    made = dispatcher((1, 1), queue_timeout_s=2.0)
    started, waiting = admit(made, 3, 1)
    made.take(0.0)
    assert made.next_wake_s(0.0) == 2.0
    assert made.expired_job(1.9) is None
    assert made.expired_job(2.0) is waiting
    made.end(waiting)
    assert made.expired_job(2.0) is None
    assert not started.ended
    made.check()


# --- shared cores ---------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", Policy)
def test_two_models_on_one_core_take_turns(policy: Policy) -> None:
    leases = CoreLeases()
    woken: list[int] = []
    models = []
    for number in range(2):
        leases.register(number, (0,), partial(woken.append, number))
        made = Dispatcher(BatchingRules(policy=policy), leases)
        made.add_instance(number, 1, 1, (1,))
        admit(made, *[1] * 5)
        models.append(made)
    turns = []
    while any(made.queue.items for made in models):
        running = [(n, b) for n, made in enumerate(models) for b in made.take(0.0)]
        assert len(running) == 1, "one executes, and holds nothing ahead"
        leases.check()
        ((number, batch),) = running
        turns.append(number)
        woken.clear()
        models[number].finish(number, batch.batch_id, 0.0)
        if models[1 - number].queue.items:
            assert 1 - number in woken
    assert turns == [0, 1] * 5


def test_a_model_whose_requests_are_all_cancelled_does_not_keep_the_core_from_others() -> None:
    leases = CoreLeases()
    one, other = (Dispatcher(BatchingRules(), leases) for _ in range(2))
    for number, made in enumerate((one, other)):
        leases.register(number, (0,))
        made.add_instance(number, 1, 1, (1,))
    admit(one, 1, 1)
    (job,) = admit(other, 1)
    (batch,) = one.take(0.0)
    assert other.take(0.0) == []
    other.end(job)
    one.finish(0, batch.batch_id, 1.0)
    assert [b.items for b in one.take(1.0)] == [1]
    leases.check()


def test_aggregate_batches_of_two_models_on_the_same_cores_do_not_deadlock() -> None:
    leases = CoreLeases()
    models = []
    for model in range(2):
        made = Dispatcher(BatchingRules(policy=Policy.AGGREGATE), leases)
        for core in range(2):
            leases.register(10 * model + core, (core,))
            made.add_instance(10 * model + core, 1, 1, (1,))
        admit(made, *[1] * 6)
        models.append(made)
    models[0].lose_instance(0)  # the order in which it waits is made anew when it is back
    for _ in range(20):
        batches = [(made, b) for made in models for b in made.take(0.0)]
        if not models[0].has_instance(0):
            models[0].add_instance(0, 1, 1, (1,))
        for made, batch in batches:
            made.finish(batch.instance, batch.batch_id, 0.0)
    assert [made.queue.items for made in models] == [0, 0]


# --- turns ----------------------------------------------------------------------------------------


def rivals(*, turn_s: float = 0.005, seats: int = 1) -> tuple[Dispatcher, Dispatcher]:
    """Return two dispatchers whose instances, of 4 items each, share their cores."""
    leases = CoreLeases()
    made = [Dispatcher(BatchingRules(turn_s=turn_s), leases) for _ in range(2)]
    for model, one in enumerate(made):
        for core in range(seats):
            leases.register(10 * model + core, (core,))
            one.add_instance(10 * model + core, 1, 4, (4,))
    return made[0], made[1]


def run_one(made: Dispatcher, *, took_s: float, at_s: float = 0.0) -> Batch:
    (batch,) = made.take(at_s)
    made.finish(batch.instance, batch.batch_id, at_s + took_s)
    return batch


def test_an_instance_that_shares_its_cores_executes_several_batches_in_one_turn() -> None:
    made, other = rivals()
    admit(made, 4, *[8] * 10)
    assert shown([run_one(made, took_s=0.001)]) == [(0, 4, ())], "nothing is known of its speed yet"
    assert run_one(made, took_s=0.005, at_s=1.0).executions == (4,) * 5
    admit(other, 4)
    assert made.take(2.0)[0].executions == (4,) * 5
    assert other.take(2.0) == []
    made.check()


def test_a_turn_is_one_execution_of_what_is_slow_or_alone() -> None:
    made, _ = rivals()
    admit(made, 4, 40)
    run_one(made, took_s=0.004)
    assert shown(made.take(1.0)) == [(0, 4, ())]
    alone = dispatcher((4, 4))
    admit(alone, 4, 4)
    run_one_ahead = alone.take(0.0)
    alone.finish(0, run_one_ahead[0].batch_id, 0.001)
    admit(alone, 40)
    assert all(batch.items == 4 for batch in alone.take(1.0))


def test_a_turn_leaves_the_other_instances_of_the_member_their_share() -> None:
    made, _ = rivals(seats=2)
    admit(made, 4)
    run_one(made, took_s=0.0001)
    admit(made, 32)
    assert [(b.instance, b.items) for b in made.take(1.0)] == [(0, 16), (1, 4)], "the second is not known yet"


def test_what_is_left_of_a_turn_is_a_smaller_execution() -> None:
    made, _ = rivals()
    admit(made, 4)
    run_one(made, took_s=0.0001)
    (job,) = admit(made, 10)
    (batch,) = made.take(1.0)
    assert (batch.items, batch.executions) == (10, (4, 4, 2))
    made.finish(0, batch.batch_id, 1.1)
    assert job.settled == 10
    made.check()


# --- answers in parts -----------------------------------------------------------------------------


def test_a_job_that_is_partly_answered_is_not_tried_again_when_its_batch_raises() -> None:
    made = dispatcher((4, 4))
    told, untold = admit(made, 1, 1)
    (batch,) = made.take(0.0)
    assert made.part_done(0, batch.batch_id, 0, 1.0) is told
    _, failed = made.fail(0, batch.batch_id, 2.0)
    assert failed == [told]
    made.end(told)
    assert [b.pieces for b in made.take(2.0)] == [[(untold, 0, 1)]]
    made.check()


def test_nor_when_its_worker_dies() -> None:
    made = dispatcher((4, 4))
    told, untold = admit(made, 1, 1)
    (batch,) = made.take(0.0)
    made.part_done(0, batch.batch_id, 0, 1.0)
    assert made.lose_instance(0).failed == [told]
    made.end(told)
    made.add_instance(0, 1, 4, (4,))
    assert [b.pieces for b in made.take(2.0)] == [[(untold, 0, 1)]]
    made.check()


def test_parts_are_a_sign_of_life_even_if_nobody_waits_for_them_any_more() -> None:
    made = dispatcher((4, 4), execution_limit_s=10.0)
    (job,) = admit(made, 1)
    (batch,) = made.take(0.0)
    made.part_done(0, batch.batch_id, 0, 8.0)
    assert made.next_wake_s(8.0) == 18.0
    assert made.hung_instances(17.0) == []
    made.end(job)
    assert made.part_done(0, batch.batch_id, 0, 17.5) is None
    assert made.hung_instances(27.0) == []
    assert made.hung_instances(27.5) == [0]


@pytest.mark.parametrize(("batch_id", "row"), [(0, 2), (0, -1), (7, 0)], ids=["row", "negative", "batch"])
def test_parts_of_what_is_not_at_hand_are_nobodys(batch_id: int, row: int) -> None:
    made = dispatcher((4, 4))
    admit(made, 2)
    (batch,) = made.take(0.0)
    assert made.part_done(0, batch.batch_id + batch_id, row, 1.0) is None
    assert made.part_done(1, batch.batch_id, 0, 1.0) is None
