"""Dying with the parent: the first thing in a child, so this imports next to nothing."""

import ctypes
import os
import signal

CHILD_NAME = "partita-worker"
"""What a worker is called in lists of processes, once it would die with its parent."""
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def die_with_thread() -> None:
    """Have the kernel kill this process when the thread that started it ends, and take `CHILD_NAME`.

    From then on whoever started it may stop it. `die_with_parent` has yet to be called.
    """
    _watch_parent().prctl(_PR_SET_NAME, CHILD_NAME.encode(), 0, 0, 0)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process as soon as its parent is gone.

    The kernel watches the *thread* that started this process: when that thread ends, so does this
    process, even if the rest of the parent lives on. A parent that ended before this call is noticed by
    our having another parent than `parent_pid`.
    """
    _watch_parent()
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def _watch_parent() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    return libc
