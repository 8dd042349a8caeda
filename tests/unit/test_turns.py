"""Turns of tests: beside each other, or alone, and nobody overtakes."""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests import turns

LIMIT_S = 30.0


@pytest.fixture
def room(tmp_path: Path) -> Path:
    made = tmp_path / "room"
    made.touch()
    return made


def is_free(path: Path, kind: int) -> bool:
    """Whether a lock of this kind could be had at once."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


@contextmanager
def waiting(room: Path, *, alone: bool) -> Iterator[threading.Event]:
    """Ask for a turn in a thread; the event is set while it lasts, and it ends with the block."""
    has_it, may_end = threading.Event(), threading.Event()

    def take() -> None:
        with turns.turn(alone=alone, room=room, door=room.parent):
            has_it.set()
            may_end.wait(LIMIT_S)

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield has_it
    finally:
        may_end.set()
        thread.join(LIMIT_S)


def test_two_run_beside_each_other(room: Path) -> None:
    with turns.turn(alone=False, room=room, door=room.parent), waiting(room, alone=False) as other:
        assert other.wait(LIMIT_S)
        assert not is_free(room, fcntl.LOCK_EX)
    assert is_free(room, fcntl.LOCK_EX)


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
def test_one_that_is_alone_is_alone(room: Path, first: bool, second: bool) -> None:
    with waiting(room, alone=second) as other:
        assert other.wait(LIMIT_S)
        assert not is_free(room, fcntl.LOCK_EX if first else fcntl.LOCK_SH)


def test_nobody_overtakes_one_that_waits_to_be_alone(room: Path) -> None:
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(turns.turn(alone=False, room=room, door=room.parent))
        other = second.enter_context(waiting(room, alone=True))
        ends_s = time.monotonic() + LIMIT_S
        while is_free(room.parent, fcntl.LOCK_SH):  # it is not at the door yet
            assert time.monotonic() < ends_s
        with waiting(room, alone=False) as third:  # could go in beside the first
            assert not third.wait(0.1)
            first.close()
            assert other.wait(LIMIT_S)
            assert not third.is_set()
            second.close()
            assert third.wait(LIMIT_S)


def test_a_turn_ends_however_the_test_ends(room: Path) -> None:
    with pytest.raises(KeyError), turns.turn(alone=True, room=room, door=room.parent):
        raise KeyError
    assert is_free(room, fcntl.LOCK_EX)
