"""The fake clock: what is to happen, in order of time, and what was put down first where times are equal."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Event = Callable[[float, Any], None]
"""Called with the time at which it happens, seconds, and what was put down with it."""


class Agenda:
    """What is still to happen."""

    def __init__(self) -> None:
        self._events: list[tuple[float, int, Event, Any]] = []
        self._next = 0

    def at(self, time_s: float, event: Event, what: Any = None) -> None:
        """Put down something to happen at this time."""
        self._next += 1
        heappush(self._events, (time_s, self._next, event, what))

    @property
    def next_s(self) -> float:
        """When the next thing happens; infinity if nothing will."""
        return self._events[0][0] if self._events else float("inf")

    def happen(self) -> float:
        """Let the next thing happen, and return its time."""
        time_s, _, event, what = heappop(self._events)
        event(time_s, what)
        return time_s
