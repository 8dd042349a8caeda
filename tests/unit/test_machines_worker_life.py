"""A worker's life: only what the table allows, restarts ever later, and an end to trying."""

from itertools import product

import pytest

from partita.machines.worker_life import (
    TRANSITIONS,
    Event,
    GiveUp,
    IllegalTransition,
    RestartRules,
    Start,
    State,
    WakeAt,
    WorkerLife,
)

RULES = RestartRules(first_backoff_s=1.0, backoff_factor=2.0, longest_backoff_s=5.0, max_failed_starts=5)


def say(life: WorkerLife, event: Event) -> object:
    """Tell a life that this event happened."""
    match event:
        case Event.STARTED:
            life.started()
        case Event.BECAME_READY:
            life.became_ready(0.0)
        case Event.DIED:
            return life.died(0.0, "reason")
        case Event.BACKOFF_PASSED:
            return life.backoff_passed()
        case Event.DRAIN_ASKED:
            life.drain()
    return None


def state_of(life: WorkerLife) -> State:
    return life.state


def facts(life: WorkerLife) -> tuple[object, ...]:
    return tuple(value for name, value in sorted(vars(life).items()) if name != "rules")


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_every_pair_of_state_and_event(state: State, event: Event) -> None:
    life = WorkerLife(RULES)
    life.state = state
    before = facts(life)
    allowed = TRANSITIONS.get((state, event))
    if allowed is not None:
        say(life, event)
        assert state_of(life) is allowed
    elif event is Event.BACKOFF_PASSED:  # a timer that was too late to be cancelled
        assert say(life, event) is None
        assert facts(life) == before
    else:
        with pytest.raises(IllegalTransition, match=f"{event.value} cannot happen while {state.value}"):
            say(life, event)
        assert facts(life) == before


def test_starts_that_fail_wait_longer_each_time_and_then_give_up() -> None:
    life = WorkerLife(RULES)
    life.started()
    now_s = 100.0
    for backoff_s in (1.0, 2.0, 4.0, 5.0):
        assert life.died(now_s, "no such file") == WakeAt(now_s + backoff_s)
        assert state_of(life) is State.WAITING
        now_s += backoff_s
        assert life.backoff_passed() == Start()
        assert state_of(life) is State.STARTING
    assert life.died(now_s, "no such file") == GiveUp("no such file")
    assert state_of(life) is State.FAILED
    assert life.restarts == 4
    assert life.backoff_passed() is None
    life.drain()
    assert state_of(life) is State.STOPPED


def test_a_worker_that_was_ready_comes_back_soon_but_not_in_a_tight_loop() -> None:
    life = WorkerLife(RestartRules(first_backoff_s=0.05, longest_backoff_s=10.0))
    life.started()
    waits = []
    for _ in range(8):
        life.became_ready(0.0)
        instruction = life.died(0.1, "signal 9")
        assert isinstance(instruction, WakeAt)
        waits.append(round(instruction.at_s - 0.1, 6))
        life.backoff_passed()
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5, 0.5, 0.5]


def test_never_giving_up_a_worker_that_becomes_ready() -> None:
    life = WorkerLife(RULES)
    life.started()
    for _ in range(50):
        life.became_ready(0.0)
        assert isinstance(life.died(0.0, "signal 9"), WakeAt)
        assert life.backoff_passed() == Start()
    life.became_ready(0.0)
    for _ in range(4):
        assert isinstance(life.died(0.0, "signal 9"), WakeAt)
        life.backoff_passed()
        assert state_of(life) is State.STARTING


def test_a_stable_worker_starts_the_count_anew() -> None:
    life = WorkerLife(RULES)
    life.started()
    for _ in range(3):
        life.became_ready(0.0)
        life.died(0.0, "quick")
        life.backoff_passed()
    life.became_ready(0.0)
    assert life.died(RULES.stable_s, "much later") == WakeAt(RULES.stable_s + 5.0 / 20)
    assert life.last_reason == "much later"


def test_a_worker_that_was_asked_to_go_is_not_started_again() -> None:
    life = WorkerLife(RULES)
    life.started()
    life.drain()
    life.became_ready(0.0)
    assert state_of(life) is State.DRAINING
    assert life.died(1.0, "went") is None
    assert state_of(life) is State.STOPPED


def test_a_stop_during_the_backoff_is_the_end() -> None:
    life = WorkerLife(RULES)
    life.started()
    life.died(0.0, "x")
    life.drain()
    assert life.backoff_passed() is None
    assert state_of(life) is State.STOPPED
