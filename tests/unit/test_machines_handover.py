"""Plans are changed as the difference of multisets says, step by step, and come back where that fails."""

from collections.abc import Sequence
from itertools import count

import pytest

from partita.core.plan import InstanceSpec, Plan
from partita.machines.handover import (
    Accepting,
    End,
    Finished,
    Handover,
    Instruction,
    Load,
    Reseat,
    Retire,
    RolledBack,
    Seat,
    Stage,
    Superseded,
    Unseat,
)

MIB = 1 << 20


def spec(cores: Sequence[int], batch: int = 4) -> InstanceSpec:
    return InstanceSpec(threads=len(cores), batch=batch, cores=tuple(cores))


def plan(*specs: InstanceSpec, cores: int = 4) -> Plan:
    return Plan(instances=specs, cores=cores, batch=sum(s.batch for s in specs))


def thin(n: int, batch: int = 4) -> Plan:
    """The first n of the instances with one core each."""
    return plan(*(spec([core], batch) for core in range(n)))


FAT = plan(spec([0, 1, 2, 3], 16))
PAIRS = plan(spec([0, 1], 8), spec([2, 3], 8))


def started(first: Plan, *, loads_at_once: int = 4) -> Handover:
    made = Handover(
        first, range(1, len(first.instances) + 1), count(100).__next__, loads_at_once=loads_at_once
    )
    made.check()
    return made


def kinds(steps: Sequence[Instruction]) -> list[str]:
    return [type(step).__name__ for step in steps]


def test_the_plan_that_is_in_force_already_takes_nothing() -> None:
    made = started(PAIRS)
    assert made.switch(PAIRS) == [Accepting(PAIRS), Finished(PAIRS)]
    made.check()


def test_where_only_b_changes_no_worker_is_touched() -> None:
    made = started(PAIRS)
    other = plan(spec([0, 1], 2), spec([2, 3], 8))
    assert made.switch(other) == [Reseat(1, spec([0, 1], 2)), Accepting(other), Finished(other)]
    assert made.numbers(Stage.ACTIVE) == [1, 2]
    made.check()


def test_instances_of_the_same_threads_are_added_one_by_one_each_at_once_in_use() -> None:
    made = started(thin(1))
    assert made.switch(thin(3)) == [Load(100, spec([1]))]
    assert made.loaded(100) == [Load(101, spec([2])), Seat(100, spec([1]))]
    assert made.stage(1) is Stage.ACTIVE
    assert made.loaded(101) == [Seat(101, spec([2])), Accepting(thin(3)), Finished(thin(3))]
    made.check()


def test_instances_of_the_same_threads_are_removed_one_by_one() -> None:
    made = started(thin(3))
    assert made.switch(thin(1)) == [Retire(3), Accepting(thin(1))]
    assert made.drained(3) == [Unseat(3), Retire(2), End(3)]
    assert made.lost(3, "ended") == []
    assert made.drained(2) == [Unseat(2), Finished(thin(1)), End(2)]
    assert made.lost(2, "ended") == []
    assert made.numbers() == [1]
    made.check()


def test_devices_take_turns_in_giving_up_instances() -> None:
    sockets = [
        InstanceSpec(threads=1, batch=1, cores=(core,), device=f"cpu:{core // 2}") for core in range(4)
    ]
    made = started(plan(*sockets))
    gone = []
    steps = made.switch(plan(sockets[0]))
    while retired := [step.number for step in steps if isinstance(step, Retire)]:
        gone += retired
        steps = made.drained(retired[0])
    cores = [sockets[number - 1].cores[0] for number in gone]
    assert cores == [1, 3, 2]


def test_other_threads_are_set_up_whole_before_anything_else_changes() -> None:
    made = started(FAT)
    assert made.switch(PAIRS) == [Load(100, spec([0, 1], 8)), Load(101, spec([2, 3], 8))]
    assert made.loaded(101) == []
    made.check()
    assert made.loaded(100) == [
        Seat(100, spec([0, 1], 8)),
        Seat(101, spec([2, 3], 8)),
        Retire(1),
        Accepting(PAIRS),
    ]
    assert made.numbers(Stage.RETIRING) == [1]
    made.check()
    assert made.drained(1) == [Unseat(1), Finished(PAIRS), End(1)]
    made.lost(1, "ended")
    assert made.is_finished
    made.check()


