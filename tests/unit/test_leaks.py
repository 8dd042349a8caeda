"""The leak check itself: it must see every kind of thing, wait for what is ending, and allow replacement."""

import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.shared_memory import SharedMemory

import pytest

from tests import leaks


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "GRACE_S", 0.0)


def _leave_child(stack: ExitStack) -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    stack.callback(child.communicate)


def _leave_zombie(stack: ExitStack) -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    stack.callback(child.wait)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def _leave_thread(stack: ExitStack) -> None:
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait)
    thread.start()
    stack.callback(thread.join)
    stack.callback(gate.set)


def _leave_socket(stack: ExitStack) -> None:
    stack.enter_context(socket.socket())


def _leave_memfd(stack: ExitStack) -> None:
    stack.callback(os.close, os.memfd_create("x"))


def _leave_mapping(stack: ExitStack) -> None:
    descriptor = os.memfd_create("x")
    os.ftruncate(descriptor, 4096)
    stack.enter_context(mmap.mmap(descriptor, 4096))
    os.close(descriptor)


def _leave_pidfd(stack: ExitStack) -> None:
    stack.callback(os.close, os.pidfd_open(os.getpid()))


@pytest.mark.usefixtures("no_grace")
@pytest.mark.parametrize(
    ("leave", "named"),
    [
        (_leave_child, "child:"),
        (_leave_zombie, "child:"),
        (_leave_thread, "thread:"),
        (_leave_socket, "socket:"),
        (_leave_memfd, "memfd:"),
        (_leave_mapping, "mapping:"),
        (_leave_pidfd, "pidfd:"),
    ],
)
def test_each_kind_is_seen(leave: Callable[[ExitStack], None], named: str) -> None:
    with ExitStack() as stack, pytest.raises(AssertionError, match=named), leaks.nothing_left_behind():
        leave(stack)


@pytest.mark.usefixtures("no_grace")
def test_a_named_segment_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    # Python's tracker of shared memory is a process that never ends; kept out, only the name is left.
    monkeypatch.setattr("multiprocessing.resource_tracker.register", lambda *_: None)
    monkeypatch.setattr("multiprocessing.resource_tracker.unregister", lambda *_: None)
    segment: SharedMemory | None = None
    with pytest.raises(AssertionError, match="segment:"), leaks.nothing_left_behind():
        segment = SharedMemory(create=True, size=64, name=f"partita-leak-test-{os.getpid()}")
    assert segment
    segment.close()
    segment.unlink()


def test_what_is_ending_is_waited_for() -> None:
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait)
    with leaks.nothing_left_behind():
        thread.start()
        opener = threading.Timer(0.05, gate.set)
        opener.start()
    assert not thread.is_alive()
    opener.join()


@pytest.mark.usefixtures("no_grace")
def test_one_may_take_anothers_place() -> None:
    old = socket.socket()
    with leaks.nothing_left_behind():
        new = socket.socket()
        old.close()
    new.close()


def test_a_snapshot_is_cheap() -> None:
    leaks.snapshot()
    started = time.process_time()
    for _ in range(10):
        leaks.snapshot()
    assert time.process_time() - started < 0.5
