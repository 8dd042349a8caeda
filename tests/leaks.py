"""What a test may leave behind: nothing. Counts children, threads, sockets and memory segments."""

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GRACE_S = 3.0
"""How long something that was told to end may take: a child to be reaped, a thread to return."""
_POLL_S = 0.005
_SHARED_MEMORY = Path("/dev/shm")
_OUR_SEGMENTS = ("partita", "psm_", "sem.mp-")
"""Names that we or Python's multiprocessing give; other programs' segments come and go as they like."""


def snapshot() -> Counter[str]:
    """Return what the process holds now, each kind of thing with a name that tells it apart."""
    return Counter([*_children(), *_threads(), *_descriptors(), *_mapped_memory(), *_segments()])


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Raise `AssertionError` unless, soon after the block, the process holds no more than before."""
    before = snapshot()
    yield
    leaked = _grown(before)
    deadline = time.monotonic() + GRACE_S
    while leaked and time.monotonic() < deadline:
        gc.collect()
        time.sleep(_POLL_S)
        leaked = _grown(before)
    assert not leaked, f"left behind after {GRACE_S:g} s: {', '.join(leaked)}"


def _grown(before: Counter[str]) -> list[str]:
    """Return the new things of every kind that there are more of than before.

    Kinds are counted, so that a longer-lived fixture may replace one worker or connection by another.
    """
    after = snapshot()
    kinds_before, kinds_after = _by_kind(before), _by_kind(after)
    return sorted(name for name in after - before if kinds_after[_kind(name)] > kinds_before[_kind(name)])


def _by_kind(things: Counter[str]) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for name, count in things.items():
        kinds[_kind(name)] += count
    return kinds


def _kind(name: str) -> str:
    return name.split(":", 1)[0]


def _children() -> Iterator[str]:
    """Yield the direct children, zombies among them: a child that nobody waited for is left behind too."""
    for task in Path("/proc/self/task").iterdir():
        try:
            pids = (task / "children").read_text().split()
        except OSError:  # the thread has just ended
            continue
        for pid in pids:
            yield f"child:{pid} {_command(pid)}"


def _command(pid: str) -> str:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(gone)"
    return line[:120] or "(zombie)"


def _threads() -> Iterator[str]:
    for thread in threading.enumerate():
        yield f"thread:{thread.name} {thread.ident}"


def _descriptors() -> Iterator[str]:
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:  # the descriptor of the listing itself
            continue
        if target.startswith("socket:"):
            yield f"socket:{target}"
        elif target.startswith("/memfd:"):
            yield f"memfd:{target}"
        elif target == "anon_inode:[pidfd]":
            yield "pidfd:"


def _mapped_memory() -> Iterator[str]:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            if "/memfd:" in line:
                yield f"mapping:{line.split(maxsplit=5)[5].strip()}"


def _segments() -> Iterator[str]:
    if _SHARED_MEMORY.is_dir():
        for name in os.listdir(_SHARED_MEMORY):
            if name.startswith(_OUR_SEGMENTS):
                yield f"segment:{name}"
