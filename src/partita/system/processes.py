"""Worker processes: starting, watching and ending them, and dying with the parent."""

import contextlib
import os
import pathlib
import select
import signal
import socket
import subprocess
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from partita.core.devices import Device
from partita.core.process_settings import ProcessSettings
from partita.system.allocators import allocator_environment
from partita.system.parent import CHILD_NAME

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
)

_SILENT = {"ORT_DISABLE_TELEMETRY": "1"}
"""ONNX Runtime 1.32 else reports to its makers, with a thread and a database in the user's cache folder."""


def thread_environment(threads: int) -> dict[str, str]:
    """Return the variables for a process that computes with this many threads.

    Numeric libraries read them when they are first imported.
    """
    return dict.fromkeys(_THREAD_VARIABLES, str(threads))


def worker_environment(threads: int, settings: ProcessSettings) -> dict[str, str]:
    """Return all variables that a worker is started with; raises `InvalidInput` as `allocator_environment`.

    The C library's allocator and OpenMP read theirs when the process starts. No library reports to anybody
    unless the settings' own variables say so.
    """
    env = {**_SILENT, **allocator_environment(settings), **settings.environment}
    if settings.openmp_wait:
        env["OMP_WAIT_POLICY"] = settings.openmp_wait
        env["KMP_BLOCKTIME"] = "infinite" if settings.openmp_wait == "active" else "0"
    if settings.openmp_bind:
        env["OMP_PROC_BIND"] = settings.openmp_bind
    return {**env, **thread_environment(threads)}


def gpu_environment(device: Device) -> dict[str, str]:
    """Return the variables by which a process sees this GPU alone, whose number is 0 there.

    GPUs are numbered as ``nvidia-smi`` does, and not by their speed as CUDA would.
    """
    if device.driver:
        return {}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(device.index)}


class ChildProcess(Protocol):
    """A child that has not been reaped: what `subprocess.Popen` is, too."""

    @property
    def pid(self) -> int:
        """Its number, which nobody else gets before it was reaped."""

    def poll(self) -> int | None:
        """Reap it if it has ended; returns its exit status (−N: by signal N)."""

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal, unless it was reaped."""


class WorkerProcess:
    """A child process of ours. `pidfd` becomes readable when it has ended, in any way."""

    __slots__ = ("_child", "_confined_to", "_is_watched", "is_stepped_back", "name", "pid", "pidfd")

    def __init__(
        self,
        child: ChildProcess,
        *,
        name: str,
        cpus: Collection[int] = (),
        is_watched: bool = False,
    ) -> None:
        """Take a child that was started on these CPUs.

        `is_watched`: the kernel ends it with us already.
        """
        self._child = child
        self._confined_to = frozenset(cpus)
        self._is_watched = is_watched
        self.name = name
        self.pid = child.pid
        self.pidfd = os.pidfd_open(child.pid)
        self.is_stepped_back = False
        """Whether its session has a small share of the CPU only."""

    def step_back(self) -> bool:
        """Let its session have only what others leave; False = not now, try again later.

        Nothing where the system knows no such thing: see `is_stepped_back`. Unlike niceness it can be taken
        back without privileges.
        """
        return self.is_stepped_back or self._weigh(_LOWEST)

    def step_forward(self) -> bool:
        """Take that back; False = not now, try again later."""
        return not self.is_stepped_back or self._weigh(0)

    def _weigh(self, niceness: int) -> bool:
        try:
            self.is_stepped_back = _share_of_session(self.pid, niceness) and niceness > 0
        except BlockingIOError:
            return False
        return True

    @property
    def dies_with_us(self) -> bool:
        """Whether it ends when its head does: made so, or as its name says (`die_with_thread`)."""
        if self._is_watched:
            return True
        try:
            return pathlib.Path(f"/proc/{self.pid}/comm").read_text(encoding="utf-8").strip() == CHILD_NAME
        except OSError:
            return False

    def terminate(self) -> None:
        """Ask it to finish the batch at hand and exit (SIGTERM)."""
        self._child.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self._child.send_signal(signal.SIGKILL)

    def pause(self) -> None:
        """Stop it where it is (SIGSTOP) until `resume`. It must be one that `dies_with_us` by then."""
        self._child.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self._child.send_signal(signal.SIGCONT)

    def confine(self, cpus: Collection[int]) -> None:
        """Pin all its threads from outside; those that the system does not let us pin go where they like."""
        if self._confined_to and self._confined_to == frozenset(cpus):  # it was started there
            return
        self._confined_to = frozenset()
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{self.pid}/task"):
                os.sched_setaffinity(int(thread), cpus)

    def reap(self) -> int | None:
        """Return the exit code once it has ended (−N: by signal N), None while it runs; never blocks."""
        code = self._child.poll()
        if code is not None and self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        return code

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for its end; returns the exit code, or None if it still runs after `timeout_s`."""
        if self.pidfd >= 0:
            poller = select.poll()
            poller.register(self.pidfd, select.POLLIN)
            if not poller.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000):
                return None
        return self.reap()


_LOWEST = 10
_NICENESS = 5
"""Who wakes up beside such a process runs at once; with more it would starve beside other programs."""


class Bystander:
    """A process that somebody else started, and that may be stopped for a while. `close` it afterwards."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def step_back(self) -> None:
        """Lower the share of its session, where the system has such: niceness counts within it only."""
        with contextlib.suppress(BlockingIOError):
            _share_of_session(self.pid, _NICENESS)

    def pause(self) -> None:
        """Stop it where it is; nothing where it is gone."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on; nothing where it is gone."""
        self._send(signal.SIGCONT)

    @property
    def is_gone(self) -> bool:
        """Whether it has ended."""
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Let go of it; it goes on."""
        if self._fd >= 0:
            self.resume()
            os.close(self._fd)
            self._fd = -1

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, number)


def step_back() -> None:
    """Have this process, and those that it starts, make way for those that it would disturb.

    Linux may share the CPU out by session before it looks at priorities; such a share is lowered too.
    """
    os.nice(_NICENESS)
    with contextlib.suppress(BlockingIOError):
        _share_of_session(os.getpid(), _NICENESS)


def _share_of_session(pid: int, niceness: int) -> bool:
    """Have the session of a process weigh so much against others; False where the system has no such.

    Raises `BlockingIOError` where it allows no more such changes just now: some ten a second on the machine.
    """
    try:
        pathlib.Path(f"/proc/{pid}/autogroup").write_text(str(niceness))
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def spawn_worker(
    argv: Sequence[str], channel_socket: socket.socket, *, env: Mapping[str, str], name: str
) -> WorkerProcess:
    """Start ``argv --channel FD`` with its end of a channel, which is closed here.

    `env` is added to this process's environment. The child is in a session of its own, so that a
    terminal's Ctrl-C reaches the head alone; its standard output goes to our standard error. Call this
    from a thread that lives as long as the head: see `die_with_parent`.
    """
    fd = channel_socket.fileno()
    try:
        popen = subprocess.Popen(
            [*argv, "--channel", str(fd)],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=2,
            pass_fds=(fd,),
            close_fds=True,
            start_new_session=True,
        )
    finally:
        channel_socket.close()
    return WorkerProcess(popen, name=name)


def exit_reason(code: int | None) -> str:
    """Return how a worker process ended, in words; None = not known."""
    if code is None:
        return "the worker process ended"
    if code < 0:
        return f"the worker process was ended by signal {-code}"
    return f"the worker process exited with status {code}"