def test_an_instance_in_both_plans_goes_on_untouched_beside_the_passive_set() -> None:
    made = started(PAIRS)
    other = plan(spec([0, 1], 8), spec([2]), spec([3]))
    steps = made.switch(other)
    assert steps == [Load(100, spec([2])), Load(101, spec([3]))]
    steps = made.loaded(100) + made.loaded(101)
    assert steps == [Seat(100, spec([2])), Seat(101, spec([3])), Retire(2), Accepting(other)]
    assert made.stage(1) is Stage.ACTIVE


def test_no_more_workers_load_at_once_than_allowed() -> None:
    made = started(FAT, loads_at_once=2)
    assert len(made.switch(thin(4))) == 2
    assert kinds(made.loaded(100)) == ["Load"]
    assert kinds(made.loaded(101)) == ["Load"]
    assert made.loaded(102) == []
    assert kinds(made.loaded(103)) == ["Seat"] * 4 + ["Retire", "Accepting"]


def test_a_passive_set_that_fails_to_load_changes_nothing_but_a_counter() -> None:
    made = started(FAT)
    made.switch(PAIRS)
    made.loaded(101)
    assert made.lost(100, "out of memory") == [
        End(100),
        RolledBack(PAIRS, "out of memory"),
        Finished(FAT),
        End(101),
    ]
    made.lost(100, "ended")
    made.lost(101, "ended")
    assert made.numbers() == made.numbers(Stage.ACTIVE) == [1]
    assert made.plan is FAT
    assert (made.counts.failed, made.counts.accepted) == (1, 0)
    made.check()
    assert kinds(made.switch(PAIRS)) == ["Load", "Load"], "it may be tried again"


def test_what_was_added_already_goes_again_when_the_next_one_fails() -> None:
    made = started(thin(1))
    made.switch(thin(3))
    made.loaded(100)
    assert made.lost(101, "bad file") == [End(101), RolledBack(thin(3), "bad file"), Retire(100)]
    assert made.drained(100) == [Unseat(100), Finished(thin(1)), End(100)]
    made.check()


def test_a_second_change_takes_over_what_the_first_has_loaded() -> None:
    made = started(FAT)
    made.switch(PAIRS)
    made.loaded(100)
    mixed = plan(spec([0, 1], 2), spec([2]), spec([3]))
    assert made.switch(mixed) == [Superseded(PAIRS), Load(102, spec([2])), Load(103, spec([3])), End(101)]
    made.loaded(102)
    assert made.loaded(103)[0] == Seat(100, spec([0, 1], 2))
    assert made.plan == mixed
    made.check()


def test_a_change_of_mind_while_the_old_set_drains_takes_it_back_without_loading() -> None:
    made = started(FAT)
    made.switch(PAIRS)
    made.loaded(100)
    made.loaded(101)
    assert made.stage(1) is Stage.RETIRING
    assert made.switch(FAT) == [Reseat(1, spec([0, 1, 2, 3], 16)), Retire(100), Retire(101), Accepting(FAT)]
    made.check()


def test_a_retiring_instance_that_dies_is_not_started_again() -> None:
    made = started(FAT)
    made.switch(PAIRS)
    made.loaded(100)
    made.loaded(101)
    assert made.lost(1, "killed") == [Unseat(1), End(1), Finished(PAIRS)]
    assert made.lost(1, "killed") == []
    made.check()


def test_a_retiring_instance_that_is_wanted_again_and_dies_is_replaced() -> None:
    made = started(thin(2))
    made.switch(thin(1))
    assert made.stage(2) is Stage.RETIRING
    other = plan(spec([1]), spec([0, 2]), cores=4)
    made.switch(other)
    assert kinds(made.lost(2, "killed")) == ["Unseat", "End"]
    made.check()
    assert Load(101, spec([1])) in made.loaded(100)
    assert made.plan != other
    assert Accepting(other) in made.loaded(101)
    made.check()


def test_a_worker_that_dies_in_use_is_left_to_its_own_life() -> None:
    made = started(FAT)
    assert made.lost(1, "killed") == []
    assert made.stage(1) is Stage.ACTIVE


def test_a_plan_does_not_count_on_an_instance_that_gave_up() -> None:
    made = started(thin(1))
    made.gave_up(1)
    assert made.switch(thin(1)) == [Load(100, spec([0]))]
    assert made.loaded(100) == [Seat(100, spec([0])), Retire(1), Accepting(thin(1))]


