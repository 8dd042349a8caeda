"""Starting processes from the head without holding it up: out of spare children that wait for their job.

To start a process is to copy the one that starts it, which waits meanwhile, and may wake up on the very core
that the new one begins on: milliseconds in which nobody is answered. A spare is there already, and is told in
one message what to become (`spares.py`).
"""

import contextlib
import os
import platform
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Collection, Mapping, Sequence

from partita.core.errors import ConnectionClosed
from partita.system import spares
from partita.system.channels import Channel, channel_pair
from partita.system.processes import WorkerProcess, spawn_worker

SPARES = 2
"""Children that wait; another is asked for when one is taken."""
_END_S = 1.0


class _Spare:
    """A child that waits, until it was told over its socket what to become: then it is that."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel
        self._status: int | None = None

    def poll(self) -> int | None:
        """Reap it if it has ended; returns its exit status (−N: by signal N)."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal, unless it was reaped."""
        if self._status is None:
            os.kill(self.pid, sig)

    def discard(self) -> None:
        """End it, and reap it."""
        self.channel.close()
        self.send_signal(signal.SIGKILL)
        os.waitpid(self.pid, 0)


class Spawner:
    """Starts worker processes; use it from one thread, which must live as long as they do.

    Nothing depends on the spares: where there is none, as before `start`, a process is started as ever.
    """

    def __init__(self) -> None:
        self._keeper: subprocess.Popen[bytes] | None = None
        self._control: Channel | None = None
        self._spares: deque[_Spare] = deque()

    def start(self) -> None:
        """Begin to keep spares, at once or never; returns before there are any. `close` ends them."""
        if self._keeper is not None or platform.machine() not in spares.CLONE:
            return
        ours, theirs = channel_pair()
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
        self._control = ours
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
        """Start a process as `spawn_worker` does, on these CPUs, and with `is_aside` stepped back."""
        try:
            spare = self._told([*argv], channel_socket, env, cpus, is_aside)
            if spare is not None:
                return WorkerProcess(spare, name=name, cpus=cpus, is_aside=is_aside, is_watched=True)
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
        if self._control is not None:
            self._control.shutdown_sending()
        if self._keeper is not None:
            try:
                self._keeper.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._keeper.kill()
                self._keeper.wait()
        self._take_announced()
        while self._spares:
            self._spares.popleft().discard()
        if self._control is not None:
            self._control.close()
        self._control = self._keeper = None

    def _told(
        self,
        argv: list[str],
        channel_socket: socket.socket,
        env: Mapping[str, str],
        cpus: Collection[int],
        is_aside: bool,
    ) -> _Spare | None:
        """Return a spare that was told to become this, None where there is none or it cannot be told."""
        if not self.waiting:
            return None
        variables = [f"{key}={value}" for key, value in {**os.environ, **env}.items()]
        try:
            job = spares.job(argv, variables, folder=os.getcwd(), cpus=sorted(cpus), is_aside=is_aside)
        except OSError:  # the working folder is gone: an ordinary child is in it all the same
            return None
        if len(job) > spares.LARGEST_JOB_BYTES:
            return None
        while self._spares:
            spare = self._spares.popleft()
            try:
                socket.send_fds(spare.channel, [job], [channel_socket.fileno(), 2])
            except OSError:  # it was ended by somebody
                spare.discard()
                continue
            finally:
                self._ask_for_one()
            spare.channel.close()
            return spare
        return None

    def _ask_for_one(self) -> None:
        if self._control is not None:
            with contextlib.suppress(ConnectionClosed):  # which is seen where spares are looked for
                self._control.send(spares.MORE)

    def _take_announced(self) -> None:
        try:
            while self._control is not None and (received := self._control.receive_nowait()) is not None:
                said, (fd,) = received
                self._spares.append(_Spare(int(said), socket.socket(fileno=fd)))
        except ConnectionClosed:
            self._keeper_is_gone()

    def _keeper_is_gone(self) -> None:
        """Go on with the spares that there are, and then without."""
        assert self._control is not None
        self._control.close()
        self._control = None
        if self._keeper is not None:
            self._keeper.wait()
