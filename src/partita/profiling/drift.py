"""An anchor point, run again now and then, shows whether the machine itself became slower."""

from statistics import fmean

from partita.profiling.bench import Bench

_EVERY_S = 5.0
_ITERATIONS = 3


class Anchor:
    """The first point measured, and how its latency changed since."""

    def __init__(self) -> None:
        self._key: tuple[int, int] | None = None
        self._first_ms = 0.0
        self._drift = 1.0
        self._seen_s = 0.0

    def observe(self, key: tuple[int, int], mean_ms: float, bench: Bench, *, now_s: float) -> float:
        """Return the drift near this visit: the anchor's latency ÷ its first; measured anew when due."""
        if self._key is None:
            self._key, self._first_ms, self._seen_s = key, mean_ms, now_s
        elif key == self._key:
            self._drift, self._seen_s = mean_ms / self._first_ms, now_s
        elif now_s - self._seen_s >= _EVERY_S and self._first_ms <= _EVERY_S * 1e3 / 20:
            bench.run(*self._key)
            again = fmean(bench.run(*self._key).total_ms for _ in range(_ITERATIONS))
            self._drift, self._seen_s = again / self._first_ms, now_s
        return self._drift
