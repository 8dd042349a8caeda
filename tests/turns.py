"""Which tests may run at the same time: any of them, but one that is marked `alone` with no other.

``make test`` runs two processes of tests (pytest-xdist). They agree by locks on this file and its folder,
which the system gives back however a process ends.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ROOM = Path(__file__)
_DOOR = _ROOM.parent


@contextmanager
def turn(*, alone: bool, room: Path = _ROOM, door: Path = _DOOR) -> Iterator[None]:
    """Be in the room, with others or alone. Whoever waits for it holds the door, so that none overtakes."""
    with _opened(room) as room_fd:
        with _opened(door) as door_fd:
            fcntl.flock(door_fd, fcntl.LOCK_EX)
            fcntl.flock(room_fd, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open it; closing it gives back whatever lock it holds."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
