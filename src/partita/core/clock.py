"""Time as a value that is passed in."""

from typing import Protocol


class Clock(Protocol):
    """Reads a monotonic clock. Only `partita.system.clock` implements it on a real one."""

    def now_s(self) -> float:
        """Seconds on a clock that never goes backwards; its zero means nothing."""
        ...

    def wall_s(self) -> float:
        """Seconds since 1970, for showing to people; may jump."""
        ...
