"""What workers warn of once they are ready: told once, however many workers, and starts, it is true of."""

from collections.abc import Callable, Sequence

from partita.system.cpus import format_cores
from partita.wire.messages import Ready


class WorkerWarnings:
    """Hands each warning on once; a refused pinning is one warning, whichever worker it was refused to."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._told: set[str] = set()

    def take(self, model: str, cores: Sequence[int], ready: Ready) -> None:
        """Tell what is new in what a worker for these cores says."""
        if not ready.pinned:
            self._once(
                "pinning",
                f"{model}: the system refuses to pin a worker to cores {format_cores(cores)}; workers run "
                "where it lets them, which may be slower than planned",
            )
        for warning in ready.warnings:
            self._once(f"{model}: {warning}", f"{model}: {warning}")

    def _once(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._tell(text)
