"""A process that measures beside traffic, while it imports what it needs: stopped like what loads."""

import os
from collections.abc import Collection

from partita.core.plan import InstanceSpec
from partita.system.processes import WorkerProcess


class Beginner:
    """What a `Pacer` needs to know of such a process, which has nothing in hand yet."""

    def __init__(self, number: int, process: WorkerProcess, cores: tuple[int, ...]) -> None:
        self.number = number
        self.spec = InstanceSpec(threads=max(1, len(cores)), batch=1, cores=cores)
        self._process = process
        self._home = os.sched_getaffinity(0)
        self._is_stopped = False

    def yield_to(self, free: Collection[int]) -> bool:
        """Run only on these cores; on none, stop for now. False = not yet, try again."""
        if free:
            self._process.confine(free)
            self._resume()
        elif not self._is_stopped:
            if not self._process.dies_with_us:
                return False
            self._is_stopped = True
            self._process.pause()
        return True

    def step_back(self) -> None:
        """Leave it only what others do not need of the CPU."""
        self._process.step_back()

    def step_forward(self) -> bool:
        """Whether it could take that back: it stays behind, but need not be asked again."""
        return self._process.dies_with_us

    def go_home(self) -> None:
        """Run wherever the head may."""
        self._process.confine(self._home)
        self._resume()

    def _resume(self) -> None:
        if self._is_stopped:
            self._is_stopped = False
            self._process.resume()
