"""What the load of one model asks of a plan on any cores: what the division of the cores goes by."""

from collections import deque

from partita.planning.estimator import BatchSizeEstimator, EstimatorRules
from partita.planning.load import Sample
from partita.planning.switching import SwitchRules


class DemandMeter:
    """Follows the samples that a controller gets, for whoever divides the cores."""

    def __init__(self, rules: EstimatorRules, switching: SwitchRules, *, now_s: float) -> None:
        self._planned_load = switching.planned_load
        self._times_s: deque[float] = deque([now_s], maxlen=rules.samples + 1)
        self._arrived: deque[int] = deque(maxlen=rules.samples)
        self._depth = 0.0

    def observe(self, sample: Sample) -> None:
        """Take the newest sample."""
        self._times_s.append(sample.now_s)
        self._arrived.append(sample.arrived)
        self._depth = sample.depth

    def demand(self, estimator: BatchSizeEstimator) -> tuple[int, float]:
        """Return items at once, and the items per second that a plan has to be able to do for that load.

        A model that nobody asks counts with one item, which may come at any time.
        """
        seconds, arrived = self._times_s[-1] - self._times_s[0], sum(self._arrived)
        if not arrived and self._depth < 1.0:
            return 1, 0.0
        rate = arrived / seconds if seconds > 0.0 else 0.0
        return estimator.batch, rate / self._planned_load
