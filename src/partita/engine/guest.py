"""A process that is not the engine's own and uses its cores only in turn with those that serve."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from partita.core.clock import Clock
from partita.machines.leases import CoreLeases
from partita.machines.tuning_pace import Mode
from partita.system.processes import Bystander

SETTLE_S = 0.0003
"""Cores must have been free for this long: between two batches of a busy instance they are for less."""
HOLD_LIMIT_S = 2.0
"""No process keeps a lease for longer: whatever it does, those that serve are not kept waiting for it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What became of one execution: how long it ran, waited for its start, and was stopped; how often."""

    ran_s: float
    waited_s: float
    stopped_s: float
    stops: int
    held: bool


class Guest:
    """Lets one process at a time execute: on free cores until somebody wants them, or under a lease.

    `begin` a turn, tell `use` how the cores may be used (also anew, as it goes on), and `end` it when the
    process is done. The process waits to be asked before a turn; one that is active from the start, as while
    it loads, is stopped until its turn.
    """

    def __init__(
        self, number: int, leases: CoreLeases, *, loop: asyncio.AbstractEventLoop, clock: Clock
    ) -> None:
        self._number = number
        self._leases = leases
        self._loop = loop
        self._clock = clock
        self._process: Bystander | None = None
        self._cores: frozenset[int] = frozenset()
        self._begun: Callable[[], None] | None = None
        self._mode = Mode.WAIT
        self._is_running = False
        self._has_lease = False
        self._asks_lease = False
        self._settling: asyncio.TimerHandle | None = None
        self._since_s = 0.0
        self._times = {"ran": 0.0, "waited": 0.0, "stopped": 0.0}
        self._stops = 0
        self._was_held = False
        self._held_from_s = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a turn is under way."""
        return self._process is not None

    def begin(
        self, process: Bystander, cores: Collection[int], begun: Callable[[], None] | None, mode: Mode
    ) -> None:
        """Begin a turn. `begun` is called when the process may be asked; None = it is active already."""
        assert self._process is None, "one turn at a time"
        self._process, self._cores, self._begun = process, frozenset(cores), begun
        self._times = dict.fromkeys(self._times, 0.0)
        self._stops = 0
        self._was_held = False
        self._since_s = self._clock.now_s()
        self._mode = mode
        self._is_running = begun is None
        self._leases.invite(self._number, self._cores, self._look)
        self.use(mode)

    def use(self, mode: Mode) -> None:
        """From now on the cores may be used so. A lease is kept to the end of the turn, within a limit."""
        if self._process is None or (self._has_lease and not self._has_held_too_long):
            return
        if self._has_lease:
            mode = Mode.YIELD
            self._drop_lease()
            self._leases.invite(self._number, self._cores, self._look)
        self._mode = mode
        if mode is Mode.HOLD and not self._asks_lease:
            self._asks_lease = True
            self._leases.register(self._number, self._cores, self._wake)
        elif mode is not Mode.HOLD:
            self._drop_lease()
        self._look()

    def end(self) -> Turn:
        """The process is done, or gone."""
        assert self._process is not None
        self._count()
        if not self._is_running and self._begun is None:
            self._process.resume()  # it may have been stopped just when it was done
        self._process = None
        self._leases.dismiss(self._number)
        self._drop_lease()
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        times = self._times
        return Turn(times["ran"], times["waited"], times["stopped"], self._stops, self._was_held)

    @property
    def _has_held_too_long(self) -> bool:
        return self._clock.now_s() - self._held_from_s > HOLD_LIMIT_S

    @property
    def so_far(self) -> tuple[float, float]:
        """How long this turn has waited or been stopped, and how long it ran, seconds."""
        self._count()
        return self._times["waited"] + self._times["stopped"], self._times["ran"]

    # --- following the leases ---------------------------------------------------------------------

    def _drop_lease(self) -> None:
        if self._asks_lease:
            self._asks_lease = self._has_lease = False
            self._leases.forget(self._number)

    def _wake(self) -> None:
        self._loop.call_soon(self._look)

    def _look(self) -> None:
        if self._process is None or self._has_lease:
            return
        if self._asks_lease and self._takes_lease():
            return
        if self._mode is Mode.WAIT or self._leases.free_among(self._cores) != self._cores:
            self._halt()
        elif not self._is_running and self._settling is None:
            self._settling = self._loop.call_later(SETTLE_S, self._settled)

    def _takes_lease(self) -> bool:
        if not self._leases.can_lease(self._number):
            self._leases.wait((self._number,))
            return False
        self._has_lease = self._was_held = True
        self._held_from_s = self._clock.now_s()
        self._leases.dismiss(self._number)
        self._leases.lease(self._number)
        self._go()
        return True

    def _settled(self) -> None:
        self._settling = None
        if self._process is None or self._has_lease or self._mode is Mode.WAIT:
            return
        if self._leases.free_among(self._cores) == self._cores:
            self._go()

    def _go(self) -> None:
        if self._is_running:
            return
        self._count()
        self._is_running = True
        assert self._process is not None
        if self._begun is not None:
            begun, self._begun = self._begun, None
            begun()
        else:
            self._process.resume()

    def _halt(self) -> None:
        if self._is_running and self._process is not None:
            self._count()
            self._is_running = False
            self._stops += 1
            self._process.pause()

    def _count(self) -> None:
        now_s = self._clock.now_s()
        what = "ran" if self._is_running else "waited" if self._begun is not None else "stopped"
        self._times[what] += now_s - self._since_s
        self._since_s = now_s
