"""What all models of a simulated machine share: its clock, its cores, and who executes on them."""

from collections.abc import Callable
from itertools import count

from partita.machines.leases import CoreLeases
from partita.simulator.agenda import Agenda

Take = Callable[[float], None]


class SharedMachine:
    """One machine. A member that waits for cores is told when some that it waits for become free."""

    def __init__(self) -> None:
        self.agenda = Agenda()
        self.leases = CoreLeases()
        self.busy_threads = 0
        """Threads that execute now, whoever's."""
        self._numbers = count(1)
        self._woken: dict[Take, None] = {}

    def next_number(self) -> int:
        """Return a number for an instance, unique on this machine."""
        return next(self._numbers)

    def wake(self, take: Take) -> None:
        """Cores may have become free that somebody waits for: have it look, later."""
        self._woken[take] = None

    def heeds(self, take: Take) -> bool:
        """Whether it was woken since it was asked last; it looks for itself now."""
        if take not in self._woken:
            return False
        del self._woken[take]
        return True

    def settle(self, now_s: float) -> None:
        """Let everybody look who was woken, in that order, until nobody has reason to."""
        while self._woken:
            take = next(iter(self._woken))
            del self._woken[take]
            take(now_s)