def test_instances_without_cores_are_told_apart_by_their_threads() -> None:
    one, two = InstanceSpec(threads=1, batch=1), InstanceSpec(threads=2, batch=2)
    made = started(plan(one, one))
    assert kinds(made.switch(plan(two))) == ["Load"]
    assert kinds(made.loaded(100)) == ["Seat", "Retire", "Retire", "Accepting"]
    made = started(plan(one, one))
    assert kinds(made.switch(plan(one))) == ["Retire", "Accepting"]


# --- warm plans -----------------------------------------------------------------------------------


def test_warm_instances_are_loaded_one_by_one_within_the_memory_and_a_switch_to_them_is_one_step() -> None:
    made = started(FAT)
    made.loaded(1, 100 * MIB)
    assert made.keep_warm([PAIRS], 250 * MIB) == [Load(100, spec([0, 1], 8))]
    assert made.loaded(100, 90 * MIB) == [Load(101, spec([2, 3], 8))]
    assert made.loaded(101, 90 * MIB) == []
    made.check()
    steps = made.switch(PAIRS)
    assert kinds(steps) == ["Seat", "Seat", "Retire", "Accepting"]
    assert made.drained(1) == [Unseat(1), Finished(PAIRS), End(1)], "nobody asked to keep the fat one"
    made.check()


def switched_to_pairs() -> Handover:
    """Return one whose fat instance retires, and which keeps both plans loaded, within 250 MiB."""
    made = started(FAT)
    made.loaded(1, 100 * MIB)
    made.keep_warm([FAT, PAIRS], 250 * MIB)
    made.loaded(100)
    made.loaded(101)
    made.switch(PAIRS)
    return made


def test_the_plan_left_behind_stays_asleep_where_it_is_likely_too() -> None:
    made = switched_to_pairs()
    assert made.drained(1) == [Unseat(1), Finished(PAIRS)]
    assert made.stage(1) is Stage.ASLEEP
    steps = made.switch(FAT)
    assert kinds(steps) == ["Seat", "Retire", "Retire", "Accepting"]
    made.check()


def test_what_falls_asleep_counts_with_what_its_batches_took() -> None:
    made = switched_to_pairs()
    assert made.drained(1, 260 * MIB) == [Unseat(1), Finished(PAIRS), End(1)]
    made.lost(1, "ended")
    assert kinds(made.keep_warm([FAT, PAIRS], 300 * MIB)) == ["Load"]
    assert made.loaded(102, 100 * MIB) == [], "it would hold as much again"
    assert made.keep_warm([FAT, PAIRS], 250 * MIB) == [End(102)]
    made.check()


def test_no_more_is_kept_warm_than_the_memory_allows_the_likeliest_first() -> None:
    made = started(FAT)
    made.loaded(1, 100 * MIB)
    assert made.keep_warm([thin(2), PAIRS], 250 * MIB) == [Load(100, spec([0]))]
    assert made.loaded(100) == [Load(101, spec([1]))]
    assert made.loaded(101) == []
    assert made.keep_warm([PAIRS], 100 * MIB) == [End(100), End(101), Load(102, spec([0, 1], 8))]
    made.check()


def test_a_warm_instance_that_does_not_load_is_given_up_until_asked_anew() -> None:
    made = started(FAT)
    made.loaded(1, 100 * MIB)
    made.keep_warm([thin(1)], 250 * MIB)
    assert made.lost(100, "bad") == [End(100)]
    assert made.lost(100, "bad") == []
    assert made.counts.failed == 0
    assert kinds(made.keep_warm([thin(1)], 250 * MIB)) == ["Load"]
    made.check()


def test_a_warm_load_makes_way_for_a_switch_and_is_used_where_it_fits() -> None:
    made = started(FAT)
    made.loaded(1, 100 * MIB)
    made.keep_warm([PAIRS], 250 * MIB)
    assert made.switch(thin(1)) == [Load(101, spec([0])), End(100)]
    made = started(FAT)
    made.loaded(1, 100 * MIB)
    made.keep_warm([PAIRS], 250 * MIB)
    assert made.switch(PAIRS) == [Load(101, spec([2, 3], 8))], "the first is loading already"


def test_check_notices_a_lost_instance() -> None:
    made = started(PAIRS)
    del made._stages[2]
    with pytest.raises(AssertionError):
        made.check()
