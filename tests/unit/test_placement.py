"""Which cores the instances of a plan get, on a described machine of two sockets with hyperthreads."""

import re
from dataclasses import replace

import pytest

from partita.core.errors import InvalidInput, NoFeasiblePlan
from partita.core.plan import InstanceSpec, Plan
from partita.core.topology import LogicalCpu, Topology
from partita.planning.placement import place, place_beside

# CPUs 0..15 and 32..47 on socket 0, 16..31 and 48..63 on socket 1; c and c + 32 share a physical core.
CPUS = tuple(
    LogicalCpu(socket=core // 16, node=core // 16, core=core % 16, cpu=core + 32 * thread)
    for core in range(32)
    for thread in range(2)
)
MACHINE = Topology(cpus=CPUS)
BY_CPU = {cpu.cpu: cpu for cpu in CPUS}


def plan(*threads: int, given: tuple[tuple[int, ...], ...] = ()) -> Plan:
    instances = [InstanceSpec(threads=t, batch=1) for t in threads]
    instances += [InstanceSpec(threads=len(cores), batch=1, cores=cores) for cores in given]
    return Plan(
        instances=tuple(instances), cores=sum(i.threads for i in instances), batch=max(1, len(instances))
    )


def sockets(instance: InstanceSpec) -> set[int]:
    return {BY_CPU[core].socket for core in instance.cores}


def physical(cores: tuple[int, ...]) -> set[tuple[int, int]]:
    return {(BY_CPU[core].socket, BY_CPU[core].core) for core in cores}


@pytest.mark.parametrize(
    "threads",
    [(1,), (16,), (16, 16), (8, 8, 8, 8), (1,) * 32, (10, 10, 6, 6), (7, 6, 6, 5, 4, 4), (5, 5, 5, 5, 5, 5)],
    ids=str,
)
def test_instances_are_disjoint_and_each_inside_a_socket_on_cores_of_its_own(
    threads: tuple[int, ...],
) -> None:
    placed = place(plan(*threads), MACHINE, across_sockets=False)
    cores = tuple(core for instance in placed.instances for core in instance.cores)
    assert sorted(len(i.cores) for i in placed.instances) == sorted(threads)
    assert len(set(cores)) == len(cores) == sum(threads)
    assert all(len(sockets(instance)) == 1 for instance in placed.instances)
    assert len(physical(cores)) == len(cores)


def test_sockets_take_turns() -> None:
    placed = place(plan(4, 4, 4, 4), MACHINE)
    assert [sockets(i) for i in placed.instances].count({0}) == 2
    assert [sockets(i) for i in placed.instances].count({1}) == 2
    one_each = place(plan(4, 4), MACHINE)
    assert {min(sockets(i)) for i in one_each.instances} == {0, 1}


def test_by_default_no_hyperthread_is_used() -> None:
    with pytest.raises(NoFeasiblePlan, match="needs 33 free cores, but 32 are there"):
        place(plan(*(1,) * 33), MACHINE)


def test_hyperthreads_come_after_all_physical_cores() -> None:
    everything = [cpu.cpu for cpu in CPUS]
    for count in (3, 32, 33, 64):
        placed = place(plan(*(1,) * count), MACHINE, cores=everything)
        cores = tuple(core for instance in placed.instances for core in instance.cores)
        assert len(set(cores)) == count
        assert len(physical(cores)) == min(count, 32)


def test_an_instance_goes_where_physical_cores_are_left() -> None:
    # Two cores in each socket: the second instance of one thread finds a whole core in socket 1 only.
    cores = [0, 1, 32, 33, 16, 17, 48, 49]
    placed = place(plan(2, 1, 1), MACHINE, cores=cores)
    used = tuple(core for instance in placed.instances for core in instance.cores)
    assert len(physical(used)) == 4


def test_cores_to_hand_out_are_respected_in_any_order() -> None:
    placed = place(plan(2, 2), MACHINE, cores=[32, 0, 1, 33])
    assert [physical(instance.cores) for instance in placed.instances] == [{(0, 0), (0, 1)}] * 2
    assert sorted(core for i in placed.instances for core in i.cores) == [0, 1, 32, 33]


def test_given_cores_are_kept_and_their_siblings_come_last() -> None:
    placed = place(plan(1, given=((0, 33),)), MACHINE, cores=[32, 0, 1, 2])
    assert [i.cores for i in placed.instances] == [(0, 33), (2,)]


@pytest.mark.parametrize(
    ("given", "cores", "message"),
    [
        (((0, 1), (1, 2)), None, "core 1 is given to two instances"),
        (((0, 64),), None, "core 64 is not allowed to this process"),
        (((0, 0),), None, "core 0 is given to two instances"),
        ((), [0, 99], "core 99 is not allowed to this process"),
        ((), [3, 0, 3], "core 3 is to be handed out twice"),
    ],
)
def test_wrong_cores_are_rejected(
    given: tuple[tuple[int, ...], ...], cores: list[int] | None, message: str
) -> None:
    with pytest.raises(InvalidInput, match=re.escape(message)):
        place(plan(1, given=given), MACHINE, cores=cores)


def test_too_many_threads_say_how_many_there_are() -> None:
    with pytest.raises(NoFeasiblePlan, match="needs 40 free cores, but 32 are there"):
        place(plan(20, 20), MACHINE)
    with pytest.raises(NoFeasiblePlan, match="needs 4 free cores, but 3 are there"):
        place(plan(2, 2, given=((0,),)), MACHINE, cores=[0, 1, 2, 3])


def test_an_instance_larger_than_a_socket_spans_two_only_if_it_may() -> None:
    placed = place(plan(20, 8, 4), MACHINE)
    assert [len(i.cores) for i in placed.instances] == [20, 8, 4]
    assert sockets(placed.instances[0]) == {0, 1}
    assert len({core for i in placed.instances for core in i.cores}) == 32
    with pytest.raises(NoFeasiblePlan, match=r"no socket has room .* the sockets have \[16, 16\] free cores"):
        place(plan(20, 8, 4), MACHINE, across_sockets=False)


def test_instances_that_round_robin_would_leave_no_room_for_still_fit() -> None:
    # By turns 7, 6 | 6, 5 leaves 3 and 5 cores: no room for both instances of four threads.
    placed = place(plan(7, 6, 6, 5, 4, 4), MACHINE)
    assert all(len(sockets(instance)) == 1 for instance in placed.instances)


def test_a_quota_bounds_the_cores() -> None:
    machine = Topology(cpus=CPUS, quota_cores=4.5)
    assert len(place(plan(4), machine).instances[0].cores) == 4
    with pytest.raises(NoFeasiblePlan, match=r"needs 5 cores at once, and .* quota of 4.5 lets 4 run"):
        place(plan(5), machine)


def test_a_quota_bounds_cores_by_hand_too() -> None:
    machine = Topology(cpus=CPUS, quota_cores=1.5)
    assert place(plan(given=((7,),)), machine).instances[0].cores == (7,)
    for given in (((0, 1),), ((0,), (1,))):
        with pytest.raises(NoFeasiblePlan, match=r"needs 2 cores at once, and .* quota of 1.5 lets 1 run"):
            place(plan(given=given), machine)


def expecting(ms: float | None, *threads: int, given: tuple[tuple[int, ...], ...] = ()) -> Plan:
    return replace(plan(*threads, given=given), expected_ms=ms)


def test_short_executions_may_run_on_every_core_of_their_socket_that_the_plan_was_given() -> None:
    placed = place(expecting(0.5, 1, 1, 2, 2), MACHINE, cores=(0, 1, 2, 16, 17, 18))
    for instance in placed.instances:
        (socket,) = sockets(instance)
        roams = ((0, 1, 2), (16, 17, 18))[socket] if instance.threads == 1 else ()
        assert instance.affinity == roams
        assert len(instance.cores) == instance.threads
    assert all(i.unplaced().affinity == () for i in placed.instances)


@pytest.mark.parametrize(("ms", "roams"), [(0.99, True), (1.0, False), (20.0, False), (None, False)])
def test_only_short_executions_roam(ms: float | None, roams: bool) -> None:
    placed = place(expecting(ms, 1, 1), MACHINE, cores=(0, 1))
    assert [bool(i.affinity) for i in placed.instances] == [roams] * 2


def test_it_is_the_single_execution_that_counts() -> None:
    instance = InstanceSpec(threads=1, batch=32, executions=(8, 8, 8, 8))
    both = Plan(instances=(instance, instance), cores=2, batch=64, expected_ms=3.0)
    assert [i.affinity for i in place(both, MACHINE, cores=(0, 1)).instances] == [(0, 1)] * 2


def test_an_instance_with_cores_by_hand_stays_on_them_and_nobody_else_comes_there() -> None:
    placed = place(expecting(0.5, 1, 1, given=((0,),)), MACHINE, cores=(0, 1, 2))
    assert {i.cores: i.affinity for i in placed.instances} == {(0,): (), (1,): (1, 2), (2,): (1, 2)}


def test_one_that_has_all_cores_has_nowhere_else_to_go() -> None:
    assert place(expecting(0.5, 1), MACHINE, cores=(0,)).instances[0].affinity == ()


def test_instances_that_stand_keep_their_cores_in_the_next_plan() -> None:
    standing = place(plan(2, 2), MACHINE).instances
    kept = place_beside(plan(2, 1, 1), standing, MACHINE)
    assert standing[0] in kept.instances
    assert not {c for i in kept.instances[1:] for c in i.cores} & set(standing[0].cores)


def test_where_the_rest_does_not_fit_beside_those_that_stand_everything_is_placed_anew() -> None:
    standing = place(plan(8, 8), MACHINE).instances
    assert sockets(standing[0]) != sockets(standing[1])
    anew = place_beside(plan(16, 8, 8), standing, MACHINE)
    assert all(len(sockets(instance)) == 1 for instance in anew.instances)
