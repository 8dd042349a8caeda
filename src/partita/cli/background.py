"""A server that goes on after the command that started it."""

import subprocess
import sys
import time
from collections.abc import Sequence

from partita.system.pid_files import PidFile

_LOOK_EVERY_S = 0.05


def start_in_background(argv: Sequence[str], pid_file: PidFile) -> tuple[int, int | None]:
    """Start ``partita ARGV`` in a session of its own, and wait until its ports are open.

    The pid file says that they are. Returns its process, and its exit code if it ended before, having said
    why. What it prints goes to our standard error.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "partita.cli", *argv],
        stdin=subprocess.DEVNULL,
        stdout=2,
        start_new_session=True,
    )
    try:
        while pid_file.running() != process.pid:
            if process.poll() is not None:
                return process.pid, process.returncode
            time.sleep(_LOOK_EVERY_S)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    process.returncode = 0  # nobody waits for it any more
    return process.pid, None
