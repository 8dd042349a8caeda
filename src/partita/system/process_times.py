"""When a process was started."""

from pathlib import Path


def started_at_s(pid: int) -> float | None:
    """Return the wall-clock time, seconds since 1970; None where it is gone."""
    try:
        return Path(f"/proc/{pid}").stat().st_ctime
    except OSError:
        return None
