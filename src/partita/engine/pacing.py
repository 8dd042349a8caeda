"""Loading a worker on cores that others execute on, without disturbing them."""

import asyncio
from collections.abc import Collection
from typing import Protocol

from partita.core.clock import Clock
from partita.core.plan import InstanceSpec
from partita.machines.leases import CoreLeases

SETTLE_S = 0.001
"""A core must have been free for this long: between two batches of a busy instance it is for less."""
AGAIN_S = 0.005
"""Until it is tried again to stop a worker that has only just begun."""
PERIOD_S = 0.1
OWN_SHARE = 0.25
"""Share of time in which an urgent one loads even where its cores are never free."""


class Loading(Protocol):
    """Who loads: an `Instance`, or another process that has nothing in hand yet."""

    @property
    def number(self) -> int:
        """By which the core leases know it."""

    @property
    def spec(self) -> InstanceSpec:
        """Its cores."""

    def yield_to(self, free: Collection[int]) -> bool:
        """Run only on these cores; on none, stop for now. False = not yet, try again."""

    def step_back(self) -> None:
        """Leave it only what others do not need of the CPU."""

    def step_forward(self) -> bool:
        """Take that back once it can be stopped, which is better; returns whether it could be by now."""

    def go_home(self) -> None:
        """Run wherever it may when it has loaded."""


class Pacer:
    """Keeps a loading worker off the cores that are leased, and stops it while all of its cores are.

    What executes thus has its cores to itself, and loading takes the slack: neither priorities that cannot
    be raised again without privileges, nor anything that the user would have to set up, are needed for it.
    """

    def __init__(
        self,
        instance: Loading,
        leases: CoreLeases,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        is_urgent: bool = True,
    ) -> None:
        self._instance = instance
        self._leases = leases
        self._loop = loop
        self._clock = clock
        self._cores = frozenset(instance.spec.cores)
        self._runs_on = self._cores
        self._since_s = 0.0
        self._ran_s = 0.0
        self._settling: asyncio.TimerHandle | None = None
        self._period: asyncio.TimerHandle | None = None
        self._listening: asyncio.TimerHandle | None = None
        self._in_turn = False
        self._is_urgent = is_urgent
        """Whether it gets a share of the time where its cores are never free: somebody waits for it."""

    def hurry(self) -> None:
        """Somebody waits for it from now on."""
        self._is_urgent = True

    def start(self) -> None:
        """Begin; the worker has just been started."""
        self._since_s = self._clock.now_s()
        if self._cores:
            self._instance.step_back()  # it cannot be stopped before it listens
            self._listening = self._loop.call_later(AGAIN_S, self._listens)
            self._leases.invite(self._instance.number, self._cores, self._leases_changed)
            self._period = self._loop.call_later(PERIOD_S, self._period_over)
            self._run_on(self._leases.free_among(self._cores))

    def stop(self) -> None:
        """The worker is loaded, or gone."""
        self._leases.dismiss(self._instance.number)
        for timer in (self._settling, self._period, self._listening):
            if timer is not None:
                timer.cancel()
        self._settling = self._period = self._listening = None
        if self._cores:
            self._instance.go_home()

    def _listens(self) -> None:
        """Once it can be stopped, it need not be held back where its cores are free."""
        self._listening = None
        if not self._instance.step_forward():
            self._listening = self._loop.call_later(AGAIN_S, self._listens)

    def _leases_changed(self) -> None:
        if self._in_turn:
            return
        free = self._leases.free_among(self._cores)
        still = self._runs_on & free
        if still != self._runs_on:  # at once off what is leased
            self._run_on(still)
        if free != still and self._settling is None:
            self._settling = self._loop.call_later(SETTLE_S, self._settled)

    def _settled(self) -> None:
        self._settling = None
        if not self._in_turn:
            self._run_on(self._leases.free_among(self._cores))

    def _run_on(self, cores: frozenset[int]) -> None:
        now_s = self._clock.now_s()
        if self._runs_on:
            self._ran_s += now_s - self._since_s
        self._since_s = now_s
        self._runs_on = cores
        if not self._instance.yield_to(cores) and self._settling is None:
            self._settling = self._loop.call_later(AGAIN_S, self._settled)

    def _period_over(self) -> None:
        """Give it a turn of its own, if it had next to nothing in the last period."""
        if self._in_turn:
            self._in_turn = False
            self._run_on(self._leases.free_among(self._cores))
        elif self._is_urgent and not self._runs_on and self._ran_s < OWN_SHARE * PERIOD_S:
            self._in_turn = True
            self._run_on(self._cores)
        self._ran_s = 0.0
        wait_s = OWN_SHARE * PERIOD_S if self._in_turn else PERIOD_S
        self._period = self._loop.call_later(wait_s, self._period_over)
