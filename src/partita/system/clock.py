"""The one place that reads a clock for the rest of Partita."""

import time


class SystemClock:
    """The machine's monotonic clock; implements `partita.core.clock.Clock`."""

    __slots__ = ()

    now_s = staticmethod(time.monotonic)
    """Seconds on a clock that never goes backwards; its zero means nothing."""

    def wall_s(self) -> float:
        """Seconds since 1970, for showing to people; may jump."""
        return time.time()
