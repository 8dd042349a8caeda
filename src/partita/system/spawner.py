"""Starting processes from the head without holding it up: out of spare children that wait for their job.

To start a process is to copy the one that starts it, which waits meanwhile, and may wake up on the very core
that the new one begins on: milliseconds in which nobody is answered. A spare is there already, and is told in
one message what to become (`spares.py`).
"""

import asyncio
import contextlib
import logging
import os
import platform
import select
import signal
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence

from partita.system import spares
from partita.system.processes import WorkerProcess, spawn_worker

log = logging.getLogger(__name__)

SPARES = 2
"""Children that wait; another is asked for when one is taken."""
_END_S = 1.0
_FD = struct.Struct("i")
_NOW = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC


class _Spare:
    """A child that waits, until it was told over its socket what to become: then it is that."""

    def __init__(self, pid: int, channel: socket.socket | None) -> None:
        self.pid = pid
        self.channel = channel
        self._status: int | None = None

    def poll(self) -> int | None:
        """Reap it if it has ended; returns its exit status (−N: by signal N; 0 where it is not known)."""
        return self._reap(os.WNOHANG)

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal, unless it was reaped."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def discard(self) -> None:
        """End it, and reap it."""
        if self.channel is not None:
            self.channel.close()
        self.send_signal(signal.SIGKILL)
        self._reap(0)

    def _reap(self, options: int) -> int | None:
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, options)
                self._status = os.waitstatus_to_exitcode(status) if pid else None
            except ChildProcessError:  # somebody else did: this process ignores SIGCHLD, or reaps all
                self._status = 0
        return self._status


class Spawner:
    """Starts worker processes; use it from one thread, which must live as long as they do.

    Nothing depends on the spares: where there is none, as before `start`, a process is started as ever.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """With a loop spares are taken as they come, else when they are asked for."""
        self._loop = loop
        self._keeper: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._spares: deque[_Spare] = deque()
        self._is_ending = False

    def start(self) -> None:
        """Begin to keep spares, at once or never; returns before there are any. `close` ends them."""
        if self._keeper is not None or platform.machine() not in spares.CLONE:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", spares.__file__, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError:
            ours.close()
            return
        finally:
            theirs.close()
        self._control, self._is_ending = ours, False
        if self._loop is not None:
            self._loop.add_reader(ours.fileno(), self._take_announced)
        for _ in range(SPARES):
            self._ask_for_one()

    @property
    def waiting(self) -> int:
        """Spares that are ready."""
        self._take_announced()
        return len(self._spares)

    def spawn(
        self,
        argv: Sequence[str],
        channel_socket: socket.socket,
        *,
        env: Mapping[str, str],
        name: str,
        cpus: Collection[int] = (),
        is_aside: bool = False,
    ) -> WorkerProcess:
        """Start a process as `spawn_worker` does, on these CPUs, and with `is_aside` stepped back if it can.

        A spare is pinned and stepped back while it waits: it stops nobody then, and undoes nothing later.
        """
        try:
            for spare, job in self._for_job([*argv], env):
                process = _told(spare, job, channel_socket, name, cpus, is_aside)
                self._ask_for_one()
                if process is not None:
                    return process
            process = spawn_worker(argv, channel_socket, env=env, name=name)
        finally:
            channel_socket.close()
        if cpus:
            process.confine(cpus)
        if is_aside:
            process.step_back()
        return process

    def close(self) -> None:
        """End the spares and who makes them; what was started stays."""
        self._is_ending = True
        if self._keeper is not None:
            self._keeper.kill()  # whoever it has just made tells so itself, and only then the control closes
            self._keeper.wait()
        while self._control is not None and _is_readable(self._control, _END_S):
            self._take_announced()
        while self._spares:
            self._spares.popleft().discard()
        self._close_control()
        self._keeper = None

    def _for_job(self, argv: list[str], env: Mapping[str, str]) -> Iterator[tuple[_Spare, bytes]]:
        """Yield spares for this, as long as there are any; none where it cannot be told."""
        if not self.waiting:
            return
        variables = [f"{key}={value}" for key, value in {**os.environ, **env}.items()]
        try:
            job = spares.job(argv, variables, folder=os.getcwd())
        except OSError:  # the working folder is gone: an ordinary child is in it all the same
            return
        while len(job) <= spares.LARGEST_JOB_BYTES and self._spares:
            yield self._spares.popleft(), job

    def _ask_for_one(self) -> None:
        if self._control is not None:
            with contextlib.suppress(OSError):  # whose cause is seen where spares are looked for
                self._control.send(spares.MORE)

    def _take_announced(self) -> None:
        while self._control is not None:
            try:
                # not recv_fds, which drops the flags
                said, given, _, _ = self._control.recvmsg(32, socket.CMSG_LEN(_FD.size), _NOW)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # reported once, ahead of what was said before
            if not said:
                self._keeper_is_gone()
            elif given:
                (fd,) = _FD.unpack(given[0][2])
                self._spares.append(_Spare(int(said), socket.socket(fileno=fd)))
            else:  # we have too many files open, so that its channel is lost
                _Spare(int(said), None).discard()
                self._ask_for_one()

    def _close_control(self) -> None:
        if self._control is not None:
            if self._loop is not None:
                self._loop.remove_reader(self._control.fileno())
            self._control.close()
            self._control = None

    def _keeper_is_gone(self) -> None:
        """Go on with the spares that there are, and then without."""
        assert self._keeper is not None
        self._close_control()
        if self._is_ending:
            return
        self._keeper.kill()
        status = self._keeper.wait()
        log.warning("who keeps spare processes ended (status %d): workers start slower from now on", status)


def _told(
    spare: _Spare,
    job: bytes,
    channel_socket: socket.socket,
    name: str,
    cpus: Collection[int],
    is_aside: bool,
) -> WorkerProcess | None:
    """Have a spare become this, there and so; returns None if somebody has ended it."""
    assert spare.channel is not None
    try:
        process = WorkerProcess(spare, name=name, cpus=cpus, is_watched=True)
    except ProcessLookupError:  # and reaped it
        spare.discard()
        return None
    if cpus:
        with contextlib.suppress(OSError):  # it pins itself again, and says then that it may not
            os.sched_setaffinity(spare.pid, cpus)
    if is_aside:
        process.step_back()
    try:
        socket.send_fds(spare.channel, [job], [channel_socket.fileno(), 2])
    except OSError:
        process.kill()
        process.wait()
        return None
    finally:
        spare.channel.close()
    return process


def _is_readable(end: socket.socket, limit_s: float) -> bool:
    poller = select.poll()
    poller.register(end, select.POLLIN)
    return bool(poller.poll(limit_s * 1000))
