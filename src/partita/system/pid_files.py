"""A file that names a server's process, so that another command can end it, and no other process ever."""

import os
import select
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

from partita.core.errors import InvalidInput
from partita.system.process_times import started_ticks


class PidFile:
    """A file with a process's number and, on a line of its own, when that was started.

    A number that is in use again is told by that from the process that was meant. A file of other content,
    such as another program's, is nobody's here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def running(self) -> int | None:
        """Return the process that the file names; None where it is not there, or its process is gone.

        Raises `InvalidInput` for a file of another user, or one that cannot be read.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InvalidInput(f"{self.path} cannot be read: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                raise InvalidInput(f"{self.path} is another user's; set TMPDIR to a folder of your own")
            fields = file.read(100).split()
        if len(fields) != 2 or not all(field.isdigit() for field in fields):
            return None
        pid, ticks = map(int, fields)
        return pid if started_ticks(pid) == ticks else None

    def write(self) -> None:
        """Name this process. Raises `InvalidInput` where another one is named that runs."""
        self._refuse_beside(self.running())
        beside = None
        try:
            descriptor, beside = tempfile.mkstemp(prefix=f"{self.path.name}.", dir=self.path.parent)
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{os.getpid()}\n{started_ticks(os.getpid())}\n")
            os.rename(beside, self.path)
        except OSError as error:
            if beside is not None:
                with suppress(OSError):
                    os.unlink(beside)
            raise InvalidInput(f"{self.path} cannot be written: {error.strerror}") from None

    def refuse_second(self) -> None:
        """Raise `InvalidInput` where the file names a process that runs."""
        self._refuse_beside(self.running())

    def _refuse_beside(self, pid: int | None) -> None:
        if pid not in (None, os.getpid()):
            raise InvalidInput(f"process {pid} of {self.path} is already running; end it with --stop first")

    def remove(self) -> None:
        """Remove the file, if it names this process."""
        with suppress(InvalidInput, OSError):
            if self.running() == os.getpid():
                self.path.unlink()

    def end(self, limit_s: float) -> tuple[int | None, bool]:
        """Ask the process to end and wait, at most this long.

        Returns its number, None where none runs, and whether it is gone. Raises `InvalidInput`.
        """
        pid = self.running()
        if pid is None:
            return None, True
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return None, True
        try:
            if self.running() != pid:  # the number was given to another just now
                return None, True
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            return pid, bool(poll.poll(limit_s * 1000))
        finally:
            os.close(descriptor)
