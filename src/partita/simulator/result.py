"""What came of a simulation: latencies, depths, plans and decisions over time."""

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.core.plan import Plan
from partita.planning.decisions import Decision, Entry
from partita.simulator.arrivals import Arrivals

Floats = NDArray[np.float64]

MOST_WINDOWS = 240
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulationResult:
    """One run. Latencies are from arrival to the last item's end, seconds."""

    arrivals: Arrivals
    latencies_s: Floats  # (requests,), −1 where refused
    answered: int
    refused: int
    end_s: float
    """When the last request was answered."""
    capacity: float
    """Items per second that the best plan can do; without adaptation, the plan."""
    interval_s: float
    times_s: Floats  # (samples,)
    depths: Floats  # (samples,)
    batches: NDArray[np.int64]  # (samples,) B̃
    plans: tuple[tuple[float, Plan], ...]
    """Each plan with the time from which it was in force."""
    cores: tuple[tuple[float, int], ...]
    """How many cores its plans could have, with the time from which that was so."""
    log: tuple[Entry, ...]
    """The newest entries of the controller's log."""
    rebatches: int
    decided: tuple[Decision, ...]
    """Every switch."""

    def answered_s(self, from_s: float = 0.0, to_s: float = float("inf")) -> Floats:
        """Return the latencies of the answered requests that came in [from, to), seconds."""
        times = self.arrivals.times_s
        chosen = (times >= from_s) & (times < to_s) & (self.latencies_s >= 0.0)
        latencies: Floats = self.latencies_s[chosen]
        return latencies

    def mean_s(self, from_s: float = 0.0, to_s: float = float("inf")) -> float | None:
        """Return the mean latency of requests that came in [from, to); None where none did."""
        latencies = self.answered_s(from_s, to_s)
        return float(latencies.mean()) if len(latencies) else None

    def overloads(self) -> list[tuple[float, float, float]]:
        """Return (from, to, items per second) of each stretch in which more came than the capacity."""
        rates, width_s = self.arrivals.items_per_s(self.interval_s), self.interval_s
        found = joined(np.flatnonzero(rates > self.capacity), width_s, self.arrivals.duration_s)
        return [
            (start_s, end_s, float(rates[round(start_s / width_s) : ceil(end_s / width_s - 1e-9)].max()))
            for start_s, end_s in found
        ]

    def windows(self, *, at_most: int = MOST_WINDOWS) -> list[dict[str, Any]]:
        """Return the run in windows of some reconfiguration intervals, as JSON values."""
        intervals = max(1, -(-int(np.ceil(self.arrivals.duration_s / self.interval_s)) // at_most))
        width_s = intervals * self.interval_s
        rates = self.arrivals.items_per_s(width_s)
        rows = []
        for at, rate in enumerate(rates):
            start_s = at * width_s
            end_s = min(start_s + width_s, self.arrivals.duration_s)
            answered = self.answered_s(start_s, end_s if at + 1 < len(rates) else np.inf)
            seen = (self.times_s > start_s) & (self.times_s <= end_s)
            rows.append(
                {
                    "from_s": start_s,
                    "to_s": end_s,
                    "items_per_s": round(float(rate), 3),
                    **_summary(answered),
                    "depth": round(float(self.depths[seen].mean()), 2) if seen.any() else None,
                    "batch": int(self.batches[seen][-1]) if seen.any() else None,
                    "plan": str(self.plan_at(end_s)),
                    "cores": self.cores_at(end_s),
                }
            )
        return rows

    def plan_at(self, time_s: float) -> Plan:
        """Return the plan that was in force."""
        return next(plan for from_s, plan in reversed(self.plans) if from_s <= time_s)

    def cores_at(self, time_s: float) -> int:
        """Return how many cores it had."""
        return next(cores for from_s, cores in reversed(self.cores) if from_s <= time_s)

    def document(self) -> dict[str, Any]:
        """Return the run as JSON values."""
        return {
            "requests": len(self.latencies_s),
            "answered": self.answered,
            "refused": self.refused,
            "items": int(self.arrivals.items.sum()),
            "duration_s": round(self.arrivals.duration_s, 6),
            "end_s": round(self.end_s, 6),
            "offered_items_per_s": round(self._offered(), 3),
            "capacity_items_per_s": round(self.capacity, 3),
            "overloads": [
                {"from_s": start, "to_s": end, "items_per_s": round(rate, 3)}
                for start, end, rate in self.overloads()
            ],
            **_summary(self.answered_s()),
            "switches": len(self.decided),
            "rebatches": self.rebatches,
            "plans": [{"from_s": round(start, 6), "plan": str(plan)} for start, plan in self.plans],
            "windows": self.windows(),
            "decisions": [entry.document() for entry in self.log],
        }

    def _offered(self) -> float:
        duration_s = self.arrivals.duration_s
        return float(self.arrivals.items.sum()) / duration_s if duration_s else 0.0


def joined(windows: NDArray[np.intp], width_s: float, duration_s: float) -> list[tuple[float, float]]:
    """Return (from, to) of each stretch of these windows of a run, seconds."""
    found: list[tuple[float, float]] = []
    for at in windows:
        start_s = float(at * width_s)
        end_s = min(start_s + width_s, duration_s)
        if found and abs(found[-1][1] - start_s) < 1e-9:
            start_s, _ = found.pop()
        found.append((start_s, end_s))
    return found


def _summary(latencies_s: Floats) -> dict[str, float | None]:
    """Return mean and percentiles, milliseconds; None of no requests."""
    names = ["mean_ms", *(f"p{p}_ms" for p in PERCENTILES), "max_ms"]
    if not len(latencies_s):
        return dict.fromkeys(names)
    values = [latencies_s.mean(), *np.percentile(latencies_s, PERCENTILES), latencies_s.max()]
    return {name: round(float(value) * 1000.0, 4) for name, value in zip(names, values, strict=True)}
