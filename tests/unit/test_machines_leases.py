"""Core leases: every core is executed on once, and who shares a core gets its turn."""

from functools import partial

import pytest

from partita.machines.leases import CoreLeases


def leases(*cores: tuple[int, ...]) -> tuple[CoreLeases, list[int]]:
    """Return leases with instances 0, 1, … on these cores, and the list of who was woken."""
    made = CoreLeases()
    woken: list[int] = []
    for instance, theirs in enumerate(cores):
        made.register(instance, theirs, partial(woken.append, instance))
    return made, woken


def test_disjoint_instances_never_wait_for_each_other() -> None:
    made, _ = leases((0,), (1, 2), ())
    for instance in range(3):
        assert not made.has_rivals(instance)
        assert made.can_lease(instance)
        made.lease(instance)
    assert sorted(made.executing_cores()) == [0, 1, 2]
    made.check()


def test_instances_without_cores_contend_with_nobody() -> None:
    made, _ = leases((), ())
    made.lease(0)
    made.lease(1)
    assert made.executing_cores() == []


def pooled(slots: int, count: int) -> tuple[CoreLeases, list[int]]:
    """Return leases with instances 0, 1, … that need a slot of one device, and the list of who was woken."""
    made = CoreLeases()
    woken: list[int] = []
    for instance in range(count):
        made.register(instance, (), partial(woken.append, instance), ("cuda:0", slots))
    return made, woken


def test_a_device_executes_as_many_as_it_has_slots_in_the_order_in_which_they_came() -> None:
    made, woken = pooled(2, 4)
    made.register(9, (), None, ("cuda:1", 1))
    assert all(made.has_rivals(instance) for instance in range(4))
    assert not made.has_rivals(9)
    made.lease(0)
    made.lease(1)
    made.lease(9)
    assert not made.can_lease(2)
    with pytest.raises(AssertionError, match="no slot is free"):
        made.lease(2)
    made.wait([3])
    made.wait([2])
    made.release(0)
    assert woken == [3]
    assert made.can_lease(3)
    assert not made.can_lease(2), "the free slot is for the one that came before"
    assert not made.can_lease(0)
    made.lease(3)
    made.check()
    made.forget(1)
    assert woken[1] == 2
    made.lease(2)
    made.withdraw(0)
    made.check()


def test_with_a_slot_for_each_nobody_waits() -> None:
    made, _ = pooled(2, 2)
    assert not made.has_rivals(0)
    made.lease(0)
    made.lease(1)
    made.check()


def test_a_core_is_leased_once() -> None:
    made, _ = leases((0, 1), (1, 2), (2, 3))
    made.lease(0)
    assert not made.can_lease(1)
    assert made.can_lease(2)
    with pytest.raises(AssertionError, match="leased to another"):
        made.lease(1)
    with pytest.raises(AssertionError):
        made.lease(0)
    assert made.executing_cores() == [0, 1]
    made.release(0)
    assert made.can_lease(1)
    made.check()


def test_who_came_first_gets_the_core_first_and_is_woken() -> None:
    made, woken = leases((0,), (0,), (0,))
    made.lease(0)
    made.wait([1])
    made.wait([2])
    made.release(0)
    assert woken == [1], "the other is woken when its turn comes"
    assert not made.can_lease(0), "it had its turn"
    assert not made.can_lease(2)
    assert made.can_lease(1)
    made.lease(1)
    made.check()
    made.wait([0])
    made.release(1)
    assert [made.can_lease(i) for i in (0, 1, 2)] == [False, False, True]


def test_who_withdraws_stands_in_nobodys_way_and_the_next_is_woken() -> None:
    made, woken = leases((0,), (0,), (0,))
    made.lease(0)
    made.wait([1])
    made.wait([2])
    made.withdraw(1)
    made.release(0)
    assert 1 not in woken
    assert woken
    assert made.can_lease(2)
    made.withdraw(1)  # not waiting: nothing happens
    made.check()


def test_an_instance_that_is_forgotten_leaves_its_cores_to_those_who_wait() -> None:
    made, woken = leases((0,), (0,), (0,))
    made.lease(0)
    made.wait([1])
    made.wait([2])
    made.forget(0)
    assert made.can_lease(1)
    made.forget(1)
    assert made.can_lease(2)
    assert 2 in woken
    made.check()
    with pytest.raises(AssertionError):
        made.register(2, (0,))


def test_instances_asked_for_together_do_not_block_each_other_but_others_do() -> None:
    made, _ = leases((0,), (1,), (0, 1))
    made.lease(2)
    made.wait([0, 1])
    made.release(2)
    assert all(made.can_lease(i, (0, 1)) for i in (0, 1))
    assert not made.can_lease(2)


def test_whoever_stood_behind_one_that_withdraws_is_woken() -> None:
    made, woken = leases((0,), (0, 1), (1,))
    made.lease(0)
    made.wait([1])
    made.wait([2])  # core 1 is free, but 1 came before
    assert not made.can_lease(2)
    made.withdraw(1)
    assert woken == [2]
    assert made.can_lease(2)


def test_guests_are_told_whenever_their_cores_are_leased_or_given_back() -> None:
    made, _ = leases((0, 1), (2,))
    told: list[frozenset[int]] = []
    cores = frozenset({1, 2})
    made.invite(9, cores, lambda: told.append(made.free_among(cores)))
    made.lease(0)
    made.lease(1)
    made.release(0)
    assert told == [frozenset({2}), frozenset(), frozenset({1})]
    made.dismiss(9)
    made.release(1)
    assert len(told) == 3
    assert made.free_among(cores) == cores


def test_rivals_are_kept_as_instances_come_and_go() -> None:
    made, _ = leases((0, 1), (1, 2), (3,))
    made.forget(0)
    assert not made.has_rivals(1)
    made.register(4, (2, 3))
    assert made.has_rivals(1)
    assert made.has_rivals(2)
    assert made.sharing((2,)) == {1, 4}
    assert not made.knows(0)
    made.check()


def test_an_instance_that_goes_while_it_executes_gives_its_cores_back() -> None:
    made, woken = leases((0,), (0,))
    made.lease(0)
    made.wait([1])
    made.forget(0)
    assert 1 in woken
    assert made.can_lease(1)
