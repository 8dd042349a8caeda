"""When a process was started."""

from pathlib import Path

_START = 18
"""Where its start stands in ``/proc/PID/stat``, after the process's name and state."""


def started_at_s(pid: int) -> float | None:
    """Return the wall-clock time, seconds since 1970; None where it is gone."""
    try:
        return Path(f"/proc/{pid}").stat().st_ctime
    except OSError:
        return None


def started_ticks(pid: int) -> int | None:
    """Return the ticks of the clock from the machine's start until then; None where it has ended."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *fields = line[line.rindex(")") + 2 :].split()
    return None if state in "ZX" else int(fields[_START])
