"""How long executions really take beside what the profile says (Partita's addition to Packrat).

A profile is measured alone, on a quiet machine as a rule. Under traffic, and beside other tenants of the
machine, an execution on several cores waits for the slowest of them, so wide instances lose more than thin
ones. What the machine does to all plans alike says nothing of which is better, so paces are compared only
across a switch: just before it and just after it, under the same load.
"""

from collections import deque
from math import isfinite

from partita.core.plan import Plan
from partita.planning.load import Sample
from partita.planning.switching import Kinds, kinds

MIN_EXECUTIONS = 6
"""Fewer batches than this say nothing of the pace."""
UNSETTLED = 4
"""Samples after a switch that do not count: the instances before it are still at their last batches."""
BETTER = 0.97
"""Paces that differ by less than this ratio are the same."""
REMEMBERED_S = 1800.0
"""So long counts what was seen of instances that run no more: neighbours on a machine come and go."""


class Pace:
    """Measured ÷ profiled time of the executions of late, for each set of instances that ran them.

    `samples` is how many samples the newest pace is taken from.
    """

    def __init__(self, samples: int) -> None:
        self._latest_s = 0.0
        self._unsettled = 0
        self._recent: deque[Sample] = deque(maxlen=samples)
        self._relative: dict[Kinds, tuple[float, float]] = {}
        """Pace of a set of instances relative to that of the first, and when that was seen."""
        self._left: tuple[Kinds, float] | None = None
        """What the last switch left, and its pace then, until the pace of the new instances is known."""

    @property
    def now(self) -> float | None:
        """Pace of the instances of today; None where too little ran of late."""
        profiled_s = sum(sample.profiled_s for sample in self._recent)
        if sum(sample.executed for sample in self._recent) < MIN_EXECUTIONS or profiled_s <= 0.0:
            return None
        return sum(sample.executed_s for sample in self._recent) / profiled_s

    def observe(self, plan: Plan, sample: Sample) -> None:
        """Take what `plan` executed since the sample before."""
        self._latest_s = sample.now_s
        if self._unsettled or not isfinite(sample.profiled_s):
            self._unsettled = max(0, self._unsettled - 1)
            return
        self._recent.append(sample)
        if self._left is None or len(self._recent) < (self._recent.maxlen or 0):
            return
        now = self.now
        if now is None:
            return
        old, before = self._left
        self._left = None
        new, known = kinds(plan), {of: relative for of, (relative, _) in self._relative.items()}
        if old in known or new not in known:
            known[old] = known.get(old, 1.0)
            known[new] = known[old] * now / before
        else:
            known[old] = known[new] * before / now
        for one in (old, new):
            self._relative[one] = (known[one], sample.now_s)

    def switched(self, old: Plan, batch: int) -> None:
        """Other instances serve from now on, for about `batch` items at once.

        What an item takes that is alone is not compared: nobody disturbs it.
        """
        now = self.now
        self._left = None if now is None or batch < 2 else (kinds(old), now)
        self._recent.clear()
        self._unsettled = UNSETTLED

    def of(self, plan: Plan, today: Plan, *, is_hopeful: bool = False) -> float:
        """Return the pace that a plan's instances would have now: that of today's where nothing is known.

        With `is_hopeful` unknown ones are thought to keep to the profile, if today's do not. Where others
        were tried and today's are no better than they, the machine is what is slow, and there is no hope.
        """
        now = self.now or 1.0
        relative = self._relative_to(today, plan)
        if relative is not None:
            return now * relative
        ours = self._relative.get(kinds(today))
        slowest = max((relative for relative, _ in self._relative.values()), default=0.0)
        if not is_hopeful or (ours is not None and ours[0] > BETTER * slowest):
            return now
        return min(now, 1.0)

    def is_known(self, plan: Plan, today: Plan) -> bool:
        """Whether the plan's instances were seen to run, compared with today's."""
        return self._relative_to(today, plan) is not None

    def _relative_to(self, today: Plan, plan: Plan) -> float | None:
        if kinds(plan) == kinds(today):
            return 1.0
        theirs, ours = self._relative.get(kinds(plan)), self._relative.get(kinds(today))
        if theirs is None or ours is None or self._latest_s - theirs[1] > REMEMBERED_S:
            return None
        return theirs[0] / ours[0]
