"""The process that keeps spare children ready for its parent: `spawner.py` starts this file, by its path.

It holds next to nothing, so that to copy it costs a fraction of a millisecond, and nobody waits for that. A
spare is made as a child of *our parent* (``CLONE_PARENT``): the parent reaps it and learns its exit status
as of any child of its own, and the kernel ends it with the thread of the parent that started us. It imports
nothing of ours and runs without ``site``.
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Sequence

CLONE = {"x86_64": 56, "aarch64": 220}
"""Number of the system call; the C library's own function has no way to leave the stack as it is."""
MORE = b"+"
"""Asks for one more spare."""
LARGEST_JOB_BYTES = 64 << 10
_CLONE_PARENT = 0x8000
_PR_SET_PDEATHSIG = 1
Policy = tuple[int, os.sched_param]
"""How the kernel schedules a process."""


def job(argv: Sequence[str], env: Sequence[str], *, folder: str) -> bytes:
    """Return what a spare is to become, for `become`; raises `ValueError` for text with a NUL."""
    words = [str(len(argv)), folder, *argv, *env]
    if any("\0" in word for word in words):
        raise ValueError("no argument and no variable may hold a NUL")
    return b"\0".join(map(os.fsencode, words))


def main() -> None:
    """Make spares until the parent closes its end: one for each `MORE`."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    parent_pid = int(sys.argv[2])
    libc = ctypes.PyDLL(None)
    policy = os.sched_getscheduler(0), os.sched_getparam(0)
    _make_way()
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with contextlib.suppress(ConnectionError):
        while os.getppid() == parent_pid and control.recv(1):
            make_spare(control, parent_pid, libc, policy)
    os._exit(0)


def make_spare(control: socket.socket, parent_pid: int, libc: ctypes.PyDLL, policy: Policy) -> None:
    """Make a child of our parent, which tells the parent; ends this process where that is not allowed.

    It tells so itself: were we to end in between, the parent would have a child that it does not know of.
    """
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = libc.syscall(CLONE[os.uname().machine], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid < 0:
        os._exit(1)
    if pid == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent_pid:
            os.setsid()  # before the parent knows of us: it sets a session's share of the CPU by its number
            with contextlib.suppress(ConnectionError):
                socket.send_fds(control, [str(os.getpid()).encode()], [ours.fileno()])
                control.close()
                ours.close()
                be_spare(its, policy)
        os._exit(0)
    its.close()
    ours.close()


def be_spare(channel: socket.socket, policy: Policy) -> None:
    """Wait to be told what to become; returns where nobody says so."""
    task, fds, _, _ = socket.recv_fds(channel, LARGEST_JOB_BYTES + 1, 2)
    if len(fds) == 2:
        given, errors = fds
        become(task, given, errors, policy)


def become(task: bytes, given: int, errors: int, policy: Policy) -> None:
    """Be the program of a job, with one descriptor of its own and all that it prints to `errors`."""
    count, folder, *words = map(os.fsdecode, task.split(b"\0"))
    argv, env = words[: int(count)], dict(word.split("=", 1) for word in words[int(count) :])
    for wanted in ((os.SCHED_OTHER, os.sched_param(0)), policy):  # of which the second may not be allowed
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, *wanted)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and programs inherit that
        signal.signal(number, signal.SIG_DFL)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    os.close(errors)  # the other, which came just so, is for the program to have
    try:
        os.chdir(folder)
        os.execvpe(argv[0], [*argv, "--channel", str(given)], env)
    except OSError as error:
        os.write(2, f"cannot start {argv[0]}: {error.strerror}\n".encode())
        os._exit(127)


def _make_way() -> None:
    """Preempt nobody on waking up: whoever sends us a message goes on first."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


if __name__ == "__main__":
    main()
